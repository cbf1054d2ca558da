"""From a configuration and the launches of a product to one call without arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from pymm.backends.base import Backend, Executable, Matrix
from pymm.kernels import Config
from pymm.problem import Problem, common_alignment
from pymm.product import Place, Product
from pymm.source import render

_loaded: WeakKeyDictionary[Backend, dict[str, Executable]] = WeakKeyDictionary()


def executable(
    backend: Backend, config: Config, problem: Problem, alignment: int | None = None
) -> Executable:
    """The compiled kernel of `config` for the types, layout and remainders of `problem` and rows
    that start at multiples of `alignment` bytes (None: as in dense matrices): loaded once per
    backend. Raises `CompileFailed`, `LaunchFailed`.
    """
    source = render(config, problem, alignment)
    known = _loaded.setdefault(backend, {})
    found = known.get(source.key)
    if found is None:
        found = known[source.key] = backend.load(source)
    return found


def bind(
    backend: Backend,
    config: Config,
    product: Product,
    addresses: Sequence[int],
    scalars: tuple[float, float],
    stream: Any = None,
) -> Callable[[], None]:
    """A call that launches all of `product` on `stream`: `addresses` are those of the first
    elements of a, b and the result, `scalars` alpha and beta. Geometry and arguments are worked
    out here, once.

    alpha = 0 is a product with k = 0: as in BLAS, it reads neither a nor b.
    """
    a, b, out = addresses
    left, right = (b, a) if product.swapped else (a, b)
    alpha, beta = scalars
    calls = []
    for step in product.steps:
        problem = step.problem
        if alpha == 0:
            problem = replace(problem, k=0)
        matrices = _at(left, step.left), _at(right, step.right), _at(out, step.out)
        kernel = executable(backend, config, problem, alignment(problem, matrices))
        calls.append(kernel.bind(problem, alpha, *matrices[:2], beta, matrices[2], stream))
    if len(calls) == 1:
        return calls[0]

    def launch() -> None:
        for call in calls:
            call()

    return launch


def rebinder(product: Product, launch: Callable[[], None]) -> Callable[..., Any] | None:
    """What makes `launch` for other addresses of a, b and the result, equal to those that it was
    bound to modulo 128. None if a backend has no such thing, or for a product of several launches.
    """
    rebind = getattr(launch, "rebind", None)
    if rebind is None or not product.swapped:
        return rebind
    return lambda a, b, out: rebind(b, a, out)


def alignment(problem: Problem, matrices: Sequence[Matrix]) -> int:
    """Bytes, at most 16, that every row of `matrices` starts at a multiple of, its length counted
    in: a kernel may then move rows in whole pieces of that size.
    """
    size = problem.numpy_dtype.itemsize
    sizes = size, size, problem.out_dtype.itemsize
    strides = [n * s for x, s in zip(matrices, sizes, strict=True) for n in (x.ld, x.batch_stride)]
    return common_alignment(problem.alignment, *strides, *(matrix.address for matrix in matrices))


def _at(address: int, place: Place) -> Matrix:
    return Matrix(address + place.offset, place.ld, place.batch_stride)
