"""Compiled files on disk: whole or absent, checked before anything loads them.

A binary lives in a folder of its own, named by the key of what went into it, next to the digest of
its bytes. The folder is filled under another name and renamed when it is complete, so that
another process finds all of it or nothing, and a file cut short later is seen by its digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pymm.backends.directories import private

_DIGEST = "sha256"


def key_of(*parts: str) -> str:
    """One name for everything that decides what a compiler makes."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def sound(folder: Path) -> Path | None:
    """The binary in `folder` if it is whole, else None."""
    try:
        name, digest = (folder / _DIGEST).read_text(encoding="ascii").split()
        path = folder / name
        whole = hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except (OSError, ValueError):
        return None
    return path if whole else None


def obtain(folder: Path, make: Callable[[Path], Path]) -> Path:
    """The binary of `folder`; made by `make` in an empty directory that it is given, if there is
    none or not a whole one. `make` returns the file; whatever else it leaves is removed.
    """
    found = sound(folder)
    if found is not None:
        return found
    private(folder.parent)
    workplace = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        made = make(workplace)
        fresh = workplace / "fresh"
        fresh.mkdir()
        os.replace(made, fresh / made.name)
        digest = hashlib.sha256((fresh / made.name).read_bytes()).hexdigest()
        (fresh / _DIGEST).write_text(f"{made.name} {digest}\n", encoding="ascii")
        return _publish(fresh, folder, workplace) / made.name
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _publish(fresh: Path, folder: Path, workplace: Path) -> Path:
    """Rename `fresh` to `folder`. Whoever came first wins, unless what it left is damaged."""
    for attempt in range(8):
        try:
            os.rename(fresh, folder)
            return folder
        except OSError:
            if sound(folder) is not None:
                return folder
            if not folder.exists():
                raise
        try:
            os.rename(folder, workplace / f"damaged-{attempt}")
        except FileNotFoundError:
            continue  # another process has just mended it
    raise OSError(f"{folder} is changed by others all the time; delete it")
