"""The child process: whatever a kernel does to it is an outcome, and the next request is answered.

The faults are real: kernels that write where they must not, loop, take all memory or kill their
process, compiled for this machine's CPU.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty_kernels
import pytest

from pymm import kernels
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.measure.worker import Worker, WorkerFailed, time_limit
from pymm.measure.worker_process import Request, Site

SUPPORT = Path(__file__).resolve().parents[1] / "support"
SITE = Site("cpu:1", modules=("register_faults",))
PROBLEM = Problem(33, 20, 17)

MACHINES = [
    pytest.param("cpu:1", faulty_kernels.CPU, faulty_kernels.ON_CPU, id="cpu"),
    pytest.param(
        "cuda", faulty_kernels.CUDA, faulty_kernels.ON_CUDA, id="gpu", marks=pytest.mark.gpu
    ),
]


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", faulty_kernels.declared())


@pytest.fixture
def worker():
    worker = Worker(SITE)
    yield worker
    worker.stop()


def config(fault, kernel=faulty_kernels.CPU):
    return kernel.config({"MB": 16, "NB": 16, "FAULT": fault})


def measure(worker, fault, limit=60.0, kernel=faulty_kernels.CPU):
    return worker.ask(Request("measure", PROBLEM, (config(fault, kernel),)), limit)


@pytest.mark.parametrize("device, kernel, expected", MACHINES)
def test_every_fault_is_an_outcome(device, kernel, expected):
    """The same worker goes through all faults, one after the other, and is right in the end. In
    the simulator: tests/tune/test_tune_faults.py.
    """
    worker = Worker(Site(device, modules=SITE.modules))
    try:
        for fault, outcome in expected.items():
            reply = measure(worker, fault, 3.0 if outcome == "timed_out" else 60.0, kernel)
            got = reply.trials[0].outcome if reply.trials else reply.outcome
            assert got == outcome, (fault, reply)
            assert outcome == "ok" or (reply.detail or reply.trials[0].detail)
        assert measure(worker, 1, kernel=kernel).trials[0].outcome == "ok"
        ends = ("crashed", "timed_out") if device != "cuda" else ("timed_out", "launch_failed")
        strays = faulty_kernels.STRAYS_ON_CPU if device != "cuda" else ()
        lost = sum(outcome in ends or fault in strays for fault, outcome in expected.items())
        assert worker.replaced == lost
        worker.begin(Request("measure", PROBLEM, (config(4, kernel),)), 60.0)
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.result(timeout=30.0).outcome == "crashed"
        assert measure(worker, 1, kernel=kernel).trials[0].outcome == "ok"
    finally:
        worker.stop()


def test_how_a_child_died_is_said(worker):
    assert "SIGSEGV" in measure(worker, 3).detail
    assert "SIGKILL" in measure(worker, 8).detail


def test_a_signal_to_the_group_does_not_reach_the_child(worker):
    """`timeout` sends one to all processes of a command: the parent decides what it ends."""
    assert measure(worker, 1).trials[0].outcome == "ok"
    assert os.getpgid(worker.pid) == worker.pid != os.getpgrp()


def test_killed_while_idle(worker):
    assert measure(worker, 1).trials[0].outcome == "ok"
    os.kill(worker.pid, signal.SIGKILL)
    assert measure(worker, 1).outcome == "crashed"
    assert measure(worker, 1).trials[0].outcome == "ok"


def test_comparison_with_other_libraries(worker):
    reply = worker.ask(
        Request("compare", PROBLEM, (config(1),), rounds=5, against_others=True), 60.0
    )
    assert len(reply.trials[0].times) == 5
    assert len(reply.times["numpy"]) == 5 and min(reply.times["numpy"]) > 0


@pytest.mark.parametrize("device, kernel, expected", MACHINES)
def test_problem_that_does_not_fit(device, kernel, expected):
    """Too much memory is an outcome, and the child lives on."""
    worker = Worker(Site(device, modules=SITE.modules))
    try:
        huge = Problem(2**20, 2**20, 1, "f64")
        reply = worker.ask(Request("measure", huge, (config(1, kernel),)), 60.0)
        assert reply.trials[0].outcome == "launch_failed" and reply.trials[0].detail
        assert measure(worker, 1, kernel=kernel).trials[0].outcome == "ok"
        assert worker.replaced == 0
    finally:
        worker.stop()


def test_no_such_device():
    worker = Worker(Site("cpu:0"))
    with pytest.raises(WorkerFailed):
        worker.start()
    assert worker.pid is None
    with pytest.raises(WorkerFailed, match="no_such_module"):
        Worker(Site("cpu", modules=("no_such_module",))).start()


ORPHAN = """
import sys
sys.path[:0] = [{here!r}, {support!r}, {root!r}]
import register_faults
from test_worker import SITE, PROBLEM, config
from pymm.measure.worker_process import Request
from pymm.measure.worker import Worker
if __name__ == "__main__":
    worker = Worker(SITE)
    worker.start()
    worker.begin(Request("measure", PROBLEM, (config({fault}),)), 100.0)
    print(worker.pid, flush=True)
    worker.result(timeout=100.0)
    print("measured", flush=True)
    worker.result(timeout=100.0)
"""


@pytest.mark.parametrize("fault", [1, 4])
def test_orphans_end_by_themselves(tmp_path, fault):
    """The parent dies by `kill -9`; the child goes, also out of an endless kernel."""
    script = tmp_path / "orphan.py"
    script.write_text(
        ORPHAN.format(
            here=str(Path(__file__).parent),
            support=str(SUPPORT),
            root=str(SUPPORT.parents[1]),
            fault=fault,
        )
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "Z":  # ended; whoever adopted it has not asked yet
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_time_limits_grow_with_the_work():
    gpu = Device("gpu", "cuda", peak_flops={"f32": 6e13})
    small, large = Problem(64, 64, 64), Problem(8192, 8192, 8192)
    assert 20 <= time_limit(small, gpu) < 21
    assert time_limit(large, gpu) > time_limit(small, gpu) + 60
    assert time_limit(large, gpu, best_seconds=0.02) < time_limit(large, gpu)
    assert time_limit(small, Device("unknown", "simulator")) < 60
