"""Products of lists of matrices: those that one kernel computes together are one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pymm.backends.base import Backend, Matrix
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels.grouped import TYPES, choose_config, render_grouped
from pymm.runtime.arguments import Call, MatmulOptions
from pymm.runtime.arrays import Operand, adopt
from pymm.runtime.bind import Binding, find_backend, find_product, find_route, prepare
from pymm.runtime.layout import MatrixOffset, Product
from pymm.runtime.transfer import PlacedOperands

Step = Callable[[], None]

#: A product and its matrices A, B and C.
Member = tuple[Problem, Matrix, Matrix, Matrix]


@dataclass(frozen=True)
class _Placed:
    """A product of the list that is part of a common launch."""

    call: Call
    product: Product
    operands: PlacedOperands


#: Arguments of `pymm.matmul` that apply to a list of products.
_OPTIONS = ("alpha", "trans_a", "trans_b", "dtype", "casting", "precision", "out_dtype")
_OPTIONS += ("stream", "device")


def grouped_options(given: dict[str, Any]) -> MatmulOptions:
    """The options of all products. `TypeError` for one that does not apply to a list."""
    unknown = ", ".join(name for name in given if name not in _OPTIONS)
    if unknown:
        raise TypeError(f"products of lists take no {unknown}; there are {', '.join(_OPTIONS)}")
    return MatmulOptions(**given)


def checked_calls(
    options: MatmulOptions, lists: tuple[Any, Any, Any]
) -> tuple[list[Call], Backend | None]:
    """The calls for lists of a, b and out (None: none is given), and the device of all of them;
    None if there are none. Raises what `pymm.grouped` documents.
    """
    a, b, out = (_listed(given, name) for given, name in zip(lists, ("a", "b", "out"), strict=True))
    out = [None] * len(a) if out is None else out
    if not len(a) == len(b) == len(out):
        raise ValueError(f"{len(a)} matrices a, {len(b)} matrices b and {len(out)} to write to")
    calls = [_checked(i, options.check, *one) for i, one in enumerate(zip(a, b, out, strict=True))]
    if not calls:
        return [], None
    rows = [DTYPES[call.kind] for call in calls]
    kinds = [
        row.plain if row.checked and not call.on_host else row.name
        for row, call in zip(rows, calls, strict=True)
    ]
    calls = [replace(call, kind=kind) for call, kind in zip(calls, kinds, strict=True)]
    backends = [_checked(i, find_backend, call, options.device) for i, call in enumerate(calls)]
    for number, (call, backend) in enumerate(zip(calls, backends, strict=True)):
        if call.on_host != calls[0].on_host:
            raise TypeError("some of the products are of arrays on a device, others of NumPy's")
        if backend is not backends[0]:
            raise ValueError(
                f"product {number} is on {backend.device.name} {backend.device.index}, product 0 "
                f"on {backends[0].device.name} {backends[0].device.index}: group those of a device"
            )
    _check_apart(calls)
    return [_in_its_type(i, call, options) for i, call in enumerate(calls)], backends[0]


def _in_its_type(number: int, call: Call, options: MatmulOptions) -> Call:
    """The call in the type in which its product is computed."""
    if not DTYPES[call.kind].plain or call.on_host:
        return call
    route = _checked(number, find_route, find_backend(call, options.device), call)
    return replace(call, kind=find_product(call, route, options)[0].problem.dtype)


def _listed(given: Any, name: str) -> Sequence[Any] | None:
    if given is None and name == "out":
        return None
    if not isinstance(given, list | tuple):
        raise TypeError(f"{name} is a {type(given).__name__}, not a list or a tuple of matrices")
    return given


def _checked(number: int, check: Callable[..., Any], *arguments: Any) -> Any:
    """What `check` returns; its errors name the product."""
    try:
        return check(*arguments)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(f"product {number}: {error}") from error


def _check_apart(calls: Sequence[Call]) -> None:
    """`ValueError` if what one product writes may be read or written by another: the products have
    no order.
    """
    places: list[tuple[int, int, int, Operand]] = []
    for number, call in enumerate(calls):
        for operand in (call.a, call.b, call.out):
            if operand is not None and operand.spec.size:
                low, high = operand.spec.bounds
                places.append((operand.address + low, operand.address + high, number, operand))
    open_places: list[tuple[int, int, int, Operand]] = []
    for place in sorted(places, key=lambda place: place[:3]):
        low, _, number, operand = place
        open_places = [other for other in open_places if other[1] > low]
        for _, _, earlier, other in open_places:
            if earlier != number and "out" in (operand.name, other.name):
                if operand.overlaps(other):
                    raise ValueError(
                        f"{other.name} of product {earlier} and {operand.name} of product {number} "
                        "overlap, and the products of a group have no order: use two groups"
                    )
        open_places.append(place)


class GroupedPlan:
    """Products of two lists bound to their arrays: `plan()` computes them again from what the
    arrays hold by then, and returns the list of results. Made by `pymm.plan_grouped`. Not to be
    called from two threads at once.
    """

    def __init__(self, options: MatmulOptions, lists: tuple[Any, Any, Any]) -> None:
        self._options, (self._a, self._b, self.out) = options, lists
        self._bind()

    def __call__(self) -> list[Any]:
        """Launch. An array whose memory was replaced since (`GPUArray.gpudata`, `Tensor.set_`) is
        bound anew, and a result that became read-only is refused.
        """
        for unchanged in self._checks:
            if not unchanged():
                self._bind()
                break
        for step in self._steps:
            step()
        return list(self.out)

    def _bind(self) -> None:
        calls, backend = checked_calls(self._options, (self._a, self._b, self.out))
        self.out, self._steps = prepare_grouped(self._options, calls, backend)
        read = [Binding(x, False) for call in calls for x in (call.a, call.b)]
        bound = [*read, *(Binding(adopt(x, "out"), True) for x in self.out)]
        self._bindings, self._checks = bound, tuple(one.unchanged for one in bound)


def prepare_grouped(
    options: MatmulOptions, calls: Sequence[Call], backend: Backend | None
) -> tuple[list[Any], list[Step]]:
    """The results of calls that `checked_calls` has returned, and the steps that compute them, in
    their order; everything is compiled and allocated. Products of NumPy arrays, those that the
    kernel of groups does not compute, and those that need copies have launches of their own.
    """
    results: list[Any] = [None] * len(calls)
    groups: dict[tuple[Any, ...], list[_Placed]] = {}
    steps: list[Step] = []
    if backend is None:
        return results, steps
    common = [not call.on_host and call.kind in TYPES and not call.copies for call in calls]
    stream = None if options.stream is None else backend.stream(options.stream)
    with backend.preparing():
        for number, call in enumerate(calls):
            if common[number]:
                route = _checked(number, find_route, backend, call)
                operands = route.place(stream)
                product, _ = find_product(call, route, options)
                placed = _Placed(call, product, operands)
                handle = getattr(operands.stream, "handle", operands.stream) or 0
                groups.setdefault((call.kind, call.alpha, handle), []).append(placed)
                results[number] = operands.result
        for group in groups.values():
            steps += _group_steps(backend, group)
    for number, call in enumerate(calls):
        if not common[number]:
            prepared = _checked(number, prepare, backend, call, options)
            results[number] = prepared.result
            if not call.on_host:
                steps.append(partial(backend.own_captured, prepared.placed.stream, prepared))
            steps.append(prepared.run)
    return results, steps


def _group_steps(backend: Backend, group: Sequence[_Placed]) -> list[Step]:
    """What computes products of one type on one stream."""
    members = [member for one in group for member in _members(one)]
    before = [step for one in group for step in one.operands.before]
    after = [step for one in group for step in one.operands.after]
    if not members:
        return []
    config = choose_config([problem for problem, *_ in members], backend.device)
    executable = backend.executable(render_grouped(config, group[0].call.kind))
    stream = group[0].operands.stream
    launch = executable.bind_group(members, group[0].call.alpha, stream)
    own = partial(backend.own_captured, stream, (launch, [one.operands for one in group]))
    return [*before, own, launch, *after]


def _members(placed: _Placed) -> list[Member]:
    """The products of single matrices that a product of a list is made of: one, or those of a
    stack. alpha = 0 makes them products with k = 0, so that neither a nor b is read.
    """
    product, (a, b, out) = placed.product, placed.operands.addresses
    left, right = (b, a) if product.swapped else (a, b)
    found = []
    for step in product.steps:
        problem = replace(step.problem, batch=1)
        if placed.call.alpha == 0:
            problem = replace(problem, k=0)
        sizes = (problem.numpy_dtype.itemsize,) * 2 + (problem.out_dtype.itemsize,)
        places = [*zip((left, right, out), (step.left, step.right, step.out), sizes, strict=True)]
        found += [
            (problem, *(_matrix(*place, number) for place in places))
            for number in range(step.problem.batch)
        ]
    return found


def _matrix(address: int, place: MatrixOffset, size: int, number: int) -> Matrix:
    """One matrix of a stack."""
    return Matrix(address + place.offset + number * place.batch_stride * size, place.ld)
