"""Where studies are kept: a journal file for each problem, which one tuner uses at a time, or one
storage that tuners share: a journal file, a database, a gRPC proxy of one.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study

from pymm.core.errors import Busy, Error
from pymm.core.files import locked, named
from pymm.tune.trial_log import JournalLock, repair, set_aside

#: How the name of a shared journal file ends. Any other path is a folder.
JOURNAL = ".journal"

#: Seconds to wait for a gRPC proxy; attempts to open a database, and seconds between two.
PROXY_SECONDS, ATTEMPTS, ATTEMPT_SECONDS = 10.0, 4, 0.5

#: Seconds that SQLite waits for another tuner that writes.
SQLITE_SECONDS = 60.0


class StorageError(Error, ValueError):
    """A shared storage that cannot be opened; the message says what to do."""


class StorageLost(Error, RuntimeError):
    """A shared storage that was there and is not any more."""


def parse_storage(text: str | None) -> tuple[Path | None, str]:
    """What `--storage` names: a folder, or a shared storage (the other one is None or ""). Raises
    `StorageError` for a URL that cannot be one.
    """
    if not text:
        return None, ""
    if "://" not in text:
        return (None, text) if text.endswith(JOURNAL) else (Path(text), "")
    scheme, _, rest = text.partition("://")
    if scheme == "grpc" and not re.fullmatch(r"[^/:@\s]+:[0-9]{1,5}/?", rest):
        raise StorageError(f"--storage {shown(text)}: write grpc://host:port")
    if not re.fullmatch(r"[a-z0-9]+(\+[a-z0-9_]+)?", scheme):
        raise StorageError(
            f"--storage {shown(text)}: no URL of a database (sqlite:///file.db, "
            "postgresql://user@host/name) or a proxy (grpc://host:port)"
        )
    return None, text


def shown(text: str) -> str:
    """A URL without the password in it."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", text)


@contextmanager
def open_shared(text: str) -> Iterator[BaseStorage]:
    """The storage that `parse_storage` calls shared. Raises `StorageError` if it cannot be opened,
    `StorageLost` for what fails later.
    """
    try:
        storage = _connect(text)
    except StorageError:
        raise
    except Exception as failure:  # a driver of a database raises what it likes
        raise StorageError(f"--storage {shown(text)}: {_first_line(failure)}") from None
    try:
        yield storage
    except _failures() as failure:
        why = _first_line(failure.__cause__ or failure)
        raise StorageLost(
            f"the storage {shown(text)} failed: {why}. The run stops here; what was measured is in "
            "the table of trials"
        ) from None


def _connect(text: str) -> BaseStorage:
    if "://" not in text:
        return _shared_journal(Path(text))
    if text.startswith("grpc://"):
        return _proxy(text)
    for _ in range(ATTEMPTS - 1):
        try:
            return _database(text)
        except ImportError:
            raise
        except Exception:  # perhaps another tuner is making its tables just now
            time.sleep(ATTEMPT_SECONDS)
    return _database(text)


def _database(text: str) -> BaseStorage:
    options: dict[str, Any] = {"pool_pre_ping": True}  # a connection may have been closed
    if text.startswith("sqlite"):
        options = {"connect_args": {"timeout": SQLITE_SECONDS}}
    return optuna.storages.get_storage(optuna.storages.RDBStorage(text, options))


def _proxy(text: str) -> BaseStorage:
    try:
        importlib.import_module("grpc")
        importlib.import_module("google.protobuf")
    except ImportError:
        raise StorageError(
            f"--storage {text} needs two packages more: pip install grpcio protobuf"
        ) from None
    host, _, port = text.removeprefix("grpc://").rstrip("/").rpartition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        proxy = optuna.storages.GrpcStorageProxy(host=host, port=int(port))
    try:
        proxy.wait_server_ready(PROXY_SECONDS)
    except ConnectionError:
        proxy.close()
        raise StorageError(
            f"--storage {text}: nothing answers there within {PROXY_SECONDS:.0f} s; is the proxy "
            "running, and is the port open?"
        ) from None
    return proxy


def _shared_journal(path: Path) -> BaseStorage:
    """A journal that others may use at the same time: nothing is set aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalLock(path.with_suffix(".lock"))
    lock.acquire()
    try:
        damage = repair(path)
    finally:
        lock.release()
    journal = _Journal(path)
    try:
        if not damage:
            return JournalStorage(journal)
    except OSError:
        raise
    except Exception as error:  # what an entry lacks shows itself in Optuna in any way
        damage = f"line {journal.line} is no entry of a study ({type(error).__name__})"
    raise StorageError(f"--storage {path} is no journal of studies ({damage}): name another file")


def _first_line(failure: Exception) -> str:
    text = str(failure).strip() or type(failure).__name__
    return shown(text.splitlines()[0])


def _failures() -> tuple[type[Exception], ...]:
    """What the packages behind a shared storage raise, those that are loaded."""
    found: list[type[Exception]] = [optuna.exceptions.StorageInternalError]
    for module, name in (("sqlalchemy.exc", "SQLAlchemyError"), ("grpc", "RpcError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def shared_name(device: str, problem: str, kernel: str, facts: Mapping[str, str]) -> str:
    """The name of a study in a shared storage: only tuners of the same GPU model, driver, compiler
    and kernel source find each other.
    """
    text = "\n".join(f"{key}={facts[key]}" for key in sorted(facts))
    return f"{device}/{problem}/{kernel}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# A journal of one tuner


@contextmanager
def open_storage(
    path: Path | None, say: Callable[[str], object] = warnings.warn
) -> Iterator[BaseStorage]:
    """The storage in the journal file `path` (None: in memory), held against other tuners.

    A half-written last line (the process was killed in the middle) is cut off; a file damaged
    elsewhere is kept as `<name>.damaged`, which `say` is told, and a new one begun. Raises `Busy`.
    """
    if path is None:
        yield InMemoryStorage()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_suffix(".tuner"), seconds=0))
        except TimeoutError:
            raise Busy(f"another tuner works with {path}") from None
        yield _read_journal(path, say)


class _Journal(JournalFileBackend):
    """Optuna's file, whose errors name it, and which knows what line was read last."""

    line = 0

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), JournalLock(path.with_suffix(".lock")))
        self._path = path

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The entries from that one on."""
        entries = super().read_logs(log_number_from)
        for self.line, entry in enumerate(entries, log_number_from + 1):
            yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines."""
        with named(self._path):
            super().append_logs(logs)


def _read_journal(path: Path, say: Callable[[str], object]) -> BaseStorage:
    if not (damage := repair(path)):
        journal = _Journal(path)
        try:
            return JournalStorage(journal)
        except OSError:
            raise
        except Exception as error:  # what an entry lacks shows itself in Optuna in any way
            damage = f"line {journal.line} is no entry of a study ({type(error).__name__})"
    kept = set_aside(path, "damaged")
    say(f"the journal {path} cannot be used ({damage}): kept as {kept}, its trials are made again")
    return JournalStorage(_Journal(path))


def open_study(
    storage: BaseStorage, name: str, facts: Mapping[str, str], resume: str = "auto"
) -> Study:
    """The study `name-1`, `name-2`, ... to work on.

    `resume` "auto": the last one if its `facts` (kernel's source, compiler, driver) are the same;
    "never": a new one.
    """
    names = optuna.get_all_study_names(storage)
    found = [s for s in names if re.fullmatch(rf"{re.escape(name)}-[0-9]{{1,9}}", s)]
    numbers = sorted(int(s.rpartition("-")[2]) for s in found)
    if numbers and resume != "never":
        study = optuna.load_study(study_name=f"{name}-{numbers[-1]}", storage=storage)
        attributes = study.user_attrs
        # A fact that is missing is about to be written by the tuner that has just made the study.
        if all(attributes.get(key, value) == value for key, value in facts.items()):
            return study
    number = numbers[-1] + 1 if numbers else 1
    shared = resume != "never"  # another tuner that makes it at the same time means the same
    study = optuna.create_study(
        study_name=f"{name}-{number}", storage=storage, load_if_exists=shared
    )
    for key, value in facts.items():
        study.set_user_attr(key, value)
    return study
