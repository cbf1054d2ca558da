"""Plans replayed in SimGrid, and `python -m pymm.distributed simulate`."""

from __future__ import annotations

import csv
import sys

import numpy as np
import pytest

from pymm.distributed import calibrate, simgrid
from pymm.distributed.__main__ import main
from pymm.distributed.plan import Grid, Plan, Rates
from pymm.measure.results import DISTRIBUTED, SIMULATED

#: All in the same order of magnitude, so that nothing is hidden behind the rest.
RATES = Rates(flops=1e9, bandwidth=1e8, latency=1e-5, memory=1e9, overlap=1)


@pytest.mark.simgrid
@pytest.mark.parametrize("panel", [64, 100, 4096])
def test_one_process_only_multiplies(panel):
    plan = Plan(130, 65, 1000, Grid(1, 1), 64, panel, 8, RATES)
    steps = {64: 16, 100: 8, 4096: 1}[panel]  # panels are of whole blocks
    expected = 2 * 130 * 65 * 1000 / 1e9 + steps * 2 * 130 * 65 * 8 / 1e9
    done = simgrid.replay(plan)
    for seconds in (done.blocking, done.simulated, done.multiplying):
        assert seconds == pytest.approx(expected, rel=1e-12)
    assert done.efficiency == pytest.approx(1) and done.received == (0,)


@pytest.mark.simgrid
@pytest.mark.parametrize(
    "grid, rows, columns, depth",
    [(Grid(2, 2), 156, 146, 777), (Grid(3, 2, 2), 108, 146, 393), (Grid(1, 5), 300, 64, 777)],
)
def test_an_infinite_network_takes_no_time(grid, rows, columns, depth):
    """Of the process and the layer that have most."""
    rates = Rates(flops=1e9, bandwidth=1e20, latency=0, memory=1e9, overlap=0.3)
    done = simgrid.replay(Plan(300, 290, 777, grid, 16, 96, 8, rates))
    steps = -(-depth // 96)
    expected = 2 * rows * columns * depth / 1e9 + steps * 2 * rows * columns * 8 / 1e9
    for seconds in (done.blocking, done.simulated, done.multiplying):
        assert seconds == pytest.approx(expected, rel=1e-9)


@pytest.mark.simgrid
@pytest.mark.parametrize("overlap", [1.0, 0.75, 0.0])
@pytest.mark.parametrize("bandwidth, latency", [(1e8, 1e-5), (1e10, 1e-2)])
def test_two_processes_by_hand(bandwidth, latency, overlap):
    """1 x 2 processes, two panels of two blocks. Each has 64 x 64 of C and receives one block of
    A a panel, 64 x 64 x 8 bytes. A panel's product is 2 x 64 x 64 x 128 operations, 1048.576 us,
    and C twice, 65.536 us. The second case is where a TCP window of 4 MB would be the limit.
    """
    rates = Rates(flops=1e9, bandwidth=bandwidth, latency=latency, memory=1e9, overlap=overlap)
    done = simgrid.replay(Plan(64, 128, 256, Grid(1, 2), 64, 128, 8, rates))
    transfer, product = latency + 32768 / bandwidth, 1114.112e-6
    assert done.blocking == pytest.approx(2 * transfer + 2 * product, rel=1e-9)
    both = max(transfer, product) + (1 - overlap) * min(transfer, product)
    assert done.simulated == pytest.approx(transfer + both + product, rel=1e-9)
    assert done.received == (65536, 65536)


@pytest.mark.simgrid
@pytest.mark.parametrize("bandwidth", [1e7, 1e8, 1e9])
@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_an_even_product_takes_what_the_formula_says(bandwidth, overlap):
    """Where all processes have as much, nothing makes one wait for another."""
    rates = Rates(1e9, bandwidth, 0, 1e9, overlap)
    plan = Plan(256, 256, 1024, Grid(2, 2), 32, 128, 4, rates)
    assert simgrid.replay(plan).simulated == pytest.approx(plan.seconds, rel=1e-6)


@pytest.mark.simgrid
@pytest.mark.parametrize("seed", range(12))
def test_ragged_products(seed):
    """Look-ahead is never slower, nothing is faster than its products, and every process receives
    what the plan says, to the byte: also in layers, with empty processes and short panels.
    """
    random = np.random.default_rng(seed)
    m, n, k = (int(random.choice([1, 31, 33, 100, 257])) for _ in range(3))
    grid = Grid(*(int(extent) for extent in random.integers(1, 4, 3)))
    rates = Rates(1e9, float(random.choice([1e7, 1e9])), 1e-6, 1e9, float(random.random()))
    plan = Plan(m, n, k, grid, 16, int(random.integers(1, 80)), 8, rates)
    done = simgrid.replay(plan)
    expected = [8 * sum(plan.received_by(rank)) for rank in range(grid.size)]
    assert list(done.received) == expected
    assert done.multiplying <= done.simulated * (1 + 1e-12)
    assert done.simulated <= done.blocking * (1 + 1e-9)


@pytest.mark.simgrid
@pytest.mark.parametrize("shape", [(0, 5, 5), (5, 0, 5), (5, 5, 0)])
def test_empty_products_take_no_time(shape):
    done = simgrid.replay(Plan(*shape, Grid(2, 2), 16, 16, 8, RATES))
    assert done.simulated == done.blocking == 0 and done.efficiency == 1
    assert set(done.received) == {0}


def rows_in(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


SIMULATE = ("simulate", "300", "300", "900")


@pytest.mark.simgrid
def test_simulate(tmp_path, capsys):
    """The text says what it is; the row has the rates that were asked for."""
    path = tmp_path / "simulated.csv"
    options = ("--grid", "2x2x2", "--panel", "128", "--dtype", "f32", "--csv", str(path))
    assert main([*SIMULATE, *options, "--rates", "flops=1e9,bandwidth=1e8,overlap=1"]) == 0
    told = capsys.readouterr().out
    assert "simulated" in told and "without look-ahead" in told and "efficiency" in told
    (row,) = rows_in(path)
    assert tuple(row) == SIMULATED.columns
    assert (row["grid"], row["processes"], row["panel"]) == ("2x2x2", "8", "128")
    assert float(row["latency"]) == Rates().latency and float(row["bandwidth"]) == 1e8
    assert float(row["efficiency"]) == float(row["multiplying"]) / float(row["simulated"])
    assert row["measured"] == row["ratio"] == ""
    assert main([*SIMULATE, "-p", "3", "--csv", str(path)]) == 0
    assert len(rows_in(path)) == 2


def bench_row(**changes):
    row = {"engine": "pymm", "dtype": "f64", "m": 300, "n": 200, "k": 500, "processes": 4}
    row |= {"grid": "2x2x1", "block": 32, "panel": 128, "outcome": "ok", "seconds": 0.5}
    return row | {"device": "a-host"} | changes


@pytest.mark.simgrid
def test_simulate_against_measured_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path))
    bench, path = tmp_path / "bench.csv", tmp_path / "simulated.csv"
    other = (bench_row(engine="scalapack", panel=""), bench_row(processes=1, grid="1x1x1"))
    DISTRIBUTED.append(bench, [*other, bench_row(), bench_row(outcome="wrong")])
    command = ["simulate", "--against", str(bench), "--csv", str(path)]
    assert main(command) == 2
    assert "no rates of 4 processes: mpirun -n 4" in capsys.readouterr().err
    assert not path.exists()
    calibrate.keep(tmp_path / "distributed.json", "4 auto f64", RATES)
    assert main(command) == 0
    (row,) = rows_in(path)
    plan = Plan(300, 200, 500, Grid(2, 2), 32, 128, 8, RATES)
    assert float(row["simulated"]) == pytest.approx(simgrid.replay(plan).simulated)
    assert float(row["ratio"]) == pytest.approx(float(row["simulated"]) / 0.5)
    assert (row["measured"], row["device"], row["dtype"]) == ("0.5", "a-host", "f64")


@pytest.mark.simgrid
@pytest.mark.parametrize(
    "options, words",
    [
        ("simulate 9 9 -p 4", "give the extents M N K, or --against FILE"),
        ("simulate 9 9 9", "give -p"),
        ("simulate 9 9 9 -p 3 --grid 2x2", "--grid 2 x 2 x 1 takes 4 processes, not 3"),
        ("simulate 9 9 -1 -p 4", "the extents m, n, k are 0 or more"),
        ("simulate 9 9 9 -p 4 --rates speed=3", "speed"),
        ("simulate 9 9 9 -p 4 --rates flops=0", "flops is 0.0, not a positive number"),
        ("simulate 9 9 9 -p 4 --calibrated 4", "there are no rates of 4 processes"),
        ("simulate 9 9 9 -p 4 --csv CHANGELOG.md", "CHANGELOG.md"),
        ("simulate --against CHANGELOG.md", "CHANGELOG.md"),
        ("simulate 9 9 9 --against CHANGELOG.md", "give it alone"),
    ],
)
def test_simulate_refuses(options, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path))
    assert main(options.split()) == 2
    said = capsys.readouterr()
    assert words in said.err and said.out == ""


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python3"])
def test_without_simgrid_the_package_is_named(python, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(simgrid, "PYTHON", python)
    path = tmp_path / "simulated.csv"
    assert main([*SIMULATE, "-p", "4", "--csv", str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.endswith(f"{python} has no SimGrid: apt install python3-simgrid")
    assert "\n" not in said and not path.exists()
