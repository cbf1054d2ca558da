"""One product tuned several times: each without the others, the results compared in turn."""

import csv
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import repeated  # noqa: E402

from pymm.backends import open_device  # noqa: E402
from pymm.measure.results import REPEATED  # noqa: E402
from pymm.selection import store  # noqa: E402
from tests.support.tuned import record  # noqa: E402


class Tuner:
    """Stands in for `python -m pymm.tune`: finds one of two configurations."""

    def __init__(self, fails=None):
        self.commands, self.folders, self.fails = [], [], fails

    def run(self, command, env, **_):
        given = {name: value for name, value in pairwise(command) if name[:2] == "--"}
        folder = Path(given["--output"])
        own = [Path(env[name]) for name in ("PYMM_CACHE_DIR", "PYMM_CONFIG_DIR")]
        assert all(path.is_relative_to(folder) and path.is_dir() for path in own)
        assert Path(given["--storage"]).is_relative_to(folder)
        assert list(folder.iterdir()) == [folder / "cache"], "it begins with nothing"
        self.commands.append(given)
        self.folders.append(folder)
        seed = int(given["--seed"])
        if seed == self.fails:
            return subprocess.CompletedProcess(command, 1, "no time\n", "")
        rows = int(given["--shapes"].partition("x")[0])
        config = {"KB": (64, 128)[seed % 2], "TA": 4, "TB": 16}  # in any vector registers
        found = record(rows, 24, 8, "blocked", backend="cpu", config=config)
        store.put([found], open_device("cpu").device, folder)
        with open(given["--csv"], "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([("config", "role"), ("a", "search"), ("b", "search")])
            writer.writerows([("b", "search"), ("c", "final")])
        return subprocess.CompletedProcess(command, 0, "", "")


def test_each_tuning_is_without_what_the_others_found_and_what_they_found_is_compared(
    tmp_path, monkeypatch, capsys
):
    tuner, file = Tuner(), tmp_path / "repeated.csv"
    monkeypatch.setattr(repeated, "subprocess", SimpleNamespace(run=tuner.run))
    command = ["--device", "cpu", "--shape", "40x24x8", "--times", "3", "--budget", "9"]
    status = repeated.main([*command, "--seed", "5", "--csv", str(file), "--commit", "abc"])
    assert len(set(tuner.folders)) == 3 and not any(folder.exists() for folder in tuner.folders)
    assert {given["--budget"] for given in tuner.commands} == {"9.0"}
    rows = REPEATED.rows(file, ("us", "tried", "budget"))
    assert [row["seed"] for row in rows] == ["5", "6", "7"]
    assert [row["config"].partition("-KB")[2][:3] for row in rows] == ["128", "64-", "128"]
    assert {(row["tried"], row["commit"]) for row in rows} == {("2", "abc")}
    assert rows[0]["us"] == rows[2]["us"], "a configuration is timed once"
    ratio = max(float(row["us"]) for row in rows) / min(float(row["us"]) for row in rows)
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(ratio, abs=1e-3)
    assert status == (ratio > repeated.ALIKE)


def test_a_tuning_that_fails_ends_it_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(repeated, "subprocess", SimpleNamespace(run=Tuner(fails=2).run))
    command = ["--device", "cpu", "--shape", "40x24x8", "--times", "3"]
    with pytest.raises(SystemExit, match="seed 2: the tuner failed\nno time"):
        repeated.main([*command, "--csv", str(tmp_path / "repeated.csv")])
    assert not (tmp_path / "repeated.csv").exists()
