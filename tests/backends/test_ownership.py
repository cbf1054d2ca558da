"""A launch owns what it uses: sequences of calls that once met freed or shared memory, and random
ones. Each runs in a process of its own, for a fault poisons all of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pymm

SUPPORT = Path(__file__).resolve().parents[1] / "support"
MIB = 2**20

#: Cases that need streams whose work is queued, and in which order the simulator does it.
QUEUED = {
    "threads_have_default_streams": ("random:1", "random:2"),
    "handles_are_given_out_again": ("late", "random:3"),
    "graphs_share_no_scratch": ("random:4", "random:5"),
}
CASES = [
    "scratch_grows",
    "rebinds_are_cleared",
    "threads_have_default_streams",
    "handles_are_given_out_again",
    "captured_at_first_use",
    "scratch_of_graphs_lives",
    "graphs_share_no_scratch",
    "graphs_give_back",
    "copies_of_graphs_live",
    "host_arrays_are_not_captured",
    "arrays_go_while_others_are_captured",
    "no_memory_for_copies",
]


def run(script, *arguments, streams="now"):
    """A script of this folder; its output if it ends well."""
    environment = os.environ | {"PYMM_SIMULATOR_STREAMS": streams}
    command = [sys.executable, "-W", "error", str(SUPPORT / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.parametrize("case", CASES)
def test_a_launch_owns_what_it_uses(case, cuda):
    for streams in QUEUED.get(case, ("now", "late")):
        assert run("ownership_cases.py", case, streams=streams).endswith("right\n")


@pytest.mark.parametrize(
    "seed, streams", [(1, "now"), (1001, "late"), (2001, "random:7"), (3001, "random:8")]
)
def test_random_sequences(seed, streams, cuda):
    """1,000 in all; `tests/support/sequences.py` runs more."""
    said = run("sequences.py", "--count", "250", "--seed", str(seed), streams=streams)
    assert "250 sequences" in said and "0 wrong" in said


# Scratch memory, without a device


class Memory:
    """Where pieces come from, and how often caches were told to let go."""

    def __init__(self):
        self.made, self.dropped = [], 0

    def allocate(self, nbytes):
        self.made.append(nbytes)
        return type("Buffer", (), {"nbytes": nbytes, "address": 4096 * len(self.made)})()

    def drop(self):
        self.dropped += 1


@pytest.fixture
def memory(cuda):
    """The module imports PyCUDA, which needs a driver, or what stands in."""
    return Memory()


def scratch_of(memory, most=1000 * MIB):
    from pymm.backends.cuda.scratch import Scratch

    return Scratch(memory.allocate, None, most, memory.drop)


def place(handle=5, stream=1):
    from pymm.backends.cuda.driver import StreamState
    from pymm.backends.cuda.scratch import StreamPlace

    return StreamPlace(1, handle, StreamState(stream))


def test_a_stream_has_one_piece_that_grows(memory):
    scratch = scratch_of(memory)
    first = scratch.lease(place(), 1)
    assert scratch.lease(place(), 4 * MIB) is first and first.nbytes == 4 * MIB
    larger = scratch.lease(place(), 5 * MIB)
    assert larger.nbytes == 8 * MIB and memory.dropped == 1 and scratch.nbytes == 8 * MIB
    assert scratch.lease(place(), 1) is larger
    assert scratch.lease(place(handle=6), 1) is not larger


def test_another_stream_of_the_same_handle_has_its_own(memory):
    scratch = scratch_of(memory)
    first = scratch.lease(place(stream=1), 10)
    assert scratch.lease(place(stream=2), 10) is not first
    assert scratch.nbytes == 4 * MIB  # the former one's is given up


def test_a_piece_shrinks_to_what_is_needed(memory):
    scratch = scratch_of(memory)
    scratch.lease(place(), 900 * MIB)
    for _ in range(600):
        piece = scratch.lease(place(), 30 * MIB)
    assert piece.nbytes == 32 * MIB == scratch.nbytes


def test_all_pieces_are_bounded(memory):
    scratch = scratch_of(memory, most=100 * MIB)
    for handle in range(5, 30):
        scratch.lease(place(handle=handle), 30 * MIB)
        assert scratch.nbytes <= 100 * MIB
    assert scratch.lease(place(), 500 * MIB).nbytes >= 500 * MIB  # one product may need more
    assert scratch.nbytes < 600 * MIB


def test_nothing_is_leased_for_nothing(memory):
    assert scratch_of(memory).lease(place(), 0).address == 0 and not memory.made


# Plans


def test_an_array_of_a_plan_cannot_be_resized(cpu):
    a, b = np.ones((4, 4)), np.ones((4, 4))
    plan = pymm.plan(a, b, device=cpu)
    with pytest.raises(ValueError, match="resize"):
        a.resize((400, 400), refcheck=False)
    np.testing.assert_array_equal(plan(), a @ b)
    del plan
    a.resize((2, 2), refcheck=False)
    whole = np.ones((8, 4))
    plan = pymm.plan(whole[2:6], b, device=cpu)
    with pytest.raises(ValueError, match="resize"):
        whole.resize((2, 2), refcheck=False)
    np.testing.assert_array_equal(plan(), whole[2:6] @ b)


def test_an_out_that_became_read_only_is_refused(cpu):
    a, out = np.ones((4, 4)), np.zeros((4, 4))
    plan = pymm.plan(a, a, out=out, device=cpu)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        plan()
    assert not out.any()


@pytest.mark.filterwarnings("ignore:Setting the dtype")
def test_another_dtype_is_refused(cpu):
    a, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    plan = pymm.plan(a, a, out=out, device=cpu)
    a.dtype = np.int32
    with pytest.raises((ValueError, TypeError, NotImplementedError), match="float32|int32"):
        plan()
    assert not out.any()


def test_memory_that_was_replaced_is_bound_anew(cuda):
    import pycuda.driver as drv
    from pycuda import gpuarray

    context = drv.Device(cuda.device.index).retain_primary_context()
    context.push()
    try:
        a, b = (gpuarray.to_gpu(np.full((8, 8), x, np.float32)) for x in (1, 2))
        out = gpuarray.zeros((8, 8), np.float32)
        plan = pymm.plan(a, b, out=out, device=cuda)
        assert (plan().get() == 16).all()
        other = gpuarray.to_gpu(np.full((8, 8), 3, np.float32))
        a.gpudata = other.gpudata
        del other
        assert (plan().get() == 48).all()
    finally:
        drv.Context.pop()
