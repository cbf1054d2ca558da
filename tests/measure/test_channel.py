"""What comes from a child is not trusted: anything but a reply is a crash, within its time."""

import os
import time
from multiprocessing import Pipe

import fake_child
import pytest

from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure import worker as workers
from pymm.measure.channel import HEADER, LONGEST, MARK, Channel, Garbled
from pymm.measure.worker import Worker, WorkerFailed
from pymm.measure.worker_process import Request, Site

PROBLEM = Problem(33, 20, 17)
REQUEST = Request("measure", PROBLEM, (find_kernel("reordered", "cpu").default_config,))


@pytest.fixture
def ends():
    here, there = map(Channel, Pipe())
    yield here, there
    here.close()
    there.close()


def test_messages_arrive_whole_and_in_order(ends):
    here, there = ends
    for message in ({"a": 1}, [1.5] * 1000, "", b"x"):
        here.send(message)
    there.send("back")
    assert [there.receive(1.0) for _ in range(4)] == [{"a": 1}, [1.5] * 1000, "", b"x"]
    assert here.receive(1.0) == "back"
    assert there.receive(0.0) is None


def test_half_a_message_waits_for_the_other_half(ends):
    here, there = ends
    here.send(["whole"] * 100)
    sent = os.read(there.fileno(), 1 << 20)
    for piece in (sent[:5], sent[5:40], sent[40:-1]):
        os.write(here.fileno(), piece)
        began = time.monotonic()
        assert there.receive(0.05) is None
        assert time.monotonic() - began < 5
    os.write(here.fileno(), sent[-1:])
    assert there.receive(1.0) == ["whole"] * 100


def test_every_flipped_byte_is_noticed(ends):
    here, there = ends
    here.send({"outcome": "ok"})
    sent = os.read(there.fileno(), 1 << 20)
    for place in (*range(4), *range(8, HEADER.size), HEADER.size, len(sent) - 2):
        left, right = map(Channel, Pipe())
        os.write(left.fileno(), sent[:place] + bytes([sent[place] ^ 0x81]) + sent[place + 1 :])
        with pytest.raises(Garbled):
            right.receive(1.0)
        left.close()
        right.close()


def test_limits(ends):
    here, there = ends
    with pytest.raises(ValueError, match="the longest"):
        here.send(bytes(LONGEST + 1))
    os.write(here.fileno(), HEADER.pack(MARK, LONGEST + 1, bytes(16)))
    with pytest.raises(Garbled):
        there.receive(1.0)
    with pytest.raises(TimeoutError):
        here.send(bytes(LONGEST // 2), timeout=0.2)
    there.close()
    with pytest.raises(EOFError):
        here.receive(1.0)
    with pytest.raises(OSError):
        here.send("anybody there?")


@pytest.mark.parametrize(
    "child, outcome, words",
    [
        ("garbage", "crashed", "begin no message"),
        ("huge_length", "crashed", "begin no message"),
        ("one_flipped_bit", "crashed", "digest"),
        ("no_pickle", "crashed", "cannot be read"),
        ("another_object", "crashed", "a dict instead of a Reply"),
        ("closes", "crashed", "does not answer"),
        ("closes_in_the_middle", "crashed", "exit status 3"),
        ("half_a_message", "timed_out", "time limit"),
        ("half_a_header", "timed_out", "time limit"),
        ("reads_nothing", "timed_out", "time limit"),
    ],
)
def test_what_is_no_reply_costs_one_trial(monkeypatch, child, outcome, words):
    """In time; the next request finds a new child."""
    worker = Worker(Site("cpu:1"))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(workers, "serve", getattr(fake_child, child))
            worker.start()
            began = time.monotonic()
            reply = worker.ask(REQUEST, 1.0)
        assert time.monotonic() - began < 30
        assert (reply.outcome, reply.lost) == (outcome, True) and words in reply.detail, reply
        assert worker.pid is None and worker.replaced == 1
        assert worker.ask(REQUEST, 60.0).trials[0].outcome == "ok"
    finally:
        worker.stop()


def test_what_is_no_hello(monkeypatch):
    monkeypatch.setattr(workers, "serve", fake_child.no_hello)
    worker = Worker(Site("cpu:1"))
    with pytest.raises(WorkerFailed, match="did not start: bytes that begin no message"):
        worker.start()
    assert worker.pid is None
