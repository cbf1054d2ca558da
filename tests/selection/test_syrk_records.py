"""Around products of a matrix and its transpose: records, counts, the command that tunes, and how a
wrong half is found.
"""

import numpy as np
import pytest
from host_device import HostDevice

from pymm.core.problem import Problem, stored_shapes
from pymm.core.reference import exact_operands, other_half
from pymm.kernels import find_kernel
from pymm.measure.workbench import Workbench
from pymm.selection.records import Environment, Record
from pymm.selection.store import Table, parse_table, render_table
from pymm.tune.options import Options, parse

NEAR = HostDevice("cpu")


def test_records_keep_the_operation():
    kernel = find_kernel("pipelined")
    problems = [
        Problem(64, 64, 8, "f32", False, True, op=op)
        for op in ("gemm", "syrk", "syrk_lower", "syrk_upper")
    ]
    now = Environment("1", "2")
    records = [
        Record(p, kernel.default_config, 1e-3, 0.0, "2026-11-21", now, "abcd1234") for p in problems
    ]
    text = render_table(Table({"name": "x", "kind": "cuda"}, tuple(records)))
    again = parse_table(text, "file").records
    assert {record.problem for record in again} == set(problems)
    assert " syrk_lower-64x64x8:\n" in text and text.count("syrk") == 3
    assert len({record.key for record in again}) == 4
    assert problems[1].slug == "syrk-f32-NT-64x64x8"


def test_counts_are_those_of_one_half():
    gemm, syrk = Problem(100, 100, 7), Problem(100, 100, 7, op="syrk")
    assert gemm.flops == 2 * 100 * 100 * 7 and syrk.flops == 100 * 101 * 7
    assert syrk.bytes == (700 + 100 * 100) * 4
    assert Problem(100, 100, 7, op="syrk_upper").bytes == (700 + 50 * 101) * 4
    with pytest.raises(ValueError, match="C is square; got 3 x 4"):
        Problem(3, 4, 5, op="syrk")
    with pytest.raises(NotImplementedError, match="'trmm'"):
        Problem(3, 3, 5, op="trmm")


def test_tune_takes_the_operation(capsys):
    given = parse(["--op", "syrk", "--shapes", "64,96x96x32", "--dtypes", "f64"])
    assert [p.slug for p in given.problems([])] == [
        "syrk-f64-NT-64x64x64",
        "syrk-f64-TN-64x64x64",
        "syrk-f64-NT-96x96x32",
        "syrk-f64-TN-96x96x32",
    ]
    standard = Options(op="syrk_lower", dtypes=("f32",)).problems([(8, 8, 8), (8, 4, 8)])
    assert {(p.m, p.n) for p in standard} == {(8, 8)}
    with pytest.raises(ValueError, match="C is square"):
        parse(["--op", "syrk", "--shapes", "64x32x8"]).problems([])
    with pytest.raises(SystemExit):
        parse(["--op", "syrk", "--transposes", "NN"])
    assert "layout of syrk" in capsys.readouterr().err


def test_what_is_wrong_with_a_half_is_found():
    values = np.zeros((2, 300, 300), np.float32)
    before = values.copy()
    for op, place, words in (
        ("syrk", (1, 2, 290), "C[2, 290] differs from C[290, 2]"),
        ("syrk", (0, 299, 298), "differs from"),
        ("syrk_lower", (0, 5, 270), "C[5, 270] was written"),
        ("syrk_upper", (1, 280, 279), "C[280, 279] was written"),
    ):
        problem = Problem(300, 300, 1, op=op)
        assert other_half(values, before, problem) == ""
        values[place] = np.nan
        assert words in other_half(values, before, problem)
        values[place] = 0
    values[0, 299, 0] = 1
    assert other_half(values, before, Problem(300, 300, 1, op="syrk_lower")) == ""


class Wrong:
    """An executable that also writes where it must not, or not where it must."""

    def __init__(self, executable, c, place):
        self.executable, self.c, self.place = executable, c, place
        self.config, self.resources = executable.config, executable.resources

    def bind(self, *arguments):
        call = self.executable.bind(*arguments)

        def launch():
            call()
            values, _ = self.c.read()
            values[self.place] = 3.0
            self.c.write(values)

        return launch


@pytest.mark.parametrize("op", ["syrk", "syrk_lower", "syrk_upper"])
def test_verification_finds_a_stray_element(op):
    bench = Workbench(NEAR, Problem(9, 9, 4, "f64", False, True, op=op))
    config = find_kernel(1, "cpu").default_for(bench.problem, NEAR.device)
    assert bench.verify(config).outcome == "ok"
    right = bench.load(config)
    verifier = bench._verifier
    place = (0, 8, 1) if op == "syrk_upper" else (0, 1, 8)
    finding = verifier.check(Wrong(right, verifier.fields[2], place), lambda hard: right)
    words = "differs" if op == "syrk" else "was written"
    assert words in finding.detail


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("k", [1, 100, 1000, 10500])
def test_integers_are_exact_on_the_diagonal_too(dtype, k):
    problem = Problem(300, 300, k, dtype, False, True, op="syrk")
    a, _ = exact_operands(problem, stored_shapes(problem)[:2], np.random.default_rng(k))
    wide = a[0].astype(np.float64)
    product = wide @ wide.T
    np.testing.assert_array_equal(product.astype(problem.out_dtype).astype(np.float64), product)
    assert (np.diag(product) > 0).all() and (product < 0).any()
