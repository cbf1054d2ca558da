"""From a checked call to a bound launch: device, configuration, memory, launches. And whether the
arrays of a plan still have the memory that it is bound to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pymm.backends import lookup_device, open_device
from pymm.backends.base import Backend, Executable, Matrix, RebindableLaunch, Vector
from pymm.backends.matrices import alignment
from pymm.core.dtypes import DTYPES, PREPARED
from pymm.core.epilogue import NO_EPILOGUE, Epilogue
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels import Config, kernels_for
from pymm.kernels.emulated import plain_problem
from pymm.kernels.source import render
from pymm.runtime.arguments import Call, Options
from pymm.runtime.arrays import Operand
from pymm.runtime.layout import MatrixOffset, Product, Step, arrange
from pymm.runtime.transfer import (
    InPlace,
    OnDevice,
    PlacedOperands,
    Route,
    StagedRoute,
    TransferMode,
)
from pymm.selection.choose import MAX_CHOSEN, Snapshot, choose, kernel_key, snapshot
from pymm.selection.plain import decide
from pymm.selection.select import Choice
from pymm.selection.stand_in import StandIn, find_stand_in, standing_in

#: Makes the launch for other addresses of a, b and the result.
Rebind = Callable[[int, int, int], Callable[[], None]]

#: First and last byte of a matrix, relative to its address.
Span = tuple[int, int]


class Binding:
    """One array of a plan. `unchanged()` is False once the array has other memory (PyCUDA, PyTorch,
    CuPy) or another dtype (NumPy, PyCUDA), and for a NumPy array that is `written` once it is
    read-only. `owner` keeps the memory alive that the plan is bound to.

    While a binding lives, NumPy refuses to resize its array, or what that is a view of, in place:
    it does so for any array with a weak reference. A shape or strides changed in place go
    unnoticed: the product is of those that the plan was made for.
    """

    def __init__(self, operand: Operand, written: bool) -> None:
        watch = _WATCHES.get(operand.kind, _watch_unknown)
        self.unchanged, self.owner = watch(operand.owner, written)


def _watch_numpy(array: np.ndarray, written: bool) -> tuple[Callable[[], bool], Any]:
    dtype = array.dtype
    bases: list[np.ndarray] = [array]
    while isinstance(bases[-1].base, np.ndarray):
        bases.append(bases[-1].base)
    owner = array, [weakref.ref(base) for base in bases]
    if written:
        return (lambda: array.dtype is dtype and array.flags.writeable), owner
    return (lambda: array.dtype is dtype), owner


def _watch_pycuda(array: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    memory, dtype = array.gpudata, array.dtype
    owner = array, memory, getattr(array, "base", None)
    return (lambda: array.gpudata is memory and array.dtype is dtype), owner


def _watch_torch(tensor: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    read = tensor.data_ptr
    address = read()
    return (lambda: read() == address), (tensor, tensor.detach())


def _watch_cupy(array: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    memory = array.data
    address = memory.ptr
    return (lambda: array.data.ptr == address), (array, memory)


def _watch_unknown(array: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    return (lambda: True), array


_WATCHES = {
    "numpy": _watch_numpy,
    "pycuda": _watch_pycuda,
    "torch": _watch_torch,
    "cupy": _watch_cupy,
}


def executable(
    backend: Backend,
    config: Config,
    problem: Problem,
    alignment: int | None = None,
    epilogue: Epilogue = NO_EPILOGUE,
) -> Executable:
    """The compiled kernel of `config` for the types, layout and remainders of `problem`, rows that
    start at multiples of `alignment` bytes (None: as in dense matrices) and an epilogue: loaded
    once per backend. Raises `CompileFailed`, `LaunchFailed`.
    """
    return backend.executable(render(config, problem, alignment, epilogue))


def bind(
    backend: Backend,
    config: Config,
    product: Product,
    addresses: Sequence[int],
    scalars: tuple[float, float],
    stream: Any = None,
    epilogue: Epilogue = NO_EPILOGUE,
    bias: Vector | None = None,
    split: Any = None,
    compiled_for: Problem | None = None,
) -> Callable[[], None]:
    """A function that launches all of `product` on `stream`: `addresses` are those of the first
    elements of a, b and the result, `scalars` are alpha and beta, `epilogue` is that of the
    launches (`epilogue_of`), `split` what b was split into before, `compiled_for` the problem that
    the kernel was compiled for where that is another one (`selection.stand_in`). Geometry and
    arguments are worked out here, once.

    alpha = 0 makes it a product with k = 0: as in BLAS, neither a nor b is read.
    """
    alpha, beta = scalars
    calls = []
    for step in product.steps:
        problem = step.problem
        if alpha == 0:
            problem = replace(problem, k=0)
        matrices = _matrices(product, step, addresses)
        if split is not None and len(product.steps) == 1:
            which = int(not product.swapped)
            matrices[which] = replace(matrices[which], split=split)
        if compiled_for is not None:
            kernel = executable(backend, config, compiled_for)
        else:
            kernel = executable(backend, config, problem, alignment(problem, matrices), epilogue)
        calls.append(kernel.bind(problem, alpha, *matrices[:2], beta, matrices[2], stream, bias))
    if len(calls) == 1:
        return calls[0]

    def launch() -> None:
        for call in calls:
            call()

    return launch


def _matrices(product: Product, step: Step, addresses: Sequence[int]) -> list[Matrix]:
    """The matrices of one launch."""
    a, b, out = addresses
    left, right = (b, a) if product.swapped else (a, b)
    return [_at(left, step.left), _at(right, step.right), _at(out, step.out)]


def rebinder(product: Product, launch: Callable[[], None]) -> Rebind | None:
    """A function that makes `launch` for other addresses of a, b and the result, equal modulo 128
    to those that it is bound to. None where the backend's launches are not rebindable, and for a
    product of several launches.
    """
    if not isinstance(launch, RebindableLaunch):
        return None
    if not product.swapped:
        return launch.rebind
    return lambda a, b, out: launch.rebind(b, a, out)


def _at(address: int, place: MatrixOffset) -> Matrix:
    return Matrix(address + place.offset, place.ld, place.batch_stride)


@dataclass(frozen=True)
class PreparedCall:
    """A call that can be run any number of times: `steps`, in their order, leave the product in
    `result`. `choice` is None for an empty product, which has no steps. `placed` owns the memory
    that the steps use. `rebind` makes the launch, if it is the only step, for operands of the same
    shapes, strides and dtypes at other addresses (`rebinder`). `spans` are the bytes that a, b
    and the result take, relative to their addresses, and `bias` those of the bias, in memory.
    `chosen_in` is the generation of the tuned configurations that `choice` comes from. `fallback`
    is True where the best kernel found too little memory and another one computes the product;
    `compiled_for` is the problem that a stand-in was compiled for.
    """

    product: Product
    choice: Choice | None
    steps: tuple[Callable[[], None], ...]
    placed: PlacedOperands
    rebind: Rebind | None = None
    spans: tuple[Span, ...] = ()
    bias: Span | None = None
    chosen_in: int = 0
    fallback: bool = False
    compiled_for: Problem | None = None

    @property
    def result(self) -> Any:
        """The array to return."""
        return self.placed.result

    def run(self) -> None:
        """All steps. Who keeps this method keeps the memory that they use."""
        for step in self.steps:
            step()

    @property
    def cacheable(self) -> bool:
        """True if the call is one launch, of the best kernel."""
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
    if not call.on_host and backend.device.shares_host_memory:
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
        return lookup_device(device)
    return open_device(device)  # which says what a device is


def find_route(backend: Backend, call: Call, transfer: str | None = None) -> Route:
    """How the operands of `call` reach `backend`'s device. Touches no memory.

    Raises `ValueError` for an unknown transfer, `NotImplementedError` for a conversion that would
    have to happen on a device.
    """
    mode = TransferMode.parse(transfer)
    if not call.on_host:
        return OnDevice(backend, call)
    if backend.device.shares_host_memory:
        return InPlace(backend, call)
    return StagedRoute(backend, call, mode)


def find_product(
    call: Call, route: Route, options: Options, known: Snapshot | None = None
) -> tuple[Product, str]:
    """The launches of a call by this route. Where their type names a plain one, also why they are
    of that type or of the other; that is decided once for each generation of the tuned
    configurations, of `known` or the present one.
    """
    transposed, biased = (call.trans_a, call.trans_b), call.bias is not None
    product = arrange(*route.specs, *transposed, call.kind, call.op, biased)
    if not product.problem.type.plain:
        return product, ""
    known, backend = known or snapshot(), route.backend
    split = call.b.prepared is not None and call.b.prepared.split is not None
    split &= product.problem.type.tiles == DTYPES[PREPARED].tiles
    kernel = kernel_key(options.kernel, backend.device)
    asked = kernel, options.config, split, options.prefer == "energy"
    key = backend, product.problem, *asked
    found = known.decided.get(key) if options.config is None else None
    if found is None:
        select = partial(choose, backend, known=known, prefer=options.prefer)
        found = decide(product.problem, backend.device, select, *asked)
        if options.config is None:
            if len(known.decided) >= MAX_CHOSEN:
                known.decided.clear()
            known.decided[key] = found
    problem, why = found
    return (product if problem == product.problem else plain_product(product)), why


def plain_product(product: Product) -> Product:
    """The same launches in the plain type that their type names."""
    steps = (replace(step, problem=plain_problem(step.problem)) for step in product.steps)
    return replace(product, problem=plain_problem(product.problem), steps=tuple(steps))


def epilogue_of(call: Call, product: Product) -> Epilogue:
    """The epilogue of the launches of a call, which may compute C^T."""
    return call.epilogue.transposed() if product.swapped else call.epilogue


def prepare(backend: Backend, call: Call, options: Options) -> PreparedCall:
    """Choose, compile, allocate and bind. No array is read or written yet.

    Raises `ValueError`, `NotImplementedError`, `TypeError` as `pymm.matmul` documents, and
    `CompileFailed`, `LaunchFailed`, `MemoryError`.
    """
    route = find_route(backend, call, options.transfer)
    known = snapshot()
    product, _ = find_product(call, route, options, known)
    choice = choose(backend, product.problem, options.kernel, options.config, known, options.prefer)
    stream = _stream(backend, call, options)
    with backend.preparing():
        placed = route.place(stream)
        if not product.steps:
            return PreparedCall(product, None, (), placed)
        binding = partial(
            bind,
            backend,
            addresses=placed.addresses,
            scalars=(call.alpha, call.beta),
            stream=placed.stream,
            epilogue=epilogue_of(call, product),
            bias=placed.bias and replace(placed.bias, owner=None),  # `placed` owns it
            split=call.b.prepared and call.b.prepared.split,
        )
        stand_in = _stand_in(backend, call, options, product, placed.addresses, choice)
        compiled_for = stand_in and stand_in.problem
        choice = standing_in(choice, stand_in) if stand_in else choice
        try:
            launch = binding(config=choice.config, product=product, compiled_for=compiled_for)
            fallback = False
        except MemoryError as error:
            if options.kernel is not None or options.config is not None:
                raise
            if call.on_host and call.op == "gemm" and not backend.device.shares_host_memory:
                raise  # pymm.blocked needs less
            if product.problem.type.plain:
                product = plain_product(product)
            choice, launch = _with_less_memory(backend, product, choice, binding, error)
            fallback, compiled_for = True, None
    steps = (*placed.before, launch, *placed.after)
    rebind = rebinder(product, launch) if len(steps) == 1 else None
    spans, bias = tuple(spec.bounds for spec in route.specs), call.bias and call.bias.interval
    more = known.generation, fallback, compiled_for
    return PreparedCall(product, choice, steps, placed, rebind, spans, bias, *more)


def _stream(backend: Backend, call: Call, options: Options) -> Any:
    """The caller's stream as the backend takes it, None if there is none. `ValueError` where NumPy
    arrays cannot be used on it.
    """
    stream = None if options.stream is None else backend.stream(options.stream)
    if call.on_host and stream is not None and backend.is_captured(stream):
        raise ValueError(
            "NumPy arrays cannot be multiplied on a stream that is being captured into a graph: "
            "their transfers wait for the device. Copy them to the device before the capture"
        )
    return stream


def _stand_in(
    backend: Backend,
    call: Call,
    options: Options,
    product: Product,
    addresses: Sequence[int],
    choice: Choice,
) -> StandIn | None:
    """What runs instead of a choice that is not compiled: of one launch of a plain product, for
    which the caller asked for no kernel.
    """
    asked = options.kernel is not None or options.config is not None
    if asked or len(product.steps) != 1 or call.epilogue or call.b.prepared or call.alpha == 0:
        return None
    step = product.steps[0]
    aligned = alignment(step.problem, _matrices(product, step, addresses))
    return find_stand_in(backend, step.problem, aligned, choice)


def _with_less_memory(
    backend: Backend,
    product: Product,
    choice: Choice,
    binding: Callable[..., Callable[[], None]],
    error: MemoryError,
) -> tuple[Choice, Callable[[], None]]:
    """Another kernel's configuration and launch, where the chosen one found too little memory for
    its copies of the operands: those of the highest kernel that needs no more than there is. Raises
    `error` if none does.
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
        best = choice.config.kernel_name
        backend.warn_once(
            f"{best} found too little free device memory for {problem.slug}: {other.name} "
            f"computes it"
        )
        reason = f"{found.reason}; {best} found too little free memory"
        return replace(found, reason=reason), launch
    raise error
