"""A comparison ends when its time is over by the clock on the wall, and when Ctrl-C says so."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from recorded import NumpyBackend

from pymm.backends import open_device
from pymm.backends.base import TimedCall
from pymm.backends.cpu import backend as cpu_backend
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure.workbench import FEWEST_ROUNDS, Workbench
from pymm.tune import comparison, tuner
from pymm.tune.devices import Crew
from pymm.tune.objective import Cost
from pymm.tune.session import Setup
from pymm.tune.trial_log import read_trials

KERNEL = find_kernel("reordered", "cpu")
CONFIGS = [KERNEL.config({"MB": size, "NB": 64, "KB": 16}) for size in (16, 32, 64, 128)]
PROBLEM = Problem(13, 17, 11)


class Resting(NumpyBackend):
    """What it times takes microseconds, but it rests before each, as a CPU does."""

    def time(self, calls, ahead=1):
        time.sleep(0.01 * len(calls))
        return super().time(calls, ahead)


def test_rounds_are_counted_by_the_clock():
    bench = Workbench(Resting(seconds=lambda config: 1e-6), PROBLEM)
    trials = bench.compare(CONFIGS, rounds=2000, budget=1.5)
    rounds = {len(trial.times) for trial in trials}
    assert rounds <= set(range(FEWEST_ROUNDS, 40)), rounds
    assert len(bench.compare(CONFIGS, rounds=FEWEST_ROUNDS + 3)[0].times) == FEWEST_ROUNDS + 3


def test_checking_takes_a_part_of_the_time():
    """Where a check takes long only the first configurations are compared."""
    backend = NumpyBackend()
    backend.synchronize = lambda: time.sleep(0.05)
    bench = Workbench(backend, PROBLEM)
    assert len(bench.compare(CONFIGS, checking=0.01)) == 2
    assert len(bench.compare(CONFIGS)) == 4


def test_rounds_get_what_checking_leaves():
    bench = Workbench(Resting(seconds=lambda config: 1e-6), PROBLEM)
    few = len(bench.compare(CONFIGS, rounds=2000, budget=0.5)[0].times)
    more = len(bench.compare(CONFIGS, rounds=2000, budget=0.5, checking=1.0)[0].times)
    assert more > 2 * few


@pytest.mark.parametrize(
    "calls, rests", [("....", 0), ("nn", 0), ("..n..", 1), ("nn.", 1), ("n.n.", 2)]
)
def test_threads_of_another_process_rest_first(monkeypatch, tmp_path, calls, rests):
    """What is timed elsewhere (n) has idle threads for a while, and its seconds are taken over."""
    slept = []
    monkeypatch.setattr(cpu_backend.time, "sleep", slept.append)
    backend = open_device("cpu:1", tmp_path)
    backend.device = SimpleNamespace(sms=2)

    elsewhere = TimedCall(pytest.fail, timed=lambda: 7.0)
    known = {".": TimedCall(lambda: None), "n": elsewhere}
    taken = backend.time([known[call] for call in calls])
    assert [seconds == 7 for seconds in taken] == [call == "n" for call in calls]
    assert slept == [cpu_backend.SETTLED] * rests


class Silent:
    """A worker that never answers."""

    def __init__(self):
        self.stopped = 0

    def begin(self, request, limit):
        self.request = request

    def result(self, timeout=0.0):
        time.sleep(0.01)

    def stop(self):
        self.stopped += 1


def test_a_comparison_does_not_outlive_an_interrupt(monkeypatch):
    """Few configurations, little time, then the child is ended; nothing is decided."""
    monkeypatch.setattr(comparison, "LAST_GRACE", 0.2)
    monkeypatch.setattr(comparison, "LAST_SECONDS", 0.2)
    worker = Silent()
    worker.device = open_device("cpu:1").device
    ranking = {config: 0.01 * (i + 1) for i, config in enumerate(CONFIGS)}
    costs = {config: Cost(seconds) for config, seconds in ranking.items()}
    best = {"best_configs": lambda count: CONFIGS[:count]}
    search = SimpleNamespace(costs=costs, ranking=ranking, **best)
    progress = SimpleNamespace(tick=lambda pending: None)
    setup = Setup(Crew([worker]), None, None, progress, lambda: True)
    final = comparison.Comparison(PROBLEM, [KERNEL], search, setup)
    assert final.decide(True, time.monotonic() + 60) is None
    assert worker.stopped == 1
    assert worker.request.budget <= 0.2 and not worker.request.against_others
    assert len(worker.request.configs) == 2, "the default and the best"


def test_ctrl_c_while_the_page_is_drawn(tmp_path, capsys):
    """The run ends, without a traceback."""

    def drawn(tuned):
        raise KeyboardInterrupt

    where = f"--storage {tmp_path}/state --output {tmp_path}/out"
    options = f"--shapes 16 --dtypes f32 --devices cpu:1 --trials 2 {where}"
    assert tuner.main(options.split(), drawn) == 130
    assert "saved; no page" in capsys.readouterr().out


@pytest.mark.parametrize("late", [0.0, 3.0])
def test_ctrl_c_ends_a_run(tmp_path, late):
    """On all cores, where each call of a comparison rests: during the search, and later."""
    where = f"--storage {tmp_path}/state --output {tmp_path}/out --csv {tmp_path}/trials.csv"
    options = f"--shapes 64 --dtypes f32 --devices cpu --trials 3 {where}"
    run = subprocess.Popen(
        [sys.executable, "-m", "pymm.tune", *options.split()], stdout=subprocess.PIPE, text=True
    )
    with run:
        path, deadline = tmp_path / "trials.csv", time.monotonic() + 120
        while time.monotonic() < deadline and run.poll() is None:
            if path.exists() and list(read_trials(path)):
                break
            time.sleep(0.02)
        time.sleep(late)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        told, _ = run.communicate(timeout=60)
    assert run.returncode in (130, 0 if late else 130), told
    assert time.monotonic() - began < 20, told
    assert os.path.exists(path)
