"""What is chosen for products like those of a survey: by measured times of similar ones."""

import csv
import itertools
import json
import math
import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import survey as tool
from pymm.core.problem import Problem
from pymm.kernels import KERNELS, find_kernel, kernels_for, parse_slug, survey
from pymm.selection.records import Environment
from pymm.selection.select import select

RESULTS = Path(tool.__file__).parent / "results"
H200, H100 = (tool.DEVICES[slug] for slug in ("nvidia-h200", "nvidia-h100-80gb-hbm3"))
#: No GPU with so many multiprocessors was surveyed.
UNKNOWN = replace(H200, name="another", sms=114)

EXTENTS = st.integers(tool.LEAST, 3000)
PROBLEMS = st.builds(
    Problem, EXTENTS, EXTENTS, EXTENTS, st.sampled_from(tool.DTYPES), st.booleans(), st.booleans()
)


#: The types in which each GPU was surveyed.
SHIPPED = {
    "nvidia-h200": ("f32", "f64", "bf16", "tf32"),
    "nvidia-h100-80gb-hbm3": tool.DTYPES,
}


#: Of each type of a device one process reads the times once.
MEASURED = pytest.mark.parametrize(
    "slug, dtype",
    [
        pytest.param(slug, dtype, marks=pytest.mark.xdist_group(f"{slug}-{dtype}"))
        for slug, dtypes in SHIPPED.items()
        for dtype in dtypes
    ],
)


@pytest.mark.parametrize("slug", SHIPPED)
def test_the_surveyed_devices_are_what_they_report(slug):
    """The kernels' models then expect the same on a device as in the fit."""
    told = json.loads((RESULTS / slug / "device.json").read_text())
    facts = "sms", "clock_hz", "bandwidth", "l2_bytes", "shared_per_block", "shared_per_sm"
    assert [getattr(tool.DEVICES[slug], fact) for fact in facts] == [told[fact] for fact in facts]


def test_few_rows_wait_for_memory():
    """The time of a product with wide weights nearly doubles at half the bandwidth."""
    kernel, problem = find_kernel("wgmma"), Problem(16, 32768, 8192, "bf16", False, True)

    def least(bandwidth):
        return min(time for time, _ in kernel.options(problem, replace(H200, bandwidth=bandwidth)))

    assert least(0.0) == least(H200.bandwidth)  # unknown: an H200's
    assert 1.5 < least(H200.bandwidth / 2) / least(H200.bandwidth) < 2


@lru_cache(maxsize=1)
def measured(slug: str, dtype: str) -> tool.Measured:
    return tool.read(tool.results(slug), dtype, tool.DEVICES[slug])


@MEASURED
def test_the_shipped_survey_is_what_its_times_give(slug, dtype):
    """After a change of the times, of a kernel's options or of what its model expects:
    `python benchmarks/survey.py fit --device DEVICE`.
    """
    device, data = tool.DEVICES[slug], measured(slug, dtype)
    shipped = survey.survey_of(Problem(100, 100, 100, dtype), device)
    wanted = np.log(data.measured / data.expected)
    assert shipped.mean == pytest.approx(wanted.mean(), abs=1e-6)
    assert len(shipped.weights) == len(wanted)
    at, some = survey.features(data.rows, dtype, device.sms), slice(None, None, 7)
    np.testing.assert_allclose(shipped.features, at[:, shipped.used].T, rtol=1e-6, atol=1e-6)
    assert not at[:, ~shipped.used].any()
    there = tool.equations(data, at, some) @ shipped.weights
    np.testing.assert_allclose(there, wanted[some] - wanted.mean(), atol=2e-3)


def test_corrections_are_those_of_all_features_and_all_times():
    """Without those left out that say nothing, and all times at once."""
    problem, kernel = Problem(700, 300, 900, "tf32"), find_kernel("tensor")
    found = survey.survey_of(problem, H200)
    configs = [config for _, config in sorted(kernel.options(problem, H200), key=itemgetter(0))[:6]]
    with np.load(Path(tool.__file__).parents[1] / "tuning_configs/nvidia-h200.survey.npz") as file:
        rows, weights = survey._whole(file["tf32_rows"].astype(int)), file["tf32_weights"]
    assert len(weights) > 2 * survey._AT_A_TIME and not found.used.all()
    here = np.array([survey.row(problem, config) for config in configs])
    here, there = (survey.features(of, "tf32", H200.sms) for of in (here, rows))
    apart = np.array([((there - one) ** 2).sum(1) for one in here])
    smooth, rough = np.exp(-apart / 2), np.exp(-(survey.ROUGHER**2) * apart / 2)
    wanted = found.mean + (survey.SMOOTH * smooth + survey.ROUGH * rough) @ weights
    np.testing.assert_allclose(found.corrections(problem, configs), wanted, atol=2e-4)


@MEASURED
def test_products_left_out_of_the_fit_are_predicted_better_than_by_the_models_alone(slug, dtype):
    """A third of them. A large survey is tested in parts, each alone: a fit to all of it takes
    long, and a part predicts less well.
    """
    whole = measured(slug, dtype)
    parts = math.ceil(len(whole.measured) / 6000)
    for part in range(parts):
        data = tool.part(whole, whole.product % parts == part)
        own = tool.fold(data, 3, 0)
        third = tool.part(data, own)
        alone, choices_alone = tool.errors(third, np.zeros(len(third.measured)))
        error, choices = tool.errors(third, tool.predicted_by_others(data, own, dtype))
        assert error < 0.85 * alone
        slow, slow_alone = (sum(x > tool.SLOW for x in of) for of in (choices, choices_alone))
        assert slow < 0.75 * slow_alone
        assert math.exp(np.mean(np.log(choices))) < 1.03


@settings(max_examples=40, deadline=None)
@given(PROBLEMS)
def test_what_is_chosen_may_run_and_its_kernel_ranks_highest(problem):
    kernels = kernels_for(problem, H200)
    config = kernels[-1].default_for(problem, H200)
    assert survey.quickest(kernels[-1], problem, H200)[1] == config
    assert not kernels[-1].violations(config, problem, H200)
    assert config in dict(map(reversed, kernels[-1].options(problem, H200)))
    times = [found[0] for k in kernels if (found := survey.quickest(k, problem, H200))]
    assert times == sorted(times, reverse=True)
    choice = select(problem, H200, None, Environment("", "", ""))
    if choice.record:  # shipped, of the same extents in another layout, say
        record = choice.record.problem
        assert (record.m, record.n, record.k) == (problem.m, problem.n, problem.k)
    else:
        assert choice.config == config
        where = survey.survey_of(problem, H200).where
        there = "" if where == H200.slug else f" on {where}"
        assert f"by measured times of similar products{there} expected to take" in choice.reason


@settings(max_examples=20, deadline=None)
@given(PROBLEMS)
def test_options_are_configurations_of_their_kernel_with_finite_times(problem):
    for kernel in KERNELS:
        if kernel.options and problem.dtype in kernel.dtypes:
            for expected, config in kernel.options(problem, H200):
                assert config.kernel_name == kernel.name
                assert 1 < expected < 1e9


COVERED = Problem(500, 600, 700, "f32")


@pytest.mark.parametrize(
    "problem, device",
    [
        (COVERED, UNKNOWN),
        (COVERED, replace(H200, kind="simulator")),
        (replace(COVERED, batch=2), H200),
        (replace(COVERED, n=500, trans_b=True, op="syrk"), H200),
        (replace(COVERED, k=tool.LEAST // 2), H200),
        (replace(COVERED, n=2 * tool.WEIGHTS[1]), H200),
        (Problem(9000, 9000, 9000, "f32"), H200),
        (replace(COVERED, dtype="tf32x3"), H200),
        (replace(COVERED, dtype="f16x3"), H200),
    ],
    ids=lambda value: getattr(value, "slug", ""),
)
def test_other_products_and_devices_have_no_survey(problem, device):
    assert survey.covers(COVERED, H200)
    assert not survey.covers(problem, device)
    assert all(survey.quickest(kernel, problem, device) is None for kernel in KERNELS)


@pytest.mark.parametrize(
    "change, slug",
    [
        (dict(name="NVIDIA H200"), "nvidia-h200"),
        (dict(name="NVIDIA H100 80GB HBM3"), "nvidia-h100-80gb-hbm3"),
        (dict(bandwidth=4.0e12), "nvidia-h100-80gb-hbm3"),
        (dict(bandwidth=4.1e12), "nvidia-h200"),
        (dict(bandwidth=8e12), "nvidia-h200"),
        (dict(bandwidth=0.0), None),
        (dict(sms=114), None),
        (dict(capability=(10, 0)), None),
        (dict(kind="simulator"), None),
    ],
)
def test_a_gpu_without_a_survey_has_that_of_the_most_similar_one(change, slug):
    device = replace(H200, **{"name": "another"} | change)
    assert next(iter(survey.surveyed(device)), None) == slug
    assert survey.covers(COVERED, device) == (slug is not None)
    if slug is None:
        return
    choice = select(COVERED, device, None, Environment("", "", ""))
    kernel = kernels_for(COVERED, device)[-1]
    assert choice.config == survey.quickest(kernel, COVERED, device)[1]
    there = "" if slug == device.slug else f" on {slug}"
    assert f"by measured times of similar products{there} expected to take" in choice.reason


def test_what_a_survey_does_not_cover_has_that_of_a_similar_gpu():
    of_another_type = replace(COVERED, dtype="bf16_f32")
    own, other = (survey.survey_of(problem, H200) for problem in (COVERED, of_another_type))
    assert (own.where, other.where) == ("nvidia-h200", "nvidia-h100-80gb-hbm3")
    reason = select(of_another_type, H200, None, Environment("", "", "")).reason
    assert "similar products on nvidia-h100-80gb-hbm3 expected to take" in reason


def test_a_form_that_was_not_measured_is_not_chosen():
    problem, kernel = Problem(1001, 999, 777, "f32"), find_kernel("tma_f32_in_place")
    chosen = survey.quickest(kernel, problem, H200)
    form = kernel.config(chosen[1].as_dict() | {"STAGES": 2})
    assert not kernel.violations(form, problem, H200)
    assert survey.form(form) not in survey.survey_of(problem, H200).forms
    more = [(0.1, form), *kernel.options(problem, H200)]
    assert survey.quickest(replace(kernel, options=lambda p, d: more), problem, H200) == chosen
    alone = replace(kernel, options=lambda p, d: more[:1])
    assert survey.quickest(alone, problem, H200) is None


def test_a_kernel_that_is_asked_for_is_measured_beside_others():
    problem, kernel = Problem(1001, 999, 777, "f32"), find_kernel("tma_f32_in_place")
    drawn = tool.promising(problem, H200, random.Random(1), [kernel])
    own = [config for config in drawn if config.kernel == kernel]
    assert (len(own), len(drawn)) == (tool.OF_EACH, tool.OF_EACH + tool.BESIDE)


def test_the_newest_time_of_a_configuration_counts(tmp_path):
    """A kernel that was changed is measured again: its old times no longer count."""
    file = tmp_path / "times.csv"
    given = dict(device="nvidia-h200", dtype="f32", layout="NN", m=200, n=300, k=100, spread=0)
    slug = "pipelined-MB64-NB64-KB16-TA8-TB4-LANES4-STAGES3-BLOCKS4-GROUP8-SPLIT1"
    other = "pipelined-MB32-NB64-KB16-TA8-TB4-LANES4-STAGES3-BLOCKS6-GROUP8-SPLIT1"
    gone = "pipelined-MB64-NB64-KB16-TA8-TB4-LANES4-STAGES3-BLOCKS5-GROUP8-SPLIT1"
    times = ((slug, 9), (other, 8), (slug, 7), (gone, 6))
    tool.SURVEY.append(file, [given | dict(config=name, us=us) for name, us in times])
    assert list(tool.read(file, "f32", H200).measured) == [7, 8]
    again = tool._again(file, [find_kernel("pipelined")], H200)
    assert {p.slug: [c.slug for c in cs] for p, cs in again.items()} == {
        "f32-NN-200x300x100": [slug, other]
    }
    assert tool._again(file, [find_kernel("sliced")], H200) == {}
    with pytest.raises(SystemExit, match="--kernels"):
        tool.main(["measure", "--again"])


def test_float16_is_like_bfloat16():
    chosen = [
        kernels_for(problem, H200)[-1].default_for(problem, H200)
        for problem in (Problem(333, 444, 555, "f16"), Problem(333, 444, 555, "bf16"))
    ]
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("count", [1, 2, 7, 63, 64, 65, 300])
def test_equations_are_solved_as_numpy_does(count, monkeypatch):
    monkeypatch.setattr(tool, "AT_A_TIME", 64)
    generator = np.random.default_rng(count)
    root, right = generator.normal(size=(count, count)), generator.normal(size=count)
    left = root @ root.T + count * np.eye(count)
    expected = np.linalg.solve(left, right)
    np.testing.assert_allclose(tool.solved(left, right), expected, rtol=1e-9, atol=1e-12)


def test_far_from_what_was_measured_the_mean_correction_is_left():
    found = survey.survey_of(COVERED, H200)
    config = next(kernels_for(COVERED, H200)[-1].options(COVERED, H200))[1]
    far = replace(COVERED, m=2**31 - 1, n=2**31 - 1)
    assert found.corrections(far, [config])[0] == pytest.approx(found.mean, abs=1e-6)


def test_products_are_drawn_within_the_limits_and_again_from_the_same_seed():
    drawn = [problem for group in tool.draw(50, 3) for problem in group]
    assert tool.draw(50, 3) == tool.draw(50, 3) != tool.draw(50, 4)
    assert max(problem.m for problem in drawn) > 4000
    assert all(survey.covers(problem, H200) for problem in drawn)
    assert {problem.dtype for problem in drawn} == set(tool.DTYPES)
    weights = tool.draw_weights(50, 3, ["bf16"])
    assert weights == tool.draw_weights(50, 3, ["bf16"]) != tool.draw_weights(50, 4, ["bf16"])
    assert all(problem.n % 64 == problem.k % 64 == 0 for problem in weights)
    assert all(16 <= problem.m <= 8192 and problem.flops <= 1e12 for problem in weights)


def test_large_products_alone_can_be_drawn():
    drawn = tool.draw(10, 3, least=3e9)
    assert len(drawn) == 10 and all(drawn)
    assert all(p.flops >= 3e9 for group in drawn for p in group)
    with pytest.raises(SystemExit, match="hardly any product"):
        tool.draw(2, 3, deepest=64, least=9e10)
    with pytest.raises(SystemExit, match="--least is for random products"):
        tool.main(["measure", "--weights", "--least", "1e9"])


@pytest.fixture
def few(tmp_path, monkeypatch) -> tuple[survey.Survey, list[dict[str, str]]]:
    """A survey of 300 times of bf16, none with A transposed, and their rows."""
    with tool.results("nvidia-h200").open(newline="") as file:
        rows = list(csv.DictReader(file))
    straight = [row for row in rows if row["dtype"] == "bf16" and row["layout"][0] == "N"][:300]
    others = [next(row for row in rows if row["dtype"] == one) for one in ("f32", "f64", "tf32")]
    with (tmp_path / "few.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(straight + others)
    target = tmp_path / "nvidia-h200.survey.npz"
    assert tool.main(["fit", "--csv", f"{tmp_path}/few.csv", "--output", f"{target}"]) == 0
    monkeypatch.setattr(survey, "_folder", lambda: tmp_path)
    return survey._load.__wrapped__("nvidia-h200", "bf16"), straight


def test_a_form_needs_some_times_to_be_chosen(few, tmp_path):
    with np.load(tmp_path / "nvidia-h200.survey.npz", allow_pickle=False) as file:
        kernels_on = file["bf16_rows"][:, 5:].tolist()  # behind m, n, k and two layouts
    kept = [name not in ("SPLIT", "STORE") for name in ("kernel", *survey.PARAMETERS)]
    times = Counter(tuple(itertools.compress(row, kept)) for row in kernels_on)
    least = survey._ENOUGH
    assert min(times.values()) < least <= max(times.values())
    assert set(few[0].forms) == {form for form, count in times.items() if count >= least}


def test_a_form_counts_for_products_not_much_deeper_than_those_measured(monkeypatch):
    """Up to 2.5 times the third deepest product, however often a product was measured."""
    config = parse_slug("tensor-MB64-NB64-KB64-TA32-TB32-STAGES3-BLOCKS4-GROUP8-SPLIT1")
    form = survey.form(config)
    depths = [4000] * 8 + [1000, 300, *range(200, 190, -1)]
    products = np.array([(500, 400, k, 0, 0) for k in depths])
    found = survey._deepest(np.array([form] * len(depths)), products)
    assert found == {form: 2.5 * 300}
    few = survey._deepest(np.array([form] * 12), np.array([(500, 400, 70, 0, 0)] * 12))
    assert few == {form: 2.5 * 70}  # of one product
    assert survey._deepest(np.array([form] * 11), products[:11]) == {}
    of_type = survey.survey_of(Problem(500, 400, 700, "bf16"), H200)
    monkeypatch.setattr(survey, "survey_of", lambda p, d: replace(of_type, forms=found))
    alone = replace(config.kernel, options=lambda p, d: [(1.0, config)])
    for k, counts in ((750, True), (751, False)):
        assert bool(survey.ranked(alone, Problem(500, 400, k, "bf16"), H200)) == counts


def test_a_survey_without_transposed_products_covers_none(few):
    """As one of weights alone is."""
    found, straight = few
    problem = Problem(*(int(straight[0][axis]) for axis in "mnk"), "bf16")
    assert found.covers(problem) and not found.covers(replace(problem, trans_a=True))


def test_fit_says_what_it_wrote(tmp_path, capsys):
    lines = tool.results("nvidia-h200").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join([*lines[:600], *lines[3000:3600]]) + "\n")
    arguments = ["fit", "--csv", f"{tmp_path}/few.csv"]
    assert tool.main([*arguments, "--output", f"{tmp_path}/few.npz"]) == 0
    assert "times of f32" in capsys.readouterr().out
    with np.load(tmp_path / "few.npz", allow_pickle=False) as file:
        types = [name.removesuffix("_rows") for name in file if name.endswith("_rows")]
        assert types == ["f32", "f64", "bf16", "tf32"]  # those of which the file has times
        assert all(len(file[f"{t}_rows"]) == len(file[f"{t}_weights"]) for t in types)
    assert tool.main([*arguments, "--left-out", "4"]) == 0
    assert "of the best time" in capsys.readouterr().out
