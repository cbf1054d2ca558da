"""`python -m pymm.report`: what was measured of a device as one page, with text and data.

`load` reads the files of a device and `today` marks what is stale in them; `stats` and `searches`
compute from their rows what a report says; `plots`, `tables`, `prose` and `summary` show it;
`chapters` and `origins` put all in order as `content`, which `html`, `markdown` and `export` write.
`compare` compares two reports, `verify` measures a sample of one again.

To add a plot, write a function in the module of its subject in `plots/`, and name it in
`plots/__init__.py`, in the line of its chapter or experiment. The function takes the `Results` (or
the `Experiment`) and returns figures, which `svg.draw` and `svg.figure` make.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    from pymm.report.cli import main as command

    return command(argv)
