"""Processes that used a GPU end in silence, and outlive a kernel that costs them the device."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_child(body: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, with the environment of the tests."""
    script = textwrap.dedent(
        """
        import threading
        import numpy as np
        from pymm.backends import open_device
        from pymm.backends.base import Matrix
        from pymm.core.errors import LaunchFailed
        from pymm.kernels import find_kernel
        from pymm.core.problem import Problem
        from pymm.kernels.source import render

        backend = open_device("cuda")
        config = find_kernel("naive").config(dict(MB=8, NB=8))
        problem = Problem(8, 8, 8)

        def multiply():
            ones = np.ones((8, 8), np.float32)
            buffers = [backend.allocate(ones.nbytes) for _ in range(3)]
            for buffer in buffers:
                backend.copy_in(ones, buffer.address, 32, "pinned")
            matrices = [Matrix(buffer.address, 8, 0, buffer) for buffer in buffers]
            call = backend.load(render(config, problem)).bind(
                problem, 1.0, *matrices[:2], 0.0, matrices[2]
            )
            call()
            buffers[2].read(ones)
            assert (ones == 8).all()
            return call
        """
    ) + textwrap.dedent(body)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "body",
    [
        "kept = multiply()",
        "multiply()",
        """
        import sys
        kept = multiply()
        for _ in range(5): kept()  # as a graph
        sys.kept = kept  # outlives the modules
        """,
        """
        kept = []
        threads = [threading.Thread(target=lambda: kept.append(multiply())) for _ in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        del kept[0]
        """,
        """
        made = multiply()
        thread = threading.Thread(target=lambda: made())
        thread.start(); thread.join()
        holder = [made]; del made
        thread = threading.Thread(target=holder.clear)
        thread.start(); thread.join()
        """,
        """
        import pycuda.driver
        context = pycuda.driver.Device(0).make_context()
        kept = multiply()
        context.pop()
        """,
        """
        import pycuda.autoprimaryctx
        kept = multiply()
        array = backend.empty((3, 3), np.float32)
        array.fill(np.float32(0)) if backend.device.kind == "cuda" else None
        """,
    ],
    ids=["kept", "dropped", "graph", "threads", "passed on", "own context", "autoprimaryctx"],
)
def test_processes_end_in_silence(body):
    done = run_child(body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_kernel_that_reads_nowhere_costs_the_process_its_device_and_nothing_else():
    done = run_child(
        """
        kept = multiply()
        nowhere = Matrix(64, 8)
        call = backend.load(render(config, problem)).bind(
            problem, 1.0, nowhere, nowhere, 0.0, nowhere)
        def fault():
            for attempt in range(2):
                try:
                    call()
                    backend.synchronize()
                except LaunchFailed as error:
                    assert error.sticky and "only a new process" in str(error), error
                else:
                    raise AssertionError("reading address 64 went unnoticed")
            try:
                backend.allocate(16)
            except LaunchFailed as error:
                assert error.sticky, error
            else:
                raise AssertionError("memory from a lost context")
        thread = threading.Thread(target=fault)
        thread.start(); thread.join()
        fault()
        print("survived")
        """
    )
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr
    assert "clean-up operation failed" not in done.stderr
    assert "Exception" not in done.stderr
