"""What a tuner may believe: failures of the machine are no property of a configuration, a time that
cannot be or that nobody could repeat is not saved, and nothing is tuned that was not tried.
"""

from __future__ import annotations

import io
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
import recorded_run
from recorded import NoCompiler, RecordedWorker
from recorded_run import BEST, GPU, KERNEL, Run, smooth
from rich.console import Console

from pymm.core.device import Device
from pymm.core.errors import CompileTimeout
from pymm.core.problem import Problem
from pymm.measure.workbench import Trial
from pymm.selection import store
from pymm.tune import comparison, session, tuner
from pymm.tune.comparison import COMPARISONS, ROUNDS_PART
from pymm.tune.finals import CHOSEN, CPU_TOLERANCE, NOTHING_SAVED, TOLERANCE, impossible
from pymm.tune.progress import show_lines
from pymm.tune.session import SAME_FAILURES
from pymm.tune.tuner import NOT_ALL, TUNED

PASSING = ("launch_failed", "crashed", "disturbed")


def searched(run):
    return [row for row in run.rows if row["role"] == "search"]


# Failures


@pytest.mark.parametrize("failure", [*PASSING, "timed_out", "wrong"])
def test_a_run_in_which_all_fails_alike_stops(tmp_path, failure):
    run = Run(tmp_path, "--shapes 256,300 --trials 60", lambda config, problem: failure)
    assert run.status == NOT_ALL and not run.records
    assert f"{SAME_FAILURES} trials in a row ended as {failure}" in run.output
    assert "as recorded" in run.output, "the last one's words"
    assert len(run.rows) == SAME_FAILURES
    assert {row["problem"] for row in run.rows} == {"f32-NN-256x256x256"}


@pytest.mark.parametrize("failure", PASSING)
def test_a_healthy_run_after_a_broken_one_searches(tmp_path, failure):
    """What failed then is tried now, the default first."""
    broken = Run(tmp_path, "--trials 60", lambda config, problem: failure)
    before = len(broken.rows)
    run = Run(tmp_path, "--trials 60")
    assert run.status == TUNED and run.records[0].config != KERNEL.default_config
    rows = searched(run)[before:]
    assert len(rows) == 60 and {row["outcome"] for row in rows} <= {"ok", "too_slow"}
    assert {row["config"] for row in broken.rows[:before]} <= {row["config"] for row in rows}


@pytest.mark.parametrize("failure", PASSING)
def test_what_fails_for_once_is_tried_once_more(tmp_path, failure):
    seen = Counter()

    def outcome(config, problem):
        seen[config] += 1
        return failure if config.MB == 64 and seen[config] == 1 else smooth(config, problem)

    run = Run(tmp_path, "--trials 30", outcome)
    assert run.status == TUNED
    tried = Counter(row["config"] for row in searched(run))
    failed = {row["config"] for row in searched(run) if row["outcome"] == failure}
    assert len(tried) == 30 and failed
    assert {slug: 2 if slug in failed else 1 for slug in tried} == tried
    last = {row["config"]: row["outcome"] for row in searched(run)}
    assert set(last.values()) <= {"ok", "too_slow"}


def test_a_compilation_that_took_too_long_is_one_outcome_more(tmp_path, monkeypatch):
    """Tried twice by each run."""

    class Slow(NoCompiler):
        def submit(self, source):
            if source.config != KERNEL.default_config:
                return super().submit(source)
            failed = Future()
            failed.set_exception(CompileTimeout("nvcc took more than 120 s"))
            return failed

    monkeypatch.setattr(recorded_run, "NoCompiler", Slow)
    for runs in (1, 2):
        run = Run(tmp_path, "--trials 5 --resume never")
        assert run.status == TUNED
        rows = [row for row in searched(run) if row["outcome"] == "compile_timeout"]
        assert [row["config"] for row in rows] == [KERNEL.default_config.slug] * 2 * runs
        assert rows[0]["detail"] == "nvcc took more than 120 s"


# Evidence


def test_nothing_tried_is_nothing_tuned(tmp_path):
    run = Run(tmp_path, "--budget 0.0001")
    assert run.status == NOT_ALL and not run.records and not run.asked
    assert "not tuned, no configuration was tried in time: give it a larger --budget" in run.output


def test_too_few_tried_is_said(tmp_path, monkeypatch):
    """Unless no more were asked for."""
    assert "fewer than" not in Run(tmp_path, "--trials 3").output
    monkeypatch.setattr(tuner, "FEWEST_TRIALS", 10**6)
    run = Run(tmp_path, "--budget 2")
    assert run.status == TUNED
    assert "of 1200 configurations tried, fewer than 1000000: the 2 s of --budget" in run.output


def test_a_time_beyond_the_device_is_none(tmp_path):
    """268,435 % of the peak, of every configuration: a broken clock, not a fast kernel."""
    seconds = Problem(256, 256, 256).flops / GPU.peak_flops["f32"] / 2684.35
    run = Run(tmp_path, "--trials 60", lambda config, problem: seconds)
    assert run.status == NOT_ALL and not run.records
    assert {row["outcome"] for row in run.rows} == {"disturbed"}
    assert "impossible: 268435% of the device's 1e+15 FLOP/s" in run.rows[0]["detail"]
    assert "impossible: 268435%" in run.output


def test_a_time_beyond_the_device_beside_others_changes_nothing(tmp_path):
    def outcome(config, problem):
        return 1e-11 if config.MB == 64 else smooth(config, problem)

    run = Run(tmp_path, "--trials 60 --sampler random", outcome)
    assert run.status == TUNED
    assert run.records[0].config.MB != 64 and run.records[0].seconds >= 1e-4
    assert sum(row["outcome"] == "ok" for row in searched(run)) >= 5, "nor are they too slow"


def final_only(**fields):
    """Times of which those of the final comparisons have these fields, after `good` others."""
    finals = Counter()

    def outcome(config, problem):
        finals[config] += 1
        more = fields if finals[config] > 1 else {}
        return {"seconds": smooth(config, problem), **more}

    return outcome


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"spread": 2.8}, "its times spread by 280%, more than 15%"),
        ({"spread": 0.16}, "its times spread by 16%"),
        ({"telemetry": {"throttle": "power cap+hardware slowdown"}}, "clock: hardware slowdown"),
        ({"telemetry": {"throttle": "thermal slowdown"}}, "clock: thermal slowdown"),
    ],
)
def test_what_stays_doubtful_is_not_saved(tmp_path, fields, words):
    """It is measured again, a few times, and what was saved before stays: that is no failure."""
    before = Run(tmp_path, "--trials 40").records
    run = Run(tmp_path, "--trials 10 --resume never", final_only(**fields))
    assert run.status == TUNED and run.records == before and "Saved" not in run.output
    assert "register_tile: nothing saved: " in run.output and words in run.output
    finals = Counter(row["config"] for row in run.rows if row["role"] == "final")
    assert finals[before[0].config.slug] == 1 + COMPARISONS
    (line,) = run.tuner.lines
    assert line.chosen == before[0].config and "the stored configuration is kept" in line.words


def doubtful_only(m):
    """Final times that spread by 31 % for products of `m` rows."""
    doubtful = final_only(spread=0.31)
    return lambda c, p: doubtful(c, p) if p.m == m else smooth(c, p)


def test_a_product_with_doubtful_times_has_its_line_and_claims_nothing(tmp_path):
    run = Run(tmp_path, "--shapes 256,300,512 --trials 10", doubtful_only(300), library=1e-3)
    assert run.status == TUNED and {r.problem.m for r in run.records} == {256, 512}
    (line,) = [line for line in run.tuner.lines if line.doubt]
    assert (line.chosen, line.tuned) == (KERNEL.default_config, line.default)
    assert (line.problem.m, line.reference, line.tried) == (300, 1e-3, 10)
    assert line.words == (
        "nothing saved: its times spread by 31%, more than 15%; the default is kept"
    )
    (shown,) = [s for s in run.output.splitlines() if s.startswith("│ f32-NN-300x300x300")]
    of_baseline, of_peak = [cell.strip() for cell in shown.split("│")][7:9]
    assert (of_baseline, of_peak) == ("-", "-")
    assert "geometric mean" in run.output and "of 2 products" in run.output
    assert "Nothing was saved for 1 of 3 products, whose times are doubtful: run" in run.output
    words = [row["detail"] for row in run.rows if row["problem"] == line.problem.slug]
    assert line.words in words and not any(said.startswith(CHOSEN) for said in words)


def test_kept_is_the_users_configuration_before_a_shipped_one(tmp_path, monkeypatch):
    (own,) = Run(tmp_path, "--trials 3").records
    shipped = replace(own, config=BEST, seconds=own.seconds / 2)
    monkeypatch.setattr(store, "shipped", lambda: tmp_path / "shipped")
    store.put([shipped], GPU, tmp_path / "shipped")
    run = Run(tmp_path, "--trials 3", lambda c, p: {"seconds": smooth(c, p), "spread": 0.31})
    (line,) = run.tuner.lines
    assert line.doubt and line.chosen == own.config != BEST
    assert BEST.slug in {row["config"] for row in run.rows if row["role"] == "final"}


def test_kept_is_what_is_stored_where_the_default_fails_and_others_are_doubtful(tmp_path):
    (own,) = Run(tmp_path, "--trials 40").records
    assert own.config != KERNEL.default_config

    def outcome(config, problem):
        if config == KERNEL.default_config:
            return "wrong"
        return {"seconds": smooth(config, problem), "spread": 0.31}

    run = Run(tmp_path, "--trials 10 --resume never", outcome)
    (line,) = run.tuner.lines
    assert run.status == TUNED and run.records == (own,)
    assert line.chosen == own.config and "the stored configuration is kept" in line.words


def test_a_narrow_terminal_shows_that_nothing_was_saved(tmp_path):
    baseline = {"library": 1e-3, "library_name": "numpy"}
    run = Run(tmp_path, "--shapes 300 --trials 3", doubtful_only(300), **baseline)
    narrow = Console(file=io.StringIO(), width=80, force_terminal=True)
    show_lines(run.tuner.lines, narrow)
    assert "nothing saved:" in narrow.file.getvalue()


def test_doubtful_times_hide_no_failure(tmp_path):
    doubtful = doubtful_only(300)
    run = Run(
        tmp_path,
        "--shapes 256,300 --trials 3",
        lambda c, p: "wrong" if p.m == 256 else doubtful(c, p),
    )
    assert run.status == NOT_ALL and [line.problem.m for line in run.tuner.lines] == [300]
    assert "Nothing was saved for 1 of 1 products" in run.output


def test_a_comparison_that_was_sound_counts_if_a_repetition_is_not(tmp_path):
    """It is repeated only because a library's times spread; the file of trials ends with it."""
    seen = Counter()

    def outcome(config, problem):
        seen[config] += 1
        return {"seconds": smooth(config, problem), "spread": 0.1 if seen[config] <= 2 else 0.3}

    run = Run(tmp_path, "--trials 40", outcome, library=lambda: [1e-3, 2e-3])
    assert run.status == TUNED and "Nothing was saved" not in run.output
    (record,) = run.records
    assert record.spread == 0.1 and record.config != KERNEL.default_config
    said = [row["detail"] for row in run.rows if row["role"] == "final" and row["detail"]]
    assert len(said) == COMPARISONS and said[-1].startswith(CHOSEN)
    assert all(words.startswith(NOTHING_SAVED) for words in said[:-1])


def test_a_comparison_is_repeated_within_its_time(tmp_path, monkeypatch):
    """One that takes a little more than its half of the time leaves enough for another one."""
    now = [0.0]

    class Timed(RecordedWorker):
        def begin(self, request, limit):
            if request.action == "compare":
                now[0] += 1.03 * request.budget / ROUNDS_PART
            super().begin(request, limit)

    def sleep(seconds):
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    for module in (tuner, session, comparison):
        monkeypatch.setattr(module, "time", clock)
    run = Run(tmp_path, "--trials 10 --budget 8", final_only(spread=0.31), worker=Timed)
    finals = Counter(row["config"] for row in run.rows if row["role"] == "final")
    assert run.status == TUNED and finals[KERNEL.default_config.slug] == 2
    assert now[0] == pytest.approx(8, rel=0.05)


def test_the_fastest_of_the_others_is_saved_where_the_fastest_stays_doubtful(tmp_path):
    finals, tried = Counter(), {}

    def outcome(config, problem):
        finals[config] += 1
        tried[config] = smooth(config, problem)
        doubtful = finals[config] > 1 and tried[config] == min(tried.values())
        times = (tried[config],) * 9
        return {"seconds": times[0], "times": times, "spread": 0.2 if doubtful else 0.0}

    run = Run(tmp_path, "--trials 80", outcome)
    _, second, *_ = sorted(set(tried.values()))
    saved = run.records[0]
    assert run.status == TUNED and saved.seconds == second and saved.spread == 0.0
    assert second < tried[KERNEL.default_config]
    assert "left out, register_tile" in run.output and "its times spread by 20%" in run.output
    chosen = {row["config"] for row in run.rows if row["detail"].startswith("chosen")}
    assert chosen == {saved.config.slug}


@pytest.mark.parametrize("fields", [{"spread": 0.15}, {"telemetry": {"throttle": "power cap"}}])
def test_what_is_usual_is_saved(tmp_path, fields):
    run = Run(tmp_path, "--trials 10", final_only(**fields))
    assert run.status == TUNED and len(run.records) == 1
    finals = Counter(row["config"] for row in run.rows if row["role"] == "final")
    assert set(finals.values()) == {1}


def test_what_is_doubtful_once_is_saved_from_the_second_comparison(tmp_path):
    seen = Counter()

    def outcome(config, problem):
        seen[config] += 1
        seconds = smooth(config, problem)
        return {"seconds": seconds, "spread": 1.7} if seen[config] == 2 else seconds

    run = Run(tmp_path, "--trials 10", outcome)
    assert run.status == TUNED and run.records[0].spread == 0.0
    finals = Counter(row["config"] for row in run.rows if row["role"] == "final")
    assert set(finals.values()) == {2}


def test_a_library_whose_times_spread_is_timed_again(tmp_path):
    """What it took at last is shown, with a word if it still spreads."""
    times = [[1e-3, 2e-3]]
    run = Run(tmp_path, "--trials 10", library=lambda: times.pop() if times else [1e-3])
    finals = Counter(row["config"] for row in run.rows if row["role"] == "final")
    assert run.status == TUNED and set(finals.values()) == {2}
    assert "spread" not in run.output
    run = Run(tmp_path, "--trials 10 --resume never", library=lambda: [1e-3, 2e-3])
    assert run.status == TUNED
    assert "the times of library spread by 67%: uncertain" in run.output


def test_no_mean_counts_a_product_whose_librarys_times_spread(tmp_path):
    spread = [[1e-3, 2e-3]] * COMPARISONS  # of the first product alone
    run = Run(
        tmp_path,
        "--shapes 256,300,512 --trials 10",
        library=lambda: spread.pop() if spread else [1e-3],
    )
    unsteady = [line.problem.m for line in run.tuner.lines if line.unsteady > 0]
    assert len(unsteady) == 1 and "of 2 products" in run.output
    (shown,) = [s for s in run.output.splitlines() if s.startswith(f"│ f32-NN-{unsteady[0]}x")]
    assert shown.split("│")[7].strip().endswith("x?")
    assert "The times of library spread by up to 67% in 1 of 3 products" in run.output


def test_limits_of_a_device():
    problem = Problem(1000, 1000, 1000)
    gpu = Device("gpu", "cuda", peak_flops={"f32": 1e12}, bandwidth=1e12)
    cpu = Device("cpu", "cpu", peak_flops={"f32": 1e12})

    def words(device, seconds, problem=problem):
        return impossible(Trial(problem, BEST, "ok", seconds), device)

    assert not words(gpu, 2e-3) and not words(gpu, 2e-3 / TOLERANCE * 1.001)
    assert "106% of the device's 1e+12 FLOP/s" in words(gpu, 2e-3 / 1.06)
    assert not words(cpu, 2e-3 / 1.2) and "FLOP/s" in words(cpu, 2e-3 / CPU_TOLERANCE * 0.99)
    flat = Problem(10**6, 1, 1000)  # 4 GB to read
    assert not words(gpu, 4.1e-3, flat) and "B/s" in words(gpu, 3e-3, flat)
    assert not words(replace(gpu, peak_flops={}, bandwidth=0.0), 1e-12)
    assert not impossible(Trial(problem, BEST, "wrong"), gpu)
