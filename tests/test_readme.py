"""The README shows what was measured, and its lines of Python run."""

import os
import re
import subprocess
import sys
from pathlib import Path

from pymm.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[1]


def test_tables_are_what_their_files_say():
    """`python benchmarks/tables.py` would change nothing."""
    command = [sys.executable, "benchmarks/tables.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def test_the_ladder_has_every_kernel():
    """By number and name, whether it was measured yet or not."""
    text = (ROOT / "README.md").read_text()
    names = [k.label for k in KERNELS if k.backend == "cuda"]
    assert [name for name in names if f"| {name} |" not in text] == []


def test_every_column_of_the_ladder_is_explained():
    """Those of figures by a line above the table; kernel, dtype and what it adds need none."""
    text = (ROOT / "README.md").read_text()
    page = text.partition("## Measured")[2]
    header = re.search(r"<!-- short ladder.*?-->\n\|(.*?)\|\n", page)
    figures = [name.strip() for name in header[1].split("|")][3:]
    assert figures and [name for name in figures if f"- **{name}**: " not in page] == []


def test_the_layout_names_every_package():
    """And every folder of sources and documents."""
    text = (ROOT / "README.md").read_text()
    layout = text.partition("## Repository layout")[2].partition("\n## ")[0]
    packages = [path.parent.name for path in (ROOT / "pymm").glob("*/__init__.py")]
    folders = ("cuda_src", "cpu_src", "tuning_configs", "docs", "examples", "benchmarks", "reports")
    wanted = [*(f"pymm/{name}/" for name in packages), *(f"{name}/" for name in folders)]
    assert [name for name in wanted if f"`{name}`" not in layout] == []


def test_the_lines_of_use_run():
    """The Python block, as somebody would paste it on a machine without a GPU, with matrices of a
    tenth of the extent.
    """
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    block = re.sub(r"\b(1000|300|700)\b", lambda extent: extent[0][:-1], block)
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=ROOT,
        env=dict(os.environ, PYMM_SIMULATOR="0"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "100 x 70" in done.stdout
