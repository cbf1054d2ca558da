"""precision="emulated": what the device finds out about operands, that it computes their products
accordingly whatever came before, and that none is less exact than float32's own.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from captures import captured
from fed_products import HOPPER
from h200 import LIMITS
from host_device import HostDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import every_kernel
from test_wgmma_f16x3 import in_three_products

import pymm
from pymm.backends.cuda import emulated, launch
from pymm.backends.cuda.driver import Driver
from pymm.backends.cuda.executable import CudaExecutable
from pymm.core.problem import Problem
from pymm.kernels import kernels_for, parse_slug
from pymm.kernels.emulated import (
    LEAST_DEPTH,
    Gate,
    fallback_config,
    largest_exponents,
    plain_problem,
)
from pymm.kernels.pipelined import PIPELINED
from pymm.kernels.source import render
from pymm.measure import ranges
from pymm.measure.verify import GuardedMatrix
from pymm.runtime.bind import executable

SLUG = "wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2"


def rows_are_split(rows: np.ndarray) -> bool:
    """Whether all rows, with k the last axis, can be split: the rule in NumPy, block by block."""
    rows = np.abs(rows.reshape(-1, rows.shape[-1]).astype(float))
    k = rows.shape[1]
    if not np.isfinite(rows).all():
        return False
    for first in range(0, k, 64):
        block = rows[:, first : first + 64]
        most = block.max(axis=1)
        counted, largest = block, most
        if block.shape[1] < 32 and first:
            counted = rows[:, first - 64 : first]
            largest = np.maximum(most, counted.max(axis=1))
        bad = most < 2.0**-112
        bad |= 8 * (counted >= largest[:, None] / 64).sum(axis=1) < 5 * counted.shape[1]
        bad |= 16 * (counted >= largest[:, None] / 8).sum(axis=1) < counted.shape[1]
        if (bad & (most > 0)).any():
            return False
    return True


def is_split(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the device should multiply stacks a and b by split operands."""
    if not (rows_are_split(a) and rows_are_split(b.swapaxes(-1, -2))):
        return False
    top = sum(int(np.frexp(np.abs(x).max())[1]) - 1 + 127 if x.any() else 0 for x in (a, b))
    return top <= largest_exponents(a.shape[-1])


class Products:
    """Products of one size by the emulated kernel, and by its fallback alone."""

    def __init__(self, backend, problem: Problem) -> None:
        self.backend, self.problem = backend, problem
        p = problem
        shapes = (p.m, p.k), (p.k, p.n), (p.m, p.n)
        self.fields = [GuardedMatrix(backend, p.numpy_dtype, (p.batch, *s)) for s in shapes]
        plain = plain_problem(problem)
        config = fallback_config(plain, backend.device)
        self.calls = self.bound(parse_slug(SLUG), problem), self.bound(config, plain)

    def bound(self, config, problem):
        at = [field.matrix for field in self.fields]
        return executable(self.backend, config, problem).bind(problem, 1.0, *at[:2], 0.0, at[2])

    def __call__(self, a, b, plain=False) -> np.ndarray:
        c = np.full((self.problem.batch, self.problem.m, self.problem.n), np.nan, np.float32)
        for field, values in zip(self.fields, (a, b, c), strict=True):
            field.write(values)
        self.calls[plain]()
        self.backend.synchronize()
        return self.fields[2].read()[0]


def check(products: Products, a: np.ndarray, b: np.ndarray, what: str) -> bool:
    """The product is the fallback's, to the bit, where the operands cannot be split, and else not,
    and as exact. Returns whether they were split.
    """
    got, plain = products(a, b), products(a, b, plain=True)
    same = np.array_equal(got.view(np.uint32), plain.view(np.uint32))
    split = is_split(a, b) and products.problem.k >= LEAST_DEPTH
    if not split:
        assert same, f"{what}: not float32's own"
        return False
    exact = a.astype(float) @ b.astype(float)
    size = np.abs(a.astype(float)) @ np.abs(b.astype(float))
    usual = size >= ranges.ORDINARY
    errors = [(np.abs(c - exact) / np.where(usual, size, 1))[usual] for c in (got, fused(a, b))]
    largest = [float(e.max(initial=0.0)) for e in errors]
    assert largest[0] <= 2 * max(largest[1], 2.0**-23), f"{what}: {largest}"
    assert not same or not exact.any(), f"{what}: not split"
    return True


def fused(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products by float32 multiply-adds in the order of k: those in float64 are exact."""
    total = np.zeros((len(a), a.shape[1], b.shape[2]), np.float32)
    for k in range(a.shape[2]):
        total = (total + a[:, :, k, None].astype(float) * b[:, None, k]).astype(np.float32)
    return total


def drawn(kind: str, shape: tuple[int, int, int], draw: np.random.Generator):
    """Stacks of operands: of one of `ranges.KINDS`, or one of the few kinds that are split."""
    m, n, k = shape
    a, b = draw.standard_normal((2, m, k)), draw.standard_normal((2, k, n))
    if kind == "uniform":
        a, b = draw.uniform(0, 1, a.shape), draw.uniform(0, 1, b.shape)
    elif kind == "rows":
        a *= 2.0 ** draw.integers(-60, 40, (2, m, 1))
        b *= 2.0 ** draw.integers(-40, 60, (2, 1, n))
    elif kind == "blocks":
        a *= np.repeat(2.0 ** draw.integers(-20, 20, (2, m, -(-k // 64))), 64, axis=2)[:, :, :k]
    elif kind == "last column":
        a[:, :, -1] *= 2.0 ** draw.integers(0, 12)
    elif kind == "near overflow":
        a *= 2.0 ** draw.integers(50, 60)
        b *= 2.0 ** draw.integers(55, 65)
    elif kind == "one value":
        a.flat[draw.integers(a.size)] = draw.choice([np.nan, np.inf, -np.inf, 1e30, 0.0, 1e-42])
    elif kind == "tiny":
        a *= 2.0 ** -draw.integers(100, 120)
    elif kind == "zeros":
        a[:, : m // 2] = 0.0
    with np.errstate(over="ignore"):
        return a.astype(np.float32), b.astype(np.float32)


KINDS = ("normal", "uniform", "rows", "blocks", "last column")
KINDS += ("near overflow", "one value", "tiny", "zeros")


@pytest.mark.parametrize("k", [1, 63, 64, 65, 95, 96, 130])
def test_the_device_decides_as_the_rule_says(cuda, k):
    """Products after each other with one verdict: none is left behind for the next one."""
    products, split = Products(cuda, Problem(37, 33, k, "emulated", batch=2)), []

    @settings(deadline=None, max_examples=14, derandomize=True, database=None)
    @given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**20))
    def run(kind, seed):
        a, b = drawn(kind, (37, 33, k), np.random.default_rng(seed))
        split.append(check(products, a, b, f"{kind} {seed}"))

    with np.errstate(all="ignore"):
        run()
        a, b = drawn("normal", (37, 33, k), np.random.default_rng(0))
        split.append(check(products, a, b, "normal"))
    assert len(set(split)) == (1 if k < LEAST_DEPTH else 2)


@pytest.mark.parametrize("kind", ranges.KINDS)
def test_any_sizes_of_elements(cuda, kind):
    products = Products(cuda, Problem(33, 40, 130, "emulated", batch=4))
    for seed, special in enumerate(ranges.SPECIALS):
        generator = np.random.default_rng(seed)
        a, b = ranges.draw(products.problem, kind, special, generator)
        with np.errstate(all="ignore"):
            check(products, a, b, f"{kind} {special}")


def one_held_at_a_time(monkeypatch) -> list[tuple[int, int, int]]:
    """Has each multiprocessor hold one block of a fallback. Returns a list that gets the grid of
    each fallback that is bound.
    """
    grids, gated = [], CudaExecutable.gated

    def kept(*given):
        made = gated(*given)
        grids.append(made[0].grid)
        return made

    monkeypatch.setattr(emulated, "resident", lambda *_: 1)
    monkeypatch.setattr(CudaExecutable, "gated", kept)
    return grids


@pytest.mark.parametrize("m, n, k, parts", [(5, 3, 64, 1), (35, 130, 136, 4)])
def test_the_fallback_is_right_with_more_blocks_than_the_device_holds(
    cuda, monkeypatch, m, n, k, parts
):
    """Each block of its launch then computes several of the product's, k in one part or more."""
    batch = 4 * cuda.device.sms // parts + 3
    problem = Problem(m, n, k, "emulated", batch=batch)
    plain = plain_problem(problem)
    config = fallback_config(plain, cuda.device)
    config = PIPELINED.config(config.as_dict() | {"SPLIT": parts})
    for module in (emulated, sys.modules[__name__]):
        monkeypatch.setattr(module, "fallback_config", lambda *_: config)
    grids = one_held_at_a_time(monkeypatch)
    assert np.prod(config.kernel.grid(config, plain)) > cuda.device.sms
    products, draw = Products(cuda, problem), np.random.default_rng(k)
    for kind in ("normal", "one value", "one value", "normal"):
        a, b = (draw.standard_normal((batch, *s)).astype(np.float32) for s in ((m, k), (k, n)))
        if kind == "one value":
            a[draw.integers(batch), draw.integers(m), draw.integers(k)] = 1e30
        with np.errstate(all="ignore"):
            assert check(products, a, b, kind) == (kind == "normal")
    assert grids == [(cuda.device.sms, 1, 1)]


@pytest.mark.parametrize("outlier", [0.0, 1e20])
def test_the_fallback_of_few_blocks_has_the_epilogue(cuda, monkeypatch, outlier):
    grids, draw = one_held_at_a_time(monkeypatch), np.random.default_rng(3)
    a, b = (draw.standard_normal((cuda.device.sms + 3, *s)) for s in ((7, 64), (64, 5)))
    a, b, bias = (x.astype(np.float32) for x in (a, b, draw.standard_normal(5)))
    a[2, 3, 4] += outlier
    finish = dict(bias=bias, activation="relu")
    with every_kernel():
        got = pymm.matmul(a, b, precision="emulated", config=SLUG, device=cuda, **finish)
    exact = np.maximum(a.astype(float) @ b + bias, 0)
    assert (np.abs(got - exact) <= 2.0**-19 * (np.abs(a).astype(float) @ np.abs(b) + 4)).all()
    assert grids == [(cuda.device.sms, 1, 1)]


@pytest.fixture
def context(cuda):
    """The device's context, current for PyCUDA."""
    import pycuda.driver as drv

    context = drv.Device(cuda.device.index).retain_primary_context()
    context.push()
    yield context
    context.pop()


def test_sequences_on_streams_and_in_graphs(cuda, context):
    """Products of changing sizes on two streams, some in graphs that are launched again with other
    operands in the same arrays: each decides for itself.
    """
    import pycuda.driver as drv
    from pycuda.gpuarray import GPUArray

    draw, shapes = np.random.default_rng(5), ((40, 33, 128), (70, 65, 192), (33, 40, 65))
    with every_kernel(), np.errstate(all="ignore"):
        streams = [drv.Stream(), drv.Stream()]
        driver, bound = Driver(), []
        for stream in streams:
            for m, n, k in shapes:
                a, b, c = (GPUArray(s, np.float32) for s in ((m, k), (k, n), (m, n)))
                options = dict(precision="emulated", config=SLUG, stream=stream)
                with captured(driver, stream.handle) as made:
                    pymm.matmul(a, b, out=c, **options)
                plan = pymm.plan(a, b, out=c, **options)
                assert plan.problem.dtype == "emulated"
                graph = made[0]
                launches = (
                    lambda graph=graph, stream=stream: graph.launch(stream.handle),
                    plan,
                    lambda a=a, b=b, c=c, o=options: pymm.matmul(a, b, out=c, **o),
                )
                bound.append((a, b, c, launches, graph))
        for step in range(60):
            a, b, c, launches, _ = bound[draw.integers(len(bound))]
            (m, k), n = a.shape, b.shape[1]
            kind = "normal" if step % 2 else draw.choice(["one value", "last column", "rows"])
            x, y = (v[0] for v in drawn(str(kind), (m, n, k), draw))
            a.set(np.ascontiguousarray(x)), b.set(np.ascontiguousarray(y))
            launches[draw.integers(3)]()
            drv.Context.synchronize()
            size = np.abs(x.astype(float)) @ np.abs(y.astype(float))
            exact, got = x.astype(float) @ y, c.get()
            finite = np.isfinite(exact)
            assert (np.isfinite(got) == finite).all()
            assert (np.abs(got - exact)[finite] <= 2.0**-19 * size[finite]).all(), (step, kind)
            if kind == "normal":
                wanted = Products(cuda, Problem(m, n, k, "emulated"))(x[None], y[None])[0]
                assert np.array_equal(got, wanted), step
        for *_, graph in bound:
            graph.destroy()


@pytest.mark.parametrize("graphs", [False, True])
def test_products_behind_one_another_decide_for_themselves(cuda, context, monkeypatch, graphs):
    """Many products on two streams, none waited for: each launch may begin before the one before it
    has ended, and each product has the verdict on its own operands.
    """
    import pycuda.driver as drv
    from pycuda.gpuarray import GPUArray

    if not graphs:  # which plans become when they are called again
        monkeypatch.setattr(launch, "REPEATED", 10**9)
    draw, split = np.random.default_rng(11), SLUG.replace("SPLIT1-SLOTS2", "SPLIT2-SLOTS1")
    streams, calls = [drv.Stream(), drv.Stream()], []
    shapes, turns = [(40, 33, 128), (70, 65, 192), (33, 40, 300)], 2
    if cuda.device.kind != "simulator":
        shapes, turns = [*shapes * 4, (900, 700, 512), (2000, 1500, 64)], 100
    with every_kernel(), np.errstate(all="ignore"):
        for i, (m, n, k) in enumerate(shapes * 2):
            kind = "normal" if draw.integers(2) else "one value"
            a, b, c = (GPUArray(s, np.float32) for s in ((m, k), (k, n), (m, n)))
            for array, values in zip((a, b), drawn(kind, (m, n, k), draw), strict=True):
                array.set(np.ascontiguousarray(values[0]))
            config = (SLUG, split)[i // 3 % 2] if m < 100 else None  # None: what pymm chooses
            options = dict(precision="emulated", stream=streams[i % 2], config=config)
            plan = pymm.plan(a, b, out=c, **options)
            plan()
            drv.Context.synchronize()
            calls.append((plan, c, c.get(), is_split(a.get()[None], b.get()[None])))
        assert {split for *_, split in calls} == {False, True}
        for turn in range(turns):
            for _, c, *_ in calls:
                c.fill(np.nan)
            drv.Context.synchronize()
            for i in draw.permutation(len(calls)):
                calls[i][0]()
            drv.Context.synchronize()
            for i, (_, c, alone, _) in enumerate(calls):
                assert np.array_equal(c.get(), alone, equal_nan=True), (turn, i)


@pytest.mark.parametrize("k, most", [(64, 2.0), (128, 1.5), (256, 1.3)])
def test_what_is_split_errs_hardly_more_than_float32(k, most):
    """By a model of tensor cores, which cut sums off. Columns of A and rows of B that outweigh the
    others are split only if they do so little; where one product is all of an element, the error is
    several times float32's.
    """
    passed = []
    for kind, larger in itertools.product(("normal", "uniform"), (1, 2, 4, 8, 32)):
        a, b = (x[0] for x in drawn(kind, (64, 64, k), np.random.default_rng(k + larger)))
        a[:, -1:] *= larger
        b[-1:] *= larger
        left, right = a.astype(float), b.astype(float)
        exact, size = left @ right, np.abs(left) @ np.abs(right)
        made, plain = in_three_products(left, right), fused(a[None], b[None])[0]
        ratio = (np.abs(made - exact) / size).max() / (np.abs(plain - exact) / size).max()
        passed.append(is_split(a[None], b[None]))
        assert not passed[-1] or ratio <= most, f"{kind}, {larger} times larger: {ratio}"
        assert larger < 32 or kind != "normal" or (ratio > 2 and not passed[-1])
    assert any(passed)


@pytest.mark.parametrize("k", [0, 1, 63])
def test_few_products_are_never_split(k):
    assert largest_exponents(k) == 0


@pytest.mark.parametrize("k", [64, 65, 1000, 2**20, 10**9])
def test_no_sum_of_split_products_overflows(k):
    """The largest elements that are let through, k times, and one more power of two is too much."""
    total = largest_exponents(k) - 2 * 127
    assert k * 2.0 ** (total + 2) <= 2.0**126 < k * 2.0 ** (total + 4)


def test_the_fallback_obeys_the_rules_and_fills_the_device():
    for m, n, k in ((1, 1, 64), (64, 64, 262144), (640, 641, 643), (8192, 8192, 64)):
        for trans in ((False, False), (True, True), (True, False)):
            problem = Problem(m, n, k, "f32", *trans)
            config = fallback_config(problem, HOPPER)
            assert not config.kernel.violations(config, problem, HOPPER)
            assert render(config, problem, gate=Gate.NOT_EXACT).key != render(config, problem).key
    assert fallback_config(Problem(64, 64, 262144, "f32"), HOPPER).SPLIT > 1


@pytest.fixture
def hopper():
    return HostDevice("cuda", **LIMITS)


@pytest.mark.parametrize(
    "m, n, k, options, kind, why",
    [
        (4096, 4096, 4096, {}, "emulated", "expected in emulated"),
        (4096, 4096, 63, {}, "f32", "k is below 64"),
        (64, 64, 64, {}, "f32", "expected"),
        (4096, 4096, 4096, {"kernel": 8}, "f32", "tma_f32 was asked for"),
        (64, 64, 64, {"kernel": 14}, "emulated", "wgmma_f16x3 was asked for"),
        (64, 64, 64, {"config": SLUG}, "emulated", "wgmma_f16x3 was asked for"),
    ],
)
def test_the_host_decides_what_it_can(hopper, m, n, k, options, kind, why):
    told = pymm.explain((m, k), (k, n), dtype="f32", precision="emulated", device=hopper, **options)
    assert told.problem.dtype == kind and why in str(told)
    assert kind in told.config.kernel.dtypes


@pytest.mark.simulator
def test_devices_without_the_kernel_use_float32(cuda):
    x, y = np.ones((5, 70), np.float32), np.ones((70, 6), np.float32)
    assert kernels_for(Problem(5, 6, 70, "emulated"), cuda.device) == []
    for device in ("cpu", cuda):
        plan = pymm.plan(x, y, precision="emulated", device=device)
        assert plan.problem.dtype == "f32" and (plan() == 70).all()
        assert "no kernel computes in emulated" in str(
            pymm.explain(x, y, precision="emulated", device=device)
        )
        assert (pymm.matmul(x, y, precision="emulated", device=device) == 70).all()
        assert (pymm.syrk(x, precision="emulated", device=device) == 70).all()
    with pytest.raises(NotImplementedError, match="float32"):
        pymm.matmul(x.astype(float), y.astype(float), precision="emulated", device="cpu")
    blocks = pymm.matmul(x, y, precision="emulated", device=cuda, device_memory="64MB")
    assert (blocks == 70).all()
