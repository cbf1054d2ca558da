"""What is taken of neighbours, and when a default serves better, on a GPU that is not here."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from h200 import H200 as WHOLE

from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import KERNELS, find_kernel, kernels_for, survey
from pymm.kernels.source import kernel_digest
from pymm.selection import store
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.nearest import untuned
from pymm.selection.records import Environment, Record
from pymm.selection.select import select

#: An H200 but for a multiprocessor: no GPU with so many was surveyed.
H200 = replace(WHOLE, sms=131)

NOW = Environment("580.10", "nvcc 13.0.88", "0.1.0", "13.0")


def of_h200(kernel, m, n, k, seconds, dtype="f32", **parameters):
    declared = find_kernel(kernel)
    config = declared.config({**declared.default, **parameters})
    digest = kernel_digest("cuda", declared.file)
    problem = Problem(m, n, k, dtype)
    return Record(problem, config, seconds, 0.01, "2026-11-21", NOW, digest)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """A function that stores records as the user's, and selects."""
    monkeypatch.setattr(store, "shipped", lambda: tmp_path / "shipped")

    def choose(problem, *records, device=H200, **more):
        if records:
            store.put(records, device, tmp_path / "user")
        return select(problem, device, tmp_path / "user", NOW, **more)

    return choose


DEEP = of_h200(
    "pipelined", 256, 256, 65536, 25e-5, MB=64, NB=64, TB=4, KB=8, LANES=8, BLOCKS=2, SPLIT=32
)
SQUARE = of_h200("pipelined", 4096, 4096, 4096, 2.7e-3)


def test_what_is_tuned_for_a_deep_product_does_not_serve_a_square(tuned):
    """The deep one is nearer, and its parts of k would be five steps long."""
    problem = Problem(700, 700, 60000)
    choice = tuned(problem, DEEP, SQUARE, kernel="pipelined", device=WHOLE)
    assert choice.record is not None and choice.config.SPLIT > 1
    choice = tuned(Problem(1500, 1500, 700), kernel="pipelined", device=WHOLE)
    assert choice.config.SPLIT < 32
    choice = tuned(Problem(256, 256, 50000), kernel="pipelined", device=WHOLE)
    assert choice.config.SPLIT >= 16


def test_k_is_split_otherwise_where_the_blocks_are_too_few(tuned):
    """The tile of a square for a product whose every tile has a multiprocessor to itself."""
    choice = tuned(Problem(256, 256, 65536), SQUARE, kernel="pipelined")
    assert choice.config.SPLIT >= 8
    assert choice.record is None or "parts" in choice.reason
    assert not choice.config.kernel.violations(choice.config, Problem(256, 256, 65536), H200)


def test_types_of_the_same_size_serve_each_other(tuned):
    found = of_h200("tensor", 4096, 4096, 4096, 3e-4, "bf16", BLOCKS=1, TB=32)
    here = {"device": replace(H200, capability=(8, 0)), "kernel": "tensor"}
    choice = tuned(Problem(4096, 4096, 4096, "f16"), found, **here)
    assert choice.config == found.config
    assert choice.reason.endswith("of type bf16")
    assert tuned(Problem(4096, 4096, 4096, "tf32"), **here).record is None


def test_without_records_the_model_splits_k_and_nothing_else_changes(tuned):
    choice = tuned(Problem(64, 64, 262144), kernel="pipelined")
    assert choice.config.SPLIT > 8
    assert choice.reason == "cost model's choice of pipelined: nothing tuned for f32 on Test H200"
    choice = tuned(Problem(4096, 4096, 4096), kernel="pipelined")
    assert choice.config == find_kernel("pipelined").default_config


def default_of(problem, kernel="wgmma"):
    return find_kernel(kernel).default_for(problem, H200)


def test_a_default_made_for_the_problem_gives_way_to_what_is_clearly_better_alone(tuned):
    """What is best for 4096 keeps 8 multiprocessors of 131 busy at 512."""
    large = of_h200("wgmma", 4096, 4096, 4096, 2e-4, "bf16", MB=128, NB=256, TB=256)
    problem = Problem(512, 512, 512, "bf16")
    choice = tuned(problem, large)
    assert choice.record is None and choice.config == default_of(problem)
    assert choice.reason == "default of wgmma: nothing tuned near enough for bf16 on Test H200"
    close = Problem(4097, 4095, 4097, "bf16")
    same = replace(large, problem=close, config=default_of(close))
    assert tuned(Problem(4099, 4095, 4097, "bf16"), same).record is None


def test_a_neighbour_is_taken_where_the_model_expects_a_tenth_less(tuned, monkeypatch):
    problem, kernel = Problem(512, 512, 512, "bf16"), find_kernel("wgmma")
    small = of_h200("wgmma", 600, 600, 600, 8e-6, "bf16", MB=64, NB=64, TB=64)
    slow = kernel.config({**kernel.default, "MB": 256, "NB": 128, "TA": 128, "TB": 128})
    monkeypatch.setitem(kernel.__dict__, "heuristic", lambda p, d: slow.as_dict())
    untuned.cache_clear()
    expected = [predicted_seconds(c, problem, H200) for c in (small.config, slow)]
    assert expected[0] < 0.9 * expected[1]
    choice = tuned(problem, small)
    untuned.cache_clear()
    assert (choice.config, choice.record) == (small.config, small)
    part = expected[0] / expected[1]
    assert choice.reason == (
        "nearest tuned problem 600x600x600 on this GPU; "
        f"expected to take {part:.2f} of the default's time"
    )


def test_the_same_extents_are_believed_whatever_the_layout(tuned):
    problem = Problem(1000, 1000, 1000, "f64")
    found = of_h200("tma_f64", 1000, 1000, 1000, 4e-5, "f64", **default_of(problem, 9).as_dict())
    other = found.config.as_dict() | {"GROUP": 16}
    found = replace(found, config=found.config.kernel.config(other))
    turned = replace(problem, trans_a=True)
    assert tuned(turned, found).config == found.config
    assert tuned(replace(problem, batch=3)).config == found.config
    assert tuned(Problem(1001, 1000, 1000, "f64")).record is None


@pytest.mark.parametrize("part, taken", [(1.12, False), (1.08, True)])
def test_where_a_survey_is_a_record_of_another_layout_took_about_as_long_as_expected(
    tuned, part, taken
):
    own, surveyed = Problem(1500, 1600, 1700, "f64"), replace(WHOLE, name="NVIDIA H200")
    turned = replace(own, trans_b=True)
    found = (survey.quickest(k, own, surveyed) for k in KERNELS if own.dtype in k.dtypes)
    seconds = part * min(one[0] for one in found if one is not None) * 1e-6
    default = tuned(turned, device=surveyed).config
    changed = default.as_dict() | {"GROUP": 16}
    record = of_h200(default.kernel_name, 1500, 1600, 1700, seconds, "f64", **changed)
    choice = tuned(turned, record, device=surveyed)
    assert choice.config == (record.config if taken else default)
    assert tuned(own, device=surveyed).config == record.config


def test_a_record_of_a_kernel_that_is_asked_for_is_held_against_what_is_expected_of_it(tuned):
    """Kernel 6 takes longer than kernel 9 there, tuned or not."""
    own, surveyed = Problem(1500, 1600, 1700, "f64"), replace(WHOLE, name="NVIDIA H200")
    slow, turned = find_kernel("tensor_f64"), replace(own, trans_b=True)
    least = min(survey.quickest(k, own, surveyed)[0] for k in kernels_for(own, surveyed)[-2:])
    expected, _ = survey.quickest(slow, own, surveyed)
    seconds = 1.08 * expected * 1e-6
    assert seconds > 1.1 * least * 1e-6
    default = tuned(turned, device=surveyed, kernel="tensor_f64").config
    changed = default.as_dict() | {"GROUP": 16}
    record = of_h200("tensor_f64", 1500, 1600, 1700, seconds, "f64", **changed)
    assert tuned(turned, record, device=surveyed, kernel="tensor_f64").config == record.config


def test_a_record_of_the_product_itself_counts_whatever_its_kernel(tuned):
    """If it took at most a tenth longer than a survey expects of the quickest of all kernels."""
    own, surveyed = Problem(1500, 1600, 1700, "f64"), replace(WHOLE, name="NVIDIA H200")
    *_, lower, highest = kernels_for(own, surveyed)
    expected, default = survey.quickest(highest, own, surveyed)
    slow = of_h200(lower.name, 1500, 1600, 1700, 1.15e-6 * expected, "f64")
    assert tuned(own, slow, device=surveyed).config == default
    quick = replace(slow, seconds=1.05e-6 * expected, date="2026-11-22")
    choice = tuned(own, quick, device=surveyed)
    assert choice.config == quick.config != default and choice.record.date == quick.date
    assert tuned(replace(own, trans_b=True), device=surveyed).record is None


def test_of_the_kernels_measured_beside_each_other_the_model_says_whose_default(tuned, monkeypatch):
    """A default of kernel 11 that is far too slow for a product that it ranks highest for."""
    problem = Problem(1918, 305, 3540)
    highest, other = find_kernel("sliced"), find_kernel("tma_f32")
    slow = {**highest.default, "MB": 16, "NB": 32, "TA": 4, "TB": 4}
    monkeypatch.setitem(highest.__dict__, "heuristic", lambda p, d: slow)
    monkeypatch.setitem(highest.__dict__, "preferred_for", lambda p, d: True)
    untuned.cache_clear()
    assert tuned(problem).config == highest.default_for(problem, H200)
    slower = [of_h200("sliced", 64, 64, 64, 5e-6), of_h200("tma_f32", 64, 64, 64, 9e-6)]
    choice = tuned(problem, *slower)
    assert choice.config == highest.default_for(problem, H200), "it was never about as quick"
    beside = [of_h200("sliced", 65, 64, 64, 5e-6), of_h200("tma_f32", 65, 64, 64, 5.5e-6)]
    choice = tuned(problem, *slower, *beside)
    assert choice.config == other.default_for(problem, H200) and choice.record is None
    assert choice.reason.startswith("default of tma_f32: nothing tuned near enough for f32 on Test")
    assert "of sliced" in choice.reason
    named = tuned(problem, kernel="sliced")
    untuned.cache_clear()
    assert named.config == highest.default_for(problem, H200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_extent_has_a_choice(dtype):
    """An empty product as well."""
    for m, n, k in itertools.product((0, 1, 300), repeat=3):
        for problem in (Problem(m, n, k, dtype), Problem(m, m, k, dtype, True, op="syrk")):
            chosen = select(problem, H200, None, NOW)
            assert chosen.config.kernel in kernels_for(problem, H200), chosen
