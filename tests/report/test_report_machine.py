"""The report of this machine: what its user tuned, wherever the command is run."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_run import Run, smooth
from report_fixtures import without_plots  # noqa: F401

from pymm.core.paths import config_directory, state_directory
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import kernel_digest
from pymm.measure.workbench import Trial
from pymm.report import main
from pymm.report.chapters import report
from pymm.report.cli import PAGE, page_after_tuning
from pymm.report.load import Row, read_machine
from pymm.report.searches import Search
from pymm.selection import store
from pymm.selection.records import Environment, Record
from pymm.tune.finals import CHOSEN, NOTHING_SAVED
from pymm.tune.trial_log import TrialLog

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    """A run of the tuner that found something faster than the default and than a library."""
    found = Run(
        tmp_path, "--trials 20 --sampler local", library=4e-4, library_name="cublas", outcome=smooth
    )
    assert found.status == 0
    return found


def cells(table):
    return [{name: cell.text for name, cell in row.items()} for row in table.rows]


def test_the_first_screen_shows_what_was_tuned(run, tmp_path, without_plots):
    tuner = run.tuner
    found = read_machine(tuner.device, tuner.environment, [tuner.trials], tuner.output, tmp_path)
    glance = report(found, False).chapters[0]
    (record,) = run.records
    final = {row["config"]: float(row["seconds"]) for row in run.rows if row["role"] == "final"}
    kernel = find_kernel("register_tile", "cuda")
    default = final[kernel.default_for(record.problem, tuner.device).slug]
    (row,) = cells(next(table for table in glance.tables if table.name == "tuned-here"))
    assert row["gain"] == f"{default / record.seconds:.2f}" != "1.00"
    assert row["ratio"] == f"{4e-4 / record.seconds:.2f}"
    assert row["state"] == "today's" and row["m x n x k"] == "256"
    assert row["tried"] == str(sum(line["role"] == "search" for line in run.rows))
    (chosen,) = [line for line in run.rows if line["detail"].startswith(CHOSEN)]
    assert chosen["config"] == record.config.slug
    assert row["what the search found"] == chosen["detail"].removeprefix(CHOSEN)
    assert re.fullmatch(r"[0-9.]+x \([0-9.]+ to [0-9.]+\)", row["what the search found"])
    (kind,) = cells(next(table for table in glance.tables if table.name == "types"))
    assert (kind["type"], kind["tuned"], kind["stale"]) == ("f32", "1", "0")
    assert (kind["gain over default"], kind["ratio"]) == (row["gain"], row["ratio"])
    tiles = {tile.label: tile for tile in glance.tiles}
    assert tiles["products tuned"].value == "1"
    assert tiles["compared with cuBLAS"].value == f"{4e-4 / record.seconds:.2f}x"
    assert tiles["speed-up by tuning"].value == f"{default / record.seconds:.2f}x"
    assert "highest fraction of peak" in tiles or not tuner.device.peak_flops


def test_the_tuner_ends_with_the_path_of_its_page(run, without_plots):
    page_after_tuning(run.tuner)
    page = run.tuner.folder / PAGE
    assert run.text.getvalue().splitlines()[-1] == f"Page: {page}"
    assert "What you tuned" in page.read_text()


def test_a_page_that_cannot_be_written_changes_nothing(run, without_plots):
    (run.tuner.folder / PAGE).mkdir()
    page_after_tuning(run.tuner)
    assert "No page was made: " in run.text.getvalue().splitlines()[-1]


def tuned_on(device, toolchain):
    """A trial and its record in the user's own folders, as the tuner writes them."""
    kernel = find_kernel("blocked", "cpu")
    problem = Problem(96, 96, 96)
    config = kernel.default_for(problem, device)
    trial = Trial(problem, config, "ok", seconds=1e-4, spread=0.01, times=(1e-4,) * 9)
    folder = state_directory() / device.slug
    log = TrialLog(folder / "trials.csv", compiler=toolchain)
    log.write(trial, device)
    log.write(trial, device, "final")
    log.write_baseline(problem, kernel.name, "numpy", [2e-4] * 9, device, "cpu")
    log.close()
    environment = Environment.of(device, toolchain)
    digest = kernel_digest("cpu", kernel.file)
    record = Record(problem, config, 1e-4, 0.01, "2026-11-23", environment, digest)
    store.put([record], device, config_directory())
    return folder


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """The user's folders, empty, and another working directory, which is empty as well."""
    monkeypatch.setenv("PYMM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


def test_without_arguments_it_is_this_machine(cpu, own_folders, without_plots, capsys):
    """`cpu` has one thread: the device is named, since the default may be a GPU."""
    folder = tuned_on(cpu.device, cpu.toolchain)
    assert main(["--device", "cpu:1"]) == 0
    assert f"{folder / PAGE}: " in capsys.readouterr().out
    page = (folder / PAGE).read_text()
    assert "What you tuned" in page and "<td>2.00</td>" not in page
    assert ">2.00x</b>" in page, "compared with NumPy"
    assert list(Path.cwd().iterdir()) == [], "nothing is written where the command is run"


def test_the_page_can_be_written_elsewhere(cpu, own_folders, without_plots, tmp_path):
    folder = tuned_on(cpu.device, cpu.toolchain)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert main(["--device", "cpu:1", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / cpu.device.slug / PAGE).exists() and not (folder / PAGE).exists()


def test_of_a_repeated_final_the_last_one_counts():
    def row(config, role, seconds, detail=""):
        texts = {"role": role, "config": config, "outcome": "ok", "detail": detail}
        numbers = {"seconds": str(seconds), "spread": "0.01", "repeats": "35"}
        return Row("trials", "trials.csv", texts | numbers, 2)

    first = [row("d", "search", 9), row("e", "search", 8), row("d", "final", 3)]
    first += [row("e", "final", 1), row("numpy", "baseline", 5)]
    again = [row("d", "final", 2, CHOSEN + "the default is best"), row("e", "final", 1.5)]
    for rows in (first + again, [*first, *again, row("numpy", "baseline", 4)]):
        search = Search(Problem(1, 1, 1), "blocked", "trials.csv", tuple(rows))
        assert [r.seconds for r in search.final] == [2, 1.5]
        assert search.best.seconds == 2 and search.gain == 1
        assert search.words == "the default is best"
    words = NOTHING_SAVED + "its times spread"
    unsure = (row("numpy", "baseline", 5), row("d", "final", 2, words), row("e", "final", 1))
    search = Search(Problem(1, 1, 1), "blocked", "trials.csv", (*first, *unsure))
    assert search.best.text("config") == "d" and search.words == words
    assert math.isnan(search.gain) and math.isnan(search.ratio), "no gain is claimed"
    alone = (row("d", "final", 2, words), row("e", "final", 1), *again)  # no library between them
    search = Search(Problem(1, 1, 1), "blocked", "trials.csv", alone)
    assert search.words == "the default is best" and not search.doubtful
    search = Search(Problem(1, 1, 1), "blocked", "trials.csv", tuple(first))
    assert (search.best.text("config"), search.gain, search.words) == ("e", 3, "")


def test_other_tools_make_what_was_tuned_stale(cpu, own_folders, without_plots, tmp_path):
    folder = tuned_on(cpu.device, "a compiler of before")
    environment = Environment.of(cpu.device, cpu.toolchain)
    paths = [folder / "trials.csv"]
    found = read_machine(cpu.device, environment, paths, config_directory(), tmp_path)
    (glance, *_) = report(found, False).chapters
    (row,) = cells(next(table for table in glance.tables if table.name == "tuned-here"))
    assert row["state"].startswith("stale: ") and "a compiler of before" in row["state"]
    assert "compared with NumPy" not in {tile.label for tile in glance.tiles}


@pytest.mark.parametrize("arguments", [["--all", "x"], ["--device", "cpu", "--all"]])
def test_options_that_contradict_each_other_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "leave it out" in capsys.readouterr().err


def test_no_such_device_is_reported(capsys):
    assert main(["--device", "abacus"]) == 3
    assert "abacus" in capsys.readouterr().err


def test_an_installed_package_makes_the_page_in_an_empty_folder(cpu, own_folders, tmp_path):
    """What an installation has: the package with its folders of data, without the checkout."""
    folder = tuned_on(cpu.device, cpu.toolchain)
    installed = tmp_path / "site"
    shutil.copytree(ROOT / "pymm", installed / "pymm", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("cuda_src", "cpu_src", "tuning_configs"):
        shutil.copytree(ROOT / data, installed / "pymm" / data)
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "pymm.report", "--device", "cpu:1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder / PAGE}: ")
    assert "What you tuned" in (folder / PAGE).read_text()
