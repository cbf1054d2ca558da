"""The threads that CPU kernels share: every piece is done once, and callers wait for nobody who has
taken none. Nothing here is timed: pieces wait for each other until a deadline fails the test.
"""

import ctypes
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymm.backends import open_device
from pymm.backends.cpu.call import open_pool

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
RUN = ctypes.CFUNCTYPE(None, WORK, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
DEADLINE = 60


@pytest.fixture(scope="module")
def run():
    return RUN(open_pool(open_device("cpu").compiler).run)


class Job:
    """Pieces as they were done: (piece, worker). `body` is called in each."""

    def __init__(self, body=lambda piece, worker: None):
        self.done, self.failures = [], []

        def work(data, piece, worker):
            try:
                body(piece, worker)
            except BaseException as failure:
                self.failures.append(failure)
            self.done.append((piece, worker))

        self.work = WORK(work)

    def check(self, pieces, threads):
        assert not self.failures, self.failures
        assert sorted(piece for piece, _ in self.done) == list(range(pieces))
        assert all(0 <= worker < threads for _, worker in self.done)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40), st.integers(1, 6))
def test_every_piece_once(run, pieces, threads):
    job = Job()
    run(job.work, None, pieces, threads)
    job.check(pieces, threads)


def test_workers_and_the_caller_take_pieces_at_the_same_time(run):
    together = threading.Barrier(3)
    job = Job(lambda piece, worker: together.wait(DEADLINE))
    run(job.work, None, 3, 3)
    job.check(3, 3)
    assert {worker for _, worker in job.done} == {0, 1, 2}


def test_a_worker_that_is_held_up_holds_up_its_own_piece_alone(run):
    """It goes on only when the caller has done all others: shares that were given could not end."""
    others, taken = threading.Event(), threading.Event()
    count = []

    def body(piece, worker):
        if worker:
            taken.set()
            assert others.wait(DEADLINE)
        else:
            assert taken.wait(DEADLINE)
            count.append(piece)
            if len(count) == 6:
                others.set()

    job = Job(body)
    run(job.work, None, 7, 2)
    job.check(7, 2)
    assert len(count) == 6


def test_nobody_waits_for_workers_that_are_busy_elsewhere(run):
    """All workers are in the pieces of one caller; another one ends alone."""
    held, go_on = threading.Barrier(6), threading.Event()

    def body(piece, worker):
        held.wait(DEADLINE)
        assert go_on.wait(DEADLINE)

    slow, quick = Job(body), Job()
    caller = threading.Thread(target=lambda: run(slow.work, None, 5, 5))
    caller.start()
    held.wait(DEADLINE)
    run(quick.work, None, 9, 5)
    go_on.set()
    caller.join()
    quick.check(9, 5)
    slow.check(5, 5)
    assert {worker for _, worker in quick.done} <= {0}


def test_many_callers(run):
    jobs = []

    def call(seed):
        for turn in range(100):
            job, pieces, threads = Job(), (seed * 7 + turn) % 13, 1 + (seed + turn) % 5
            run(job.work, None, pieces, threads)
            jobs.append((job, pieces, threads))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(70)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert len(jobs) == 7000
    for job, pieces, threads in jobs:
        job.check(pieces, threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_in_the_middle_of_a_piece_has_workers_of_its_own(run):
    """The parent's never come back in the child, nor does the piece that one of them is in."""
    status, forked = [], threading.Event()

    def fork(piece, worker):
        if worker:
            assert forked.wait(DEADLINE)
        elif not status:
            child = os.fork()
            if child == 0:
                together = threading.Barrier(2)
                job = Job(lambda piece, worker: together.wait(DEADLINE))
                run(job.work, None, 2, 2)
                os._exit(0 if len(job.done) == 2 and not job.failures else 1)
            status.append(os.waitpid(child, 0)[1])
            forked.set()

    job = Job(fork)
    run(job.work, None, 4, 3)
    job.check(4, 3)
    assert status == [0]
