"""Random products for kernels fed by TMA, the same on a GPU and in the simulator: any size, layout,
start, stride and stack, with memory around every matrix that shows what is read or written there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import pymm
from pymm.backends import open_device
from pymm.backends.base import Backend
from pymm.core import reference
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import Config, parse_slug
from pymm.kernels.kernel import parts_of
from pymm.measure.verify import NUMBER, POISON, GuardedMatrix, compare, normal
from pymm.runtime.bind import executable

LAYOUTS = ("NN", "NT", "TN", "TT")
#: Random products of a configuration: fewer under compute-sanitizer, more to be sure.
COUNT = int(os.environ.get("PYMM_TEST_PRODUCTS", "60"))
HOPPER = Device(
    "hopper", "cuda", capability=(9, 0), sms=132, shared_per_block=232448, shared_per_sm=233472
)


class Placed:
    """A stack of matrices in a field with further columns before and after: it starts anywhere."""

    def __init__(self, backend, values: np.ndarray, before: int, gap: int, around: int) -> None:
        batch, rows, columns = values.shape
        self.before, self.around = before, around
        self.field = GuardedMatrix(
            backend, values.dtype, (batch, rows, columns + before), gap, around
        )
        image = np.full((batch, rows, (columns + before) * values.itemsize), around, np.uint8)
        whole = image.view(values.dtype)
        whole[..., before:] = values
        self.field.write(whole)
        address = self.field.matrix.address + before * values.itemsize
        self.matrix = replace(self.field.matrix, address=address)

    def read(self) -> tuple[np.ndarray, str]:
        """The elements, and what was written beside them."""
        values, touched = self.field.read()
        outside = np.ascontiguousarray(values[..., : self.before]).view(np.uint8)
        if (outside != self.around).any():
            touched += " before its rows"
        return values[..., self.before :], touched


def hurting(
    draw: random.Random, dtype: str, layouts: Sequence[str], most: int, deepest: int
) -> Problem:
    """A product that leaves parts of tiles: m and n up to `most`, k up to `deepest`."""
    edges = [edge for edge in (1, 2, 7, 16, 63, 64, 65, 128, 257) if edge <= most]
    edges += [draw.randint(1, most), 8 * draw.randint(1, most // 8)]
    depths = [k for k in (0, 1, 8, 31, 33, 63, 64, 65, 128, 513) if k <= deepest]
    m, n, k = (
        draw.choice(edges),
        draw.choice(edges),
        draw.choice([*depths, draw.randint(1, deepest)]),
    )
    layout = draw.choice(layouts)
    return Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", draw.choice((1, 1, 2, 5)))


def check(backend: Backend, config: Config, problem: Problem, seed: int) -> None:
    """One product, laid out and scaled by chance, against its bound element by element."""
    draw, values, placed, where = random.Random(seed), list(normal(problem, seed)), [], []
    alpha, beta = draw.choice(((1.0, 0.0), (-1.25, 0.75), (0.5, 1.0)))
    for x, around in zip(values, (POISON, POISON, NUMBER), strict=True):
        before, width = draw.choice((0, 0, 1, 4)), x.shape[2]
        where.append((before, draw.choice((0, 3, 8, -(before + width) % 8))))
        placed.append(Placed(backend, x, *where[-1], around))
    a, b, c = (one.matrix for one in placed)
    if problem.batch > 1 and draw.random() < 0.5:
        b, values[1] = replace(b, batch_stride=0), values[1][:1].repeat(problem.batch, axis=0)
    executable(backend, config, problem).bind(problem, alpha, a, b, beta, c)()
    backend.synchronize()
    got, touched = placed[2].read()
    judged = (problem, *values, alpha, beta)
    finding = compare(got, reference.product(*judged), reference.error_bound(*judged))
    what = f"{config.slug} {problem.slug} {where} alpha={alpha} beta={beta}"
    assert not touched and finding.right, f"{what}: {touched} {finding.detail}"


def allowed(config: Config, seed: int, draw: Callable[[], Problem]) -> Problem:
    """A drawn problem that no rule forbids: one that has too little depth for its parts gets it,
    for any other forbidden one the next is drawn. Fails where a hundred in turn are forbidden.
    """
    for _ in range(100):
        problem = draw()
        if config.kernel.violations(config, problem, HOPPER):
            problem = replace(problem, k=parts_of(config) * config.KB + seed)
        if not config.kernel.violations(config, problem, HOPPER):
            return problem
    pytest.fail(f"{config.slug}: no product is allowed, {problem.slug} for one is not")


def check_many(
    backend: Backend,
    slug: str,
    dtypes: Sequence[str],
    layouts: Sequence[str] = LAYOUTS,
    count: int = COUNT,
    most: int = 700,
    deepest: int = 1200,
) -> None:
    """`count` random products that no rule forbids."""
    config = parse_slug(slug)
    for seed in range(count):
        draw = random.Random(f"{seed}{slug}")
        drawn = partial(one_of, draw, dtypes, layouts, most, deepest)
        check(backend, config, allowed(config, seed, drawn), seed)


def one_of(
    draw: random.Random, dtypes: Sequence[str], layouts: Sequence[str], most: int, deepest: int
) -> Problem:
    """A random product of one of the types."""
    return hurting(draw, draw.choice(dtypes), layouts, most, deepest)


def check_split_round(backend: Backend, slug: str, dtype: str) -> None:
    """A stack of as many tiles as a round of all blocks has, and three more, which are split: by
    chance with and without beta, which tiles that TMA stores must not have. One above the other
    where the kernel computes no stacks.
    """
    config = parse_slug(slug)
    blocks = backend.device.sms * config.kernel.persistent.blocks_per_sm(config)
    for seed in range(5):
        depth = config.SPLIT * config.KB + seed
        problem = Problem(config.MB, config.NB, depth, dtype, batch=blocks + 3)
        if config.kernel.tma.in_place is not None:
            problem = Problem((blocks + 3) * config.MB, config.NB, depth, dtype)
        check(backend, config, problem, seed)


def check_on_gpu(slug: str, dtypes: Sequence[str]) -> None:
    """COUNT products on this machine's GPU, and a split round of kernels that have such; one that
    is no Hopper must refuse the kernel.
    """
    backend = open_device("cuda")
    config = parse_slug(slug)
    if config.kernel.runs_on(backend.device):
        check_many(backend, slug, dtypes)
        if config.kernel.persistent.splits_last_wave and config.SPLIT > 1:
            check_split_round(backend, slug, dtypes[0])
    else:
        check_refused(slug, dtypes[0])


def check_refused(slug: str, dtype: str) -> None:
    """This machine's GPU is none that the kernel is made for, and pymm says so."""
    probe = Problem(8, 8, 8, dtype)
    with pytest.raises(ValueError, match="other devices"):
        pymm.explain(
            (8, 8),
            (8, 8),
            dtype=probe.numpy_dtype,
            precision=probe.precision,
            config=slug,
            device="cuda",
        )
