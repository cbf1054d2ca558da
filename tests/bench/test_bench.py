"""What the bench command measures, writes and refuses."""

import csv

import pytest

from pymm.backends import open_device
from pymm.bench.kernels import main
from pymm.core import files
from pymm.core.problem import Problem
from pymm.kernels import KERNELS
from pymm.measure import results
from pymm.selection.records import Environment
from pymm.selection.select import select


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_hold_kernels_and_the_opponent_in_one_run(tmp_path):
    """Each kernel's default and NumPy, right and with times; a second run appends."""
    path = tmp_path / "bench.csv"
    arguments = ["--shapes", "33x17x5", "--dtypes", "f64", "--device", "cpu:1", "--rounds", "4"]
    assert main([*arguments, "--csv", str(path)]) == 0
    rows = rows_of(path)
    assert tuple(rows[0]) == results.KERNELS.columns
    assert [row["name"] for row in rows] == ["numpy", "00_reordered", "01_blocked"]
    for row in rows:
        assert row["outcome"] == "ok"
        assert (row["m"], row["n"], row["k"]) == ("33", "17", "5")
        rate = 2 * 33 * 17 * 5 / float(row["seconds"]) / 1e9
        assert float(row["gflops"]) == pytest.approx(rate, rel=1e-4)
        assert float(row["ratio"]) > 0
    assert all(float(row["error"]) <= 1 for row in rows[1:])
    assert main([*arguments, "--csv", str(path)]) == 0
    assert len(rows_of(path)) == 6


def test_given_configurations_beside_the_choice(tmp_path, capsys, monkeypatch):
    """Without other kernels; what may not run is said and left out."""
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path / "none"))
    path, device = tmp_path / "bench.csv", open_device("cpu:1").device
    (kernel,) = (k for k in KERNELS if k.name == "blocked")
    problem = Problem(33, 17, 5, "f32")
    configs, _ = kernel.configs(problem, device)
    chosen = select(problem, device, None, Environment("", "", "")).config
    first, second = [config for config in configs if config != chosen][:2]
    bad = kernel.config(first.as_dict() | {"TB": 64 * first.TB})
    given = ",".join(config.slug for config in (first, bad, second))
    what = ["--shapes", "33x17x5", "--dtypes", "f32", "--configs", given, "--rounds", "4"]
    assert main([*what, "--device", "cpu:1", "--csv", str(path)]) == 0
    rows = [row for row in rows_of(path) if row["config"]]
    assert {row["variant"]: row["config"] for row in rows} == {
        "chosen": chosen.slug,
        "given 1": first.slug,
        "given 3": second.slug,
    }
    assert all(row["outcome"] == "ok" for row in rows)
    (said,) = kernel.violations(bad, problem, device)[:1]
    assert f"{problem.slug}: {bad.slug} is left out: {said}" in capsys.readouterr().out


def test_a_dry_run_measures_nothing(tmp_path, capsys, monkeypatch):
    """It says what would be run: every product and kernel; no file is made, nothing compiled."""
    monkeypatch.setattr("pymm.measure.precompile.Precompiler.__init__", None)
    monkeypatch.setattr("pymm.measure.worker.Worker.begin", None)
    path = tmp_path / "bench.csv"
    where = ["--device", "cpu:1", "--csv", str(path), "--dry-run"]
    assert main(["--shapes", "33x17x5,1024", "--dtypes", "f32,f64", *where]) == 0
    told = capsys.readouterr().out
    for problem in ("f32-NN-33x17x5", "f64-NN-33x17x5", "f32-NN-1024x1024x1024"):
        for kernel in ("00_reordered", "01_blocked"):
            assert f"{problem} {kernel} default " in told
    assert "4 products, 8 configurations, " in told
    assert not path.exists()


def test_a_file_with_other_columns_is_left_alone(tmp_path, capsys):
    """A foreign CSV is refused with a sentence and stays as it is."""
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit) as ended:
        main(["--shapes", "4", "--dtypes", "f32", "--device", "cpu:1", "--csv", str(path)])
    assert ended.value.code == 2
    assert "other columns" in capsys.readouterr().err
    assert path.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shapes", "banana"], "banana"),
        (["--shapes", "4", "--dtypes", "f99"], "f99"),
        (["--shapes", "4", "--kernels", "77", "--device", "cpu:1"], "77"),
        (["--shapes", "4", "--configs", "blocked-MB8", "--device", "cpu:1"], "blocked-MB8"),
        (["--classes", "small", "--configs", "x"], "--configs and --classes"),
        (["--suite", "o1", "--configs", "x"], "--configs and --suite"),
    ],
)
def test_bad_options_end_with_a_sentence(arguments, words, capsys):
    """Status 2 and a message that names what was asked."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_symmetric_products(tmp_path, capsys):
    """Both layouts of one; alone the option is O3 in both types."""
    path = tmp_path / "bench.csv"
    where = ["--op", "syrk", "--device", "cpu:1", "--csv", str(path)]
    assert main([*where, "--shapes", "33x33x5", "--dtypes", "f64", "--rounds", "4"]) == 0
    found = rows_of(path)
    assert {(row["op"], row["layout"], row["outcome"]) for row in found} == {
        ("syrk", "NT", "ok"),
        ("syrk", "TN", "ok"),
    }
    path.unlink()
    assert main([*where, "--dry-run", "--slowest", "0.01"]) == 0
    told = capsys.readouterr().out
    assert "o3: C = A^T A" in told and "80 products" in told
    with pytest.raises(SystemExit):
        main([*where, "--shapes", "33", "--transposes", "NN"])
    assert "NT (A A^T)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({"HEAD": "ref: refs/heads/x\n", "refs/heads/x": "0123456789abcdef\n"}, "0123456789ab"),
        ({"HEAD": "ref: refs/heads/x\n", "packed-refs": "# p\nfedc refs/heads/x\n"}, "fedc"),
        ({"HEAD": "ref: refs/heads/x\n", "packed-refs": "fedc refs/heads/y\n"}, ""),
        ({"HEAD": "0123456789abcdef\n"}, "0123456789ab"),
        ({"HEAD": "ref: refs/heads/x\n"}, ""),
        ({}, ""),
    ],
)
def test_the_commit_of_a_checkout(content, wanted, tmp_path, monkeypatch):
    """Of a branch, a packed branch, none at all, and where there is no checkout."""
    for name, text in content.items():
        place = tmp_path / ".git" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    monkeypatch.setattr(files, "__file__", str(tmp_path / "pymm" / "core" / "files.py"))
    assert files.commit() == wanted
