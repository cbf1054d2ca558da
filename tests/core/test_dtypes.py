"""The types of products: one row of data each, and no other list of them."""

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pymm.core.device import CUDA_FLOPS_PER_CLOCK, cuda_peaks
from pymm.core.dtypes import DTYPES, ELEMENTS, EMULATED, PRECISIONS, dtypes_share_tiles
from pymm.core.problem import Problem

PACKAGE = Path(__file__).resolve().parents[2] / "pymm"

#: What may name a type besides its row and its kernels. None of these is a list that a further type
#: has to join.
REASONS = {
    "a default": (
        "__main__.py",
        "bench/experiments/declaration.py",
        "bench/kernels.py",
        "core/problem.py",
        "tune/options.py",
    ),
    "what an experiment compares": (
        "bench/experiments/catalog.py",
        "bench/experiments/command.py",
        "report/plots/experiments.py",
    ),
    "what the CPU's kernels compute": ("backends/cpu/device.py",),
    "what MPI and ScaLAPACK move and multiply": (
        "distributed/__main__.py",
        "distributed/bench.py",
    ),
    "a model that was fitted to these": ("selection/cost_model.py",),
    "a routine or a word of a library": ("measure/cublas.py", "measure/triton_gemm.py"),
}


def named_types(path):
    """The strings of a module that are names of types, or lists of them ("f32,f64")."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if set(node.value.split(",")) <= set(DTYPES):
                yield node.value


def test_a_new_type_is_a_row_and_its_kernels():
    found = Counter()
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).as_posix()
        if own != "core/dtypes.py" and not own.startswith("kernels/"):
            found[own] += len(list(named_types(path)))
    allowed = {module for modules in REASONS.values() for module in modules}
    assert set(+found) == allowed


def test_rows_are_consistent():
    assert list(ELEMENTS) == ["f32", "f64", "f16", "bf16"]
    assert PRECISIONS == ("ieee", "tf32", "tf32x3", "f16x3", "emulated")
    assert EMULATED == ("tf32x3", "f16x3", "emulated")
    units = {unit for rates in CUDA_FLOPS_PER_CLOCK.values() for unit in rates}
    for name, row in DTYPES.items():
        problem = Problem(1, 1, 1, name)
        assert row is problem.type and row.name == name and row.words and row.unit in units
        assert row.element in ELEMENTS.values() and row.out in ELEMENTS.values()
        assert row.scalar.itemsize >= max(4, row.out.itemsize)
        assert bool(row.out_roundoff) == (row.out.itemsize < row.scalar.itemsize)
        assert bool(row.product_error) == (row.precision != "ieee")


def test_peak_rates_of_types():
    peaks = cuda_peaks((9, 0), 1, 1.0)
    assert list(peaks) == list(DTYPES)
    assert peaks["f16"] == peaks["bf16"] == peaks["bf16_f32"] == 4096
    assert peaks["tf32x3"] == peaks["tf32"] / 3 and peaks["f16x3"] == peaks["f16"] / 3
    assert cuda_peaks((8, 6), 2, 1.0) == {"f32": 512, "f64": 8}
    assert cuda_peaks((1, 0), 2, 1.0) == {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_that_share_tiles(dtype):
    shared = {other for other in DTYPES if dtypes_share_tiles(dtype, other)}
    groups = {"f16", "bf16", "f16_f32", "bf16_f32"}, {"f16x3", "emulated"}
    assert shared == next((group for group in groups if dtype in group), {dtype})


def test_an_element_type_is_its_own_type_of_products():
    for name, dtype in ELEMENTS.items():
        problem = Problem(2, 3, 4, name)
        assert problem.numpy_dtype == problem.out_dtype == dtype and problem.precision == "ieee"
    assert Problem(1, 1, 1, "f16_f32").out_dtype == np.float32
