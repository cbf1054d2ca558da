"""Compiled files on disk: whole or absent, checked before anything loads them.

What a compiler makes is in its own folder, named by the key of what went into it, next to
the digests of its files. The folder is filled under another name and renamed when it is complete
and on the disk, so that another process finds all of it or nothing, and a file cut short later is
seen by its digest. Nothing is loaded from a folder that somebody else may write in.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pymm.core.errors import CompileFailed
from pymm.core.files import Workplace, sweep
from pymm.core.paths import out_of_space, private, trusted

LOG = logging.getLogger("pymm")

_DIGEST = "sha256"

#: Names of folders that are being filled begin so.
_HALF_MADE = "new-"


@contextlib.contextmanager
def log_compiling(name: str, target: str) -> Iterator[None]:
    """Log at INFO that `name` was compiled in a `with`, and how long it took."""
    begun = time.monotonic()
    yield
    LOG.info("compiled %s for %s in %.1f s", name, target, time.monotonic() - begun)


def key_of(*parts: str) -> str:
    """One name for everything that decides what a compiler makes."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def sound(folder: Path) -> Path | None:
    """The one binary in `folder` if it is whole and nobody else may write there, else None."""
    names = _whole(folder)
    return folder / names[0] if names else None


def obtain(folder: Path, make: Callable[[Path], Path]) -> Path:
    """The binary of `folder`; made by `make` in an empty directory that it is given, if there is
    none or not a whole one. `make` returns the file; whatever else it leaves is removed. Raises
    what `make` raises, and `OSError` that names the path.
    """

    def fill(fresh: Path, place: Path) -> None:
        made = make(place)
        os.replace(made, fresh / made.name)

    return folder / _names(folder, fill)[0]


def obtain_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """`folder` with all the files that `fill` puts into an empty directory; filled anew unless it
    is whole. Raises what `obtain` raises.
    """
    _names(folder, lambda fresh, place: fill(fresh))
    return folder


def _names(folder: Path, fill: Callable[[Path, Path], None]) -> list[str]:
    """The files of `folder`, relative to it. `fill` gets the directory to put them into and another
    one for what is only needed meanwhile.
    """
    private(folder.parent)
    if names := _whole(folder):
        return names
    try:
        with Workplace(_HALF_MADE, folder.parent) as place:
            fresh, rest = place / "fresh", place / "rest"
            fresh.mkdir(mode=0o700)
            rest.mkdir(mode=0o700)
            fill(fresh, rest)
            names = _seal(fresh)
            _publish(fresh, folder, place)
    except (OSError, CompileFailed) as error:
        if full := out_of_space(error, {"PYMM_CACHE_DIR": folder.parent}):
            raise full from error
        raise
    return names


def _whole(folder: Path) -> list[str]:
    """The files of `folder` by its list of digests, relative to it; none if any of them is not as
    it was made, or others may write in the folder.
    """
    try:
        trusted(folder)
        lines = (folder / _DIGEST).read_text(encoding="utf-8").splitlines()
        digests = dict(line.rsplit(" ", 1) for line in lines)
        whole = all(_digest(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError):
        return []
    return list(digests) if whole else []


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(fresh: Path) -> list[str]:
    """Write the list of digests, and all files to the disk: a machine that stops after the rename
    must not leave empty ones under their names.
    """
    files = sorted(path for path in fresh.rglob("*") if path.is_file())
    names = [path.relative_to(fresh).as_posix() for path in files]
    lines = (f"{name} {_digest(fresh / name)}\n" for name in names)
    (fresh / _DIGEST).write_text("".join(lines), encoding="utf-8")
    for path in (*files, fresh / _DIGEST, *filter(Path.is_dir, fresh.rglob("*")), fresh):
        _sync(path)
    return names


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tidy(cache: Path) -> None:
    """Remove from `cache` what processes that were killed have left half made."""
    for folder in cache.glob("*/"):
        sweep(folder, _HALF_MADE)


def _publish(fresh: Path, folder: Path, place: Path) -> None:
    """Rename `fresh` to `folder`. Whoever came first wins, unless what it left is damaged."""
    for attempt in range(8):
        try:
            os.rename(fresh, folder)
            with contextlib.suppress(OSError):  # some systems do not open folders
                _sync(folder.parent)
            return
        except OSError:
            if _whole(folder):
                return
            if not folder.exists():
                raise
        try:
            os.rename(folder, place / f"damaged-{attempt}")
        except FileNotFoundError:
            continue  # another process has just replaced it
    raise OSError(f"{folder} is changed by others all the time; delete it")
