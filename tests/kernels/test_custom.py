"""The declaration of a user's kernel: what is refused, what is rendered, what may run."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_kernel import RIGHT, SCALE, SOURCE

from pymm.core.device import Device
from pymm.kernels.custom import CustomKernel, In, InOut, Out, packed_arguments, render_custom
from pymm.kernels.kernel import Rule
from pymm.measure.custom import compare

DEVICE = Device("a GPU", "cuda")
COUNT = {"count": 70}


def declared(**changes) -> CustomKernel:
    return replace(RIGHT, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Scale"}, "a name is made of a-z"),
        ({"name": "a/b"}, "a name is made of a-z"),
        ({"entry": "scale;"}, "no name of a function"),
        ({"entry": "scales"}, "no function extern"),
        ({"source": "scale.cu"}, "name a file by pathlib.Path"),
        ({"source": '#include "x.cuh"\n' + SOURCE}, "headers are inserted"),
        ({"source": SOURCE.replace('extern "C" ', "")}, "no function extern"),
        ({"space": {}}, "a parameter at least"),
        ({"space": {"threads": (1,)}}, "not made of A-Z"),
        ({"space": {"A B": (1,)}}, "not made of A-Z"),
        ({"space": {"A": ()}}, "no value"),
        ({"space": {"A": (1, 1)}}, "one twice"),
        ({"space": {"A": (0,)}}, "from 1 to 65536"),
        ({"space": {"A": (True,)}}, "from 1 to 65536"),
        ({"space": {"A": ("1; x",)}}, "from 1 to 65536"),
        ({"space": {n: tuple(range(1, 1002)) for n in "AB"}}, "1002001 points"),
        ({"default": {"THREADS": 33, "FAULT": 1}}, "THREADS=33 is not in the space"),
        ({"default": {"THREADS": 32}}, "takes THREADS, FAULT; got THREADS"),
        ({"rtol": -1.0}, "rtol=-1.0"),
        ({"atol": float("nan")}, "atol=nan"),
    ],
)
def test_a_declaration_that_cannot_be_right_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        declared(**changes)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({}, "a size at least"),
        ({"count": 0}, "count=0"),
        ({"count": 2**31}, "from 1 to 2147483647"),
        ({"count": 1.5}, "count=1.5"),
        ({"count": True}, "count=True"),
        ({"Count": 1}, "not made of a-z"),
        ({"count": 1, **{f"{'n' * 30}{i}": 1 for i in range(9)}}, "160 characters"),
    ],
)
def test_sizes_that_are_not_possible_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        RIGHT.problem(sizes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": In(4, "f4")}, "no argument is an Out"),
        ({"y": Out(4, "f4"), "n": 5}, "NumPy scalar such as"),
        ({"y": Out(4, "f4"), "n": np.zeros(3)}, "write In, Out or InOut"),
        ({"stream": Out(4, "f4")}, "cannot be the name"),
        ({"../y": Out(4, "f4")}, "cannot be the name"),
    ],
)
def test_arguments_that_are_not_possible_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        declared(arguments=lambda p: arguments).problem(COUNT)


def test_arrays_without_elements_or_with_objects_are_refused():
    with pytest.raises(ValueError, match="no elements"):
        In((3, 0), "f4")
    with pytest.raises(ValueError, match="cannot be on a device"):
        Out(3, object)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arguments": lambda p: {"x": In(3, "i4"), "y": Out(3, "f4")}}, "x has elements of type"),
        (
            {"arguments": lambda p: {"x": In(3, "f4", lambda g: [1, 2]), "y": Out(3, "f4")}},
            r"values of shape \(2,\) instead of \(3,\)",
        ),
        ({"reference": lambda x, factor, count: x[:9]}, r"shape \(9,\), the argument \(70,\)"),
        ({"reference": lambda x, factor, count: {"x": x}}, "the kernel writes y"),
    ],
)
def test_values_and_references_that_do_not_fit_are_refused(changes, words):
    kernel = declared(**changes)
    with pytest.raises(ValueError, match=words):
        kernel.values(kernel.problem(COUNT), 0)


def test_the_reference_cannot_change_what_the_kernel_gets():
    def spoil(x, factor, count):
        x[:] = 0
        return x

    kernel = declared(reference=spoil)
    before, after = kernel.values(kernel.problem(COUNT), 0)
    assert before["x"].any() and not after["y"].any()


def test_parameters_are_macros_on_top_of_the_source():
    problem = RIGHT.problem(COUNT)
    source = render_custom(RIGHT.default_for(problem, DEVICE), problem)
    assert source.text == "#define THREADS 64\n#define FAULT 1\n" + SOURCE
    assert source.entry == "scale"


def test_included_files_are_inserted(tmp_path):
    (tmp_path / "part.cuh").write_text("// a part\n")
    path = tmp_path / "scale.cu"
    path.write_text('#include "part.cuh"\n' + SOURCE)
    assert "// a part\n" in declared(source=path).text
    with pytest.raises(OSError, match="missing.cuh"):
        path.write_text('#include "missing.cuh"\n' + SOURCE)
        declared(source=path)


def test_the_space_is_what_the_rules_leave():
    valid, rejected = SCALE.configs(SCALE.problem(COUNT), DEVICE)
    assert len(valid) == 10 and rejected == {"a fault has a block of 32 threads": 14}
    assert all(c.FAULT == 1 or c.THREADS == 32 for c in valid)
    assert valid[0].geometry.grid == (3, 1, 1) and valid[0].geometry.block == (32, 1, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block": lambda c, p: (c.THREADS, 32)}, "at most the device's threads"),
        ({"block": lambda c, p: (1, 1, 65)}, "64 of them along z"),
        ({"grid": lambda c, p: (1, 65536)}, "65535 blocks"),
        ({"shared": lambda c, p: 2**20}, "shared memory fits"),
    ],
)
def test_a_geometry_that_no_launch_has_is_rejected_by_a_rule(changes, reason):
    kernel = declared(**changes)
    valid, rejected = kernel.configs(kernel.problem(COUNT), DEVICE)
    assert sum(rejected.values()) + len(valid) == 3
    assert rejected and all(reason in why for why in rejected)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, (), (1, 1, 1, 1), "1"])
@pytest.mark.parametrize("what", ["grid", "block"])
def test_a_geometry_that_is_none_is_refused(what, wrong):
    kernel = declared(**{what: lambda c, p: wrong})
    with pytest.raises(ValueError, match=f"{what} is"):
        kernel.configs(kernel.problem(COUNT), DEVICE)


def test_a_default_that_breaks_a_rule_is_refused_and_may_depend_on_the_sizes():
    small = Rule("a block is no larger than the array", lambda c, p, d: c.THREADS <= p.count)
    kernel = declared(rules=(small,))
    with pytest.raises(ValueError, match="THREADS64-FAULT1 cannot be launched for count40: a blo"):
        kernel.default_for(kernel.problem({"count": 40}), DEVICE)
    kernel = replace(kernel, default=lambda p: {"THREADS": 32, "FAULT": 1})
    assert kernel.default_for(kernel.problem({"count": 40}), DEVICE).THREADS == 32


SCALARS = {
    ctypes.c_int8: np.int8,
    ctypes.c_int16: np.int16,
    ctypes.c_int32: np.int32,
    ctypes.c_int64: np.int64,
    ctypes.c_float: np.float32,
    ctypes.c_double: np.float64,
}


@given(st.lists(st.tuples(st.sampled_from(list(SCALARS)), st.integers(-99, 99)), min_size=1))
def test_arguments_are_packed_as_c_does(given_arguments):
    kinds = [kind for kind, _ in given_arguments]
    layout = type(
        "S", (ctypes.Structure,), {"_fields_": [(f"f{i}", k) for i, k in enumerate(kinds)]}
    )
    struct = layout(*(value for _, value in given_arguments))
    packed = packed_arguments([SCALARS[kind](value) for kind, value in given_arguments])
    last = getattr(layout, f"f{len(kinds) - 1}")
    assert packed == bytes(struct)[: last.offset + last.size]


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=9), st.sampled_from([0, 1e-3, 1.0]))
def test_elements_are_compared_as_numpy_does(pairs, tolerance):
    got, wanted = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    found = compare("y", got, wanted.astype(np.float64), tolerance, tolerance)
    bounds = {"rtol": tolerance, "atol": tolerance}
    right = np.isclose(got.astype(np.float64), wanted.astype(np.float64), **bounds, equal_nan=True)
    assert found.right == right.all()
    if not found.right:
        assert f"{(~right).sum()} of {len(pairs)} elements of y wrong; the" in found.detail
        assert f"y[{int(np.argmin(right))}] = " in found.detail


def test_whole_numbers_are_compared_exactly():
    large = np.array([2**62, 2**62 + 1])
    assert compare("y", large, large, 0, 0).right
    assert "y[1] = " in compare("y", large, np.array([2**62] * 2), 0, 0).detail


def test_the_three_kinds_of_arrays():
    kinds = [(kind.reads, kind.writes) for kind in (In, Out, InOut)]
    assert kinds == [(True, False), (False, True), (True, True)]
