"""How long a call on a CPU takes: the shortest of a few."""

from pymm.backends.cpu import timing
from pymm.backends.cpu.timing import CALLS, SECONDS, shortest


class Clock:
    """Nanoseconds that only preparing and calling let pass."""

    def __init__(self):
        self.now, self.log = 0, []

    def perf_counter_ns(self):
        return self.now

    def takes(self, name, *seconds):
        left = list(seconds)

        def run():
            self.log.append(name)
            self.now += round(1e9 * (left.pop(0) if len(left) > 1 else left[0]))

        return run


def timed(monkeypatch, *seconds):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    taken = shortest(clock.takes("call", *seconds), clock.takes("prepare", 1.0))
    return taken, clock.log


def test_the_shortest_of_a_few_calls_counts_and_preparing_does_not(monkeypatch):
    for order in ((6e-3, 1e-3, 4e-3), (1e-3, 6e-3, 4e-3), (4e-3, 6e-3, 1e-3)):
        assert timed(monkeypatch, *order) == (1e-3, ["prepare", "call"] * CALLS)


def test_calls_end_once_they_have_taken_long_enough(monkeypatch):
    assert timed(monkeypatch, SECONDS) == (SECONDS, ["prepare", "call"])
    assert timed(monkeypatch, 0.6 * SECONDS) == (0.6 * SECONDS, ["prepare", "call"] * 2)
    assert timed(monkeypatch, 0.4 * SECONDS)[1] == ["prepare", "call"] * CALLS
