"""What a backend offers: memory, binaries, launches, a stopwatch. Above this line nobody knows
which machine it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pymm.device import Device
from pymm.kernels import Config
from pymm.problem import Problem
from pymm.source import Source


class NoDevice(RuntimeError):
    """No device that can do what was asked; the message names what to do about it."""


class CompileFailed(RuntimeError):
    """The compiler refused a source; the message holds the compiler's words."""


class LaunchFailed(RuntimeError):
    """The device refused or broke off a launch; the message names configuration and resources.

    `sticky` is True when the device's context is lost and only a new process can go on.
    """

    def __init__(self, message: str, sticky: bool = False) -> None:
        super().__init__(message)
        self.sticky = sticky


@dataclass(frozen=True)
class Matrix:
    """Where a kernel finds a matrix or a stack: address in bytes, leading dimension and distance
    between the matrices of the stack in elements. `owner` keeps the memory alive.
    """

    address: int
    ld: int
    batch_stride: int = 0
    owner: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Resources:
    """What the compiler gave a kernel: registers and spilled bytes of a thread, shared bytes of a
    block.
    """

    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    max_threads: int = 0


class Buffer(ABC):
    """Device memory that is given back when the object goes."""

    address: int
    nbytes: int

    @abstractmethod
    def write(self, array: np.ndarray) -> None:
        """Copy the bytes of a contiguous array to the start of the buffer."""

    @abstractmethod
    def read(self, array: np.ndarray, offset: int = 0) -> None:
        """Copy `array.nbytes` bytes from `offset` on into a contiguous array; waits for the
        device.
        """

    @abstractmethod
    def fill(self, byte: int) -> None:
        """Set every byte."""


class Executable(ABC):
    """A compiled kernel of one configuration, ready to be launched."""

    config: Config
    resources: Resources

    @abstractmethod
    def bind(
        self,
        problem: Problem,
        alpha: float,
        a: Matrix,
        b: Matrix,
        beta: float,
        c: Matrix,
        stream: Any = None,
    ) -> Callable[[], None]:
        """A call without arguments that launches the product on `stream` and does not wait for it.

        Everything that can be worked out ahead (geometry, packed arguments) is worked out here.
        The call raises `LaunchFailed`. `problem` has no empty extent but possibly k.
        """


class Backend(ABC):
    """One device and its compiler. Made by `open` of its module; cheap to keep, not shared
    between processes.
    """

    device: Device

    @abstractmethod
    def precompile(self, source: Source) -> None:
        """Put the binary of `source` into the cache unless it is there. Needs no context; many
        processes may do it at once.

        Raises `CompileFailed`.
        """

    @abstractmethod
    def load(self, source: Source) -> Executable:
        """The kernel of `source`, from the cache where possible. Raises `CompileFailed`,
        `LaunchFailed`.
        """

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised device memory. Raises `MemoryError` with what was asked and what is free.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work of this process on the device. Raises `LaunchFailed` if any of it
        failed.
        """

    @abstractmethod
    def time(self, calls: Sequence[Callable[[], None]], flush: bool = True) -> list[float]:
        """Seconds that each call takes on the device, one after the other, with cold caches if
        `flush`.
        """

    @abstractmethod
    def telemetry(self) -> Mapping[str, float | str]:
        """Clock (MHz), power (W), temperature (C), throttle reasons where they can be read; else
        what is known.
        """

    @property
    @abstractmethod
    def toolchain(self) -> str:
        """Compiler and version: part of what makes a tuned record current or stale."""


#: Where binaries are kept; given by the caller so that backends read no settings of their own for
#: it.
CacheDirectory = Path
