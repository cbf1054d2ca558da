"""Kernels fed by TMA without a Hopper GPU: a kernel that reads descriptions in the place of tensor
maps shows what `MappedExecutable` prepares, hands over and launches, for every type.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pymm.backends.cuda.driver import Driver
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem, stored_shapes
from pymm.core.reference import oriented
from pymm.kernels import Box, Config, Kernel, Persistent, Tma
from pymm.kernels.source import render
from pymm.measure.verify import NUMBER, POISON, GuardedMatrix

pytestmark = pytest.mark.simulator

#: Types that one kernel computes alone ("emulated": test_emulated.py).
ALONE = [name for name, row in DTYPES.items() if not row.checked]

#: CUtensorMapDataType by NumPy's names (cuda.h); 11 is float32 rounded by TMA.
KINDS = {"float16": 6, "bfloat16": 9, "float32": 7, "float64": 8}


def kernel(along: tuple[str, str], terms: int) -> Kernel:
    """A described kernel that wants its operands so."""
    return Kernel(
        number=91,
        name=f"described_{'_'.join(along)}_{terms}",
        file=str(Path(__file__).parents[1] / "support" / "simulator_kernels" / "described.cu"),
        title="reads descriptions",
        space=dict(MB=(4,), NB=(8,), KB=(4,), SPLIT=(1, 2, 5)),
        default=dict(MB=4, NB=8, KB=4, SPLIT=1),
        rules=(),
        threads=lambda c: c.MB * c.NB,
        block=lambda c: (c.MB * c.NB, 1, 1),
        tiles=lambda c, p: (-(-p.m // c.MB) * -(-p.n // c.NB), 1),
        dtypes=tuple(DTYPES),
        tma=Tma(
            boxes=lambda c, p: (Box(c.KB, c.MB), Box(c.NB, c.KB, 0), Box(c.NB, c.MB, 64)),
            major=along,
            terms=terms,
        ),
        persistent=Persistent(blocks_per_sm=lambda c: 2),
    )


@pytest.fixture
def maps(monkeypatch) -> list[tuple]:
    """What maps were asked for; each is made of its own description."""
    asked = []

    def describe(self, kind, address, extents, strides, box, swizzle):
        asked.append((kind, box, swizzle))
        assert all(x % 16 == 0 for x in (address, *strides)) and box[2] == 1
        values = (address, *extents, *strides, kind, *box[:2], swizzle)
        return struct.pack("<10Q", *values).ljust(128, b"\0")

    def move(self, tensor_map, address):
        return struct.pack("<Q", address) + tensor_map[8:]

    monkeypatch.setattr(Driver, "tensor_map", describe)
    monkeypatch.setattr(Driver, "moved_map", move)
    return asked


def loaded(backend, along, terms, split, problem):
    """The described kernel for a problem."""
    own = kernel(along, terms)
    config = Config(own.name, tuple((own.default | {"SPLIT": split}).items()))
    config.__dict__["kernel"] = own
    return backend.load(render(config, problem))


def exact(problem: Problem, draw: np.random.Generator) -> list[np.ndarray]:
    """A, B and C of small integers: exact in every type, and so is what is made of them."""
    shapes = stored_shapes(problem)
    real = (problem.numpy_dtype, problem.numpy_dtype, problem.out_dtype)
    return [draw.integers(-3, 4, s).astype(t) for s, t in zip(shapes, real, strict=True)]


@pytest.mark.parametrize("dtype", ALONE)
@pytest.mark.parametrize("along", [("any", "any"), ("k", "k"), ("mn", "mn")], ids="-".join)
def test_every_layout_stride_stack_and_split(cuda, maps, dtype, along):
    draw = random.Random(f"{dtype}{along}")
    for layout in draw.sample(("NN", "NT", "TN", "TT"), 2):
        m, n, k = (draw.choice((1, 3, 8, 16, draw.randint(1, 90))) for _ in "mnk")
        batch, split = draw.choice((1, 1, 3)), draw.choice((1, 1, 2, 5))
        problem = Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", batch)
        gaps = [draw.choice((0, 3, 8, -shape[2] % 16)) for shape in stored_shapes(problem)]
        alpha, beta = draw.choice(((1.0, 0.0), (-2.0, 1.0)))
        values = exact(problem, np.random.default_rng(k))
        places = list(zip(values, gaps, strict=True))
        fields = [
            GuardedMatrix(cuda, x.dtype, x.shape, gap, around)
            for (x, gap), around in zip(places, (POISON, POISON, NUMBER), strict=True)
        ]
        for field, value in zip(fields, values, strict=True):
            field.write(value)
        a, b, c = (field.matrix for field in fields)
        repeated = batch > 1 and draw.random() < 0.5
        if repeated:
            a, values[0] = replace(a, batch_stride=0), values[0][:1].repeat(batch, axis=0)
        terms = 2 if dtype == "tf32x3" else 1
        executable = loaded(cuda, along, terms, split, problem)
        call = executable.bind(problem, alpha, a, b, beta, c)
        left, right = oriented(problem, *(x.astype(float) for x in values[:2]))
        wanted = alpha * (left @ right) + beta * values[2].astype(float)
        elsewhere = [GuardedMatrix(cuda, x.dtype, x.shape, gap, NUMBER) for x, gap in places]
        for target, source in zip(elsewhere, fields, strict=True):
            target.write(source.read()[0])
        moved = call.rebind(*(field.matrix.address for field in elsewhere))
        for launch, out in ((call, fields[2]), (moved, elsewhere[2])):
            launch()
            cuda.synchronize()
            got, touched = out.read()
            what = f"{problem.slug} {gaps} {split}"
            np.testing.assert_array_equal(got.astype(float), wanted, what)
            assert not touched
    kinds = {KINDS[t.name] for t in (problem.numpy_dtype, problem.out_dtype)}
    for kind, box, swizzle in maps:
        assert kind in kinds or (dtype == "tf32" and kind == 11)
        assert (box[:2], swizzle) in [((4, 4), 128), ((8, 4), 0), ((8, 4), 64)]


@pytest.mark.parametrize("along", ["any", "k"])
def test_two_terms_hold_22_bits(cuda, maps, along):
    problem = Problem(20, 24, 16, "tf32x3", True, False, 2)
    draw = np.random.default_rng(3)
    a, b, c = (draw.standard_normal(s, np.float32) for s in stored_shapes(problem))
    fields = [GuardedMatrix(cuda, x.dtype, x.shape) for x in (a, b, c)]
    for field, value in zip(fields, (a, b, c), strict=True):
        field.write(value)
    executable = loaded(cuda, (along, along), 2, 1, problem)
    matrices = [field.matrix for field in fields]
    executable.bind(problem, 1.0, *matrices[:2], 0.0, matrices[2])()
    cuda.synchronize()
    left, right = oriented(problem, a.astype(float), b.astype(float))
    off = np.abs(fields[2].read()[0] - left @ right)
    assert (off <= 2.0**-19 * (np.abs(left) @ np.abs(right))).all()


def test_a_stack_too_large_for_its_copies_goes_in_parts(cuda, maps, monkeypatch):
    problem = Problem(5, 6, 7, "f32", batch=7)
    values = exact(problem, np.random.default_rng(1))
    fields = [GuardedMatrix(cuda, x.dtype, x.shape, 1) for x in values]
    for field, value in zip(fields, values, strict=True):
        field.write(value)
    executable = loaded(cuda, ("mn", "mn"), 1, 2, problem)
    monkeypatch.setattr(executable, "_device", replace(cuda.device, memory_bytes=4 * 4096))
    a, b, c = (field.matrix for field in fields)
    executable.bind(problem, 1.0, a, b, 0.0, c)()
    cuda.synchronize()
    np.testing.assert_array_equal(fields[2].read()[0], values[0] @ values[1])
    assert len(maps) > 2


def test_a_product_without_terms_reads_neither_operand(cuda, maps):
    problem = Problem(5, 8, 0, "f64")
    c = GuardedMatrix(cuda, np.dtype(np.float64), (1, 5, 8))
    c.write(np.full((1, 5, 8), 3.0))
    nothing = replace(c.matrix, address=0, ld=1)
    executable = loaded(cuda, ("k", "k"), 1, 1, problem)
    executable.bind(problem, 1.0, nothing, nothing, 0.5, c.matrix)()
    cuda.synchronize()
    assert (c.read()[0] == 1.5).all() and len(maps) == 1


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("gap", [0, 1])
def test_all_launches_but_the_first_may_begin_early(cuda, maps, monkeypatch, split, gap):
    problem, seen = Problem(5, 8, 16, "f64"), []
    original = Driver.launcher

    def noted(self, stream, function, sizes, early=False):
        seen.append(early)
        return original(self, stream, function, sizes, early)

    monkeypatch.setattr(Driver, "launcher", noted)
    fields = [GuardedMatrix(cuda, np.dtype(float), shape, gap) for shape in stored_shapes(problem)]
    a, b, c = (field.matrix for field in fields)
    loaded(cuda, ("any", "any"), 1, split, problem).bind(problem, 1.0, a, b, 0.0, c)
    assert seen == [False, True, True][: split + gap]
