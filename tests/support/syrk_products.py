"""Random products of a matrix and its transpose, the same on a GPU and in the simulator: any size,
layout, start, stride and stack, all of C or one half of it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
from fed_products import COUNT, Placed, allowed, hurting

from pymm.backends.base import Backend
from pymm.backends.matrices import alignment
from pymm.core import reference
from pymm.core.problem import FILLS, Problem
from pymm.core.reference import mirrored, other_half
from pymm.kernels import Config, parse_slug
from pymm.measure.verify import NUMBER, POISON, compare, normal
from pymm.runtime.bind import executable

OPERATIONS = tuple(op for op in FILLS if op != "gemm")


def check(backend: Backend, config: Config, problem: Problem, seed: int) -> None:
    """One product, laid out and scaled by chance: its half against the bound element by element,
    the other one to the bit. What is not to be read of C may be NaN.
    """
    draw, placed = random.Random(seed), []
    values = list(normal(problem, seed))
    alpha, beta = draw.choice(((1.0, 0.0), (-1.25, 0.75), (0.5, 1.0)))
    judged = (problem, *(x.copy() for x in values), alpha, beta)
    line, upper = np.arange(problem.n), problem.fill == "upper"
    unread = (np.greater if upper else np.less).outer(line, line)
    if draw.random() < 0.5:
        values[2][:, unread if beta else np.ones_like(unread)] = np.nan
    for x, around in ((values[0], POISON), (values[2], NUMBER)):
        before, width = draw.choice((0, 0, 1, 4)), x.shape[2]
        gap = draw.choice((0, 3, 8, -(before + width) % 8))
        placed.append(Placed(backend, x, before, gap, around))
    a, c = (one.matrix for one in placed)
    kernel = executable(backend, config, problem, alignment(problem, (a, a, c)))
    kernel.bind(problem, alpha, a, a, beta, c)()
    backend.synchronize()
    got, touched = placed[1].read()
    finding = compare(
        mirrored(got, problem), reference.product(*judged), reference.error_bound(*judged)
    )
    stray = other_half(got, values[2], problem)
    what = f"{config.slug} {problem.slug} seed={seed} alpha={alpha} beta={beta}"
    assert not touched and not stray and finding.right, f"{what}: {touched} {stray} {finding}"


def check_many(
    backend: Backend,
    slug: str,
    dtypes: tuple[str, ...],
    count: int = COUNT,
    most: int = 700,
    deepest: int = 1200,
) -> None:
    """`count` random products that no rule forbids."""
    config = parse_slug(slug)
    for seed in range(count):
        draw = random.Random(f"{seed}{slug}")
        drawn = partial(one_of, draw, dtypes, most, deepest)
        check(backend, config, allowed(config, seed, drawn), seed)


def one_of(draw: random.Random, dtypes: tuple[str, ...], most: int, deepest: int) -> Problem:
    """A random product of a matrix and its transpose, of one of the types."""
    layout, op = draw.choice(("NT", "TN")), draw.choice(OPERATIONS)
    problem = hurting(draw, draw.choice(dtypes), (layout,), most, deepest)
    return replace(problem, m=problem.n, op=op)
