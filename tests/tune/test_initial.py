"""What a search tries first."""

from dataclasses import replace

import pytest
from h200 import H200
from recorded import NoCompiler

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, survey
from pymm.kernels.source import kernel_digest
from pymm.selection import store
from pymm.selection.cost_model import OF_A_TILE, predicted_seconds, tile_of
from pymm.selection.records import Environment, Record
from pymm.tune import initial
from pymm.tune.initial import FIRST, PORTFOLIO, PROMISING, InitialConfigs, Prefetcher
from pymm.tune.initial import prepare as prepared
from pymm.tune.tasks import Task

KERNEL = find_kernel("register_tile")
PROBLEM = Problem(1000, 1000, 1000)
VALID = KERNEL.configs(PROBLEM, H200)[0]
FITTING = sorted(VALID, key=lambda config: predicted_seconds(config, PROBLEM, H200))


def prepare(problem, kernel, device):
    return InitialConfigs(problem, kernel, *prepared(problem, kernel, device), device)


def record(config, extent, **more):
    digest = kernel_digest("cuda", KERNEL.file)
    problem = Problem(extent, extent, extent, **more)
    return Record(problem, config, 1e-3, 0.0, "2026-11-21", Environment("1", "2"), digest)


def test_default_then_stored_and_promising_by_turns():
    outset = prepare(PROBLEM, KERNEL, H200)
    assert set(outset.valid) == set(VALID) and outset.default == KERNEL.default_config
    assert len(outset.promising) == PROMISING
    stored = [record(config, 900 + n) for n, config in enumerate(FITTING[50:][: PORTFOLIO + 3])]
    first = list(outset.first(stored))
    assert first[0] == outset.default
    assert first[1] == stored[-1].config, "of the nearest problem"
    assert first[2] == next(c for c in outset.promising if c != outset.default)
    assert len(first) == len(set(first)) == FIRST
    assert len(outset.first(stored, 9)) == 9


def test_variants_of_the_best_known_are_tried():
    """One parameter of the nearest stored configuration is changed."""
    outset = prepare(PROBLEM, KERNEL, H200)
    base = FITTING[70]
    first = list(outset.first([record(base, 1000)], 40))
    others = [c for c in first[1:] if c not in outset.promising]
    changes = [
        {name for name, value in config.parameters if value != base.as_dict()[name]}
        for config in others
    ]
    assert sum(len(change) == 1 for change in changes) >= 4
    assert base in first


def changes(config, base):
    return [name for name, value in config.parameters if value != base.as_dict()[name]]


def test_variants_of_a_default_that_was_made_for_the_problem_are_tried():
    """Not of the nearest stored configuration, which may be for quite another product; those first
    that the cost model expects to be fastest."""
    kernel, problem = find_kernel("wgmma"), Problem(163, 3177, 6471, "bf16")
    outset = prepare(problem, kernel, H200)
    assert kernel.adapts_to(problem, H200)
    small = kernel.default_for(Problem(16, 512, 512, "bf16"), H200)
    assert len(changes(small, outset.default)) > 1
    near = outset._near(outset.default)
    assert all(len(changes(config, outset.default)) == 1 for config in near)
    seconds = [float(f"{predicted_seconds(c, problem, H200):.2g}") for c in near]
    assert seconds == sorted(seconds)
    stored = replace(record(small, 900), problem=Problem(16, 512, 512, "bf16"))
    first = list(outset.first([stored], 40))
    assert small in first and set(near) <= set(first) and len(near) == initial.NEAR


def test_variants_of_what_was_found_for_this_very_problem_are_tried():
    kernel, problem = find_kernel("wgmma"), Problem(163, 3177, 6471, "bf16")
    outset = prepare(problem, kernel, H200)
    best = kernel.config(outset.default.as_dict() | dict(CLUSTER=1))
    assert best != outset.default
    near = outset._near(best)
    assert len(near) == initial.NEAR and near != outset._near(outset.default)
    first = outset.first([replace(record(best, 900), problem=problem)], 40)
    assert first[best] == "warm" and set(near) <= set(first)


@pytest.mark.parametrize(
    "name, problem",
    [
        ("pipelined", Problem(935, 1851, 228)),
        ("tensor_f64", Problem(2495, 100, 364, "f64")),
        ("wgmma", Problem(163, 3177, 6471, "bf16")),
    ],
)
def test_what_a_survey_expects_to_be_fastest_is_tried_first(name, problem):
    """Before what the cost model for all kernels expects."""
    kernel = find_kernel(name)
    outset, own = prepare(problem, kernel, H200), initial.by_own_model(kernel, problem, H200)
    ranked = [config for _, config in survey.ranked(kernel, problem, H200)]
    assert outset.default == own[0] == ranked[0]
    assert 1 < len(own) <= initial.BY_OWN_MODEL and outset.promising[: len(own)] == tuple(own)
    assert own == sorted(own, key=ranked.index) and set(own) <= set(outset.valid)
    assert len(outset.promising) == PROMISING == len(set(outset.promising))
    tiles = [tile_of(config) for config in own]
    assert max(map(tiles.count, tiles)) <= OF_A_TILE
    first = list(outset.first(()))
    assert first.index(own[1]) < 3
    space = set(kernel.configs(problem, H200)[0])
    outside = [config for config in own if config not in space]
    assert name != "wgmma" or {config.SPLIT for config in outside} & {3, 5}  # not in its space


def test_without_a_survey_the_kernel_s_own_model_says_what_is_tried_first():
    other = replace(H200, name="another GPU", capability=(8, 0), sms=108)
    kernel, problem = find_kernel("tensor"), Problem(300, 500, 700, "bf16")
    assert not survey.covers(problem, other)
    outset, own = prepare(problem, kernel, other), initial.by_own_model(kernel, problem, other)
    expected = dict((config, time) for time, config in kernel.options(problem, other))
    able = [config for config in expected if not kernel.violations(config, problem, other)]
    assert own[0] == min(able, key=expected.__getitem__) and set(own) <= set(able)
    assert [expected[c] for c in own] == sorted(expected[c] for c in own)
    assert outset.promising[: len(own)] == tuple(own)
    assert initial.by_own_model(find_kernel("register_tile"), PROBLEM, other) == []


@pytest.mark.parametrize(
    "problem",
    [
        Problem(128, 128, 128, "bf16", batch=256),
        Problem(300, 300, 700, "bf16", trans_b=True, op="syrk"),
        Problem(0, 500, 700, "bf16"),
    ],
)
def test_models_for_single_products_are_not_asked_for_others(problem):
    kernel = find_kernel("tensor")
    assert initial.by_own_model(kernel, problem, H200) == []
    outset = prepare(problem, kernel, H200)
    assert outset.default in outset.valid and outset.default in outset.first(())


def test_a_quick_search_keeps_what_the_kernel_s_own_model_expects():
    kernel, problem = find_kernel("wgmma"), Problem(163, 3177, 6471, "bf16")
    valid, default, promising = prepared(problem, kernel, H200, 20)
    own = initial.by_own_model(kernel, problem, H200)
    assert len(valid) <= 20 + len({default, *own}) and {default, *own} <= set(valid)
    assert promising[: len(own)] == tuple(own)


def test_what_is_stored_for_another_shape_is_not_tried_where_it_cannot_fit():
    """Tiles of a square product for a single row of blocks: most of each would be idle."""
    skinny = Problem(8192, 16, 8192)
    outset = prepare(skinny, KERNEL, H200)
    wide = max(outset.valid, key=lambda c: predicted_seconds(c, skinny, H200))
    assert predicted_seconds(wide, skinny, H200) > 2 * predicted_seconds(
        outset.default, skinny, H200
    )
    assert wide not in outset.first([record(wide, 8192)])


def test_same_type_and_layout_come_first():
    other, turned, same = FITTING[60:63]
    stored = [record(other, 1000, dtype="f64"), record(turned, 1000, trans_a=True)]
    stored.append(record(same, 4000))
    first = list(prepare(PROBLEM, KERNEL, H200).first(stored))
    places = [first.index(config) for config in (same, turned, other)]
    assert places == sorted(places)


def test_bfloat16_begins_with_what_float16_takes():
    kernel, problem = find_kernel("wgmma"), Problem(1024, 1024, 1024, "bf16")
    outset = prepare(problem, kernel, H200)
    ordered = sorted(outset.valid, key=lambda config: predicted_seconds(config, problem, H200))
    near, far, single = ordered[60:63]
    stored = [record(single, 1024, dtype="f16_f32"), record(far, 2048, dtype="bf16")]
    first = list(outset.first([*stored, record(near, 1024, dtype="f16")]))
    assert first[1] == near and first.index(far) < first.index(single)


def test_a_default_outside_the_space_is_valid_all_the_same(monkeypatch):
    monkeypatch.setitem(KERNEL.__dict__, "space", {**KERNEL.space, "KB": (8,)})
    outset = prepare(PROBLEM, KERNEL, H200)
    assert outset.default in outset.valid and outset.default.KB == 16


@pytest.mark.parametrize("kernel", ["blocked", "reordered"])
def test_a_cpu_has_nothing_promising(kernel):
    cpu = Device("cpu", "cpu", sms=2, vector_bytes=64, vector_registers=32)
    outset = prepare(PROBLEM, find_kernel(kernel, "cpu"), cpu)
    origins = list(outset.first(()).values())
    assert outset.promising == () and origins == ["queue"] + ["warm"] * (len(origins) - 1)


def test_winners_of_other_devices_are_tried(tmp_path, monkeypatch):
    """Those that are valid here, after the nearest own ones; damaged files are no matter."""
    monkeypatch.setattr(initial, "files", lambda folder: sorted(tmp_path.glob("*.yaml")))
    other = replace(H200, name="another GPU", sms=78)
    own, foreign = FITTING[60], FITTING[61]
    invalid = replace(foreign, parameters=tuple((n, 2 * v) for n, v in foreign.parameters))
    kept = [record(foreign, 1024), record(invalid, 512)]
    kept = [r for r in kept if not KERNEL.violations(r.config, r.problem, other)]
    store.put(kept, other, tmp_path)
    store.put([record(FITTING[62], 1024)], H200, tmp_path)
    (tmp_path / "damaged.yaml").write_text("records: [")
    assert {r.config for r in initial.elsewhere(H200)} == {r.config for r in kept}
    first = prepare(PROBLEM, KERNEL, H200).first([record(own, 900)])
    assert first[own] == first[foreign] == "warm" and FITTING[62] not in list(first)[1:4]
    assert set(first) <= set(VALID)


def test_diverse_ones_differ_from_the_sure_ones():
    chosen = initial.diverse(FITTING, 6, 2)
    assert chosen[:2] == FITTING[:2] and len(set(chosen)) == 6
    changes = [min(initial._changes(c, other) for other in chosen[:2]) for c in FITTING]
    assert initial._changes(chosen[2], chosen[0]) >= max(changes)
    assert initial.diverse(FITTING[:3], 6, 2) == FITTING[:3] and initial.diverse([], 6, 2) == []


@pytest.mark.parametrize("quick", [False, True])
def test_searches_are_prepared_while_others_measure(quick):
    """Texts of the next problems are at the compiler; the one with the fewest to come is next."""
    compiler = NoCompiler()
    tasks = [Task(Problem(n, n, n), (KERNEL,)) for n in (100, 200, 300)]
    with Prefetcher(H200, compiler, quick, processes=quick) as lookout:
        assert lookout.next(tasks) in tasks
        (outset,), builds = lookout.take(tasks[1])
        assert outset.default == KERNEL.default_config and len(outset.promising) == PROMISING
        assert len(builds) >= len(outset.first(()))
        assert {build.done() for build in builds} == {True}
        for task in tasks:
            lookout.take(task)
        assert lookout.next(tasks[1:]) == tasks[1], "all are ready"
    assert len(prepared(PROBLEM, "register_tile", H200, 50)[0]) == 51, "and the default"
