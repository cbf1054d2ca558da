"""What the simulator says of kernels that are wrong, and what the driver does from then on."""

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
from simulator_fixtures import KERNELS, SUPPORT, said_by

pytestmark = pytest.mark.simulator

SOURCE = KERNELS / "faults.cu"
ILLEGAL = "an illegal memory access was encountered"
FAILED = "unspecified launch failure"

# kernel: (class and words of the error that sticks, what the message on stderr says)
FAULTS = {
    "reads_past_the_end": (
        "LogicError",
        ILLEGAL,
        r"thread \(31,0,0\).*: reads 4 bytes at 0x\w+: "
        r"right past the end of allocation 1 \(128 bytes at 0x\w+\)",
    ),
    "reads_before_the_start": (
        "LogicError",
        ILLEGAL,
        r"thread \(0,0,0\).*: reads 4 bytes at "
        r"0x\w+: 4 bytes before the start of allocation 1",
    ),
    "writes_past_the_end": (
        "LogicError",
        ILLEGAL,
        r"thread \(31,0,0\).*: writes 4 bytes at "
        r"0x\w+: right past the end of allocation 1",
    ),
    "writes_far_away": ("LogicError", ILLEGAL, r"accesses memory at 0x\w+: "),
    "follows_null": ("LogicError", ILLEGAL, r"a null pointer"),
    "half_of_a_vector": ("LogicError", ILLEGAL, r"writes \d+ bytes at 0x\w+: right past the end"),
    "last_vector_too_long": (
        "LogicError",
        ILLEGAL,
        r"writes \d+ bytes at .*past the end of "
        r"allocation 1",
    ),
    "misaligned": ("LogicError", "misaligned address", r"0x\w+, which is no multiple of 16"),
    "never_written_shared": (
        "LaunchError",
        FAILED,
        r"reads tile\[0\]\[3\], which was never "
        r"written",
    ),
    "never_written_scalar": ("LaunchError", FAILED, r"reads total, which was never written"),
    "past_a_shared_array": (
        "LogicError",
        ILLEGAL,
        r"thread \(31,0,0\).*reads 4 bytes at 0x\w+: "
        r"right past the end of __shared__ first \(128 bytes\)",
    ),
    "past_dynamic_shared": (
        "LogicError",
        ILLEGAL,
        r"past the end of the dynamic shared memory "
        r"\(64 bytes\)",
    ),
    "barrier_after_return": (
        "LaunchError",
        FAILED,
        r"7 threads returned: \(0,0,0\).*\n"
        r" +25 threads at __syncthreads, line \d+: \(7,0,0\)",
    ),
    "two_barriers": (
        "LaunchError",
        FAILED,
        r"comes to the __syncthreads of line \d+, but thread "
        r"\(\d+,0,0\) of its block waits at that of line \d+",
    ),
    "barrier_for_some": (
        "LaunchError",
        FAILED,
        r"7 threads at __syncthreads(.|\n)*25 threads in "
        r"a warp operation",
    ),
    "shuffle_without_all": (
        "LaunchError",
        FAILED,
        r"7 threads in a warp operation(.|\n)*"
        r"25 threads returned",
    ),
    "shuffle_from_outside": ("LaunchError", FAILED, r"reads lane 9, which is not in its mask"),
    "mask_without_self": ("LaunchError", FAILED, r"a mask without the thread's own lane"),
    "traps": ("LaunchError", FAILED, r"thread \(5,0,0\): __trap\(\)"),
    "asserts": ("LogicError", "device-side assert triggered", r"`threadIdx.x < 31` failed"),
    "divides_by_zero": ("LaunchError", FAILED, r"divides an integer by zero"),
    "needs_much_stack": ("LaunchError", FAILED, r"needs more than 65536 bytes of stack"),
    "waits_for_nobody": (
        "LogicError",
        "device-side assert triggered",
        r"some thread of the block does not come to this barrier",
    ),
    "fetches_without_a_map": (
        "LogicError",
        "device-side assert triggered",
        r"the tensor map has not been made",
    ),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    """faults.cu, compiled."""
    from pymm.simulator import nvcc

    out = tmp_path_factory.mktemp("faults") / "faults.cubin"
    headers = SUPPORT.parents[1] / "cuda_src"
    command = [nvcc(), "--cubin", "-arch=sm_90", "-I", headers, "-o", str(out), str(SOURCE)]
    subprocess.run(command, check=True)
    return out


run = partial(said_by, "simulator_faults.py", timeout=120)


@pytest.fixture(scope="module")
def outcomes(module) -> dict:
    """The outcome of every faulty kernel, and of the right one."""
    return run(module, "right", *FAULTS, PYMM_SIMULATOR_ORDER="forward")


def test_a_right_kernel_leaves_nothing_behind(outcomes):
    found = outcomes["right"]
    assert found["said"].pop("result") == [2.0 * i for i in range(32)]
    assert set(found["said"].values()) == {"ok"}
    assert found["stderr"] == ""


@pytest.mark.parametrize("kernel", FAULTS)
def test_the_fault_is_named(outcomes, kernel):
    """Kernel, block, thread and place on stderr; once, whatever else fails with it."""
    found = outcomes[kernel]["stderr"]
    assert re.search(FAULTS[kernel][2], found), found
    assert f"pymm simulator: kernel {kernel}, block (0,0,0), thread (" in found
    assert found.count("pymm simulator: ") == 1


@pytest.mark.parametrize("kernel", FAULTS)
def test_the_error_sticks(outcomes, kernel):
    """As on a GPU: the launch returns, all that comes after fails with its error."""
    error, words, _ = FAULTS[kernel]
    said = outcomes[kernel]["said"]
    assert outcomes[kernel]["status"] == 0
    assert said.pop("launch") == "ok"
    assert said.pop("result") is None
    for call, text in said.items():
        assert text.startswith(f"{error}: ") and text.endswith(f"failed: {words}"), (call, text)


def test_the_line_is_named(outcomes):
    """The line that faults, in the file as the user wrote it."""
    lines = SOURCE.read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "line:never_written_shared" in text)
    assert f": faults.cu:{line}: reads" in outcomes["never_written_shared"]["stderr"]


def test_a_blocking_launch_fails_itself(module):
    """CUDA_LAUNCH_BLOCKING=1, as with the real driver."""
    said = run(module, "writes_past_the_end", CUDA_LAUNCH_BLOCKING="1")["writes_past_the_end"]
    assert said["said"]["launch"] == f"LogicError: cuLaunchKernel failed: {ILLEGAL}"


@pytest.mark.parametrize("order", ["forward", "backward", "random:3", "rotate"])
def test_faults_are_found_in_every_order(module, order):
    names = ["never_written_shared", "barrier_after_return", "two_barriers", "past_a_shared_array"]
    for kernel, found in run(module, *names, PYMM_SIMULATOR_ORDER=order).items():
        assert f"kernel {kernel}, block" in found["stderr"]
        assert FAULTS[kernel][1] in found["said"]["synchronize"]


def test_an_order_that_does_not_exist_is_refused(module):
    said = run(module, "right", PYMM_SIMULATOR_ORDER="sideways")["right"]
    assert "sideways is not known; it may be forward, backward" in said["stderr"]
    assert "invalid argument" in said["said"]["launch"]
