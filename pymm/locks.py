"""Two promises about files that several processes write: one at a time, and whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX: a file created exclusively is the lock
    fcntl = None


@contextlib.contextmanager
def locked(path: Path, seconds: float = 30.0) -> Iterator[None]:
    """Hold the lock file `path`, waiting for other processes up to `seconds`, then `TimeoutError`.

    The system lets go of the lock when a process dies. The lock file itself stays.
    """
    deadline = time.monotonic() + seconds
    take = _flock if fcntl else _create
    while (release := take(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} has been held by another process for {seconds:.0f} s")
        time.sleep(0.01)
    try:
        yield
    finally:
        release()


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that whoever reads finds the old text or the new one, even if this
    process or the machine stops halfway. Call it under `locked`: left-overs are swept up.
    """
    path = Path(os.path.realpath(path))
    prefix = f".{path.name}."
    for left in path.parent.glob(f"{prefix}*.tmp"):
        left.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename outlast a power cut, where folders can be opened at all."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _flock(path: Path) -> Callable[[], None] | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return lambda: os.close(descriptor)


def _create(path: Path) -> Callable[[], None] | None:
    held = path.with_name(path.name + ".held")
    try:
        os.close(os.open(held, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return None
    return held.unlink
