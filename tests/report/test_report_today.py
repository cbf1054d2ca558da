"""What is not today's is marked, and is in no headline."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import json

import measured
import pytest
from h200 import H200
from report_fixtures import folder, without_plots  # noqa: F401

from pymm.core.problem import Problem
from pymm.kernels import find_kernel, parse_slug
from pymm.kernels.source import kernel_digest
from pymm.measure import results
from pymm.report import load, stats, today
from pymm.report.chapters import report
from pymm.report.facts import device_of, facts_of
from pymm.selection import store
from pymm.selection.plain import computed
from pymm.selection.records import Environment, Record, device_facts
from pymm.selection.select import select

#: The limits of the device of `measured`, without which nobody knows what pymm chooses there.
LIMITS = {"capability": "9.0", "sms": 132, "shared_per_block": 232448, "shared_per_sm": 233472}

#: Times faster than everything else, by which a stale row would be seen in any headline.
FAST = 1000.0

TOOLS = Environment("580.1", "nvcc 13.0.88")


@pytest.fixture
def real(folder):
    """A folder whose rows name real configurations with today's sources: what pymm chooses."""
    path = folder / "device.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | LIMITS))
    device = device_of(load.read_device(folder).device)
    rows = measured.class_rows()
    for row in rows:
        trans_a = row["layout"] == "TN"
        problem = Problem(row["m"], row["n"], row["k"], row["dtype"], trans_a)
        config = computed(problem, device, lambda p: select(p, device, None, TOOLS))[1].config
        row |= {"kernel": config.kernel.label, "config": config.slug}
        row |= {"source": kernel_digest("cuda", config.kernel.file)}
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    return folder, rows


def faster(row):
    """The same row, so much faster that no headline could hide it."""
    return row | {
        "us": row["us"] / FAST,
        "ratio": row["ratio"] * FAST,
        "gflops": row["gflops"] * FAST,
    }


STALE = {
    "source": lambda row: row | {"source": "0" * 12},
    "choice": lambda row: row | {"config": other(row["config"])},
    "configuration": lambda row: row | {"config": "gone-MB1"},
}


def other(slug):
    """Another configuration of the same kernel."""
    config = parse_slug(slug, "cuda")
    steps = config.as_dict()["KB"] * 2
    return config.kernel.config({**config.as_dict(), "KB": steps}).slug


def headlines(made):
    """Everything that the first screen says, and the means of the classes."""
    (glance,) = [chapter for chapter in made.chapters if chapter.name == "glance"]
    yield from (f"{tile.label} {tile.value} {tile.note}" for tile in glance.tiles)
    yield from (said for name, said in glance.observations if name != "Is it today's?")
    for table in (t for c in made.chapters for t in c.tables):
        if table.name == "types" or table.name.startswith("classes-"):
            yield from (" ".join(cell.text for cell in row.values()) for row in table.rows)
    yield json.dumps(made.data["summary"])


def test_rows_of_today_are_not_stale(real):
    found = load.read_device(real[0])
    assert len(found.of("classes")) == len(real[1])
    assert [row.stale for row in found.of("classes")] == [""] * len(real[1])


@pytest.mark.parametrize("why", STALE)
def test_a_stale_row_stands_in_no_headline(real, without_plots, why):
    folder, rows = real
    without = report(measured_with(folder, rows[1:]))
    with_it = report(measured_with(folder, [STALE[why](faster(rows[0])), *rows[1:]]))
    for before, after in zip(headlines(without), headlines(with_it), strict=True):
        assert after == before
    fresh = report(measured_with(folder, [faster(rows[0]), *rows[1:]]))
    assert list(headlines(fresh)) != list(headlines(without)), "it would be seen if it were today's"
    glance = dict(with_it.chapters[0].observations)
    assert "1 of " in glance["Is it today's?"] and "stale" in glance["Is it today's?"]
    tables = {t.name: t for c in with_it.chapters for t in c.tables}
    states = [row["state"].text for row in tables["products"].rows]
    assert len(states) == len(rows) and sum(s.startswith("stale: ") for s in states) == 1
    (grid,) = [t for name, t in tables.items() if name == "shapes"]
    assert sum("stale" in cell.text for row in grid.rows for cell in row.values()) == 1


def measured_with(folder, rows):
    """The folder with these rows of classes alone, so that they make all headlines."""
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    for name in ("ladder.csv", "suites.csv", "tuning.csv", "unseen.csv"):
        (folder / name).unlink(missing_ok=True)
    return load.read_device(folder)


def test_stale_rows_of_an_experiment_have_a_column_and_no_sentence(folder, without_plots):
    rows = measured.suites(sparse=16)
    for row in rows:
        if row["suite"] == "o2-sizes" and row.get("variant") == "chosen":
            row |= {"source": "0" * 12}
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    (o2,) = [c for c in report(load.read_device(folder)).chapters if c.name == "o2"]
    said = dict(o2.observations)["o2-sizes:"]
    assert stats.CHOICE not in said
    assert any("of o2-sizes" in remark and "stale" in remark.lower() for remark in o2.remarks)
    (table,) = [t for t in o2.tables if t.name == "rates-o2-sizes"]
    assert stats.CHOICE + stats.STALE in table.columns and stats.CHOICE not in table.columns
    assert all("stale" in row["ratio"].text and row["ratio"].shade is None for row in table.rows)


def search(seconds, stored):
    """A search of 64 x 64 with its final, and the records of the device."""
    kernel = find_kernel("register_tile", "cuda")
    problem, digest = Problem(64, 64, 64), kernel_digest("cuda", kernel.file)
    device = device_of({**measured_facts(), **LIMITS})
    default = kernel.default_for(problem, device)
    best = next(c for c in kernel.configs(problem, device)[0] if c != default)
    common = {"schema": results.TRIALS.number, "device": measured.SLUG, "outcome": "ok"}
    common |= {"problem": problem.slug, "kernel": kernel.name, "repeats": 9, "spread": 0.01}
    rows = [
        common | {"config": config.slug, "role": role, "seconds": time, "source": digest}
        for role in ("search", "final")
        for config, time in ((default, 2e-5), (best, seconds))
    ]
    kept = best if stored else default
    record = Record(problem, kept, seconds, 0.01, "2026-11-23", TOOLS, digest)
    return device, rows, record


def measured_facts():
    return {
        "name": "Test GPU 9",
        "slug": measured.SLUG,
        "kind": "cuda",
        "peak_flops": measured.PEAK,
    }


@pytest.mark.parametrize(("stored", "gains"), [(True, [2.0]), (False, [])])
def test_only_a_search_whose_winner_is_stored_makes_a_headline(folder, tmp_path, stored, gains):
    device, rows, record = search(1e-5, stored)
    measured.write(folder / "tuning.csv", results.TRIALS.columns, rows)
    (folder / "device.json").write_text(json.dumps(facts_of(device)))
    records = tmp_path / "records"
    records.mkdir()
    text = store.render_table(store.Table(device_facts(device), (record,)))
    (records / f"{measured.SLUG}.yaml").write_text(text)
    found = load.read_device(folder, records)
    assert [s.gain for s in stats.tuned_searches(found)] == pytest.approx(gains)
    (of,) = stats.searches(found)
    assert bool(of.stale) is not stored


@pytest.mark.parametrize("n", [7168, 64])
def test_a_product_computed_in_the_exact_type_is_of_today(n):
    """What a row of tf32x3 names is float32's choice where `matmul` computes in float32."""
    problem = Problem(64, n, 2112, "tf32x3", False, True)
    now = today.Today(device=H200, environment=TOOLS)
    config = select(Problem(64, n, 2112, "f32", False, True), H200, None, TOOLS).config
    assert now.choice(problem, TOOLS) == config.slug
    split = select(problem, H200, None, TOOLS).config
    assert split.slug != config.slug


def test_other_tools_make_a_row_stale():
    row = load.Row("classes", "f.csv", {"driver": "570", "compiler": "nvcc 13.0.88"})
    assert "570" in today.Today(environment=TOOLS).stale_because(row)
    same = load.Row("classes", "f.csv", {"driver": "580.1", "compiler": "nvcc 13.0.88"})
    assert today.Today(environment=TOOLS).stale_because(same) == ""


@pytest.mark.parametrize("missing", LIMITS)
def test_without_its_limits_nobody_knows_what_a_device_gets(missing):
    facts = {**measured_facts(), **LIMITS}
    assert device_of(facts) is not None
    del facts[missing]
    assert device_of(facts) is None


def test_a_described_device_is_read_back(cpu):
    device = device_of(facts_of(cpu.device))
    for name in ("name", "kind", "sms", "vector_bytes", "vector_registers", "cache_bytes"):
        assert getattr(device, name) == getattr(cpu.device, name), name
