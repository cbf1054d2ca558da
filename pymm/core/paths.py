"""Where pymm keeps its files, and other settings from the environment, read here at the edge."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from pymm.core.errors import Error

#: What the system says where no more can be written.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(Error, OSError):
    """No space is left, or none that this user may have; the message names the path."""


def cache_directory() -> Path:
    """Compiled kernels: `$PYMM_CACHE_DIR`, else the user's cache directory. Deleting it costs
    compile time, nothing else. `PermissionError` if somebody else could change what is in it.
    """
    return private(_chosen("PYMM_CACHE_DIR", platformdirs.user_cache_dir), "PYMM_CACHE_DIR")


def config_directory() -> Path:
    """The user's tuned configurations: `$PYMM_CONFIG_DIR`, else the user's own."""
    return _made(_chosen("PYMM_CONFIG_DIR", platformdirs.user_config_dir), "PYMM_CONFIG_DIR")


def state_directory() -> Path:
    """Journals of tuning runs: `$PYMM_STATE_DIR`, else the user's state directory."""
    return _made(_chosen("PYMM_STATE_DIR", platformdirs.user_state_dir), "PYMM_STATE_DIR")


def frozen_from_start() -> bool:
    """Whether `$PYMM_FREEZE` asks that changed files of tuned configurations change nothing in this
    process: set, and neither empty nor 0.
    """
    return os.environ.get("PYMM_FREEZE", "0") not in ("", "0")


#: What `PYMM_COMPILE` may be.
COMPILE_MODES = ("keep", "replace", "wait")


def compile_mode() -> str:
    """What `$PYMM_COMPILE` asks for where a product's kernel is not compiled yet and others are:
    one of `COMPILE_MODES`, "keep" if it is not set. `ValueError` for anything else.
    """
    mode = os.environ.get("PYMM_COMPILE", "") or COMPILE_MODES[0]
    if mode not in COMPILE_MODES:
        raise ValueError(f"PYMM_COMPILE={mode!r} is none of {', '.join(COMPILE_MODES)}")
    return mode


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
