"""In which type a product is computed whose type names a plain one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from h200 import H200, LIMITS
from host_device import HostDevice

import pymm
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for
from pymm.kernels.source import kernel_digest
from pymm.selection.plain import computed, computed_type, decide
from pymm.selection.records import Environment, Record, unusable_because
from pymm.selection.select import Choice, select

TOOLS = Environment("580.1", "nvcc 13.0.88")
AMPERE = replace(H200, capability=(8, 0))
HOST = Device("cpu", "cpu")

SPLIT, FLOATS = find_kernel("wgmma_f16x3"), find_kernel("pipelined")


def selected(problem: Problem) -> Choice:
    return select(problem, H200, None, TOOLS)


def tuned(problem: Problem, seconds: float, joules: float = float("nan")) -> Choice:
    """A choice that was measured for this product."""
    kernel = FLOATS if problem.dtype == "f32" else SPLIT
    config = kernel.default_for(problem, H200)
    record = Record(problem, config, seconds, 0.01, "2026-11-27", TOOLS, "0" * 12, joules)
    return Choice(config, "tuned", record)


@pytest.mark.parametrize("dtype", ["tf32x3", "f16x3", "emulated"])
@pytest.mark.parametrize(
    "extents, batch, kind",
    [
        ((4096, 4096, 4096), 1, "own"),
        ((1000, 3000, 2000), 1, "own"),
        ((256, 256, 256), 1, "f32"),
        ((16, 7168, 2112), 1, "f32"),
        ((1, 1, 1), 1, "f32"),
        ((16, 16, 64), 10000, "f32"),
    ],
)
def test_few_rows_and_small_products_are_plain(dtype, extents, batch, kind):
    problem = Problem(*extents, dtype, False, True, batch)
    found, choice, why = computed(problem, H200, selected)
    assert found == replace(problem, dtype=dtype if kind == "own" else "f32") and why
    assert choice == selected(found) and found.dtype in choice.config.kernel.dtypes


def test_no_plain_type_has_a_higher_error_bound():
    plain = {name: DTYPES[row.plain] for name, row in DTYPES.items() if row.plain}
    assert set(plain) == {"tf32x3", "f16x3", "emulated"}
    for name, of in plain.items():
        row = DTYPES[name]
        assert of.element == row.element and not of.plain and of.scaling is None
        assert of.roundoff <= row.roundoff and of.out_roundoff <= row.out_roundoff
        assert of.product_error <= row.product_error
        assert of.zero_up_to <= row.zero_up_to and of.infinite_from >= row.infinite_from


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "tf32", "f16_f32"])
def test_other_types_have_no_other(dtype):
    problem = Problem(64, 64, 64, dtype)
    assert computed(problem, H200, selected) == (problem, selected(problem), "")
    assert computed_type(dtype, HOST) == dtype


@pytest.mark.parametrize("dtype", ["tf32x3", "f16x3", "emulated"])
@pytest.mark.parametrize("device", [AMPERE, HOST], ids=["ampere", "cpu"])
def test_without_a_kernel_of_the_type_the_plain_one_is_left(dtype, device):
    problem = Problem(4096, 4096, 4096, dtype)
    assert not kernels_for(problem, device) and computed_type(dtype, device) == "f32"
    found, why = decide(problem, device, pytest.fail)
    assert found.dtype == "f32" and f"no kernel computes in {dtype}" in why


@pytest.mark.parametrize("device", [H200, AMPERE], ids=["hopper", "ampere"])
@pytest.mark.parametrize(
    "kernel, kind", [("wgmma_f16x3", "f16x3"), ("pipelined", "f32"), ("ping_pong", "f16x3")]
)
def test_a_kernel_that_is_named_decides(device, kernel, kind):
    """Also where it cannot run: what is raised then names the type that was asked for."""
    problem = Problem(4096, 4096, 4096, "f16x3")
    assert decide(problem, device, pytest.fail, kernel)[0].dtype == kind
    assert computed_type("f16x3", device, kernel) == kind
    config = find_kernel(kernel).default_for(problem, H200)
    assert computed_type("f16x3", device, config=config) == kind


@pytest.mark.parametrize(
    "own, plain, kind",
    [
        ((1.0, "record"), (0.99, "record"), "f32"),
        ((0.99, "record"), (1.0, "record"), "f16x3"),
        ((1.0, "record"), (0.95, "model"), "f16x3"),  # a model must be clearly quicker
        ((1.0, "record"), (0.5, "model"), "f32"),
        ((1.0, "model"), (0.99, "record"), "f32"),
        ((0.95, "model"), (1.0, "record"), "f32"),
        ((0.5, "model"), (1.0, "record"), "f16x3"),
    ],
)
def test_what_was_tuned_gives_way_to_what_is_clearly_quicker(monkeypatch, own, plain, kind):
    problem = Problem(512, 512, 512, "f16x3")
    seconds = {"f16x3": own, "f32": plain}

    def choices(p: Problem) -> Choice:
        choice = tuned(p, seconds[p.dtype][0])
        return choice if seconds[p.dtype][1] == "record" else replace(choice, record=None)

    monkeypatch.setattr(
        "pymm.selection.plain.predicted_seconds", lambda c, p, d: seconds[p.dtype][0]
    )
    monkeypatch.setattr("pymm.selection.plain.survey.quickest", lambda *_: None)
    assert decide(problem, H200, choices)[0].dtype == kind


@pytest.mark.parametrize(
    "own, plain, kind",
    [(2.0, 1.0, "f32"), (1.0, 2.0, "f16x3"), (0.0, 1.0, "quicker"), (1.0, 0.0, "quicker")],
)
def test_measured_energy_decides_where_it_is_preferred(own, plain, kind):
    """Whatever the times, if both types have one."""
    problem, joules = Problem(512, 512, 512, "f16x3"), {"f16x3": own, "f32": plain}
    quick = {"f16x3": 1.0, "f32": 2.0} if kind != "f16x3" else {"f16x3": 2.0, "f32": 1.0}

    def choices(p: Problem) -> Choice:
        return tuned(p, quick[p.dtype], joules[p.dtype] or float("nan"))

    quicker = decide(problem, H200, choices)[0].dtype
    assert quicker == min(quick, key=quick.__getitem__) != kind
    found = decide(problem, H200, choices, energy=True)[0].dtype
    assert found == (quicker if kind == "quicker" else kind)


@pytest.mark.parametrize("measured, kind", [("emulated", "emulated"), ("f16x3", "f32")])
def test_a_check_that_was_measured_is_not_added(measured, kind):
    """10 us in the split type, 3.5 us of which are the check or come on top, and 12 us plain."""
    problem = Problem(512, 512, 512, "emulated")
    choices = {"f32": tuned(replace(problem, dtype="f32"), 12e-6)}
    choices["emulated"] = tuned(replace(problem, dtype=measured), 10e-6)
    assert decide(problem, H200, lambda p: choices[p.dtype])[0].dtype == kind


def test_an_operand_that_is_split_already_keeps_the_type():
    problem = Problem(64, 4096, 4096, "f16x3")
    assert decide(problem, H200, selected)[0].dtype == "f32"
    assert decide(problem, H200, pytest.fail, split=True) == (problem, "b was split before")


def test_records_of_kernels_that_left_a_type_are_not_used():
    """As those of kernel 11 in tf32x3."""
    config = find_kernel("sliced").default_for(Problem(256, 256, 256), H200)
    record = tuned(Problem(256, 256, 256), 1e-5).record
    own = replace(record, config=config, digest=kernel_digest("cuda", config.kernel.file))
    assert unusable_because(own, H200) == ""
    other = replace(own, problem=replace(own.problem, dtype="tf32x3"))
    assert "sliced does not compute in tf32x3" in unusable_because(other, H200)


@pytest.mark.parametrize("precision", ["tf32x3", "f16x3", "emulated"])
def test_all_ways_to_multiply_agree(precision):
    """Products, A A^T, lists, with gaps between rows, and the result."""
    device = HostDevice("cuda", **LIMITS)
    x = np.arange(40 * 70, dtype=np.float32).reshape(40, 70)[::2, :66] % 7
    y = np.arange(66 * 9, dtype=np.float32).reshape(66, 9) % 5
    options = dict(precision=precision, device=device)
    assert pymm.explain(x, y, **options).problem.dtype == "f32"
    np.testing.assert_array_equal(pymm.matmul(x, y, **options), x @ y)
    assert pymm.explain_syrk(x, **options).problem.dtype == "f32"
    np.testing.assert_array_equal(pymm.syrk(x, **options), x @ x.T)
    large = np.ones((768, 768), np.float32)  # of NumPy arrays, as if each were multiplied alone
    told = pymm.explain(large, large, **options).problem.dtype
    some, all_of_it = pymm.grouped([x[:3], x], [y, y], **options)
    np.testing.assert_array_equal(some, x[:3] @ y)
    np.testing.assert_array_equal(all_of_it, x @ y)
    launched = [entry[1].dtype for entry in device.log if entry[0] == "launch"]
    assert set(launched) == {"f32"}
    (product,) = pymm.plan_grouped([large], [large], **options)()
    np.testing.assert_array_equal(product, large @ large)
    assert [entry[1].dtype for entry in device.log if entry[0] == "launch"] == [*launched, told]
    with pytest.raises(ValueError, match="no kernel"):
        pymm.explain(x, y, kernel=["a"], **options)
