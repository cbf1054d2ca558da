"""Users' kernels: tuned, verified, stored, launched."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import own_kernel
import pytest
from own_kernel import FAULTS, RIGHT, SCALE
from rich.console import Console

from pymm.backends import open_device
from pymm.core.device import Device
from pymm.core.errors import NoDevice, StoreError
from pymm.tune import (
    CustomKernel,
    InOut,
    Rule,
    TuningFailed,
    comparison,
    load_kernel,
    tune_kernel,
)

pytestmark = pytest.mark.simulator

COUNT = {"count": 70}


@pytest.fixture(scope="module", autouse=True)
def simulator():
    """Built before a measuring process, which has a minute to start, would build it."""
    open_device("simulator")


def tuned(kernel, folder, sizes=COUNT, **options):
    """The result, and what was printed."""
    printed = io.StringIO()
    found = tune_kernel(
        kernel,
        sizes,
        seconds=options.pop("seconds", 300.0),
        device="simulator",
        output=folder / "out",
        storage=folder / "state",
        console=Console(file=printed, width=200),
        **options,
    )
    return found, printed.getvalue()


def rows(result, role="search"):
    with open(result.trials, newline="") as file:
        return [row for row in csv.DictReader(file) if row["role"] == role]


def stored(folder: Path) -> Path:
    (path,) = (folder / "out" / "custom").glob("*.yaml")
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A search through all configurations, most of which fail."""
    folder = tmp_path_factory.mktemp("faulty")
    return tuned(SCALE, folder, sampler="exhaustive", limit=15.0)[0]


def test_every_fault_costs_a_trial_and_not_the_search(faulty):
    found = {}
    for row in rows(faulty):
        found[row["config"]] = row  # the second try of what may have been the machine's fault
    for fault, (outcome, words) in FAULTS.items():
        row = found[f"scale-THREADS32-FAULT{fault}"]
        assert (row["outcome"], fault) == (outcome, fault), row["detail"]
        assert words in row["detail"]
    assert faulty.tried == faulty.valid == len(FAULTS) + 2
    assert faulty.config.FAULT == 1


def test_the_rules_hold_for_all_that_is_tried(faulty):
    tried = {row["config"] for row in rows(faulty)}
    assert all(name.endswith("-FAULT1") or "-THREADS32-" in name for name in tried)
    assert "scale-THREADS96-FAULT1" in tried


def test_a_kernel_that_is_never_right_is_refused_by_its_first_wrong_element(tmp_path):
    wrong = replace(RIGHT, reference=lambda x, factor, count: factor * x + (np.arange(70) == 3))
    with pytest.raises(TuningFailed, match=r"scale-count70: none of 3 .* elements of y wrong; the"):
        tuned(wrong, tmp_path)
    assert not list(tmp_path.rglob("*.yaml"))


def test_a_search_goes_on_and_tries_nothing_twice(tmp_path):
    first, _ = tuned(RIGHT, tmp_path, trials=1)
    assert first.tried == 1
    again, said = tuned(RIGHT, tmp_path, trials=1)
    assert again.tried == 2 and "goes on after 1 configurations" in said
    tried = [row["config"] for row in rows(again)]
    assert len(tried) == len(set(tried)) == 2
    changed = replace(RIGHT, source=own_kernel.SOURCE.replace("factor * x[i]", "x[i] * factor"))
    assert tuned(changed, tmp_path, trials=1)[0].tried == 1  # other code: nothing of it counts


def launched(folder, count=70) -> str:
    """What a process of its own prints that launches the kernel."""
    done = subprocess.run(
        [sys.executable, own_kernel.__file__, folder / "out", str(count)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_tuned_is_launched_in_another_process(tmp_path):
    result, said = tuned(RIGHT, tmp_path)
    assert result.saved == stored(tmp_path) and str(result.saved) in said
    assert launched(tmp_path) == f"{result.config.slug} tuned for scale-count70 False\n"
    assert "THREADS64" in launched(tmp_path, 71)  # nothing is tuned for it: the default
    text = stored(tmp_path).read_text()
    stored(tmp_path).write_text(
        text.replace(f"source: {rows(result)[0]['source']}", "source: abcd")
    )
    assert "the source of scale changed" in launched(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("THREADS: ", "THREADS;x: ", "THREADS;x"),
        ("THREADS: ", "THREADS: -", "whole number"),
        ("count=70", "count=70 0", "no list of sizes"),
        ("scale:", "../scale:", "no name of a kernel"),
        ("schema: 1", "schema: 9", "reads schema 1"),
    ],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(faulty, tmp_path, old, new, words):
    path = tmp_path / "out" / "custom" / faulty.saved.name
    path.parent.mkdir(parents=True)
    path.write_text(text := faulty.saved.read_text().replace(old, new, 1))
    assert new in text
    for use in (lambda: load(tmp_path), lambda: tuned(RIGHT, tmp_path, trials=1)):
        with pytest.raises(StoreError, match=words.replace(".", r"\.")):
            use()
    assert path.read_text() == text


def load(folder, kernel=RIGHT, sizes=COUNT):
    return load_kernel(kernel, sizes, device="simulator", directory=folder / "out")


def test_a_stored_configuration_outside_of_the_space_is_not_used(tmp_path):
    result, _ = tuned(RIGHT, tmp_path, trials=1)
    path = stored(tmp_path)
    path.write_text(path.read_text().replace(f"THREADS: {result.config.THREADS}", "THREADS: 48"))
    loaded = load(tmp_path)
    assert loaded.config.THREADS == 64 and "THREADS=48 is not in the space" in loaded.reason


class Described:
    """An array of a device, described in another way."""

    def __init__(self, array, **changes) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | changes


def test_what_does_not_fit_is_refused_before_a_launch(tmp_path):
    scale, empty = load(tmp_path), open_device("simulator").empty
    x, y = (empty((70,), np.dtype("f4")) for _ in range(2))
    with pytest.raises(TypeError, match="takes 2 arrays \\(x, y\\); got 1"):
        scale(x)
    with pytest.raises(TypeError, match="y is a NumPy array"):
        scale(x, np.zeros(70, np.float32))
    with pytest.raises(ValueError, match=r"x has shape \(69,\)"):
        scale(Described(x, shape=(69,)), y)
    with pytest.raises(ValueError, match="float64"):
        scale(empty((70,), np.dtype("f8")), y)
    with pytest.raises(ValueError, match="contiguous"):
        scale(Described(empty((140,), np.dtype("f4")), shape=(70,), strides=(8,)), y)
    with pytest.raises(ValueError, match="y is written by the kernel, and the array is read-only"):
        scale(x, Described(y, data=(x.__cuda_array_interface__["data"][0], True)))
    with pytest.raises(TypeError, match="no number speed; it has factor, count"):
        scale(x, y, speed=1)
    with pytest.raises(ValueError, match="count=1.5 is no int64"):
        scale(x, y, count=1.5)


DOUBLE = CustomKernel(
    "double_it",
    'extern "C" __global__ void twice(int* v, int n) {'
    " int i = blockIdx.x * THREADS + threadIdx.x; if (i < n) v[i] *= 2; }\n",
    space={"THREADS": (32, 64)},
    default={"THREADS": 32},
    grid=lambda c, p: (p.n + c.THREADS - 1) // c.THREADS,
    block=lambda c, p: (c.THREADS, 1),
    arguments=lambda p: {
        "v": InOut((p.n, 3), np.int32, lambda g: g.integers(-99, 99, (p.n, 3))),
        "n": np.int32(3 * p.n),
    },
    reference=lambda v, n: 2 * v,
    entry="twice",
)


def test_what_is_read_and_written_is_restored_for_each_check(tmp_path):
    three = replace(DOUBLE, grid=lambda c, p: -(-3 * p.n // c.THREADS))
    result, _ = tuned(three, tmp_path, {"n": 41})
    assert result.tried == 2 and {row["outcome"] for row in rows(result)} == {"ok"}


def test_what_is_not_written_is_found_in_whole_numbers_too(tmp_path):
    with pytest.raises(TuningFailed, match=r"elements of v wrong; the first is v\[21, 1\]"):
        tuned(DOUBLE, tmp_path, {"n": 41}, trials=1)  # a third of the blocks


def test_a_search_needs_an_end_a_device_and_a_valid_configuration(tmp_path):
    with pytest.raises(ValueError, match="an end"):
        tuned(RIGHT, tmp_path, seconds=None)
    with pytest.raises(ValueError, match="trials=0"):
        tuned(RIGHT, tmp_path, trials=0)
    with pytest.raises(ValueError, match="sampler 'best'"):
        tuned(RIGHT, tmp_path, sampler="best")
    with pytest.raises(NoDevice, match="runs no CUDA kernels"):
        tune_kernel(RIGHT, COUNT, device="cpu")
    never = replace(RIGHT, rules=(Rule("never", lambda c, p, d: False),))
    with pytest.raises(TuningFailed, match="every configuration is rejected .*3: never"):
        tuned(never, tmp_path)
    assert not (tmp_path / "state").exists()


def test_nothing_is_stored_for_the_simulator_unless_a_folder_is_named(tmp_path):
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    result = tune_kernel(
        RIGHT, COUNT, trials=1, device="simulator", storage=tmp_path, console=console
    )
    assert result.saved is None and "saved only in a folder" in printed.getvalue()


def test_a_search_begins_with_what_is_stored_for_other_sizes(tmp_path):
    narrow = replace(RIGHT, default={"THREADS": 96, "FAULT": 1})
    tuned(narrow, tmp_path, trials=1)
    result, _ = tuned(RIGHT, tmp_path, {"count": 80}, trials=2)
    origins = {row["config"]: row["origin"] for row in rows(result) if "count80" in row["problem"]}
    assert origins["scale-THREADS96-FAULT1"] == "warm"


def test_doubtful_times_are_not_stored_and_no_failure(tmp_path, monkeypatch, capsys):
    """What was stored before is kept, else the default."""
    words = "nothing saved: its times spread by 31%; {} is kept"
    with monkeypatch.context() as noisy:
        noisy.setattr(Device, "times_are_real", True)
        noisy.setattr(comparison, "doubtful", lambda trial: "its times spread by 31%")
        noisy.setattr(comparison, "REST", 0.0)
        result, said = tuned(RIGHT, tmp_path, trials=1)
        assert result.doubt == words.format("the default") and result.saved is None
        assert result.config == result.default and np.isnan(result.gain).all()
        assert f"{result.doubt}: make the same call again" in said
        result.show()
        assert result.doubt in capsys.readouterr().out
        assert not list((tmp_path / "out").rglob("*.yaml"))
    before, _ = tuned(RIGHT, tmp_path, trials=1)
    text = before.saved.read_text()
    monkeypatch.setattr(Device, "times_are_real", True)
    monkeypatch.setattr(comparison, "doubtful", lambda trial: "its times spread by 31%")
    result, _ = tuned(RIGHT, tmp_path, trials=1)
    assert result.doubt == words.format("the stored configuration")
    assert result.config == before.config and before.saved.read_text() == text


def test_the_table_names_the_default_and_the_choice(faulty, capsys):
    faulty.show()
    shown = capsys.readouterr().out
    assert "scale-count70" in shown and faulty.config.slug in shown and "10 of 10" in shown
