"""What the tests of the simulator share: PyCUDA on it, and the kernels of simulator_kernels/."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parent
KERNELS = SUPPORT / "simulator_kernels"

#: Of processes that import pymm and what tests share.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT.parents[1]), str(SUPPORT)])}


def line_of(source: str, marker: str) -> int:
    """The line of a file of kernels that ends in "// line:" and `marker`; 0 if none does."""
    lines = (KERNELS / source).read_text().splitlines()
    return next((i for i, text in enumerate(lines, 1) if text.endswith(f"// line:{marker}")), 0)


def said_by(
    script: str, folder: Path, *kernels: str, timeout: float = 400, **environment: str
) -> dict:
    """What a script of this folder prints of kernels, each of which it runs in a process of its
    own.
    """
    done = subprocess.run(
        [sys.executable, str(SUPPORT / script), str(folder), *kernels],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def drv():
    """pycuda.driver with the primary context current."""
    import pymm.simulator

    pymm.simulator.activate()
    import pycuda.driver

    pycuda.driver.init()
    context = pycuda.driver.Device(0).retain_primary_context()
    context.push()
    yield pycuda.driver
    context.pop()


@pytest.fixture(scope="module")
def build(drv):
    """A .cu file of this folder as a SourceModule."""
    from pycuda.compiler import SourceModule

    def build(name: str, **defines):
        options = [f"-D{key}={value}" for key, value in defines.items()]
        text = (KERNELS / name).read_text()
        return SourceModule(text, no_extern_c=True, arch="sm_90", options=options)

    return build


@pytest.fixture(scope="module")
def features(build):
    return build("features.cu")


def called(drv, function, *arguments, out, block, grid=(1, 1), shared=0):
    """`out`, an array, after a launch with it as the last argument."""
    function(*arguments, drv.InOut(out), block=block, grid=grid, shared=shared)
    return out
