"""`python -m pymm.tune`: tune, then make the page of what was tuned.

The entry points of commands stand above all layers: this one knows the report, the tuner does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pymm.report.cli import page_after_tuning
from pymm.tune import tuner


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    return tuner.main(argv, page_after_tuning)


if __name__ == "__main__":
    sys.exit(main())
