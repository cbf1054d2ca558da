"""Kernels that compete for one problem: all defaults first, then the budget goes where it pays."""

import zlib
from collections import Counter
from dataclasses import replace

import optuna
import pytest
from h200 import H200
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_run import GPU, Run, smooth

from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for
from pymm.measure.workbench import Trial
from pymm.selection.records import Environment
from pymm.selection.select import select
from pymm.tune.options import parse
from pymm.tune.race import FAILURES, TRIAL_STEPS, Race
from pymm.tune.study import Search
from pymm.tune.tasks import HOPELESS_BY_MODEL, competitors, tasks_of
from pymm.tune.tuner import TUNED

PROBLEM = Problem(256, 256, 256)
KERNELS = [find_kernel(name) for name in ("register_tile", "shared_tile", "coalesced")]


def race_of(seed=0, members=KERNELS):
    searches = {}
    for kernel in members:
        valid = kernel.configs(PROBLEM, GPU)[0]
        searches[kernel.name] = Search(optuna.create_study(), valid, "random", seed)
        searches[kernel.name].enqueue([kernel.default_for(PROBLEM, GPU)])
    return Race(searches)


def run(race, seconds, trials, under_way=1):
    """The configurations in the order of their questions."""
    asked, waiting = [], []
    while (one := race.ask(trials)) is not None or waiting:
        if one is not None:
            asked.append(one[1])
            waiting.append(one)
        if one is None or len(waiting) >= under_way:
            number, config = waiting.pop(0)
            found = seconds(config)
            outcome = found if isinstance(found, str) else "ok"
            time = float("nan") if isinstance(found, str) else found
            race.tell(number, Trial(PROBLEM, config, outcome, time))
    return asked


@pytest.mark.parametrize("under_way", [1, 5])
def test_every_default_first_then_the_budget_to_the_fastest(under_way):
    best = {"register_tile": 1.2, "shared_tile": 1.0, "coalesced": 9.0}
    race = race_of()
    asked = run(race, lambda config: best[config.kernel_name], 40, under_way)
    assert asked[:3] == [kernel.default_for(PROBLEM, GPU) for kernel in KERNELS]
    counts = Counter(config.kernel_name for config in asked)
    assert len(asked) == len(set(asked)) and sum(counts.values()) == len(asked)
    assert counts["coalesced"] <= under_way, "nine times as long as the best"
    shared = len(race.searches["shared_tile"].configs)
    assert counts["shared_tile"] == shared and race.searches["shared_tile"].exhausted
    assert 16 <= counts["register_tile"] <= 16 + under_way
    assert race.best[1] == 1.0 and race.best[0].kernel_name == "shared_tile"
    assert "coalesced" in race.summary() and "9.00 x" in race.summary()


def test_one_kernel_is_a_search_as_any_other():
    race = race_of(members=KERNELS[:1])
    asked = run(race, lambda config: smooth(config, PROBLEM), 30)
    assert len(asked) == len(set(asked)) == 30 and race.summary() == ""


def test_a_kernel_of_which_nothing_works_is_out():
    race = race_of()
    asked = run(race, lambda c: "wrong" if c.kernel_name == "register_tile" else 1.0, 25)
    assert Counter(c.kernel_name for c in asked)["register_tile"] == FAILURES


def test_every_kernel_gets_its_default_whatever_the_limit():
    asked = run(race_of(), lambda config: 1.0, 1)
    assert asked == [kernel.default_for(PROBLEM, GPU) for kernel in KERNELS]


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_the_fastest_kernel_is_never_left_out(times, trials):
    """Whatever is left out was farther behind than `TRIAL_STEPS` allows."""
    by_name = {kernel.name: seconds for kernel, seconds in zip(KERNELS, times, strict=True)}
    race = race_of()
    run(race, lambda config: by_name[config.kernel_name], trials)
    least = min(times)
    for name, search in race.searches.items():
        limits = [limit for count, limit in TRIAL_STEPS.items() if count <= len(search)]
        if by_name[name] > limits[-1] * least * 1.0001:
            assert len(search) in TRIAL_STEPS, "not one trial more than it took to see that"
        elif len(race) < trials and by_name[name] == least:
            assert search.exhausted


def test_a_goal_is_kept_by_an_interrupted_run_alone():
    race = race_of()
    assert race.goal(None) is None
    assert race.goal(20) == 20
    run(race, lambda config: 1.0, 8)
    again = Race(race.searches)
    assert again.goal(20) == 20, "as it was"
    assert again.goal(5) == 8 + 5, "another one"
    run(again, lambda config: 1.0, 13)
    again.reach_goal()
    assert again.goal(5) == 13 + 5


def resumed(race):
    """A race over the studies of another, as the next run makes it."""
    searches = {
        name: Search(old.study, old.configs, "random") for name, old in race.searches.items()
    }
    for kernel in KERNELS:
        searches[kernel.name].enqueue([kernel.default_for(PROBLEM, GPU)])
    return Race(searches)


def test_a_race_stopped_at_every_trial_measures_what_it_would_have():
    """With five under way, by turns given up and killed."""
    best = {"register_tile": 1.0, "shared_tile": 1.2, "coalesced": 9.0}

    def measured(stops):
        race, waiting, found = race_of(), [], []
        for count in range(30):
            if count in stops:
                for number, config in waiting if count % 2 else ():
                    race.forget(number, config)
                race, waiting = resumed(race), []
            while len(waiting) < 5 and (one := race.ask(34)):
                waiting.append(one)
            number, config = waiting.pop(0)
            race.tell(number, Trial(PROBLEM, config, "ok", best[config.kernel_name]))
            found.append(config)
        return found

    whole = measured(())
    assert measured(range(30)) == whole and len(set(whole)) == 30


def test_every_kernel_gets_its_default_whatever_was_left_unmeasured():
    race = race_of()
    alone = Race({"register_tile": race.searches["register_tile"]})
    for number, config in [alone.ask() for _ in range(4)]:
        alone.forget(number, config)
    asked = run(resumed(race), lambda config: 1.0, 3)
    assert {config.kernel_name for config in asked} == {kernel.name for kernel in KERNELS}


# Which kernels compete


def test_all_that_can_compute_it_compete_but_for_the_hopeless():
    problem = Problem(4096, 4096, 4096)
    names = [kernel.name for kernel in competitors(problem, H200)]
    assert names[0] == kernels_for(problem, H200)[-1].name
    assert {"tma_f32", "pipelined", "sliced"} <= set(names)
    assert not {"naive", "coalesced"} & set(names) and HOPELESS_BY_MODEL > 2
    cpu = Device("cpu", "cpu", sms=2, vector_bytes=32, vector_registers=16)
    small, large = (competitors(Problem(n, n, n), cpu) for n in (32, 512))
    assert [k.name for k in small] == ["blocked", "reordered"]
    assert [k.name for k in large] == ["blocked"]


@given(
    st.tuples(*[st.sampled_from([1, 7, 64, 1000, 8191])] * 3),
    st.sampled_from(list(DTYPES)),
    st.booleans(),
    st.sampled_from([(7, 5), (8, 0), (9, 0)]),
)
@settings(max_examples=60, deadline=None)
def test_the_highest_kernel_always_competes(extents, dtype, trans_a, capability):
    device = replace(H200, capability=capability)
    problem = Problem(*extents, dtype, trans_a)
    able = kernels_for(problem, device)
    if able:
        chosen = competitors(problem, device)
        assert chosen[0] == able[-1] and set(chosen) <= set(able)
        assert len(set(chosen)) == len(chosen)


def test_named_kernels_are_searched_each_by_itself():
    options = parse("--shapes 256 --dtypes f32 --kernels register_tile,naive".split())
    tasks = tasks_of(options, GPU, list)
    assert [[k.name for k in task.kernels] for task in tasks] == [["register_tile"], ["naive"]]
    assert [task.name.split()[-1] for task in tasks] == ["register_tile", "naive"]
    (task,) = tasks_of(parse("--shapes 256 --dtypes f32".split()), GPU, list)
    assert len(task.kernels) > 3 and task.name == "f32-NN-256x256x256"


# The whole run

#: A device for which few kernels compete: their spaces are enumerated in no time.
OLDER = replace(GPU, capability=(7, 5))


def fastest_of(name):
    """Seconds that differ by up to 10 % within a kernel; those of one kernel are 0.7 of others'."""

    def outcome(config, problem):
        within = 1 + zlib.crc32(config.slug.encode()) % 100 / 1000
        return 1e-4 * within * (0.7 if config.kernel_name == name else 1.0)

    return outcome


def test_the_kernel_that_is_fastest_is_saved_and_chosen(tmp_path):
    """Not the highest."""
    winner, outcome = find_kernel("register_tile"), fastest_of("register_tile")

    run = Run(tmp_path, "--trials 60", outcome, OLDER, kernels="")
    assert run.status == TUNED, run.output
    fastest = min(run.records, key=lambda record: record.seconds)
    assert fastest.config.kernel == winner
    task = tasks_of(parse("--shapes 256 --dtypes f32".split()), OLDER, list)[0]
    tried = [row["config"] for row in run.rows if row["role"] == "search"]
    assert tried[: len(task.kernels)] == [k.default_for(PROBLEM, OLDER).slug for k in task.kernels]
    finals = {row["config"] for row in run.rows if row["role"] == "final"}
    times = {k.default_for(PROBLEM, OLDER): 0.0 for k in task.kernels}
    for config in times:
        times[config] = outcome(config, PROBLEM)
        if times[config] <= 1.5 * fastest.seconds:
            assert config.slug in finals
    assert fastest.seconds <= min(times.values())
    environment = Environment.of(OLDER, "recorder 1.0")
    choice = select(PROBLEM, OLDER, tmp_path / "out", environment)
    assert choice.config == fastest.config and choice.record == fastest
    assert "register_tile" in run.output and " x the best time" in run.output
    again = Run(tmp_path, "--trials 60", outcome, OLDER, kernels="")
    assert f"goes on after {60} configurations" in again.output
    slugs = [row["config"] for row in again.rows if row["role"] == "search"]
    assert len(slugs) == len(set(slugs)) == 120


def test_where_the_highest_kernel_is_fastest_it_is_alone(tmp_path):
    """No record of another kernel is kept that was never stored."""

    highest = kernels_for(PROBLEM, OLDER)[-1].name
    run = Run(tmp_path, "--trials 40", fastest_of(highest), OLDER, kernels="")
    assert [record.config.kernel_name for record in run.records] == [highest]
