"""Compiled files on disk: whole or absent, checked before anything loads them.

A binary lives in a folder of its own, named by the key of what went into it, next to the digest of
its bytes. The folder is filled under another name and renamed when it is complete, so that
another process finds all of it or nothing, and a file cut short later is seen by its digest.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from pymm.backends.base import CompileFailed
from pymm.backends.directories import private
from pymm.locks import Workplace, named, sweep

_DIGEST = "sha256"

#: Names of folders that are being filled begin so.
_HALF_MADE = "new-"

#: What compilers and the system say of a full disk.
_FULL = os.strerror(errno.ENOSPC)


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
    none or not a whole one. `make` returns the file; whatever else it leaves is removed. A full
    disk is an `OSError` that names the place, also where the compiler met it.
    """
    found = sound(folder)
    if found is not None:
        return found
    private(folder.parent)
    with Workplace(_HALF_MADE, folder.parent) as workplace, named(folder.parent):
        try:
            made = make(workplace)
        except CompileFailed as failure:
            if _FULL in str(failure):
                raise OSError(errno.ENOSPC, _FULL, str(folder.parent)) from failure
            raise
        fresh = workplace / "fresh"
        fresh.mkdir()
        os.replace(made, fresh / made.name)
        digest = hashlib.sha256((fresh / made.name).read_bytes()).hexdigest()
        (fresh / _DIGEST).write_text(f"{made.name} {digest}\n", encoding="ascii")
        return _publish(fresh, folder, workplace) / made.name


def tidy(cache: Path) -> None:
    """Remove from `cache` what processes that were killed have left half made."""
    for folder in cache.glob("*/"):
        sweep(folder, _HALF_MADE)


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
