"""What the tests of the simulator share: PyCUDA on it, and the kernels of simulator_kernels/."""

from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "simulator_kernels"


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
