"""Several devices: one study that all of them share, nothing twice, and a device that is lost costs
the run nothing but its own time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import fake_tuner
import pytest
from recorded import RecordedWorker
from recorded_run import Run, numbered, smooth

from pymm.console import Stop
from pymm.core.files import locked
from pymm.core.paths import state_directory
from pymm.measure.worker import WorkerFailed
from pymm.measure.worker_process import Reply
from pymm.tune import session, tuner
from pymm.tune.devices import SeveralModels, parse_devices, tune_each
from pymm.tune.session import TRIED_AGAIN
from pymm.tune.study import Search
from pymm.tune.tuner import INTERRUPTED, NO_DEVICE, NOT_ALL, TUNED


def searched(run):
    return [row for row in run.rows if row["role"] == "search"]


def worked_once(run):
    """Nothing is measured again that has not failed in a way that may pass."""
    counts = Counter(r["config"] for r in searched(run) if r["outcome"] not in TRIED_AGAIN)
    return set(counts.values()) <= {1}


# Which devices


@pytest.mark.parametrize(
    "text, names",
    [
        (None, (None,)),
        ("0,1", (0, 1)),
        ("cuda:0, cuda:1", (0, 1)),
        ("cuda", (0,)),
        ("all", ("all",)),
        ("cpu:2,3", ("cpu:2", 3)),
    ],
)
def test_names(text, names):
    assert parse_devices(text) == names


def test_all_means_every_gpu(tmp_path):
    run = Run(tmp_path, "--trials 30 --devices all", device=numbered, gpus=[0, 1, 2])
    assert run.status == TUNED and "Device: 3 x recorded GPU" in run.output
    assert {row["measured_on"] for row in searched(run)} == {"cuda:0", "cuda:1", "cuda:2"}
    finals = {row["measured_on"] for row in run.rows if row["role"] == "final"}
    assert finals == {"cuda:0"}, "one device times the finals, alone"
    assert len(run.records) == 1 and worked_once(run)


def test_all_without_a_gpu(tmp_path):
    run = Run(tmp_path, "--devices all")
    assert run.status == NO_DEVICE and "--devices all: no NVIDIA GPU" in run.output
    assert not list(tmp_path.iterdir())


class Refused(RecordedWorker):
    """GPU 1 cannot be opened."""

    def start(self):
        if self.device.index == 1:
            raise WorkerFailed("out of order")


def test_one_of_all_that_cannot_be_opened_is_left_out(tmp_path):
    run = Run(tmp_path, "--devices all --trials 5", device=numbered, worker=Refused, gpus=[0, 1])
    assert run.status == TUNED and "GPU 1 is left out: out of order" in run.output
    run = Run(tmp_path, "--devices 0,1 --trials 5", device=numbered, worker=Refused)
    assert run.status == NO_DEVICE, "one that was named must be there"


# One study


class Clock:
    """Virtual seconds: measuring takes one, asking a quarter; `wait` goes on to the next reply."""

    def __init__(self, monkeypatch):
        self.now, self.workers = 0.0, []
        seconds = SimpleNamespace(monotonic=lambda: self.now, sleep=self.advance)
        monkeypatch.setattr(session, "time", seconds)
        monkeypatch.setattr(session, "wait", self.wait)
        ask = Search.ask

        def asked(search, most):
            self.advance(0.25)
            return ask(search, most)

        monkeypatch.setattr(Search, "ask", asked)

    def advance(self, seconds):
        self.now += seconds

    def wait(self, connections, timeout):
        busy = [worker.until for worker in self.workers if worker.until is not None]
        self.now = max(self.now, min(busy))

    def worker(self, outcome, device):
        clock = self

        class Virtual(RecordedWorker):
            until = None

            def begin(self, request, limit):
                super().begin(request, limit)
                self.until = clock.now + 1.0
                if request.action == "measure":
                    self.spans.append((clock.now, self.until))

            def result(self, timeout=0.0):
                clock.now += timeout
                if self.until is not None and clock.now < self.until:
                    return None
                self.until = None
                return super().result()

        hired = Virtual(outcome, device)
        hired.spans = []
        self.workers.append(hired)
        return hired


def rate(folder, monkeypatch, count):
    """Trials a second of `count` workers, by a clock of their own."""
    with monkeypatch.context() as patched:
        clock = Clock(patched)
        names = ",".join(map(str, range(count)))
        run = Run(folder, f"--trials 60 --devices {names}", device=numbered, worker=clock.worker)
    assert run.status == TUNED and worked_once(run) and len(searched(run)) == 60
    spans = sorted(span for worker in clock.workers for span in worker.spans)
    assert len(spans) == 60
    return 60 / (max(end for _, end in spans) - spans[0][0])


def test_trials_of_several_devices_overlap(tmp_path, monkeypatch):
    one, two, four = (rate(tmp_path / str(n), monkeypatch, n) for n in (1, 2, 4))
    assert 0.8 <= one <= 1.0, "a worker alone is hardly ever idle"
    assert two >= 1.9 * one and four >= 3.5 * one, (one, two, four)


def test_a_search_of_two_devices_goes_on_with_one(tmp_path):
    """Interrupted, and resumed without one of the devices: nothing is measured again."""
    count = []

    def interrupt(config):
        count.append(config)
        if len(count) == 20:
            signal.raise_signal(signal.SIGINT)

    first = Run(tmp_path, "--trials 50 --devices 0,1", device=numbered, before=interrupt)
    assert first.status == INTERRUPTED and len(first.records) == 1
    second = Run(tmp_path, "--trials 50 --devices 1", device=numbered)
    assert second.status == TUNED
    configs = [row["config"] for row in searched(second)]
    assert len(configs) == len(set(configs)) == 50
    assert {row["measured_on"] for row in searched(second)[22:]} == {"cuda:1"}


def test_every_device_is_locked(tmp_path):
    folder = state_directory() / "devices"
    folder.mkdir(exist_ok=True)
    with ExitStack() as other:
        other.enter_context(locked(folder / "cuda-0000-01-00.0.lock"))
        run = Run(tmp_path, "--devices 0,1 --budget 0.5", device=numbered)
        assert run.status == NOT_ALL and not run.asked
        assert "another run measured on this device" in run.output
        assert Run(tmp_path, "--devices 0 --trials 3", device=numbered).status == TUNED


# Devices that are lost


class Vanishing(RecordedWorker):
    """GPU 1 is gone after four requests, in the middle of the fourth."""

    begun = 0

    @property
    def gone(self):
        return self.device.index == 1 and self.begun >= 4

    def begin(self, request, limit):
        self.begun += 1
        super().begin(request, limit)
        if self.gone:
            self._reply = Reply(outcome="crashed", detail="killed by SIGKILL", lost=True)

    def ready(self, timeout=0.0):
        if self.gone:
            raise WorkerFailed("no such GPU any more")
        return True


def test_a_device_that_vanishes(tmp_path):
    """What it was measuring is measured elsewhere, and the run goes on without it."""
    run = Run(tmp_path, "--trials 40 --devices 0,1,2", device=numbered, worker=Vanishing)
    assert run.status == TUNED and len(run.records) == 1, run.output
    assert "cuda:1 is left out (no such GPU any more); the run goes on with 2" in run.output
    (crashed,) = [row for row in searched(run) if row["outcome"] == "crashed"]
    assert crashed["measured_on"] == "cuda:1"
    (again,) = [r for r in searched(run) if r["config"] == crashed["config"] and r != crashed]
    assert again["outcome"] in ("ok", "too_slow") and again["measured_on"] != "cuda:1"
    assert worked_once(run) and len({row["config"] for row in searched(run)}) == 40


def test_the_last_device_that_vanishes_ends_the_run(tmp_path):
    run = Run(tmp_path, "--trials 40 --devices 1", device=numbered, worker=Vanishing)
    assert run.status == NO_DEVICE and "no such GPU any more" in run.output
    again = Run(tmp_path, "--trials 40 --devices 0", device=numbered)
    assert again.status == TUNED and worked_once(again), "what was measured is kept"


class Broken(RecordedWorker):
    """From the tenth request on nothing works on GPU 0, which can be opened all the same."""

    begun = 0

    def _trial(self, request, config):
        self.begun += 1
        trial = super()._trial(request, config)
        if self.device.index == 0 and self.begun >= self.works:
            trial = replace(trial, outcome="launch_failed", seconds=float("nan"), times=())
        return trial


def test_a_device_on_which_nothing_works_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(Broken, "works", 10, raising=False)
    run = Run(tmp_path, "--trials 60 --devices 0,1", device=numbered, worker=Broken)
    assert run.status == TUNED and len(run.records) == 1, run.output
    assert "cuda:0 is left out (3 configurations in a row failed only there)" in run.output
    failed = [row for row in searched(run) if row["outcome"] == "launch_failed"]
    assert {row["measured_on"] for row in failed} == {"cuda:0"} and len(failed) <= 4
    assert worked_once(run) and len({row["config"] for row in searched(run)}) == 60


def test_the_device_of_the_finals_is_lost(tmp_path, monkeypatch):
    """In the comparison nothing works on the first device: the next one makes it."""
    monkeypatch.setattr(Broken, "works", 21, raising=False)
    run = Run(tmp_path, "--trials 40 --devices 0,1", device=numbered, worker=Broken)
    assert run.status == TUNED and len(run.records) == 1, run.output
    assert "cuda:0 is left out (every finalist failed there)" in run.output
    finals = {row["measured_on"] for row in run.rows if row["role"] == "final"}
    assert finals == {"cuda:1"}


def test_a_configuration_that_fails_everywhere_is_no_fault_of_a_device(tmp_path):
    def outcome(config, problem):
        return "crashed" if config.TA == 8 else smooth(config, problem)

    run = Run(tmp_path, "--trials 60 --devices 0,1", outcome, numbered)
    assert run.status == TUNED and "left out" not in run.output
    by_config = {}
    for row in searched(run):
        if row["outcome"] == "crashed":
            by_config.setdefault(row["config"], []).append(row["measured_on"])
    assert by_config and all(sorted(on) == ["cuda:0", "cuda:1"] for on in by_config.values())


# Several models


def other_model(name):
    return replace(numbered(name), name="another GPU") if name == 1 else numbered(name)


def test_devices_of_several_models_are_tuned_each_by_itself(tmp_path, monkeypatch):
    with pytest.raises(SeveralModels) as several:
        Run(tmp_path, "--devices 0,1,2", device=other_model)
    assert several.value.groups == [[0, 2], [1]]
    assert not list(tmp_path.iterdir()), "nothing was touched"
    begun = []
    monkeypatch.setattr(tuner, "tune_each", lambda *arguments: begun.append(arguments) or 0)
    monkeypatch.setattr(tuner.Tuner, "run", _raising(several.value))
    assert tuner.main(["--devices", "0,1,2", "--trials", "3"]) == 0
    ((command, argv, groups, *_),) = begun
    assert command.func is tuner.main and argv == ["--devices", "0,1,2", "--trials", "3"]
    assert groups == [[0, 2], [1]]


def _raising(failure):
    def run(self):
        raise failure

    return run


def test_two_models_end_to_end(tmp_path):
    """A study and records for each; the CPU with all cores is another device than one of them."""
    where = f"--storage {tmp_path}/state --output {tmp_path}/out --csv {tmp_path}/trials.csv"
    options = f"--shapes 16 --dtypes f32 --trials 2 --devices cpu,cpu:1 {where}"
    command = [sys.executable, "-m", "pymm.tune", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (TUNED, NOT_ALL), done.stdout + done.stderr
    for name in ("cpu", "cpu:1"):
        assert f"[{name}] Device: " in done.stdout
        assert f"[{name}] Page: {tmp_path}/state/" in done.stdout
    with open(tmp_path / "trials.csv") as file:
        header, *rows = file.read().splitlines()
    assert len({row.split(",")[2] for row in rows}) == 2, "two models in one table"
    assert all(row.count(",") >= header.count(",") for row in rows)


def test_an_interrupt_reaches_the_tuner_of_each_model():
    said, stop = [], Stop()

    def say(line):
        said.append(line)
        if len(said) == 2:
            stop.asked = True

    assert tune_each(fake_tuner.sleep, ["--seed", "1"], [[0, 2], ["cpu"]], stop, say) == 130
    assert sorted(said) == [
        "[0,2] ready --seed 1 --devices 0,2",
        "[cpu] ready --seed 1 --devices cpu",
    ]


def test_the_worst_status_is_that_of_all():
    assert tune_each(fake_tuner.fail_on_one, [], [[0], [1]], Stop(), print) == NOT_ALL
    assert tune_each(fake_tuner.fail_on_one, [], [[0], [2]], Stop(), print) == TUNED
