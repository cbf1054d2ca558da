"""What the documentation says is so: its code runs, and it names what the code has."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pymm
import pymm.distributed
import pymm.tune
from pymm.__main__ import MODULES
from pymm.bench.experiments.catalog import EXPERIMENTS, suites_named
from pymm.core.problem import DTYPES, Problem
from pymm.measure.workbench import OUTCOMES
from pymm.report.facts import device_of
from pymm.selection.records import (
    CONFIG_FIELDS,
    MEASURED_FIELDS,
    RARELY_MEASURED_FIELDS,
    Environment,
)
from pymm.selection.select import select

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)


def code(path: Path) -> list[tuple[str, str]]:
    """The blocks of Python of a page, each with the words behind the language."""
    return re.findall(r"(?ms)^```python ?([^\n]*)\n(.*?)^```", path.read_text())


def described(text: str) -> set[str]:
    """What stands in backticks in the first column of the tables of a text."""
    rows = re.findall(r"(?m)^\|(.*?)\|", text)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def run(code: str) -> None:
    """Run Python code in a process of its own, as on a machine without a GPU."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYMM_SIMULATOR="0")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if code(p)], ids=lambda p: p.stem)
def test_code_runs(page):
    """The blocks of a page, one after another; `no-run` marks what needs a GPU or another library.
    Blocks that begin in the middle are compiled at least.
    """
    blocks = code(page)
    runnable = "\n".join(text for words, text in blocks if "no-run" not in words)
    if runnable:
        run(runnable)
    for _, text in blocks:
        compile(text, str(page), "exec")


def test_every_public_name_is_in_the_reference():
    for package, page in ((pymm, "api"), (pymm.tune, "api"), (pymm.distributed, "distributed")):
        text = (DOCS / "reference" / f"{page}.md").read_text()
        named = re.findall(rf":: {package.__name__}\.(\w+)$", text, re.MULTILINE)
        assert sorted(named) == sorted(package.__all__)


def test_every_command_is_in_the_reference():
    text = (DOCS / "reference" / "commands.md").read_text()
    named = set(re.findall(r"\{command-help\} pymm (\w+)", text))
    assert named == {*MODULES, "explain"}


def test_every_environment_variable_is_in_the_reference():
    """Those that Python, the simulator's C++ and the tests read, and no others."""
    text = (DOCS / "reference" / "environment.md").read_text()
    named = {name for name in described(text) if name.startswith("PYMM_")}
    sources = [*(ROOT / "pymm").rglob("*.py"), *(ROOT / "pymm").rglob("*.cpp")]
    read = set()
    for path in [*sources, ROOT / "tests" / "conftest.py"]:
        read |= set(re.findall(r'"(PYMM_[A-Z_]+[A-Z])"', path.read_text()))
    assert named == read


def test_every_key_of_a_record_is_in_the_reference():
    text = (DOCS / "reference" / "tuning-configs.md").read_text()
    places, _, record = text.partition("## Record")
    measured = {*MEASURED_FIELDS, *RARELY_MEASURED_FIELDS}
    assert described(record) == {*CONFIG_FIELDS, "measured", *measured}
    assert [dtype for dtype in DTYPES if f"`{dtype}`" not in places] == []


@pytest.mark.parametrize("file", ["ladder", "classes", "suites", "tuning-renewed"])
def test_every_column_is_in_the_reference(file):
    text = (DOCS / "reference" / "csv.md").read_text()
    with open(ROOT / "benchmarks" / "results" / "nvidia-h200" / f"{file}.csv", newline="") as rows:
        columns = next(csv.reader(rows))
    named = described(text) | {"problem"}
    assert [column for column in columns if column not in named] == []
    assert set(OUTCOMES) <= named


@pytest.mark.parametrize("page", ["add-dtype", "add-kernel"])
def test_places_in_the_code_exist(page):
    """Rows of tables that begin with a file name something in it."""
    text = (DOCS / "howto" / f"{page}.md").read_text()
    rows = re.findall(r"^\| `([\w/.]+)` \| `(\w+)` \|", text, re.MULTILINE)
    missing = [(file, name) for file, name in rows if name not in (ROOT / file).read_text()]
    assert missing == []


def test_every_page_is_in_the_index():
    text = (DOCS / "index.md").read_text()
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES} - {"index"}
    listed = {line for line in text.splitlines() if line in pages}
    assert pages == listed


def test_argument_lists_of_docstrings_are_found(monkeypatch):
    """`out: array ...` at the beginning of a paragraph becomes an entry of a list."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    convert = importlib.import_module("pymm_docs").with_arguments
    lines = "One line.\n\nout: an array, a*b.\n    More of it.\nc, d: two.\n\nThe end: none."
    told = [line for line in convert(lines.splitlines()) if line]
    assert told == [
        "One line.",
        "**out**",
        r"   an array, a\*b.",
        "   More of it.",
        "**c, d**",
        "   two.",
        "The end: none.",
    ]


def test_the_examples_of_choices_are_todays():
    """The products of an H200 in selection.md, and what `explain` says of each."""
    facts = json.loads(
        (ROOT / "benchmarks" / "results" / "nvidia-h200" / "device.json").read_text()
    )
    tools = Environment("580.159.04", "nvcc 13.0.88")
    text = (DOCS / "explanation" / "selection.md").read_text()
    rows = re.findall(r"\| (\w+), (\d+) x (\d+) x (\d+)(, A transposed)? \| `([^`]+)`", text)
    assert len(rows) == 3
    for dtype, m, n, k, transposed, said in rows:
        problem = Problem(int(m), int(n), int(k), dtype, bool(transposed))
        assert select(problem, device_of(facts), None, tools).reason == said


def test_the_counts_of_the_surveys_are_those_of_the_files():
    text = (DOCS / "explanation" / "selection.md").read_text()
    figures = r"on the H200 ([\d,]+) of ([\d,]+) .* on an H100 ([\d,]+) of ([\d,]+)"
    found = re.search(figures, text, re.DOTALL)
    counts = []
    for slug in ("nvidia-h200", "nvidia-h100-80gb-hbm3"):
        with np.load(ROOT / "tuning_configs" / f"{slug}.survey.npz", allow_pickle=False) as file:
            rows = [file[name].astype(int) for name in file.files if name.endswith("_rows")]
        products = sum(len(np.unique(of_type[:, :5], axis=0)) for of_type in rows)
        counts += [sum(map(len, rows)), products]
    assert [int(one.replace(",", "")) for one in found.groups()] == counts


def test_the_figures_of_the_origins_are_those_of_the_files():
    """`python benchmarks/origins.py` would change nothing."""
    command = [sys.executable, "benchmarks/origins.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def test_the_origins_have_every_suite():
    """Each in a command of the table, and each command is one that there is."""
    text = (DOCS / "explanation" / "origins.md").read_text()
    table = text.partition("<!-- figures -->")[2].partition("<!-- end figures -->")[0]
    named = {name for text in re.findall(r"--suite ([\w-]+)", table) for name in suites_named(text)}
    assert named == set(EXPERIMENTS)
    for module in re.findall(r"-m (pymm\.\w+)", table):
        importlib.import_module(module)
    for script in re.findall(r"python (\S+\.py)`", table):
        assert (ROOT / script).exists(), script
