"""Files that several processes write: locks, atomic replacement, folders that are removed with the
process that made them, and rows appended to a CSV file.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from pymm.core.inputs import BadInput

#: Descriptors of the lock files that `locked` holds in this process.
_LOCKS: set[int] = set()


@contextlib.contextmanager
def locked(path: Path, seconds: float = 30.0) -> Iterator[None]:
    """Hold the lock file `path`, waiting for other processes up to `seconds`, then `TimeoutError`.

    The system lets go of the lock when this process dies; children that it forked meanwhile do not
    have it. The lock file itself stays.
    """
    deadline = time.monotonic() + seconds
    while (held := _locked_file(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} has been held by another process for {seconds:.0f} s")
        time.sleep(0.01)
    _LOCKS.add(held)
    try:
        yield
    finally:
        if held in _LOCKS:  # not in a forked child
            _LOCKS.remove(held)
            os.close(held)


def _locked_file(path: Path) -> int | None:
    """A descriptor of the file `path`, locked; None if another has the lock or removed the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _lock(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock(descriptor: int, path: Path) -> bool:
    """Lock an open file or folder without waiting. False if another process has the lock, or `path`
    has become another file or none; `OSError` where it cannot be locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, PermissionError, FileNotFoundError):
        return False


def _forget_locks() -> None:
    """Close a forked child's copies, with which it would hold what its parent lets go of."""
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_forget_locks)


def replace_text(path: Path, text: str | bytes) -> None:
    """Write `text` to `path`, as UTF-8, so that a reader finds the old text or the new one, even if
    this process or the machine stops halfway. Call it under `locked`: left-overs are swept up.
    """
    path = Path(os.path.realpath(path))
    prefix = f".{path.name}."
    for left in path.parent.glob(f"{prefix}*.tmp"):
        left.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    try:
        with named(path), open(descriptor, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Give `OSError`s of a `with` that name no file the name `path`: of a write to a full disk the
    system says only that the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class Workplace:
    """A new folder of this process alone, `path` in `parent` (default: that of temporary files),
    with everything in it removed by `close`, at the end of a `with` or of the process. What a
    killed process left of the same `prefix` is removed when the next one is made.

    A process holds a lock on its folder, which ends with it, however that ends.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = Path(parent or tempfile.gettempdir())
        sweep(parent, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            held, own = _take(self.path)
            if own is not False:
                break
            if held is not None:  # another process swept the folder before it was locked
                os.close(held)
        self._end = weakref.finalize(self, _remove, self.path, held, os.getpid())

    def close(self) -> None:
        """Remove the folder."""
        self._end()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exception: object) -> None:
        self.close()


def sweep(parent: Path, prefix: str) -> None:
    """Remove this user's folders in `parent` whose names begin with `prefix` and whose process is
    dead.
    """
    try:
        left = [entry for entry in os.scandir(parent) if entry.name.startswith(prefix)]
    except OSError:
        return
    for entry in left:
        held, own = _take(Path(entry.path))
        if own:
            shutil.rmtree(entry.path, ignore_errors=True)
        if held is not None:
            os.close(held)


def _take(folder: Path) -> tuple[int | None, bool | None]:
    """A descriptor of `folder`, and whether this process holds its lock now: None where a folder
    cannot be locked, False if another process holds it, or it is gone, a link or another user's.
    """
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None, False
    if os.fstat(held).st_uid != os.getuid():
        return held, False
    try:
        return held, _lock(held, folder)
    except OSError:
        return held, None


def _remove(folder: Path, held: int | None, process: int) -> None:
    if process == os.getpid():  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
    if held is not None:
        os.close(held)


def _sync_folder(folder: Path) -> None:
    """Make a rename outlast a power cut, where folders can be opened at all."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def begun(path: Path, columns: Sequence[str]) -> bool:
    """Whether the file has a header. `BadInput` if that is another one, or it cannot be read."""
    header = ",".join(columns)
    try:
        if not path.exists() or path.stat().st_size == 0:
            return False
        with open(path, "rb") as file:
            line = file.readline(len(header) + 9).removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; name another file") from None
    if line.decode(errors="replace").strip() != header:
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


def drop_partial_line(path: Path) -> None:
    """Cut off what comes after the last line break, as a killed run leaves it."""
    with open(path, "r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):  # else another process may append just now
            file.truncate(content.rfind(b"\n") + 1)


def commit() -> str:
    """Of the checkout that this is run from, in 12 digits; empty if it is none."""
    place = Path(__file__).resolve().parents[2] / ".git"
    try:
        head = (place / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            name = head.removeprefix("ref: ")
            packed = place / "packed-refs"
            if (place / name).exists():
                head = (place / name).read_text(encoding="utf-8").strip()
            else:
                lines = packed.read_text(encoding="utf-8").splitlines()
                head = next((x.split()[0] for x in lines if x.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""
    return head[:12]
