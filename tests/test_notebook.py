"""The notebook for learners runs from its first cell to its last and shows what it promises."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "ladder.ipynb"
CHECKS = "ladder_checks.py"


def checks():
    """docs/ladder_checks.py, which the notebook imports."""
    spec = importlib.util.spec_from_file_location("ladder_checks", NOTEBOOK.parent / CHECKS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def solutions():
    """The kernel in each folded cell, by the name of its exercise."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    folded = r"<details><summary>Solution: (\w+)</summary>\n\n```cuda\n(.*?)```"
    return dict(re.findall(folded, text, re.DOTALL))


def outputs(cells):
    """What each cell of code printed, and how many pictures it drew."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [
        (
            "".join("".join(out["text"]) for out in cell["outputs"] if "text" in out),
            sum("image/png" in out.get("data", {}) for out in cell["outputs"]),
        )
        for cell in code
    ]


def promised(told):
    """Whether the outputs show what the words around them say."""
    text = "\n".join(words for words, _ in told)
    verdicts = re.findall(r"^0\d .*", text, re.MULTILINE)
    assert len(verdicts) == 5 and all(" right " in line for line in verdicts)
    assert "with the check: right\n" in text and "both barriers: right\n" in text
    # Of A or of B: blocks run on several cores, and the first one that errs is named.
    assert re.search(r"without: pymm simulator: .* the end of allocation [12]", text)
    # Memory: spills where there are too few registers, and none where there are enough.
    sizes = [int(size) for size in re.findall(r"(\d+) bytes spill stores", text)]
    assert len(sizes) == 3 and sizes[:2] == [0, 0] and sizes[2] > 0
    for size in ("4 bytes gmem", "256 bytes stack frame", "1024 bytes smem"):
        assert size in text
    # One thread, walked to its place.
    assert "row * n + column = 3 * 10 + 9 = 39" in text and "39<" in text
    for barrier in ("ARRIVED", "DONE"):
        assert re.search(rf"without {barrier}: .*kernel.cu:\d+: race: .* nothing orders", text)
    # Only the write is guarded.
    assert "640, whole tiles: right" in text
    assert re.search(r"641: pymm simulator: .* past the end of allocation [12]", text)
    assert re.search(r"641, room around: 4225 of 4225 wrong, first C\[0\]\[0\] = \d+, not", text)
    assert "kernel.cu:9 read : 32.0 rounds" in text and text.count(" 32.0 rounds") == 1
    assert "C = A^T A is symmetric: True" in text
    assert "it breaks the rules: a block has at most the device's threads" in text
    assert len(re.findall(r"\d ms +\d+\.\d\d GFLOP/s", text)) == 4
    assert sum(pictures for _, pictures in told) == 4
    # What the reader has still to do.
    said = dict(re.findall(r"^([a-z]+): (not yet\.|right$)", text, re.MULTILINE))
    assert said == dict.fromkeys(checks().EXERCISES, "not yet.")


@pytest.mark.simulator
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own parts
def test_the_notebook_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # whatever a user's own profile loads
    notebook = nbformat.read(NOTEBOOK, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()
    promised(outputs(notebook.cells))


def test_what_the_notebook_shows_is_from_a_whole_run():
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    promised(outputs(notebook["cells"]))
    assert NOTEBOOK.stat().st_size < 500_000


def test_every_exercise_has_a_folded_solution():
    assert list(solutions()) and set(solutions()) == set(checks().EXERCISES)


@pytest.mark.simulator
@pytest.mark.parametrize("exercise", checks().EXERCISES)
def test_solutions_pass_their_checks(capsys, exercise):
    assert checks().check(exercise, solutions()[exercise])
    assert capsys.readouterr().out == f"{exercise}: right\n"


#: What is nearly a solution: text of the solution, what takes its place, what the check says.
NEARLY = {
    "one barrier": ("barriers", "__syncthreads();", "", "race: "),
    "a barrier too many": (
        "barriers",
        "__syncthreads();",
        "__syncthreads(); __syncthreads();",
        "it has 3 barriers, two are enough",
    ),
    "no guard of the write": (
        "edges",
        "if (row < m && column < n) C",
        "C",
        "past the end of allocation",
    ),
    "two columns more": ("banks", "[33]", "[34]", "a read of a warp takes 2 rounds"),
    "C read for nothing": (
        "beta",
        "(beta == 0 ? 0 : beta * *here)",
        "beta * *here",
        "which was never written",
    ),
    "no mirror image": ("symmetry", "C[column * n + row] = sum", "", "wrong, first C[16][0]"),
    "what is no C++": ("indices", "int row =", "int row", "error: "),
}


@pytest.mark.simulator
@pytest.mark.parametrize("case", NEARLY)
def test_what_is_nearly_right_is_told_why(capsys, case):
    exercise, old, new, reason = NEARLY[case]
    text = solutions()[exercise]
    assert old in text
    assert not checks().check(exercise, text.replace(old, new, 1))
    said = capsys.readouterr().out
    assert said.startswith(f"{exercise}: not yet. ") and reason in said
