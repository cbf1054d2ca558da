"""Rows that are appended to a CSV file, which keeps its columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from pymm.inputs import BadInput


def begun(path: Path, columns: Sequence[str]) -> bool:
    """Whether the file has a header. `BadInput` if that is another one, or it cannot be read."""
    header = ",".join(columns)
    try:
        if not path.exists() or path.stat().st_size == 0:
            return False
        with open(path, "rb") as file:
            first = file.readline(len(header) + 9).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; name another file") from None
    if first.strip() != header:
        raise BadInput(f"{path}, line 1: other columns than {header}; name another file")
    return True


def append(path: Path, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
    """Append rows to a CSV, with its header if the file is new. `BadInput`, and nothing written,
    if the file has other columns.
    """
    new = not begun(path, columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def mend(path: Path) -> None:
    """Cut off what stands behind the last line break, as a killed run leaves it."""
    with open(path, "r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def commit() -> str:
    """Of the checkout that this is run from, in 12 digits; empty if it is none."""
    place = Path(__file__).resolve().parents[1] / ".git"
    try:
        head = (place / "HEAD").read_text(encoding="ascii").strip()
        if head.startswith("ref: "):
            name = head.removeprefix("ref: ")
            packed = place / "packed-refs"
            if (place / name).exists():
                head = (place / name).read_text(encoding="ascii").strip()
            else:
                lines = packed.read_text(encoding="ascii").splitlines()
                head = next((x.split()[0] for x in lines if x.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""
    return head[:12]
