"""A user's kernel, and its launches with arguments of any number and type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pycuda.driver as drv

from pymm.backends.cuda.context import Held, active, failure
from pymm.backends.cuda.driver import DriverError
from pymm.backends.cuda.executable import STATIC_SHARED, CudaExecutable
from pymm.backends.cuda.launch import Bound, BoundLaunch, Launch
from pymm.core.errors import LaunchFailed
from pymm.kernels.custom import Geometry, packed_arguments


class CustomExecutable(CudaExecutable):
    """The kernel, loaded once into each context that it is called in."""

    def _entries(self) -> tuple[str, ...]:
        return (self._source.entry,)

    def bind_arguments(
        self,
        geometry: Geometry,
        arguments: Sequence[np.generic],
        owners: tuple[Any, ...],
        stream: Any = None,
        flops: int = 0,
    ) -> BoundLaunch:
        """A call that launches the kernel, with an unsigned 64-bit integer for each pointer among
        its `arguments`. It keeps the `owners` of the memory alive. Raises `LaunchFailed` for a
        geometry that the device cannot launch.
        """
        context = self._contexts.current()
        loaded = self._in(context)
        self._check_threads(geometry)
        self._allow_shared(loaded, context, geometry.shared)
        what = f"launching {self.config.slug} ({geometry.grid} blocks of {geometry.block} threads)"
        place = self._place(context, stream, flops, what)
        place = place._replace(early=False)  # the kernel does not wait for the launch before
        packed = packed_arguments(arguments)
        entry = self._source.entry
        launch = Launch(entry, geometry.grid, geometry.block, geometry.shared, packed)

        def bind() -> BoundLaunch:
            return self.bind_arguments(geometry, arguments, owners, stream, flops)

        return BoundLaunch(place, [launch], (self, stream, *owners), Bound((), bind, False))

    def _check_threads(self, geometry: Geometry) -> None:
        threads = math.prod(geometry.block)
        if threads > self.resources.max_threads:
            raise LaunchFailed(
                f"{self.config.slug} has {threads} threads in a block, and with its "
                f"{self.resources.registers} registers each at most {self.resources.max_threads} "
                "can be launched: make blocks smaller"
            )

    def _allow_shared(self, loaded: Held, context: drv.Context, shared: int) -> None:
        """More than 48 KiB of shared memory must be allowed for the function before."""
        if shared + self.resources.shared_bytes <= STATIC_SHARED:
            return
        try:
            with active(context):
                self._driver.allow_shared(loaded.functions[self._source.entry], shared)
        except DriverError as error:
            doing = f"taking {shared} bytes of shared memory for {self.config.slug}"
            raise failure(context, error, doing) from error
