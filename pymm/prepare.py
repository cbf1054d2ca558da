"""A checked call made ready to run: device, route, configuration, memory and bound launches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from pymm.backends import open_device
from pymm.backends.base import Backend, LaunchFailed
from pymm.call import Call
from pymm.choose import choose
from pymm.kernels import kernels_for
from pymm.launch import bind, rebinder
from pymm.product import Product, arrange
from pymm.routes import Across, InPlace, OnDevice, Opened, Route
from pymm.select import Choice
from pymm.transfer import Way


@dataclass(frozen=True)
class Prepared:
    """A call that can be run any number of times: `steps` in their order leave the product in
    `result`. `choice` is None for an empty product, which has no steps. `opened` owns the memory
    that the steps use. `rebind` makes the one step for operands of the same forms elsewhere
    (`pymm.launch.rebinder`); `spans` are the bytes that a, b and the result take. `fallback` says
    that the kernel is not the best one, for want of memory.
    """

    product: Product
    choice: Choice | None
    steps: tuple[Callable[[], None], ...]
    opened: Opened
    rebind: Callable[..., Any] | None = None
    spans: tuple[tuple[int, int], ...] = ()
    fallback: bool = False

    @property
    def result(self) -> Any:
        """The array to hand back."""
        return self.opened.result

    @property
    def cacheable(self) -> bool:
        """True if there is nothing to do but launch, by the best kernel there is."""
        return len(self.steps) == 1 and not self.fallback


def find_backend(call: Call, device: Any = None) -> Backend:
    """The device that a call runs on: the caller's (what `open_device` takes, or a `Backend`), else
    the one that holds the operands, else the default one.

    Raises `NoDevice`; `TypeError` for arrays of a GPU on the CPU; `ValueError` for arrays of
    different devices.
    """
    held = {x.name: x.device_index for x in call.operands if x.device_index is not None}
    if device is None and not call.on_host:
        device = next((f"cuda:{index}" for index in held.values()), "cuda")
    backend = open_backend(device)
    if not call.on_host and backend.device.kind == "cpu":
        raise TypeError(
            f"a is a {type(call.a.owner).__name__} on a GPU and the device {backend.device.name}: "
            f"copy it to the host, or leave device= out"
        )
    if any(index != backend.device.index for index in held.values()):
        places = ", ".join(f"{name} on device {index}" for name, index in held.items())
        raise ValueError(f"{places}; the product would run on device {backend.device.index}")
    return backend


def open_backend(device: Any = None) -> Backend:
    """The backend for what `open_device` takes; one that is open already is returned."""
    if isinstance(device, Backend):
        return device
    if device is None or isinstance(device, str | int):
        return _device(device, os.getpid())
    return open_device(device)  # which says what a device is


@lru_cache(maxsize=64)
def _device(spec: Any, process: int) -> Backend:
    """`open_device` reads the environment and looks at directories; a call has no time for that."""
    return open_device(spec)


def find_route(backend: Backend, call: Call, transfer: str | None = None) -> Route:
    """How the operands of `call` get to `backend`'s device. Touches no memory.

    Raises `ValueError` for an unknown transfer, `NotImplementedError` for a conversion that would
    have to happen on a device.
    """
    way = Way.parse(transfer)
    if not call.on_host:
        return OnDevice(backend, call)
    return InPlace(backend, call) if backend.device.kind == "cpu" else Across(backend, call, way)


def find_product(call: Call, route: Route) -> Product:
    """The launches of a call by this route."""
    return arrange(*route.forms, call.trans_a, call.trans_b, call.kind, call.op)


def prepare(
    backend: Backend,
    call: Call,
    stream: Any = None,
    kernel: str | int | None = None,
    config: Any = None,
    transfer: str | None = None,
) -> Prepared:
    """Everything that comes before the work itself. Nothing is written yet.

    Raises `ValueError`, `NotImplementedError`, `TypeError` as `pymm.matmul` documents, and
    `CompileFailed`, `LaunchFailed`, `MemoryError`.
    """
    route = find_route(backend, call, transfer)
    product = find_product(call, route)
    choice = choose(backend, product.problem, kernel, config)
    stream = None if stream is None else backend.stream(stream)
    if call.on_host and stream is not None and backend.is_captured(stream):
        raise ValueError(
            "NumPy arrays cannot be multiplied on a stream that is being captured into a graph: "
            "their transfers wait for the device. Copy them to the device before the capture"
        )
    with backend.preparing():
        opened = route.open(stream)
        if not product.steps:
            return Prepared(product, None, (), opened)
        binding = partial(bind, backend, addresses=opened.addresses,
                          scalars=(call.alpha, call.beta), stream=opened.stream)  # fmt: skip
        try:
            launch, fallback = binding(config=choice.config, product=product), False
        except MemoryError as error:
            if kernel is not None or config is not None:
                raise
            choice, launch = _with_less_memory(backend, product, choice, binding, error)
            fallback = True
    steps = (*opened.before, launch, *opened.after)
    rebind = rebinder(product, launch) if len(steps) == 1 else None
    spans = tuple(form.bounds for form in route.forms)
    return Prepared(product, choice, steps, opened, rebind, spans, fallback)


def _with_less_memory(
    backend: Backend,
    product: Product,
    choice: Choice,
    binding: Callable[..., Callable[[], None]],
    error: MemoryError,
) -> tuple[Choice, Callable[[], None]]:
    """Another kernel's configuration and launch where the chosen one found no memory for its
    copies of the operands: the highest rung that does with what there is. Raises `error` if there
    is none.
    """
    problem = product.problem
    for other in reversed(kernels_for(problem, backend.device)):
        if other.name == choice.config.kernel_name:
            continue
        try:
            found = choose(backend, problem, other.name)
            launch = binding(config=found.config, product=product)
        except (MemoryError, ValueError, LaunchFailed):
            continue
        _warn_once(choice.config.kernel_name, problem.slug, other.name)
        reason = f"{found.reason}; {choice.config.kernel_name} found too little free memory"
        return replace(found, reason=reason), launch
    raise error


@lru_cache(maxsize=1024)
def _warn_once(kernel: str, slug: str, other: str) -> None:
    """Say that a product is computed by another kernel than the best one."""
    words = f"{kernel} found too little free device memory for {slug}: {other} computes it"
    warnings.warn(words, RuntimeWarning, stacklevel=2)
