"""Where pymm keeps its files: settings from the environment, read here at the edge."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import platformdirs

try:
    import fcntl
except ImportError:  # no POSIX: what a process that was killed has left stays
    fcntl = None

#: What the system says where no more can be written.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(OSError):
    """No space is left, or none that this user may have; the message names the path."""


def cache_directory() -> Path:
    """Compiled kernels: `$PYMM_CACHE_DIR`, else the user's cache directory. Deleting it costs
    compile time, nothing else. `PermissionError` if somebody else could change what is in it.
    """
    return private(_chosen("PYMM_CACHE_DIR", platformdirs.user_cache_dir), "PYMM_CACHE_DIR")


def config_directory() -> Path:
    """The user's tuned configurations: `$PYMM_CONFIG_DIR`, else the user's configuration directory.
    """
    return _made(_chosen("PYMM_CONFIG_DIR", platformdirs.user_config_dir), "PYMM_CONFIG_DIR")


def state_directory() -> Path:
    """Journals of tuning runs: `$PYMM_STATE_DIR`, else the user's state directory."""
    return _made(_chosen("PYMM_STATE_DIR", platformdirs.user_state_dir), "PYMM_STATE_DIR")


def private(path: Path, setting: str = "PYMM_CACHE_DIR") -> Path:
    """`path` as a directory, made with mode 0700, whose files may be loaded as code.

    `PermissionError` unless it is this user's, nobody else may write there, and this process may.
    """
    return trusted(_made(path, setting), setting)


def trusted(path: Path, setting: str = "PYMM_CACHE_DIR") -> Path:
    """`path`, a directory that is this user's and in which nobody else may write: else
    `PermissionError`.
    """
    status = path.stat()
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(
            f"{path} belongs to user {status.st_uid}, and this process runs as {os.getuid()}: "
            f"kernels loaded from there could be anybody's. Set {setting} to a directory of yours"
        )
    if os.name == "posix" and status.st_mode & 0o022:
        raise PermissionError(
            f"other users may write in {path} (mode {status.st_mode & 0o777:o}): kernels loaded "
            f"from there could be anybody's. Run chmod 700 {path}, or set {setting}"
        )
    return path


@contextlib.contextmanager
def workplace(parent: Path, prefix: str) -> Iterator[Path]:
    """A new directory in `parent`, for this user alone, that is removed in the end. What processes
    that were killed have left there under the same prefix is removed first.
    """
    sweep(parent, prefix)
    place, lock = _locked(parent, prefix)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(parent: Path, prefix: str) -> None:
    """Remove the directories of that prefix that no process holds any more. The system lets go of
    a lock when the process that held it ends, however it ended.
    """
    for left in parent.glob(f"{prefix}*") if fcntl else ():
        with contextlib.suppress(OSError):  # another process holds it, or has removed it
            os.close(_lock(left, remove=True))


def _locked(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """A new directory and the descriptor that holds its lock."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if fcntl is None:
            return place, None
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = _lock(place)
            if place.exists():
                return place, lock
            os.close(lock)  # swept before it was locked


def _lock(place: Path, remove: bool = False) -> int:
    """The descriptor that holds the lock of a directory, which is removed under it if asked.
    `BlockingIOError` if another process holds it.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    if remove:
        shutil.rmtree(place, ignore_errors=True)
    return descriptor


def out_of_space(error: Exception | str, places: Mapping[str, Path]) -> DiskFull | None:
    """If `error`, or the words of a compiler, say that a disk is full: the error that names the
    path. `places` are the directories that were written in, by the setting that moves them; of
    several it is the one with the least space left.
    """
    told = isinstance(error, OSError) and error.errno in _FULL
    if not told and not any(os.strerror(number) in str(error) for number in _FULL):
        return None
    if isinstance(error, DiskFull):
        return error
    setting = min(places, key=lambda setting: _free(places[setting]))
    said = f"no space left on this disk: free some, or set {setting} to a directory on another one"
    return DiskFull(errno.ENOSPC, said, str(places[setting]))


def _free(place: Path) -> float:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return float("inf")


def _chosen(setting: str, default) -> Path:
    given = os.environ.get(setting)
    return Path(given).expanduser().absolute() if given else Path(default("pymm", appauthor=False))


def _made(path: Path, setting: str) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, setting, error.strerror) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unwritable(path, setting, "Permission denied")
    return path


def _unwritable(path: Path, setting: str, why: str | None) -> PermissionError:
    return PermissionError(
        f"cannot write in {path} ({why}): set {setting} to a directory where you can"
    )
