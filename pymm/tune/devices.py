"""The devices of a run: which ones are meant, one measuring process for each of them, locks against
other tuners, and a tuner of its own for each model.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from pymm.backends import available_devices
from pymm.console import Stop, spared
from pymm.core.device import Device
from pymm.measure.worker import STARTS, Worker, WorkerFailed

#: What `--devices` calls every GPU of the machine.
ALL = "all"

#: A device is left out when so many configurations in a row failed on it and worked on another.
FAILED_ONLY_HERE = 3

#: Seconds between two attempts to lock a device, and between two looks at other tuners.
POLL = 0.05


class SeveralModels(Exception):
    """The devices are of several models: `groups` has the names of each model's devices."""

    def __init__(self, groups: Sequence[Sequence[str | int | None]]) -> None:
        super().__init__(groups)
        self.groups = groups


def parse_devices(text: str | None) -> tuple[str | int | None, ...]:
    """Names of devices as `open_device` takes them; without `text` (None,), the first GPU or else
    the CPU. `ValueError` for a device that is named twice.
    """
    if not text:
        return (None,)
    names = tuple(_name(part.strip()) for part in text.split(","))
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--devices {text}: device {name} is named twice")
    if ALL in names and len(names) > 1:
        raise ValueError(f"--devices {text}: {ALL} means every GPU; name no other device beside it")
    return names


def _name(text: str) -> str | int:
    """A GPU's number for `1`, `cuda:1` and `cuda`; any other text as it is."""
    if gpu := re.fullmatch(r"(?:cuda:)?(\d{1,6})|cuda", text):
        return int(gpu[1] or 0)
    return text


def gpu_names() -> list[str | int | None]:
    """The GPUs of this machine by number. A process of its own looks, so that this one never loads
    the driver.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool, spared():
        return list(range(pool.submit(_count_gpus).result()))


def _count_gpus() -> int:
    return sum(device.kernel_backend == "cuda" for device in available_devices())


def name_of(device: Device) -> str:
    """The device as `--devices` names it: `cuda:1`, `cpu`."""
    return "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"


def start(
    workers: Sequence[Worker],
    names: Sequence[str | int | None],
    say: Callable[[str], object] | None = None,
) -> tuple[list[Worker], list[str | int | None]]:
    """Start all `workers` at the same time; those that run, and the names of their devices. With
    `say` one that cannot be started is left out, which `say` is told, while another can. Raises
    `WorkerFailed`.
    """
    for worker in workers:
        with suppress(WorkerFailed):  # it is told below, where the worker is started once more
            worker.ready()
    started, failed = [], []
    for worker, name in zip(workers, names, strict=True):
        try:
            worker.start()
            started.append((worker, name))
        except WorkerFailed as failure:
            failed.append((name, failure))
    if failed and (say is None or not started):
        raise failed[0][1]
    for name, failure in failed:
        say(f"GPU {name} is left out: {failure}")
    return [worker for worker, _ in started], [name for _, name in started]


def require_one_model(workers: Sequence[Worker], names: Sequence[str | int | None]) -> None:
    """Raise `SeveralModels` unless all workers have devices of one model."""
    groups: dict[str, list[str | int | None]] = {}
    for worker, name in zip(workers, names, strict=True):
        groups.setdefault(worker.device.name, []).append(name)
    if len(groups) > 1:
        raise SeveralModels(list(groups.values()))


class Crew:
    """The measuring processes of a run, each in its place. A process that is lost is started again
    while the others go on; one whose device is lost for good leaves its place.
    """

    def __init__(
        self, workers: Sequence[Worker], say: Callable[[str], object] = lambda text: None
    ) -> None:
        self._workers = dict(enumerate(workers))
        self._say = say
        self._refused: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        #: A device of the model; what it is does not change when it is lost.
        self.device: Device = workers[0].device

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, place: int) -> Worker:
        return self._workers[place]

    @property
    def places(self) -> list[int]:
        """The places that still have a device."""
        return list(self._workers)

    @property
    def lead(self) -> int:
        """The place of the device that times the finals, alone."""
        return next(iter(self._workers))

    def name(self, place: int) -> str:
        """The device there, as `--devices` names it."""
        return name_of(self._workers[place].device)

    def ready(self, place: int) -> bool:
        """Whether the process there can take a request; one is started if there is none. Raises
        `WorkerFailed` if it was the last.
        """
        try:
            ready = self._workers[place].ready()
        except WorkerFailed as failure:
            self._refused[place] += 1
            if self._refused[place] >= STARTS:
                self.leave_out(place, failure)
            return False
        if ready:
            self._refused[place] = 0
        return ready

    def worked(self, place: int, failed_at: int | None) -> None:
        """A configuration worked at `place` that had failed at `failed_at` (None: nowhere)."""
        self._failed[place] = 0
        if failed_at is None or failed_at == place or failed_at not in self._workers:
            return
        self._failed[failed_at] += 1
        if self._failed[failed_at] >= FAILED_ONLY_HERE:
            count = f"{FAILED_ONLY_HERE} configurations in a row failed only there"
            self.leave_out(failed_at, WorkerFailed(count))

    def leave_out(self, place: int, failure: WorkerFailed) -> None:
        """Go on without the device there. Raises `failure` if it was the last."""
        if len(self._workers) == 1:
            raise failure
        name = self.name(place)
        self._workers.pop(place).stop()
        self._say(f"{name} is left out ({failure}); the run goes on with {len(self)} of its model")


# A tuner for each model


def tune_each(
    command: Callable[[list[str]], int],
    argv: Sequence[str],
    groups: Sequence[Sequence[str | int | None]],
    stop: Stop,
    say: Callable[[str], object],
) -> int:
    """Run `command` for each group of devices at the same time, in a process of its own, every line
    of its output behind the devices' names, which `say` prints. An interrupt is passed on to each.
    The exit status is the largest of theirs.
    """
    texts = [",".join(map(str, group)) for group in groups]
    with stop.listening():
        tuners = [_begin(command, [*argv, "--devices", text]) for text in texts]
        readers = [
            threading.Thread(target=_relay, args=(output, text, say))
            for (_, output), text in zip(tuners, texts, strict=True)
        ]
        for reader in readers:
            reader.start()
        processes, told = [process for process, _ in tuners], False
        try:
            while any(process.is_alive() for process in processes):
                if stop() and not told:
                    _interrupt(processes)
                    told = True
                time.sleep(POLL)
        except KeyboardInterrupt:
            _interrupt(processes)
            raise
        finally:
            for thread in (*readers, *processes):
                thread.join()
    return max(abs(process.exitcode) for process in processes)


def _begin(command: Callable[[list[str]], int], argv: list[str]) -> tuple[Any, Connection]:
    """A process that runs the command, and what its output is read from."""
    context = multiprocessing.get_context("spawn")
    output, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tune_alone, args=(command, argv, theirs))
    with spared():
        process.start()
    theirs.close()
    return process, output


def _tune_alone(command: Callable[[list[str]], int], argv: list[str], output: Connection) -> None:
    """The life of such a process: it ends with its parent, which passes interrupts on."""
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
    sys.exit(command(argv))


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _relay(output: Connection, name: str, say: Callable[[str], object]) -> None:
    with open(os.dup(output.fileno()), encoding="utf-8", errors="replace") as lines, output:
        for line in lines:
            say(f"[{name}] {line.rstrip()}")


def _interrupt(processes: Sequence[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
