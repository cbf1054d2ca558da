"""Every test runs in directories of its own and, unless PYMM_TEST_GPU=1, on the simulated GPU.

The variables are set before anything imports pymm or PyCUDA: the stand-in driver takes the real
one's place only in a process that has not loaded a driver yet.

| variable | effect on a run of the tests |
|---|---|
| PYMM_TEST_GPU=1 | on this machine's GPU, without the tests that need the simulator |
| PYMM_TEST_CACHE | a directory where compiled kernels are kept from run to run |
| PYMM_TEST_ALL=1 | compile every kernel that is looked at for spills, not only changed ones |
| PYMM_SIMULATOR_OPTIMIZE=1 | kernels of the simulator run fast, but take longer to compile |
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ctypes.util import find_library
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]


def _library(name: str) -> str:
    """Where g++ has a library of its own: an absolute path, else its bare name or nothing."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return ""
    asked = [compiler, f"-print-file-name={name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _mpi_found(mark: str) -> bool:
    """Whether mpi4py is here and the mpirun of the package index's Open MPI ("mpi") or MPICH."""
    launcher = {"mpi": "bin/mpirun", "mpich": "mpich/bin/mpirun"}[mark]
    return find_spec("mpi4py") is not None and Path(sys.prefix, launcher).is_file()


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
SANITIZERS = all(
    os.path.isabs(_found) and os.path.exists(_found)
    for _found in (_library(name) for name in ("libasan.so", "libubsan.so", "libtsan.so"))
)
SCALAPACK = bool(find_library("scalapack-openmpi"))  # of Debian and Ubuntu
SIMGRID = any(Path("/usr/lib/python3/dist-packages").glob("simgrid*"))  # of the same
TORCH = find_spec("torch") is not None
MPIS = {name: _mpi_found(name) for name in ("mpi", "mpich")}
ON_GPU = os.environ.get("PYMM_TEST_GPU") == "1"

# A checkout can be tested without being installed, as on a machine that only lends its GPU.
sys.path.insert(0, str(ROOT))

# Hundreds of processes import pymm: without its bytecode each would compile all of it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit what the first process chose
    _home = tempfile.mkdtemp(prefix="pymm-tests-")
    for _kind in ("CACHE", "CONFIG", "STATE"):
        os.environ[f"PYMM_{_kind}_DIR"] = os.path.join(_home, _kind.lower())
    if "PYMM_TEST_CACHE" in os.environ:  # binaries kept from run to run: their key is their source
        os.environ["PYMM_CACHE_DIR"] = os.environ["PYMM_TEST_CACHE"]
    os.environ["PYCUDA_CACHE_DIR"] = os.path.join(_home, "pycuda")
    os.makedirs(os.environ["PYCUDA_CACHE_DIR"])
    if not ON_GPU:
        os.environ["PYMM_SIMULATOR"] = "1"
        # Most kernels are compiled for a few small products: 2.5 times less work in all.
        os.environ.setdefault("PYMM_SIMULATOR_OPTIMIZE", "0")
else:  # but not the locks of devices, or each would wait for the others' measurements
    os.environ["PYMM_STATE_DIR"] += "-" + os.environ["PYTEST_XDIST_WORKER"]

settings.register_profile("untimed", deadline=None)  # no test depends on how busy the machine is
settings.load_profile("untimed")

#: Files whose tests take longest, by seconds of one test: they begin first, so that all workers end
#: at the same time.
LONG_FIRST = (
    "test_survey",
    "test_report_rows",
    "test_ownership",
    "test_package",
    "test_sanitizers",
    "test_torture",
    "test_replay",
    "test_mpi",
    "test_tune_faults",
    "test_torch",
    "test_simulator_build",
    "test_api_real",
    "test_budget",
    "test_determinism",
    "test_tma_simulated",
    "test_emulated",
    "test_examples",
    "test_tune_custom",
    "test_race",
    "test_suites_device",
    "test_notebook",
    "test_races",
    "test_syrk_kernels",
    "test_classes",
    "test_worker",
    "test_report_browser",
    "test_report_hostile",
    "test_wgmma",
    "test_ranges",
    "test_sliced",
    "test_tensor_maps",
    "test_kernels",
)


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers, which would each build the simulator that they share."""
    if getattr(config.option, "numprocesses", None) and not ON_GPU:
        from pymm.simulator.build import CannotSimulate, build

        with contextlib.suppress(CannotSimulate):  # the tests that need it will say so
            build()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this machine is not asked to run or cannot; pytest reports how many. What
    takes longest comes first.
    Continuous integration has to have a browser, the sanitizers, both MPI libraries,
    ScaLAPACK, SimGrid and PyTorch.
    """
    unwanted = ["simulator" if ON_GPU else "gpu"]
    if not BROWSER and not os.environ.get("CI"):
        unwanted.append("browser")
    if not SANITIZERS and not os.environ.get("CI"):
        unwanted.append("sanitizers")
    if not os.environ.get("CI"):
        unwanted += [mark for mark, found in MPIS.items() if not found]
        unwanted += [] if SCALAPACK else ["scalapack"]
        unwanted += [] if SIMGRID else ["simgrid"]
        unwanted += [] if TORCH else ["torch"]
    left_out = [item for item in items if any(map(item.get_closest_marker, unwanted))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    rank = {name: number for number, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish() -> None:
    """What was collected lasts to the end: Python's garbage collector skips it from now on."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    """Where the CUDA kernels run, what looks at the pages of reports and at our own C++, and
    which MPI libraries, simulator of networks and PyTorch there are.
    """
    kernels = "on the GPU" if ON_GPU else "in the simulator"
    looked = f"in {BROWSER}" if BROWSER else "NOT LOOKED AT, no Chromium: apt install chromium"
    checked = "by g++'s sanitizers" if SANITIZERS else "NOT CHECKED, no libasan, libubsan, libtsan"
    missing = [{"mpi": "Open MPI", "mpich": "MPICH"}[mark] for mark in MPIS if not MPIS[mark]]
    under = f"NOT UNDER {' AND '.join(missing)}: make setup" if missing else "Open MPI and MPICH"
    under += (
        "" if SCALAPACK else ", NOT COMPARED WITH SCALAPACK: apt install libscalapack-openmpi2.2"
    )
    under += "" if SIMGRID else ", NOT REPLAYED: apt install python3-simgrid"
    tested = "with PyTorch" if TORCH else "NOT TESTED, no PyTorch: pip install torch into .venv"
    return [
        f"CUDA kernels: {kernels}",
        f"pages of reports: {looked}",
        f"our own C++: {checked}",
        f"several processes: {under}",
        f"pymm.torch: {tested}",
    ]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the first process's directories, binaries included."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(_home, ignore_errors=True)


@pytest.fixture(scope="session")
def directories_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new path for each test. Numbered here: `mktemp` looks through all that there are."""
    folder = tmp_path_factory.mktemp("tests")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_directories(directories_of_tests: Iterator[Path], monkeypatch) -> None:
    """No test sees another's tuned configurations or studies. Compiled binaries are shared: their
    key is the text that they were made from.
    """
    own = next(directories_of_tests)
    for folder in (own, own / "config", own / "state"):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(own / "config"))
    monkeypatch.setenv("PYMM_STATE_DIR", str(own / "state"))


@pytest.fixture(scope="session")
def cuda():
    """The backend that runs CUDA kernels: the simulator, or the first GPU with PYMM_TEST_GPU=1."""
    from pymm.backends import open_device

    return open_device("cuda")


@pytest.fixture(scope="session")
def cpu():
    """The backend of this machine's CPU, one thread."""
    from pymm.backends import open_device

    return open_device("cpu:1")


@pytest.fixture(scope="module")
def runner(cuda):
    """Kernels of the device, compiled once per variant and test file."""
    from guarded_products import Runner

    return Runner(cuda)
