"""Products of NumPy arrays in blocks: which part of C is computed on which device, by which tiling,
and what is expected of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from pymm.backends.base import Backend, Matrix
from pymm.blocked.plan import Rates, Tiling, Work, best_tiling, least_room
from pymm.blocked.rates import link_rates
from pymm.blocked.sizes import shown
from pymm.blocked.streaming import Factors, Stopped, Streamed, config_for
from pymm.core.dtypes import DTYPES
from pymm.core.errors import NoDevice
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels import kernels_for
from pymm.runtime.arguments import Call, MatmulOptions
from pymm.runtime.arrays import ArraySpec, Operand
from pymm.selection.choose import choose
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.plain import computed_type
from pymm.selection.select import Choice

#: Part of a device's free memory that is used where the caller names no amount.
FREE_PART = 0.9


@dataclass(frozen=True)
class Traffic:
    """Bytes that a product moved: to the devices and back."""

    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True)
class Share:
    """What one device does: rows and columns of C, the tiling, and the problem and configuration of
    a whole tile and slice. `budget` is what it may take of the device's memory, `scratch` what of
    that the kernel and the bias take.
    """

    backend: Backend
    rows: slice
    columns: slice
    tiling: Tiling
    problem: Problem
    choice: Choice
    rates: Rates
    budget: int
    scratch: int

    @property
    def device_bytes(self) -> int:
        """Device memory that is taken."""
        return self.tiling.device_bytes + self.scratch

    @property
    def seconds(self) -> float:
        """Time expected of one product."""
        return self.tiling.seconds(self.rates)

    @property
    def bound(self) -> float:
        """Bytes over the link that are needed at least with this budget."""
        return self.tiling.work.bound(self.budget / self.tiling.work.size)


class HostProduct:
    """A checked call of NumPy arrays, planned for one device or several. `products` counts the
    matrices of the batch. Nothing is allocated on a device before `run`.

    Raises `MemoryError` for a budget that is too small, and says what would do.
    """

    def __init__(
        self, backends: list[Backend], call: Call, options: MatmulOptions, budget: int | None
    ) -> None:
        check_supported(options)
        for backend in backends:
            if not backend.has_queues:
                raise NoDevice(
                    f"{backend.device.name} works in host memory: device_memory and several "
                    "devices are for GPUs"
                )
        self._call, self._options = call, options
        self.epilogue, self._bias = call.epilogue, None
        if call.bias is not None:
            self._bias = np.ascontiguousarray(call.bias.owner, self.epilogue.bias)
        a, b, shape = _views(call)
        self.swapped = _by_columns(shape)
        if self.swapped:
            a, b, shape = b.transposed(), a.transposed(), shape.transposed()
            self.epilogue = self.epilogue.transposed()
        (m, n), k = shape.shape[-2:], 0 if call.alpha == 0 else a.shape[-1]
        self.extents = m, n, k
        self.products = math.prod(shape.shape[:-2])
        columns = _by_columns(a), _by_columns(b)
        self.shares = tuple(
            _share(backend, block, k, columns, call, options, budget)
            for backend, block in zip(backends, _blocks(m, n, len(backends)), strict=False)
            if block is not None and self.products
        )

    def run(self) -> tuple[np.ndarray, Traffic]:
        """Multiply. Returns the result, and what was moved."""
        result, work = self._factors()
        stop = threading.Event()
        if len(self.shares) == 1:
            moved = [self._run_share(self.shares[0], work, stop)]
        else:
            moved = self._run_all(work, stop)
        if result is not self._target:
            np.copyto(result, self._target, casting="unsafe")
        total = Traffic(sum(x.bytes_in for x in moved), sum(x.bytes_out for x in moved))
        return result, total

    def _run_all(self, work: list[Factors], stop: threading.Event) -> list[Traffic]:
        """A thread for each device. The first error is raised, the other devices stop."""
        moved: list[Traffic] = []
        errors: list[BaseException] = []

        def one(share: Share) -> None:
            try:
                moved.append(self._run_share(share, work, stop))
            except BaseException as error:
                stop.set()
                errors.append(error)

        with ThreadPoolExecutor(max(len(self.shares), 1), "pymm-device") as pool:
            try:
                list(pool.map(one, self.shares))
            except BaseException:
                stop.set()
                raise
        for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
            raise error
        return moved

    def _run_share(self, share: Share, work: list[Factors], stop: threading.Event) -> Traffic:
        backend, call = share.backend, self._call
        backend.reset()
        scalars = call.alpha, call.beta
        config = share.choice.config
        parts = [
            Factors(
                one.a[share.rows],
                one.b[:, share.columns],
                None if one.c is None else one.c[share.rows, share.columns],
                one.out[share.rows, share.columns],
            )
            for one in work
        ]
        along = share.rows if self.epilogue.down else share.columns
        bias = None if self._bias is None else self._bias[along]
        known = share.tiling, share.problem, config, scalars, stop, self.epilogue, bias
        streamed = Streamed(backend, *known)
        try:
            streamed.run(parts)
            return Traffic(streamed.bytes_in, streamed.bytes_out)
        finally:
            del streamed
            backend.reset()

    def _factors(self) -> tuple[np.ndarray, list[Factors]]:
        """The array to return, and the matrices of each product."""
        call = self._call
        result = call.out.owner if call.out else np.empty(call.shape, call.out_dtype)
        self._target = result
        if call.out is not None and _must_not_alias(call):
            self._target = np.empty(call.shape, call.out_dtype)
        a, b = _matrix(call.a.owner, call.trans_a, 0), _matrix(call.b.owner, call.trans_b, 1)
        c = call.c.owner if call.reads_c else None
        places = [x if x is None else _with_axes(x, call) for x in (c, self._target)]
        stack = places[1].shape[:-2]
        a, b = (np.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, b))
        work = []
        for index in np.ndindex(stack):
            one = [None if x is None else x[index] for x in (a, b, *places)]
            if self.swapped:
                one = [None if x is None else x.T for x in (one[1], one[0], *one[2:])]
            work.append(Factors(*one))
        return result, work


def check_supported(options: MatmulOptions) -> None:
    """`NotImplementedError` for what a product in blocks does not take."""
    if options.stream is not None:
        raise NotImplementedError("a product in blocks uses streams of its own: leave stream= out")
    if options.transfer is not None:
        raise NotImplementedError("a product in blocks chooses how it copies: leave transfer= out")


def _must_not_alias(call: Call) -> bool:
    """Whether `out` may be written before all that it overlaps has been read."""
    out = call.out
    read = [call.a, call.b]
    if call.reads_c and not out.is_at(call.c):
        read.append(call.c)
    return not out.spec.distinct() or any(out.overlaps(operand) for operand in read)


# Arrays as matrices. A vector is one row on the left and one column on the right


def _matrix(array: np.ndarray, transposed: bool, axis: int) -> np.ndarray:
    if array.ndim == 1:
        return array[None, :] if axis == 0 else array[:, None]
    return array.swapaxes(-1, -2) if transposed else array


def _with_axes(array: np.ndarray, call: Call) -> np.ndarray:
    """C with the axes that vectors as operands have taken away."""
    if len(call.b.spec.shape) == 1:
        array = array[..., None]
    return array[..., None, :] if len(call.a.spec.shape) == 1 else array


def _views(call: Call) -> tuple[ArraySpec, ArraySpec, ArraySpec]:
    """a, b and the result as m x k, k x n and m x n matrices."""

    def spec(operand: Operand, transposed: bool, axis: int) -> ArraySpec:
        known = operand.spec
        if len(known.shape) == 1:
            return known.with_axis(-2 if axis == 0 else -1)
        return known.transposed() if transposed else known

    out = call.out.spec if call.out else ArraySpec.packed(call.shape, call.out_dtype)
    if len(call.b.spec.shape) == 1:
        out = out.with_axis(-1)
    if len(call.a.spec.shape) == 1:
        out = out.with_axis(-2)
    return spec(call.a, call.trans_a, 0), spec(call.b, call.trans_b, 1), out


def _by_columns(spec: ArraySpec) -> bool:
    """Whether neighbours along columns are closer in memory than along rows."""
    (rows, columns), (down, across) = spec.shape[-2:], spec.strides[-2:]
    return rows > 1 and columns > 1 and abs(down) < abs(across)


# Shares


def _blocks(m: int, n: int, count: int) -> Iterator[tuple[slice, slice] | None]:
    """C cut into P x Q blocks for `count` devices, so that least of A and B is sent; None for a
    device that gets none.
    """
    ways = [(p, count // p) for p in range(1, count + 1) if count % p == 0]
    down, across = min(ways, key=lambda way: (m * (way[1] - 1) + n * (way[0] - 1), way))
    height, width = (max(ceil_div(x, parts), 1) for x, parts in ((m, down), (n, across)))
    for p in range(down):
        for q in range(across):
            rows = slice(min(p * height, m), min((p + 1) * height, m))
            columns = slice(min(q * width, n), min((q + 1) * width, n))
            whole = rows.stop > rows.start and columns.stop > columns.start
            yield (rows, columns) if whole else None


def _share(
    backend: Backend,
    block: tuple[slice, slice],
    k: int,
    columns: tuple[bool, bool],
    call: Call,
    options: MatmulOptions,
    budget: int | None,
) -> Share:
    """The plan of one device."""
    if budget is None:
        backend.reset()
        budget = int(backend.free_bytes() * FREE_PART)
    m, n = (part.stop - part.start for part in block)
    bias = 0 if call.bias is None else max(m, n) * call.epilogue.bias.itemsize
    best: Share | None = None
    wanted = 0
    kinds = _kinds(computed_type(call.kind, backend.device, options.kernel, options.config))
    for kind in kinds:
        row = DTYPES[kind]
        sizes = row.element.itemsize, row.out.itemsize
        work = Work(m, n, k, *sizes, call.reads_c, *columns)
        wanted = max(wanted, least_room(work) + bias)
        found = _planned(backend, work, kind, options, budget - bias)
        one_slice = found is not None and found[0].counts[2] == 1
        if found is not None and (one_slice or kind == kinds[-1]):
            tiling, problem, choice, rates, scratch = found
            taken = budget, scratch + bias
            share = Share(backend, *block, tiling, problem, choice, rates, *taken)
            if best is None or share.seconds < best.seconds:
                best = share
    if best is None:
        raise MemoryError(
            f"device_memory={shown(budget)} holds no tile of this product: the smallest, of one "
            f"element, takes {wanted} bytes, and what its kernel needs besides"
        )
    return best


def _kinds(kind: str) -> tuple[str, ...]:
    """The types of the product to try: 16-bit results are summed in float32 over several slices of
    k, and rounded on the host, or at once where one slice is all of k.
    """
    wide = f"{kind}_f32"
    return (kind, wide) if DTYPES[kind].out.itemsize < 4 and wide in DTYPES else (kind,)


def _planned(
    backend: Backend, work: Work, kind: str, options: MatmulOptions, budget: int
) -> tuple[Tiling, Problem, Choice, Rates, int] | None:
    """A tiling that leaves room for the scratch memory of its kernel, and of the kernel for smaller
    tiles at the edges. Where none does, that of another kernel.
    """
    asked = options.kernel, options.config
    others = () if any(x is not None for x in asked) else _kernels(backend, work, kind)
    for kernel, config in (asked, *((name, None) for name in others)):
        reserved, rates, shaped = 0, link_rates(backend, budget), work
        for _ in range(8):
            room = budget - reserved
            tiling = best_tiling(shaped, room, rates) if room > 0 else None
            if tiling is None:
                break
            problem = _problem(work, tiling, kind)
            choice = choose(backend, problem, kernel, config)
            rates = replace(rates, **_kernel_rate(backend, problem, choice))
            needed = _scratch(backend, tiling, problem, choice)
            if tiling.device_bytes + needed <= budget and shaped.copies != (0.0, 0.0):
                return tiling, problem, choice, rates, needed
            copies = _copies(backend, tiling, problem, choice)
            if copies == shaped.copies:
                if tiling.device_bytes + needed <= budget:
                    return tiling, problem, choice, rates, needed
                reserved += max(tiling.device_bytes + needed - room, budget // 64, 1)
            shaped = replace(work, copies=copies)
    return None


def _copies(
    backend: Backend, tiling: Tiling, problem: Problem, choice: Choice
) -> tuple[float, float]:
    """How many times the bytes of a slice of A and of B the kernel's own copies of it take."""
    a, b = _slices(tiling)
    config, few = choice.config, 16
    none = backend.scratch_bytes(config, replace(problem, m=few, n=few), a, b)
    found = []
    for part, extent in (({"n": few}, problem.m), ({"m": few}, problem.n)):
        taken = backend.scratch_bytes(config, replace(problem, **part), a, b) - none
        slice_bytes = extent * problem.k * tiling.work.size
        found.append(round(taken / slice_bytes, 1) if slice_bytes and taken > 0 else 0.0)
    return found[0], found[1]


def _slices(tiling: Tiling) -> tuple[Matrix, Matrix]:
    """Slices of A and B as a kernel finds them: where does not matter."""
    size = tiling.work.size
    return Matrix(0, tiling.a_slice[1] // size), Matrix(0, tiling.b_slice[1] // size)


def _kernels(backend: Backend, work: Work, kind: str) -> list[str]:
    """Kernels that could compute such products here, the best first."""
    problem = Problem(work.m, work.n, work.k, kind, work.a_by_columns, work.b_by_columns)
    return [kernel.name for kernel in reversed(kernels_for(problem, backend.device))]


def _problem(work: Work, tiling: Tiling, kind: str) -> Problem:
    """That of a whole tile and a whole slice."""
    depth = min(tiling.depth, work.k)
    turned = work.a_by_columns, work.b_by_columns
    return Problem(tiling.rows, tiling.columns, depth, kind, *turned)


def _kernel_rate(backend: Backend, problem: Problem, choice: Choice) -> dict[str, float]:
    """Operations a second: of the record that was chosen, else by the cost model."""
    found = {"memory": backend.device.bandwidth or 1e12}
    if choice.record is not None and choice.record.problem.flops:
        return found | {"flops": choice.record.problem.flops / choice.record.seconds}
    if problem.flops:
        seconds = predicted_seconds(choice.config, problem, backend.device)
        return found | {"flops": problem.flops / seconds}
    return found


def _scratch(backend: Backend, tiling: Tiling, problem: Problem, choice: Choice) -> int:
    """Most scratch memory that the steps need: of each kernel on its own, for whole tiles and for
    those at the edges.
    """
    work, most = tiling.work, {}
    a, b = _slices(tiling)
    tried = zip((work.m, work.n, work.k), (tiling.rows, tiling.columns, tiling.depth), strict=True)
    ends = [{min(step, extent), extent % step if step else 0} for extent, step in tried]
    for m in ends[0] - {0}:
        for n in ends[1] - {0}:
            for k in ends[2] - ({0} if work.k else set()):
                one = replace(problem, m=m, n=n, k=k)
                config = config_for(backend, one, choice.config)
                needed = backend.scratch_bytes(config, one, a, b)
                kind = config.kernel.tma is not None
                most[kind] = max(most.get(kind, 0), needed)
    return sum(most.values())
