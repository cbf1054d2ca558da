"""`python -m pymm.report`: what was measured of a device as one page, with text and data beside it.

`reading` takes files apart; `facts`, `searches` and `studies` say what they come to; the `plots_*`
draw that and `listing` and `grids` set it in tables; `chapters` puts all in order as `content`, and
`page`, `text` and `record` write it down. `comparing` sets two reports side by side, `again`
measures a sample of one again.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    from pymm.report.command import main as command

    return command(argv)
