"""Products with epilogues on a kernel, laid out anywhere, beside separate operations in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fed_products import Placed

from pymm.backends.base import Backend, Vector
from pymm.backends.matrices import alignment
from pymm.core import reference
from pymm.core.epilogue import Epilogue
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.measure.verify import NUMBER, POISON, compare, normal
from pymm.runtime.bind import executable


def placed_bias(backend: Backend, epilogue: Epilogue, problem: Problem, seed: int):
    """A bias on the device, NaN on both sides of it: the values, where they are, their owner."""
    if epilogue.bias is None:
        return None, None, None
    length = problem.m if epilogue.down else problem.n
    values = np.random.default_rng(seed).standard_normal((1, 1, length)).astype(epilogue.bias)
    field = Placed(backend, values, 1, 0, POISON)
    return values.reshape(-1), Vector(field.matrix.address, length, field), field


def check_finished(
    backend: Backend, config: Config, problem: Problem, epilogue: Epilogue, seed: int
) -> None:
    """One product with memory around each matrix, against its bound element by element."""
    values, placed = list(normal(problem, seed)), []
    alpha, beta = ((1.0, 0.0), (-1.25, 0.75), (0.0, 1.0))[seed % 3]
    for x, around in zip(values, (POISON, POISON, NUMBER), strict=True):
        placed.append(Placed(backend, x, seed % 2, seed % 2 * 3, around))
    bias, there, _ = placed_bias(backend, epilogue, problem, seed)
    matrices = [one.matrix for one in placed]
    run = replace(problem, k=0) if alpha == 0 else problem
    aligned = alignment(problem, matrices)
    kernel = executable(backend, config, run, aligned, epilogue)
    kernel.bind(run, alpha, *matrices[:2], beta, matrices[2], None, there)()
    backend.synchronize()
    got, touched = placed[2].read()
    row = bias[:, None] if bias is not None and epilogue.down else bias
    judged = run, *(values if alpha else _without_k(problem, values)), alpha, beta
    wanted = reference.finished(reference.product(*judged), epilogue.activation, row)
    bound = reference.finished_bound(*judged, epilogue.activation, row)
    finding = compare(got, wanted, bound)
    what = f"{config.slug} {problem.slug} {epilogue} alpha={alpha} beta={beta}"
    assert not touched and finding.right, f"{what}: {touched} {finding.detail}"


def _without_k(problem: Problem, values: list[np.ndarray]) -> list[np.ndarray]:
    """The matrices of a product whose k is 0."""
    a, b, c = values
    a = a[:, :0] if problem.trans_a else a[..., :0]
    b = b[..., :0] if problem.trans_b else b[:, :0]
    return [a, b, c]
