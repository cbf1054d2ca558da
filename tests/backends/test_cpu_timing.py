"""How long a call on a CPU takes: the shortest of a few."""

import math
import time

from pymm.backends.cpu import timing
from pymm.backends.cpu.timing import CALLS, SECONDS, shortest


def test_the_shortest_of_a_few_calls_counts_and_preparing_does_not(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", math.inf)  # however long a nap takes
    naps, prepared = iter([0.006, 0.001, 0.004]), []

    def prepare():
        prepared.append(time.sleep(0.01))

    seconds = shortest(lambda: time.sleep(next(naps)), prepare)
    assert 0.001 <= seconds
    assert len(prepared) == CALLS == 3 and next(naps, None) is None


def test_a_long_call_is_made_once():
    made = []
    assert shortest(lambda: made.append(time.sleep(SECONDS))) >= SECONDS
    assert len(made) == 1
