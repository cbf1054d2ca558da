"""What became of a run: every row counted, and the first failure in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pymm.suites.lines import Row

#: Outcomes that are no failure.
SOUND = ("ok", "left_out", "not_applicable")


@dataclass
class Verdict:
    """What became of the rows, suite by suite, and the first failure in words."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: str = ""
    left: int = 0

    def take(self, rows: Sequence[Row]) -> None:
        """Count rows."""
        for row in rows:
            self.rows[str(row["suite"]), str(row["outcome"])] += 1
            if row["outcome"] not in SOUND and not self.first:
                what = row.get("config") or row.get("name", "")
                extents = "x".join(str(row.get(axis, "")) for axis in "mnk")
                self.first = (f"{row['suite']} {row.get('dtype', '')} {extents} {what}: "
                              f"{row['outcome']}: {row.get('detail', '')}")  # fmt: skip

    def lines(self) -> Iterator[str]:
        """One line for each suite, and the verdict."""
        for suite in dict.fromkeys(suite for suite, _ in self.rows):
            at = {outcome: n for (name, outcome), n in self.rows.items() if name == suite}
            told = ", ".join(f"{n} {outcome.replace('_', ' ')}" for outcome, n in at.items())
            yield f"{suite}: {'PASS' if set(at) <= set(SOUND) else 'FAIL'} ({told})"
        if self.first:
            yield f"FAIL: first {self.first}"
        elif self.left:
            yield f"INCOMPLETE: {self.left} steps are left; the same command goes on with them"
        else:
            counted = Counter()
            for (_, outcome), n in self.rows.items():
                counted[outcome] += n
            rest = ", ".join(f"{counted[name]} {name.replace('_', ' ')}"
                             for name in SOUND[1:] if counted[name])  # fmt: skip
            yield f"PASS: {counted['ok']} figures" + (f", {rest}" if rest else "")

    @property
    def status(self) -> int:
        """Exit status."""
        return int(bool(self.first or self.left))
