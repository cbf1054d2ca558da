"""The notebook for learners runs from its first cell to its last and shows what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "ladder.ipynb"


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
    verdicts = [line for line in text.splitlines() if line.startswith("0")]
    assert len(verdicts) == 5 and all(" right " in line for line in verdicts)
    assert "the end of allocation" in text  # the kernel without its question
    assert "without ARRIVED: pymm simulator: " in text and "which was never written" in text
    assert "without DONE: every element is 40: False" in text
    assert "both barriers: every element is 40: True" in text
    assert "it breaks the rules: a block has at most the device's threads" in text
    assert sum(pictures for _, pictures in told) == 3


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
