"""Launches of users' kernels with their stored configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pymm.backends.base import Backend
from pymm.core.device import Device
from pymm.core.errors import NoDevice
from pymm.core.paths import config_directory
from pymm.kernels.custom import Array, CustomConfig, CustomKernel, CustomProblem, render_custom
from pymm.runtime.arrays import Operand, adopt
from pymm.runtime.bind import open_backend
from pymm.selection.custom import choose_custom
from pymm.selection.records import Environment


def require_cuda(device: Device) -> None:
    """Raise `NoDevice` for a device that runs no CUDA kernels."""
    if device.kernel_backend != "cuda":
        raise NoDevice(
            f"{device.name} runs no CUDA kernels: it takes an NVIDIA GPU (python -m pymm.doctor "
            "says what is missing), or the simulator, PYMM_SIMULATOR=1"
        )


def load_kernel(
    kernel: CustomKernel,
    sizes: Mapping[str, int],
    *,
    device: Any = None,
    directory: Path | None = None,
) -> LoadedKernel:
    """The kernel as a function for these sizes: compiled with the configuration that
    `tune_kernel` stored for them on this device, else with the default.

    `device` is what `pymm.matmul` takes; `directory` the folder that `tune_kernel` wrote to
    (default: the user's configuration). Raises `ValueError` for sizes that the declaration does not
    allow, `NoDevice`, `StoreError` for a damaged file, `CompileFailed`, `LaunchFailed`.
    """
    problem = kernel.problem(sizes)
    backend = open_backend(device)
    require_cuda(backend.device)
    environment = Environment.of(backend.device, backend.toolchain)
    where = directory or config_directory()
    choice = choose_custom(kernel, problem, backend.device, environment, where)
    return LoadedKernel(backend, problem, choice.config, choice.reason)


class LoadedKernel:
    """A user's kernel, compiled for one problem. `config` is its configuration, `reason` says where
    that comes from.

    A call takes the arrays in the order of the declaration, matrices of the device in C order
    (PyCUDA, CuPy, PyTorch, anything with `__cuda_array_interface__`), and launches on `stream`
    without waiting. Numbers of the declaration may be replaced by name. Raises `TypeError` for
    objects that are no arrays of a device, `ValueError` for an array of another shape, type or
    order, and `LaunchFailed`; nothing is launched then.
    """

    def __init__(
        self, backend: Backend, problem: CustomProblem, config: CustomConfig, reason: str
    ) -> None:
        self.config, self.reason = config, reason
        self._backend, self._problem = backend, problem
        self._executable = backend.executable(render_custom(config, problem))

    def __call__(self, *arrays: Any, stream: Any = None, **numbers: Any) -> None:
        given = self._problem.arguments
        names = [name for name, one in given if isinstance(one, Array)]
        if len(arrays) != len(names):
            raise TypeError(
                f"{self._problem.kernel} takes {len(names)} arrays ({', '.join(names)}); "
                f"got {len(arrays)}"
            )
        scalars = {name: one for name, one in given if name not in names}
        if unknown := numbers.keys() - scalars.keys():
            raise TypeError(
                f"{self._problem.kernel} has no number {', '.join(sorted(unknown))}; "
                f"it has {', '.join(scalars) or 'none'}"
            )
        operands = {n: adopt(a, n) for n, a in zip(names, arrays, strict=True)}
        declared = dict(given)
        for name, operand in operands.items():
            self._check(name, declared[name], operand)
        values = {name: _number(name, one, numbers.get(name)) for name, one in scalars.items()}
        values |= {name: np.uint64(operand.address) for name, operand in operands.items()}
        for operand in operands.values():
            if operand.stream is not None:
                self._backend.order(operand.stream, stream)
        launch = self._executable.bind_arguments(
            self.config.geometry,
            [values[name] for name, _ in given],
            tuple(operand.owner for operand in operands.values()),
            self._backend.stream(stream),
            self._problem.flops,
        )
        launch()

    def _check(self, name: str, declared: Array, operand: Operand) -> None:
        if operand.on_host:
            raise TypeError(f"{name} is a NumPy array: copy it to {self._backend.device.name}")
        spec = operand.spec
        if spec.dtype != declared.dtype or spec.shape != declared.shape:
            raise ValueError(
                f"{name} has shape {spec.shape} and type {spec.dtype}; {self._problem.slug} takes "
                f"{declared.shape} and {declared.dtype}"
            )
        packed = spec.packed(spec.shape, spec.dtype).strides
        steps = zip(spec.shape, spec.strides, packed, strict=True)
        if any(step != dense for extent, step, dense in steps if extent > 1) or operand.negative:
            raise ValueError(f"{name} is not contiguous in C order: strides {spec.strides}")
        if declared.writes and operand.readonly:
            raise ValueError(f"{name} is written by the kernel, and the array is read-only")
        index = operand.device_index
        if index is not None and index != self._backend.device.index:
            raise ValueError(
                f"{name} is on device {index}; the kernel is loaded on {self._backend.device.index}"
            )


def _number(name: str, declared: np.generic, given: Any) -> np.generic:
    """A number of the declared type. `ValueError` for one that the type does not have."""
    if given is None:
        return declared
    try:
        value = declared.dtype.type(given)
    except OverflowError:
        value = None
    if value is None or declared.dtype.kind in "biu" and value != given:
        raise ValueError(f"{name}={given!r} is no {declared.dtype}")
    return value
