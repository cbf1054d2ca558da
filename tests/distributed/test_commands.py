"""`python -m pymm.distributed`, and ScaLAPACK on the blocks of distributed matrices."""

from __future__ import annotations

import csv
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_launchers import LAUNCHERS

from pymm.core.inputs import BadInput
from pymm.distributed import calibrate
from pymm.distributed.__main__ import main, parser
from pymm.distributed.plan import Rates
from pymm.measure.results import DISTRIBUTED

ROOT = Path(__file__).resolve().parents[2]
MODULE = ("-m", "pymm.distributed")


def start(count: int, *arguments: object) -> subprocess.CompletedProcess:
    """`count` processes of this interpreter."""
    command, settings = LAUNCHERS["openmpi"]
    words = [*command, "-n", str(count), sys.executable, *map(str, arguments)]
    environment = os.environ | settings | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def rows_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.scalapack
@pytest.mark.mpi
@pytest.mark.parametrize("grid", ["1x1", "2x2", "3x2"])
def test_scalapack_agrees(grid):
    """On 36 products, with the blocks in place; the library must be there."""
    count = math.prod(map(int, grid.split("x")))
    done = start(count, "tests/support/scalapack_cases.py", grid)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["36"]


@pytest.mark.scalapack
@pytest.mark.mpi
def test_bench(tmp_path):
    """Every engine is measured and right, on 1 and 2 processes; the byte counter is the plan's;
    the same command then has nothing left to do."""
    path = tmp_path / "bench.csv"
    command = (*MODULE, "bench", "--sizes", "65x130x97,40", "--block", 16, "--csv", path)
    command = (*command, "--processes", "1,2", "--repeats", 2)
    done = start(2, *command)
    assert done.returncode == 0, done.stderr
    rows = rows_in(path)
    assert len(rows) == 2 * 2 * 4 and tuple(rows[0]) == DISTRIBUTED.columns
    for row in rows:
        assert row["outcome"] == "ok", row
        assert 0 <= float(row["error_inf"]) < 1e-14
        assert float(row["fastest"]) <= float(row["mean"]) and float(row["speedup"]) > 0
        flops = 2 * int(row["m"]) * int(row["n"]) * int(row["k"])
        assert float(row["gflops"]) == pytest.approx(flops / float(row["seconds"]) / 1e9)
        if row["engine"] == "pymm":
            assert row["received"] == row["planned"]
            assert int(row["received"]) >= int(row["bound"])
        if row["engine"] in ("once", "document") and row["processes"] == "2":
            p, q, _ = map(int, row["grid"].split("x"))
            m, n, k = (int(row[name]) for name in "mnk")
            copies = (q * m * k + p * k * n) / (m * k + k * n)
            assert float(row["handed_out"]) <= (1 if row["engine"] == "once" else copies) + 1e-9
    assert "scalapack" in done.stdout and "geometric mean of 2 products" in done.stdout
    again = start(2, *command)
    assert again.returncode == 0 and rows_in(path) == rows


@pytest.mark.scalapack
@pytest.mark.mpi
def test_an_error_that_is_not_zero_is_not_shown_as_zero(tmp_path):
    path = tmp_path / "bench.csv"
    sizes = ("--sizes", "60x50x300", "--engines", "pymm,scalapack", "--csv", path)
    done = start(2, *MODULE, "bench", *sizes, "--dtype", "f32", "--grid", "2x1", "--panel", 64)
    assert done.returncode == 0, done.stderr
    shown = [line.split()[-1] for line in done.stdout.splitlines() if "60x50x300" in line]
    measured = [float(row["error_inf"]) for row in rows_in(path)]
    assert len(shown) == len(measured) == 2 and max(measured) > 0
    assert [text == "0" for text in shown] == [error == 0 for error in measured]


@pytest.mark.mpi
def test_a_time_limit_leaves_out_and_says_so(tmp_path):
    path = tmp_path / "bench.csv"
    done = start(2, *MODULE, "bench", "--sizes", "30,40", "--time-limit", 0, "--csv", path)
    assert done.returncode == 1
    assert "2 products were left out for want of time" in done.stdout
    assert not path.exists()


@pytest.mark.mpi
@pytest.mark.parametrize(
    "options, words",
    [
        ("--sizes 3x", "'3x' is no extent"),
        ("--sizes 9 --suite o4", "give --sizes or --suite"),
        ("--sizes 9 --processes 3", "--processes 3: there are 2; use mpirun -n"),
        ("--sizes 9 --grid 2x2", "takes 4 processes"),
        ("--sizes 9 --engines blas", "'blas' is none of pymm, scalapack, once, document"),
        ("--sizes 9 --repeats 0", "'0' is no integer from 1 on"),
        ("--sizes 9 --csv CHANGELOG.md", "name another file"),
    ],
)
def test_bad_options_are_said_once_and_end_the_job(options, words):
    before = (ROOT / "CHANGELOG.md").read_bytes()
    done = start(2, *MODULE, "bench", *options.split())
    assert done.returncode == 2
    assert done.stderr.count(words) == 1, done.stderr
    assert "Traceback" not in done.stderr and (ROOT / "CHANGELOG.md").read_bytes() == before


@pytest.mark.mpi
def test_calibrate_keeps_rates_for_explain(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path))
    done = start(2, *MODULE, "calibrate")
    assert done.returncode == 0, done.stderr
    assert calibrate.kept(tmp_path / "distributed.json", "2 auto f64").flops > 1e6
    assert main(["explain", "500", "500", "500", "-p", "2"]) == 0
    assert "measured by calibrate" in capsys.readouterr().out


def test_explain_needs_no_mpi():
    """Nor imports it."""
    code = (
        "import sys; from pymm.distributed.__main__ import main; "
        "main(['explain', '10000', '10000', '128', '-p', '16']); "
        "assert 'mpi4py' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 x 4 x 1" in done.stdout and "received / bound 1.000" in done.stdout


def test_the_demo_runs_a_command_that_exists():
    """What `make mpi-demo` would run, with the options of today."""
    told = subprocess.run(
        ["make", "--no-print-directory", "-n", "mpi-demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    words = shlex.split(told.stdout.replace("\\\n", " "))
    options = parser().parse_args(words[words.index("pymm.distributed") + 1 :])
    assert options.sizes and "tools/set_up.py" in words and "mpi" in words


RATES = Rates(1e9, 2e9, 3e-6, 4e9, 0.25)


def test_rates_are_kept_beside_others(tmp_path):
    path = tmp_path / "there/distributed.json"
    assert calibrate.kept(path, "4 numpy f64") is None
    calibrate.keep(path, "4 numpy f64", RATES)
    calibrate.keep(path, "2 numpy f64", Rates())
    calibrate.keep(path, "2 numpy f64", Rates(flops=5e9))
    assert calibrate.kept(path, "4 numpy f64") == RATES
    assert calibrate.kept(path, "2 numpy f64") == Rates(flops=5e9)


@pytest.mark.parametrize(
    "content, words",
    [
        ("[]", "no object of rates"),
        ('{"4 numpy f64": {"flops": 1}}', "has not the fields flops, bandwidth"),
        (json.dumps({"x": vars(RATES) | {"overlap": 2}}), "overlap is 2"),
        (json.dumps({"x": vars(RATES) | {"flops": "fast"}}), "flops is 'fast'"),
        ("{", "no JSON"),
    ],
)
def test_a_file_of_rates_that_is_not_ours_is_named(tmp_path, content, words):
    path = tmp_path / "distributed.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=words) as found:
        calibrate.kept(path, "4 numpy f64")
    assert str(path) in str(found.value)
