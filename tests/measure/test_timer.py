"""A late host: its delays do not count, what is void is taken again and counted."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
from h200 import H200
from recorded import NumpyBackend

from pymm.backends.base import TimedCall
from pymm.backends.cuda.timing import TOGETHER, timed
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import render
from pymm.measure.timer import FINAL_ROUNDS, HALVED_FROM, Stopwatch, quieter_half
from pymm.measure.workbench import Workbench

KERNEL = find_kernel("reordered", "cpu")
CONFIG = KERNEL.config({"MB": 16, "NB": 64, "KB": 16})
OTHER = KERNEL.config({"MB": 32, "NB": 64, "KB": 16})
SMALL = Problem(13, 17, 11)

QUEUE = 5e-6  # seconds that the host needs for anything it queues


class Clock:
    """A host that queues and a device that works it off, each at its own time."""

    def __init__(self, busy):
        self.host = self.device = 0.0
        self.busy, self.log = busy, []

    def queue(self, work):
        self.host += QUEUE
        self.device = max(self.device, self.host) + work

    def event(self):
        clock = self

        class Event:
            def record(self):
                clock.queue(0.0)
                self.at = clock.device

            def query(self):
                return self.at <= clock.host

            def time_till(self, other):
                return (other.at - self.at) * 1e3

        return Event()

    def call(self, name, delay, work):
        def launch():
            self.log.append(name)
            self.host += delay
            self.queue(work)

        return launch

    def take(self, calls, check=True):
        def keep_busy():
            self.log.append("busy")
            self.queue(self.busy)

        return timed(calls, keep_busy, self.event, lambda: self.log.append("end"), check)


def test_a_late_host_makes_a_sample_void():
    """A launch of 200 us is hidden by 300 us of other work, but not by 100."""
    for busy, void in ((100e-6, True), (300e-6, False)):
        clock = Clock(busy)
        quick, slow = clock.call("quick", 20e-6, 7e-6), clock.call("slow", 200e-6, 7e-6)
        seconds = clock.take([quick, slow, quick])
        assert math.isnan(seconds[1]) == void
        for sound in seconds[::2] if void else seconds:
            assert abs(sound - 7e-6) < 1e-9


def test_without_the_check_the_delay_is_measured():
    clock = Clock(100e-6)
    (seconds,) = clock.take([clock.call("slow", 200e-6, 7e-6)], check=False)
    assert seconds > 100e-6


def test_what_prepares_a_call_comes_before_the_device_is_kept_busy():
    clock = Clock(100e-6)
    call = clock.call("call", 0.0, 7e-6)

    def prepare():
        clock.log.append("prepare")
        clock.host += 1e-3

    (seconds,) = clock.take([TimedCall(call, prepare)])
    assert clock.log == ["prepare", "busy", "call", "end"] and abs(seconds - 7e-6) < 1e-9


def test_the_host_is_a_few_samples_ahead_and_no_more():
    clock = Clock(100e-6)
    calls = [clock.call(f"{i}", 0.0, 7e-6) for i in range(2 * TOGETHER + 1)]
    assert len(clock.take(calls)) == len(calls)
    ends = [i for i, said in enumerate(clock.log) if said == "end"]
    assert np.diff([-1, *ends]).tolist() == [2 * TOGETHER + 1] * 2 + [3]
    clock.log.clear()
    clock.take(calls, check=False)
    assert clock.log.count("end") == 1, "without a flush nothing comes between them"


class Late(NumpyBackend):
    """A device whose host is late for some calls, until the device is kept busy `patience` times
    as long as at first.
    """

    def __init__(self, patience, of=lambda config: True):
        super().__init__()
        self.patience, self.of = patience, of

    def time(self, calls, ahead=1):
        times = super().time(calls, ahead)
        late = [ahead < self.patience and self.of(call.config) for call in calls]
        return [np.nan if flag else seconds for flag, seconds in zip(late, times, strict=True)]


def test_samples_that_the_host_was_late_for_are_taken_again():
    """With the device kept busy for longer; what was void is counted and is in no median."""
    backend = Late(patience=4)
    trial = Workbench(backend, SMALL).measure(CONFIG, best_seconds=1e-3)
    assert trial.outcome == "ok" and trial.seconds == 1e-3
    assert len(trial.times) == 7 and not np.isnan(trial.times).any()
    assert trial.void > 0 and {1, 2, 4} <= set(backend.ahead)

    backend = Late(patience=2, of=lambda config: config == OTHER)
    bench = Workbench(backend, SMALL)
    first, second = bench.compare([CONFIG, OTHER], rounds=5)
    assert (first.outcome, first.void, len(first.times)) == ("ok", 0, 5)
    assert (second.outcome, len(second.times)) == ("ok", 5) and second.void <= 5
    assert bench.void == {CONFIG.slug: 0, OTHER.slug: second.void}


def test_a_call_that_the_host_is_always_late_for_has_no_time():
    backend = Late(patience=1000, of=lambda config: config == OTHER)
    bench = Workbench(backend, SMALL)
    trial = bench.measure(OTHER)
    assert trial.outcome == "disturbed" and np.isnan(trial.seconds)
    assert "launch delay" in trial.detail and trial.void == 7
    assert max(backend.ahead) == 64, "no longer than that, however often"
    first, second = bench.compare([CONFIG, OTHER], rounds=5)
    assert (first.outcome, second.outcome) == ("ok", "disturbed")
    assert bench.times[OTHER.slug] == []


def test_what_takes_a_gpu_long_is_run_once_in_a_comparison():
    for kind, runs in (("cuda", 1), ("cpu", 5)):
        backend = NumpyBackend(seconds=lambda c: 2.0 if c == OTHER else 1e-3, kind=kind)
        first, second = Workbench(backend, SMALL).compare([CONFIG, OTHER], rounds=5)
        assert (first.outcome, first.seconds, len(first.times)) == ("ok", 1e-3, 5)
        assert (second.outcome, second.seconds, len(second.times)) == ("ok", 2.0, runs)


def test_the_device_is_kept_busy_for_less_again():
    backend = Late(patience=16)
    watch = Stopwatch(backend)
    call = Workbench(backend, SMALL).call(backend.load(render(CONFIG, SMALL)))
    assert watch.time([call]) == [1e-3] and watch.void[call] == 4
    backend.patience = 0
    backend.ahead.clear()
    for _ in range(6):
        watch.time([call])
    assert backend.ahead == [16, 8, 4, 2, 1, 1]


class Scripted:
    """A backend on which each call takes its own times in turn, the last one from then on."""

    device = H200

    def __init__(self, times):
        self.times = {name: list(of) for name, of in times.items()}
        self.taken = []

    def call(self, name):
        return partial(str, name)

    def time(self, calls, ahead=1):
        found = []
        for call in calls:
            (name,) = call.args
            of = self.times[name]
            found.append(of.pop(0) if len(of) > 1 else of[0])
            self.taken.append(name)
        return found


def fastest_of(times, seconds=math.inf):
    backend = Scripted(times)
    found = Stopwatch(backend).fastest(map(backend.call, times), seconds)
    return found and found.args[0], backend


def test_the_fastest_of_many_is_found_by_its_median():
    times = {f"call {number}": [1.0 + number] for number in range(12)}
    times["call 11"] = [1.5, 0.5]  # the first sample is one of the best, the others are better
    times["call 10"] = [0.1, 9.0]  # one lucky sample
    name, backend = fastest_of(times)
    assert name == "call 11"
    assert "call 9" not in backend.taken[12:], "only the best are timed again"
    assert backend.taken.count("call 11") == 1 + FINAL_ROUNDS


def test_what_comes_late_is_not_looked_at():
    name, backend = fastest_of({"likely": [2.0], "late": [1.0]}, seconds=-1.0)
    assert name == "likely" and backend.taken == ["likely"]


def test_void_samples_are_no_times():
    assert fastest_of({"void": [math.nan], "sound": [3.0]})[0] == "sound"
    assert fastest_of({"void": [math.nan]})[0] is None
    assert fastest_of({})[0] is None
    assert fastest_of({"once": [1.0, math.nan], "always": [2.0, math.nan]})[0] == "once"


def test_rounds_that_were_slow_for_all_calls_are_left_out():
    slow = [1, 2, 2, 1, 2, 1, 1, 2, 1, 2]  # a core was taken away in every second round or so
    times = {"short": [1e-4 * s for s in slow], "long": [3e-3 * s for s in slow]}
    kept, rounds = quieter_half(times, 10)
    assert rounds == 5
    assert kept == {"short": [1e-4] * 5, "long": [3e-3] * 5}


def test_the_rounds_that_are_kept_are_in_order_and_the_same_of_all_calls():
    disturbed = {1, 2, 3, 8, 10, 11}
    times = {
        name: [seconds * (2 if r in disturbed else 1) + 1e-6 * r for r in range(12)]
        for name, seconds in (("a", 1e-3), ("b", 5e-3), ("c", 2e-2))
    }
    kept, rounds = quieter_half(times, 12)
    assert rounds == 6
    assert kept == {name: [of[r] for r in (0, 4, 5, 6, 7, 9)] for name, of in times.items()}


def test_few_rounds_and_calls_without_some_time_are_kept_whole():
    few = {"a": [1.0] * (HALVED_FROM - 1)}
    assert quieter_half(few, HALVED_FROM - 1) == (few, HALVED_FROM - 1)
    void = {"a": [1.0] * 12, "b": [1.0] * 11}
    assert quieter_half(void, 12) == (void, 12)


def test_a_stopwatch_leaves_slow_rounds_out_on_a_cpu_alone():
    slow = {"a": [1.0, 2.0] * 10, "b": [3.0, 6.0] * 10}
    for shared, expected in ((False, [1.0, 2.0] * 10), (True, [1.0] * 10)):
        backend = Scripted(slow)
        backend.device = SimpleNamespace(shares_host_cores=shared)
        calls = {name: backend.call(name) for name in slow}
        times, rounds = Stopwatch(backend).rounds(calls, 20, 20)
        assert (times["a"], rounds) == (expected, len(expected))
