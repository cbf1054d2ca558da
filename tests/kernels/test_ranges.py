"""Products of numbers of every size, with zeros, infinite numbers and NaN among them, by every
reduced precision: NaN and infinite where float32's are, within the bound everywhere else.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymm.backends import open_device
from pymm.backends.base import Backend
from pymm.core.dtypes import EMULATED
from pymm.core.problem import Problem
from pymm.kernels import kernels_for, parse_slug
from pymm.measure import ranges
from pymm.measure.verify import GuardedMatrix
from pymm.runtime.bind import executable

#: A configuration and its type; kernel 10 in both ways that B takes, by TMA's rounding and (where
#: rows start anywhere) by the copy's.
CASES = [
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "f16x3"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB128-STAGES5-GROUP1-SPLIT2-SLOTS1", "f16x3"),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "emulated"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB128-STAGES5-GROUP1-SPLIT2-SLOTS1", "emulated"),
    ("wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1", "tf32x3"),
    ("wgmma_tf32-MB64-NB64-KB32-TA64-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1", "tf32"),
    ("tensor-MB64-NB64-KB32-TA32-TB32-STAGES3-BLOCKS1-GROUP8-SPLIT1", "tf32"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "bf16_f32"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "f16_f32"),
]
IDS = [f"{dtype}-{slug.split('-')[0]}-{slug[-12:]}" for slug, dtype in CASES]


def product(backend: Backend, slug: str, problem: Problem, a, b) -> np.ndarray:
    """A stack of products by one configuration, from what stands in no other memory than theirs."""
    c = np.full((problem.batch, problem.m, problem.n), np.nan, np.float32)
    fields = [GuardedMatrix(backend, x.dtype, x.shape) for x in (a, b, c)]
    for field, values in zip(fields, (a, b, c), strict=True):
        field.write(values)
    at = [field.matrix for field in fields]
    call = executable(backend, parse_slug(slug), problem).bind(problem, 1.0, *at[:2], 0.0, at[2])
    call()
    backend.synchronize()
    return fields[2].read()[0]


def check(backend: Backend, slug: str, problem: Problem, kind: str, special: str, seed: int):
    """One stack of drawn products."""
    a, b = ranges.draw(problem, kind, special, np.random.default_rng(seed))
    found = ranges.judge(problem, a, b, product(backend, slug, problem, a, b))
    assert not found.detail, f"{slug} {problem.slug} {kind}, {special}, {seed}: {found.detail}"


drawn = given(
    kind=st.sampled_from(list(ranges.KINDS)),
    special=st.sampled_from(list(ranges.SPECIALS)),
    k=st.sampled_from([1, 17, 64, 130]),
    odd=st.booleans(),
    layout=st.sampled_from(["NN", "NT"]),
    seed=st.integers(0, 2**20),
)


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype", CASES, ids=IDS)
def test_nan_infinite_and_within_the_bound(cuda, slug, dtype):
    @settings(deadline=None, max_examples=12, derandomize=True, database=None)
    @drawn
    def run(kind, special, k, odd, layout, seed):
        m, n, k = (33, 37, k) if odd else (32, 40, -(-k // 8) * 8)
        problem = Problem(m, n, k, dtype, False, layout == "NT", 4)
        check(cuda, slug, problem, kind, special, seed)

    run()


@pytest.mark.simulator
@pytest.mark.parametrize("large, small", [(1e30, 1.0), (1e30, 1e-10), (3e38, 1e-37), (1e-30, 1.0)])
def test_powers_whose_product_is_no_number(cuda, large, small):
    """Of two matrices whose large numbers do not meet: f16x3 multiplied its two powers of two with
    each other first, infinity, and made NaN of zeros.
    """
    a, b = (small * np.eye(64, dtype=np.float32)[None] for _ in range(2))
    a[0, 0, 0] = b[0, 1, 1] = large
    got = product(cuda, CASES[0][0], Problem(64, 64, 64, "f16x3"), a, b)[0]
    wanted = np.diag(np.diag(a[0]).astype(float) * np.diag(b[0]))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[:2, :2], wanted[:2, :2], rtol=1e-6, atol=0)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=wanted.max() * 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("slug, dtype", CASES, ids=IDS)
def test_many_on_a_gpu(slug, dtype):
    backend = open_device("cuda")
    kernel = parse_slug(slug).kernel
    if not kernel.runs_on(backend.device):
        assert kernel not in kernels_for(Problem(8, 8, 8, dtype), backend.device)
        return

    @settings(deadline=None, max_examples=200, derandomize=True, database=None)
    @drawn
    def run(kind, special, k, odd, layout, seed):
        m, n, k = (133, 97, 3 * k) if odd else (128, 200, -(-k // 8) * 24)
        problem = Problem(m, n, k, dtype, False, layout == "NT", 8)
        check(backend, slug, problem, kind, special, seed)

    run()


@pytest.mark.parametrize("dtype", [*ranges.REDUCED, "f32"])
@pytest.mark.parametrize("kind", ranges.KINDS)
def test_float32_s_own_products_are_right(kind, dtype):
    """By multiply-adds in turn, of what the types of 16 bits hold too; and the judge is not idle:
    a NaN for a number, a number for a NaN and a wrong number are seen.
    """
    problem, generator = Problem(9, 11, 70, dtype, batch=6), np.random.default_rng(1)
    noticed = 0
    for special in ranges.SPECIALS:
        a, b = ranges.draw(problem, kind, special, generator)
        assert np.isfinite(a.astype(float)).all() == (special in ("finite", "zeros"))
        judged = ranges.in_float32(problem) if dtype in EMULATED else problem
        plain = np.zeros((6, 9, 11), np.float32)
        with np.errstate(all="ignore"):
            for p in range(problem.k):
                plain += a[:, :, p, None].astype(np.float32) * b[:, None, p].astype(np.float32)
        assert not ranges.judge(judged, a, b, plain).detail
        for wrong in (np.nan, np.inf, 1e38):
            found = ranges.judge(problem, a, b, np.full_like(plain, wrong))
            noticed += found.mismatches + found.beyond > 0
    assert noticed > 0 or kind == "anywhere"
