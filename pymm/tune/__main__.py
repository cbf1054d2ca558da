"""`python -m pymm.tune`: tune, then make the page of what was tuned; `python -m pymm.tune replay`:
search recorded times.

The entry points of commands stand above all layers: this one knows the report, the tuner does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pymm.report.cli import page_after_tuning
from pymm.tune import replay, tuner


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["replay"]:
        return replay.main(given[1:])
    return tuner.main(given, page_after_tuning)


if __name__ == "__main__":
    sys.exit(main())
