"""pymm.grouped: the products of lists of matrices, against NumPy in float64."""

import gc

import numpy as np
import pytest
from captures import captured
from host_device import HostDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from products import laid_out

import pymm
from pymm.backends.cuda.driver import Driver
from pymm.core import reference
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import grouped as kernel

#: Extents that hurt: empty, 1, primes, beside the tiles' edges.
EXTENTS = (0, 1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 67)


def judge(result, a, b, trans=(False, False), alpha=1.0):
    """A result against float64, within the bound of the arithmetic."""
    (m, k), n = (a.T if trans[0] else a).shape, (b if trans[1] else b.T).shape[0]
    problem = Problem(m, n, k, {4: "f32", 8: "f64"}[result.dtype.itemsize], *trans)
    arguments = problem, a[None], b[None], None, alpha, 0.0
    wanted, bound = reference.product(*arguments), reference.error_bound(*arguments)
    apart = np.abs(result.astype(np.float64) - wanted[0])
    assert result.shape == (m, n) and (apart <= bound[0]).all()


@st.composite
def lists(draw):
    """Matrices of two lists, of one or two types and in all kinds of memory."""
    pairs = []
    for number in range(draw(st.integers(0, 9))):
        m, n, k = (draw(st.sampled_from(EXTENTS)) for _ in "mnk")
        dtype = draw(st.sampled_from((np.float32, np.float32, np.float64)))
        pairs.append(
            [
                draw(laid_out(shape, dtype, seed=2 * number + i))
                for i, shape in enumerate(((m, k), (k, n)))
            ]
        )
    return pairs


@given(lists(), st.sampled_from((1, 0.5, -2)))
@settings(max_examples=30, deadline=None)
def test_numpy_arrays_one_after_the_other(pairs, alpha):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    results = pymm.grouped(a, b, alpha=alpha, device="cpu:1")
    assert len(results) == len(pairs)
    for result, x, y in zip(results, a, b, strict=True):
        judge(result, x, y, alpha=alpha)


@pytest.fixture(scope="module")
def gpu(cuda):
    """The device's primary context, as a user of PyCUDA has it."""
    import pycuda.driver as driver

    context = driver.Device(cuda.device.index).retain_primary_context()
    context.push()
    yield cuda
    driver.Context.pop()


def on_gpu(array, stored="C"):
    """A GPUArray with the same elements: by rows, by columns ("F"), or a part of a larger one whose
    other elements are no numbers ("part").
    """
    from pycuda import gpuarray

    if stored == "part":
        rows, columns = array.shape
        larger = np.full((rows + 2, columns + 3), np.nan, array.dtype)
        larger[1 : rows + 1, 2 : columns + 2] = array
        return gpuarray.to_gpu(larger)[1 : rows + 1, 2 : columns + 2]
    return gpuarray.to_gpu(np.asarray(array, order=stored))


@pytest.mark.simulator
@given(lists(), st.sampled_from((1, 0.5, 0)), st.data())
@settings(max_examples=25, deadline=None)
def test_products_of_any_size_and_layout_in_one_call(gpu, pairs, alpha, data):
    memory = st.sampled_from(("C", "F", "part"))
    a, b = ([on_gpu(pair[i], data.draw(memory)) for pair in pairs] for i in (0, 1))
    results = pymm.grouped(a, b, alpha=alpha)
    for result, (x, y) in zip(results, pairs, strict=True):
        judge(result.get(), x, y, alpha=alpha)


@pytest.mark.simulator
@pytest.mark.parametrize("flags", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_more_products_than_a_launch_has(gpu, flags, dtype):
    """Transposed by flags, into blocks of columns of one matrix, whose other columns stay."""
    generator = np.random.default_rng(5)
    count, sizes = kernel.MOST + 5, (5, 16, 3, 1)
    widths = [sizes[i % 4] for i in range(count)]
    extents = [(9, width, 1 + i % 20) for i, width in enumerate(widths)]
    pairs = [
        (
            generator.standard_normal((k, m) if flags[0] else (m, k)).astype(dtype),
            generator.standard_normal((n, k) if flags[1] else (k, n)).astype(dtype),
        )
        for m, n, k in extents
    ]
    whole = on_gpu(np.full((9, sum(widths) + count), 7, dtype))
    starts = np.cumsum([0, *(width + 1 for width in widths)])
    out = [
        whole[:, start : start + width] for start, width in zip(starts[:-1], widths, strict=True)
    ]
    a, b = ([on_gpu(pair[i]) for pair in pairs] for i in (0, 1))
    results = pymm.grouped(a, b, out, trans_a=flags[0], trans_b=flags[1])
    assert all(result is target for result, target in zip(results, out, strict=True))
    got = whole.get()
    for (x, y), start, width in zip(pairs, starts[:-1], widths, strict=True):
        judge(got[:, start : start + width], x, y, flags)
        assert (got[:, start + width] == 7).all()


@pytest.mark.simulator
@pytest.mark.parametrize("config", kernel.configs(), ids=lambda config: config.slug)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_tile(gpu, config, dtype, monkeypatch):
    """Beside its edges in every extent, with what is not a number where IEEE puts it."""
    monkeypatch.setattr(pymm.runtime.grouped, "choose_config", lambda problems, device: config)
    generator = np.random.default_rng(3)
    extents = [(config.MB + i, config.NB + j, 16 + i + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    pairs = [
        [
            generator.standard_normal(shape).astype(DTYPES[dtype].element)
            for shape in ((m, k), (k, n))
        ]
        for m, n, k in extents
    ]
    results = pymm.grouped(*([on_gpu(pair[i]) for pair in pairs] for i in (0, 1)))
    for result, (x, y) in zip(results, pairs, strict=True):
        judge(result.get(), x, y)


@pytest.mark.simulator
def test_what_is_no_number_stays_in_its_product(gpu):
    x, y = np.ones((20, 20), np.float32), np.full((20, 20), np.inf, np.float32)
    y[3, 4], zero = np.nan, np.zeros((20, 0), np.float32)
    a, b = [on_gpu(v) for v in (x, y, x, zero)], [on_gpu(v) for v in (x, x, y, zero.T)]
    plain, left, right, empty = (r.get() for r in pymm.grouped(a, b))
    assert (plain == 20).all() and (empty == 0).all()
    assert np.isnan(left[3]).all() and np.isinf(np.delete(left, 3, 0)).all()
    assert np.isnan(right[:, 4]).all() and np.isinf(np.delete(right, 4, 1)).all()
    assert all((r.get() == 0).all() for r in pymm.grouped(a, b, alpha=0)), "neither is read"


@pytest.mark.simulator
def test_vectors_stacks_and_what_must_be_copied(gpu):
    """Each as matmul has it, those that need copies with launches of their own."""
    generator = np.random.default_rng(8)
    shapes = [((7,), (7, 5)), ((3, 4, 6), (6, 2)), ((6, 6), (6, 6)), ((2, 1, 5, 3), (4, 3, 5))]
    a, b = ([generator.standard_normal(shape[i]) for shape in shapes] for i in (0, 1))
    on_a, on_b = [on_gpu(x) for x in a], [on_gpu(x) for x in b]
    out = [None, None, on_a[2], None]  # the third overwrites what it reads
    out = [
        x if x is not None else on_gpu(np.zeros(np.matmul(p, q).shape))
        for x, p, q in zip(out, a, b, strict=True)
    ]
    for result, x, y in zip(pymm.grouped(on_a, on_b, out), a, b, strict=True):
        np.testing.assert_allclose(result.get(), np.matmul(x, y), rtol=1e-13, atol=1e-13)


@pytest.mark.simulator
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_sequences_of_calls_keep_every_result(gpu, data):
    """Groups of changing sizes between single products, with memory freed and given out again."""
    generator, held = np.random.default_rng(data.draw(st.integers(0, 99))), []
    for _ in range(data.draw(st.integers(2, 6))):
        count = data.draw(st.integers(1, 7))
        extents = generator.integers(1, 70, (count, 3))
        dtype = data.draw(st.sampled_from(("f4", "f8")))
        pairs = [
            [generator.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n))]
            for m, n, k in extents
        ]
        a, b = ([on_gpu(pair[i]) for pair in pairs] for i in (0, 1))
        if data.draw(st.booleans()):
            results = pymm.grouped(a, b)
        else:
            results = [pymm.matmul(x, y) for x, y in zip(a, b, strict=True)]
        held.append((results, pairs))
        if data.draw(st.booleans()):
            held.pop(0)
    for results, pairs in held:
        for result, (x, y) in zip(results, pairs, strict=True):
            judge(result.get(), x, y)


@pytest.mark.simulator
def test_plans_compute_again_from_what_the_arrays_hold(gpu):
    """More often than it takes to become a graph; with one array's memory replaced in between."""
    count = kernel.MOST + 3
    x = [on_gpu(np.full((1 + i % 5, 3), i, np.float32)) for i in range(count)]
    y = [on_gpu(np.ones((3, 4), np.float64 if i % 9 == 8 else np.float32)) for i in range(count)]
    x = [a if b.dtype == np.float32 else a.astype(np.float64) for a, b in zip(x, y, strict=True)]
    whole = [*x]
    whole[4] = on_gpu(np.full((6, 6), 4, np.float32))
    x[4] = whole[4][:, ::2]  # no unit stride: it is copied
    plan = pymm.plan_grouped(x, y, alpha=2)
    first = plan()
    for turn in range(1, 6):
        for array in whole:
            array.fill(turn)
        if turn == 3:
            other = on_gpu(np.full((3, 4), 5, np.float32))
            y[0].gpudata = other.gpudata
        results = plan()
        assert all(one is same for one, same in zip(results, first, strict=True))
        for number, result in enumerate(results):
            factor = 5 if turn >= 3 and number == 0 else 1
            assert (result.get() == 2 * 3 * turn * factor).all(), (turn, number)


def test_plans_of_numpy_arrays(cpu):
    a, b = [np.ones((2, 3)), np.ones((4, 5))], [np.ones((3, 7)), np.ones((5, 1))]
    plan = pymm.plan_grouped(a, b, device="cpu:1")
    assert type(plan) is pymm.GroupedPlan
    a[1][...] = 2
    small, tall = plan()
    assert (small == 3).all() and (tall == 10).all() and small is plan()[0]
    small.flags.writeable = False
    with pytest.raises(ValueError, match="product 0: out is read-only"):
        plan()
    assert pymm.plan_grouped([], [])() == []


@pytest.mark.parametrize("name", ["c", "beta", "kernel", "device_memory", "nonsense"])
def test_options_that_do_not_apply_to_lists(name):
    for function in (pymm.grouped, pymm.plan_grouped):
        with pytest.raises(TypeError, match=f"take no {name}; there are alpha, "):
            function([], [], **{name: 1})


@pytest.mark.simulator
def test_groups_are_captured_into_graphs(gpu):
    """Replayed after the call and its arrays' contents have changed."""
    import pycuda.driver as drv

    driver, stream = Driver(), drv.Stream()
    a = [on_gpu(np.full((m, 4), m, np.float32)) for m in (3, 20)]
    b = [on_gpu(np.ones((4, 5), np.float32)) for _ in a]
    out = [on_gpu(np.zeros((m, 5), np.float32)) for m in (3, 20)]
    with captured(driver, stream.handle) as made:
        pymm.grouped(a, b, out, stream=stream)
    for x in a:
        x.fill(2)
    made[0].launch(stream.handle)
    stream.synchronize()
    assert all((x.get() == 8).all() for x in out)
    made[0].destroy()


@pytest.mark.simulator
def test_all_products_are_on_one_side(gpu):
    host, far = np.ones((2, 2), np.float32), on_gpu(np.ones((2, 2), np.float32))
    with pytest.raises(TypeError, match="some of the products are of arrays on a device"):
        pymm.grouped([far, host], [far, host])
    with pytest.raises(TypeError, match="product 1: a is a NumPy array on the host"):
        pymm.grouped([far, host], [far, far])
    with pytest.raises(NotImplementedError, match="product 0: .* convert"):
        pymm.grouped([far], [on_gpu(np.ones((2, 2)))])


@pytest.mark.simulator
def test_launches_by_type_and_scalar(gpu, monkeypatch):
    """One for the products of each type, 60 at a time."""
    launches = []
    real = kernel.MOST and pymm.backends.cuda.grouped.GroupedExecutable._launch

    def counted(self, members, alpha):
        launches.append(len(members))
        return real(self, members, alpha)

    monkeypatch.setattr(pymm.backends.cuda.grouped.GroupedExecutable, "_launch", counted)
    x, y = (on_gpu(np.ones((3, 3), dtype)) for dtype in (np.float32, np.float64))
    pymm.grouped([x, y] * 61, [x, y] * 61)
    assert sorted(launches) == [1, 1, 60, 60]


BAD = [
    (([1], [1]), TypeError, "product 0: "),
    ((np.ones((2, 2, 2)), [np.ones((2, 2))] * 2), TypeError, "a is a ndarray, not a list"),
    (([np.ones((2, 2))], [np.ones((2, 2))], np.ones((1, 2, 2))), TypeError, "out is a ndarray"),
    (([np.ones((2, 2))] * 2, [np.ones((2, 2))]), ValueError, "2 matrices a, 1 matrices b and 2"),
    (([np.ones((2, 2))] * 2, [np.ones((2, 2)), np.ones((3, 2))]), ValueError, "product 1: shapes"),
    (([np.ones((2, 2))], [np.ones((2, 2))], [np.ones((3, 3))]), ValueError, "product 0: out has"),
    (([np.ones(2, int)], [np.ones(2, int)]), NotImplementedError, "product 0: a product in int64"),
]


@pytest.mark.parametrize("arguments, error, words", BAD, ids=[words for _, _, words in BAD])
def test_bad_lists(arguments, error, words):
    if words == "product 0: ":
        arguments = ([None], [None])
    with pytest.raises(error, match=words):
        pymm.grouped(*arguments, device="cpu:1")


def test_nothing_is_written_if_one_product_is_bad():
    x, out = np.ones((3, 3)), np.full((3, 3), 5.0)
    with pytest.raises(ValueError, match="product 1: shapes"):
        pymm.grouped([x, x], [x, np.ones((2, 2))], [out, np.ones((3, 2))], device="cpu:1")
    assert (out == 5).all()


@pytest.mark.parametrize(
    "out, words",
    [
        (lambda w, a: [w[:3], w[2:5]], "out of product 0 and out of product 1"),
        (lambda w, a: [w[:3], a[0]], "a of product 0 and out of product 1|out of product 1 and a"),
    ],
)
def test_results_that_overlap_other_products_are_refused(out, words):
    whole, a = np.zeros((9, 3)), [np.ones((3, 3)), np.ones((3, 3))]
    b = [np.ones((3, 3)), np.ones((3, 3))]
    with pytest.raises(ValueError, match=words):
        pymm.grouped(a, b, out(whole, a), device="cpu:1")
    assert (whole == 0).all() and (a[0] == 1).all()


def test_results_beside_each_other_and_shared_factors_are_allowed():
    whole, x = np.zeros((3, 9)), np.ones((3, 3))
    out = [whole[:, i : i + 3] for i in (0, 3, 6)]
    pymm.grouped([x] * 3, [x, 2 * x, 3 * x], out, device="cpu:1")
    assert (whole == np.repeat([3.0, 6.0, 9.0], 3)).all()
    assert pymm.grouped([], []) == []


def test_tiles_grow_with_the_products():
    """Never a larger tile for smaller products, and the smallest for tiny ones."""
    device = Device("d", "cuda", capability=(9, 0), sms=132)
    sizes = [
        kernel.choose_config([Problem(n, n, n)] * 500, device).MB for n in (8, 16, 64, 256, 1024)
    ]
    assert sizes == sorted(sizes) and sizes[0] == 16 and sizes[-1] == 128
    alone = kernel.choose_config([Problem(512, 512, 64)], device)
    assert kernel.tiles_of(alone, Problem(512, 512, 64)) >= 64, "tiles for the multiprocessors"


def test_a_plan_of_numpy_arrays_owns_the_memory_that_it_uses():
    """On a device with memory of its own: operands are copied there when the plan runs."""
    device = HostDevice("simulator")
    a, b = np.arange(6 * 5, dtype=np.float32).reshape(6, 5), np.ones((5, 7), np.float32)
    plan = pymm.plan_grouped([a, a[:3]], [b, b], device=device)
    gc.collect()
    assert len(device.live) == 6  # both operands and the result of each product
    for wanted in (a @ b, 2 * a @ b):
        whole, upper = plan()
        np.testing.assert_array_equal(whole, wanted)
        np.testing.assert_array_equal(upper, wanted[:3])
        a *= 2
    del plan
    gc.collect()
    assert not device.live
