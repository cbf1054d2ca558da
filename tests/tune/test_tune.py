"""The whole loop against recorded timings: asked, compiled, measured, told, saved, shown."""

import signal
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import recorded_run
from recorded import NoCompiler, RecordedWorker
from recorded_run import BEST, GPU, KERNEL, Run, smooth

from pymm import kernels
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.measure import results
from pymm.measure.workbench import Trial
from pymm.selection import store
from pymm.tune import comparison, initial, session, tuner
from pymm.tune.initial import PROMISING
from pymm.tune.strategies import ORIGINS, START
from pymm.tune.study import Search
from pymm.tune.trial_log import TrialLog
from pymm.tune.tuner import INTERRUPTED, NOT_ALL, TUNED


def test_finds_saves_and_shows(tmp_path):
    run = Run(tmp_path, "--trials 90 --sampler local", library=1.5e-4)
    assert run.status == TUNED
    (record,) = run.records
    assert record.problem == Problem(256, 256, 256)
    assert record.seconds <= 3e-4 and record.config != KERNEL.default_config
    searched = [row for row in run.rows if row["role"] == "search"]
    assert len(searched) == 90
    assert searched[0]["config"] == KERNEL.default_config.slug, "the default is asked first"
    assert len({row["config"] for row in searched}) == 90, "nothing twice"
    valid = {c.slug for c in KERNEL.configs(record.problem, GPU)[0]}
    assert {row["config"] for row in searched} <= valid, "nothing invalid"
    assert tuple(run.rows[0]) == results.TRIALS.columns
    assert record.config.slug in run.output and "tuned / library" in run.output
    final = [row for row in run.rows if row["role"] == "final"]
    assert KERNEL.default_config.slug in {row["config"] for row in final}


class Unhurried(RecordedWorker):
    """A worker whose measurements take as long as twenty questions."""

    polls = 0

    def result(self, timeout=0.0):
        self.polls += 1
        return super().result() if self.polls % 20 == 0 else None


def test_what_is_measured_next_is_what_promises_most(tmp_path, monkeypatch):
    """Not what was asked for first, with 16 configurations compiled ahead; every row says where its
    configuration came from, and the queue has a third of the trials.
    """
    asked, ask = [], Search.ask

    def noted(search, most=None):
        found = ask(search, most)
        asked.extend([found[1].slug] if found else [])
        return found

    monkeypatch.setattr(Search, "ask", noted)
    monkeypatch.setattr(tuner, "compilers_beside", lambda device, count: 16)
    run = Run(tmp_path, "--trials 60 --sampler local", worker=Unhurried)
    searched = [row for row in run.rows if row["role"] == "search"]
    measured = [row["config"] for row in searched]
    assert measured[:START] == asked[:START] and measured != asked[: len(measured)]
    assert set(measured) <= set(asked) and len(set(measured)) == 60
    origins = Counter(row["origin"] for row in searched)
    assert origins["queue"] + origins["warm"] == 20 and set(origins) <= set(ORIGINS)
    assert origins["neighbour"] + origins["model"] >= 20
    assert {row["origin"] for row in run.rows if row["role"] != "search"} == {""}


def test_nothing_is_compiled_twice(tmp_path):
    """A multiple of the tile needs two texts, the plain and the guarded one; others one. What is
    compiled ahead is asked for again, and the pool has it then.
    """
    run = Run(tmp_path, "--trials 30")
    keys = run.compilers[0].keys
    assert 30 <= len(set(keys)) <= 60 and len(keys) <= len(set(keys)) + 2 * (PROMISING + 1)


def test_little_time_goes_to_what_is_compiled(tmp_path, monkeypatch):
    """With seconds for a problem only the first candidates are tried, and what is left of its time
    goes to the others: the second problem has the neighbour's configuration too. The tuner's clock
    is ten times too slow, so that a busy machine has the time as well.
    """
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() / 10, sleep=time.sleep)
    for module in (tuner, session, comparison):
        monkeypatch.setattr(module, "time", clock)
    run = Run(tmp_path, "--shapes 512 --checks quick --budget 4 --sampler local")
    assert run.status == TUNED
    searched = [row for row in run.rows if row["role"] == "search"]
    counts = Counter(row["problem"] for row in searched)
    assert set(counts) == {"f32-NN-256x256x256", "f32-NN-512x512x512"}
    assert all(2 <= count <= PROMISING + 2 for count in counts.values())


def test_what_the_time_did_not_suffice_for_is_said(tmp_path, monkeypatch):
    """Every problem has its trials or a line at the end; one that was asked for few has none. The
    tuner's clock advances by its trials alone, so the load of the machine does not matter.
    """
    now = [0.0]

    def slow(config, problem):
        now[0] += 4.0 if problem.m == 256 else 0.1
        return smooth(config, problem)

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    for module in (tuner, session, comparison):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(initial, "elsewhere", lambda device: [])  # no further finalist
    run = Run(tmp_path / "a", "--shapes 512 --budget 25", slow)
    counts = Counter(row["problem"] for row in run.rows if row["role"] == "search")
    assert 0 < counts["f32-NN-256x256x256"] < 8 <= counts["f32-NN-512x512x512"]
    (said,) = [line for line in run.output.splitlines() if "tried, fewer than 8" in line]
    assert said.startswith("f32-NN-256x256x256 register_tile: ") and "25 s of --budget" in said
    assert "fewer than 8" not in Run(tmp_path / "b", "--trials 3").output


def test_a_search_too_short_to_find_it_again_keeps_what_is_saved(tmp_path):
    """However little is tried, a record gives way only to what was faster beside it."""
    before = Run(tmp_path, "--trials 40").records[0]
    assert before.config != KERNEL.default_config
    again = Run(tmp_path, "--trials 1 --resume never")
    assert again.status == 0 and again.records[0].config == before.config
    final = {row["config"] for row in again.rows if row["role"] == "final"}
    assert {before.config.slug, KERNEL.default_config.slug} <= final

    def slow_by_now(config, problem):
        return 1.0 if config == before.config else smooth(config, problem)

    (after,) = Run(tmp_path, "--trials 1 --resume never", slow_by_now).records
    assert after.config != before.config


def test_a_search_begins_with_what_is_shipped(tmp_path, monkeypatch):
    """Which then takes part in the comparison at its end, too."""
    monkeypatch.setattr(store, "shipped", lambda: tmp_path / "shipped")
    (shipped,) = Run(tmp_path / "there", "--trials 40").records
    store.put([shipped], GPU, tmp_path / "shipped")
    run = Run(tmp_path / "here", "--trials 2")
    assert run.asked[1] == shipped.config != KERNEL.default_config
    assert run.records[0].config == shipped.config


def test_what_is_stale_is_tuned_again(tmp_path, monkeypatch):
    """After another compiler came: every record, each beginning with what it says."""
    before = Run(tmp_path, "--shapes 256,300 --trials 40").records
    current = Run(tmp_path, "--stale")
    assert current.status == TUNED and "Nothing tuned for recorded GPU is stale" in current.output
    monkeypatch.setattr(RecordedWorker, "compiler", SimpleNamespace(toolchain="nvcc 99"))
    again = Run(tmp_path, "--stale --trials 4 --resume never")
    assert again.status == TUNED, again.output
    assert {r.config for r in before} <= set(again.asked)
    counts = Counter(row["problem"] for row in again.rows if row["role"] == "search")
    assert counts == {record.problem.slug: 44 for record in before}
    after = [record for record in again.records if record.environment.compiler == "nvcc 99"]
    assert [record.config for record in after] == [record.config for record in before]
    assert "is stale" in Run(tmp_path, "--stale").output, "nothing is, now"


def test_the_table_says_what_was_gained_and_where_it_is(tmp_path):
    """With the interval of the gain, or by how much the default may be beaten; how many were tried;
    the mean over all products; the file.
    """

    def outcome(config, problem):
        best = problem.m == 256 and config != KERNEL.default_config
        return {"seconds": 1e-4 / (2 if best else 1), "times": (1e-4 / (2 if best else 1),) * 9}

    run = Run(tmp_path, "--shapes 256,300 --trials 12", outcome, library=2e-4)
    assert "2.00x (2.00 to 2.00)" in run.output and "the default is best, within 0.0%" in run.output
    assert "tuned / library: geometric mean 2.83 of 2 products" in run.output
    assert f"Saved: 2 records in {tmp_path}/out/recorded-gpu.yaml" in run.output
    assert [line.tried for line in run.tuner.lines] == [12, 12]


def test_a_cpu_compiles_a_batch_for_all_cores_between_measurements(tmp_path, monkeypatch):
    monkeypatch.setattr(tuner, "compilers_beside", lambda device, devices: 3)
    cpu = Device("some CPU", "cpu", vector_bytes=32, vector_registers=16)
    pool, compiled = NoCompiler(), []

    def before(config):
        compiled.append(len(set(pool.keys)))

    monkeypatch.setattr(recorded_run, "NoCompiler", lambda: pool)
    run = Run(tmp_path, "--trials 18 --kernels blocked", device=cpu, before=before)
    assert run.status == TUNED
    searched = compiled[:18]
    steps = [count for count, last in zip(searched, [0, *searched], strict=False) if count != last]
    assert len(steps) == 3, "six at a time"


def test_a_time_is_told_at_the_clock_of_the_best():
    trial = Trial(Problem(8, 8, 8), BEST, "ok", 7e-4, versus=0.5)
    asked = session.Asked(0, BEST, best=(KERNEL.default_config, 2e-4))
    assert asked.at_equal_clocks(trial).seconds == 1e-4
    assert session.Asked(0, BEST).at_equal_clocks(trial) is trial
    alone = Trial(Problem(8, 8, 8), BEST, "ok", 7e-4)
    assert asked.at_equal_clocks(alone) is alone


def test_default_stays_where_nothing_is_faster(tmp_path):
    def outcome(config, problem):
        return 1e-4 if config == KERNEL.default_config else 0.999e-4

    run = Run(tmp_path, "--trials 12", outcome)
    assert run.status == TUNED
    assert run.records[0].config == KERNEL.default_config
    assert "the default" in run.output


def test_failures_of_every_kind_are_recorded(tmp_path):
    kinds = ["compile_failed", "launch_failed", "crashed", "timed_out", "wrong"]

    def outcome(config, problem):
        place = (config.MB + config.NB + config.TA + 3 * config.TB) % 7
        return smooth(config, problem) if place > 4 or config == BEST else kinds[place]

    run = Run(tmp_path, "--trials 80", outcome)
    assert run.status == TUNED
    assert {row["outcome"] for row in run.rows} >= {"ok", *kinds}
    for row in run.rows:
        assert bool(row["seconds"]) == (row["outcome"] in ("ok", "too_slow"))
    ok = {row["config"] for row in run.rows if row["outcome"] == "ok"}
    assert run.records[0].config.slug in ok


def test_a_winner_that_turns_out_wrong_is_not_saved(tmp_path):
    """Fastest in the search, wrong when it is verified once more: the next one is taken."""
    seen = []

    def outcome(config, problem):
        if config.TA == 8:
            seen.append(config)
            return "wrong" if seen.count(config) > 1 else 1e-6
        return smooth(config, problem)

    run = Run(tmp_path, "--trials 40", outcome)
    assert run.status == TUNED
    assert run.records[0].config.TA != 8


def test_nothing_works(tmp_path):
    run = Run(tmp_path, "--trials 3", lambda config, problem: "crashed")
    assert run.status == NOT_ALL
    assert not run.records and "no configuration works" in run.output


def test_simulated_times_are_never_saved(tmp_path):
    simulated = Device("simulator", "simulator", capability=(9, 0), memory_bytes=2**33)
    run = Run(tmp_path, "--trials 5", device=simulated)
    assert run.status == TUNED and run.rows
    assert not (tmp_path / "out").exists()
    assert "nothing will be saved" in run.output


def test_budget_is_shared(tmp_path):
    """No problem takes the time of the others; each gets at least its default measured. Counted,
    not timed: more trials of 0.04 s than these do not fit into 6 s, however slow the machine.
    """

    def slow(config, problem):
        time.sleep(0.04)
        return smooth(config, problem)

    run = Run(tmp_path, "--shapes 256,300,512 --budget 6", slow)
    assert run.status == TUNED and len(run.records) == 3
    searched = Counter(row["problem"] for row in run.rows if row["role"] == "search")
    assert 0 < sum(searched.values()) <= 150 + 3
    for record in run.records:
        assert searched[record.problem.slug] < len(KERNEL.configs(record.problem, GPU)[0])


def test_what_one_problem_teaches_serves_the_next(tmp_path):
    run = Run(tmp_path, "--shapes 2048 --trials 60")
    first, second = sorted(run.records, key=lambda record: record.problem.flops)
    rows = [row for row in run.rows if row["problem"] == second.problem.slug]
    assert [row["config"] for row in rows[:2]] == [
        KERNEL.default_config.slug,
        first.config.slug,
    ]


def test_interrupted_run_goes_on(tmp_path):
    """Ctrl-C saves the best so far; the next run measures nothing again and ends the study."""
    count = []

    def interrupt(config):
        count.append(config)
        if len(count) == 20:
            signal.raise_signal(signal.SIGINT)

    first = Run(tmp_path, "--trials 50", before=interrupt)
    assert first.status == INTERRUPTED and "best so far" in first.output
    before = [row["config"] for row in first.rows if row["role"] == "search"]
    assert 19 <= len(before) <= 21 and len(first.records) == 1
    second = Run(tmp_path, "--trials 50")
    assert second.status == TUNED
    searched = [row["config"] for row in second.rows if row["role"] == "search"]
    assert len(searched) == len(set(searched)) == 50


def test_the_same_command_again_goes_on(tmp_path):
    """With configurations that were not tried yet, by count as by time, until there are none."""
    assert "goes on" not in Run(tmp_path, "--trials 30").output
    for runs in (2, 3):
        again = Run(tmp_path, "--trials 30")
        assert f"goes on after {30 * (runs - 1)} configurations of earlier runs" in again.output
        searched = [row["config"] for row in again.rows if row["role"] == "search"]
        assert len(searched) == len(set(searched)) == 30 * runs
    timed = Run(tmp_path, "--budget 2")
    searched = [row["config"] for row in timed.rows if row["role"] == "search"]
    assert len(searched) == len(set(searched)) > 90
    valid = len(KERNEL.configs(Problem(256, 256, 256), GPU)[0])
    rest = Run(tmp_path, f"--trials {valid}")
    searched = [row["config"] for row in rest.rows if row["role"] == "search"]
    assert len(searched) == len(set(searched)) == valid and rest.status == TUNED
    last = Run(tmp_path, "--trials 5")
    assert last.status == TUNED and last.records == rest.records
    assert len(last.asked) < 30, "the final alone"


def test_second_interrupt_leaves_at_once(tmp_path):
    def interrupt(config):
        signal.raise_signal(signal.SIGINT)

    run = Run(tmp_path, "--trials 50", before=interrupt)
    assert run.status == INTERRUPTED
    assert len(run.asked) <= 4 and not run.records


def test_interrupt_handlers_are_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    Run(tmp_path, "--trials 2")
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_several_devices_share_the_trials(tmp_path):
    run = Run(tmp_path, "--trials 40 --devices 0,1,2")
    assert run.status == TUNED and len(run.workers) == 3
    searched = [row["config"] for row in run.rows if row["role"] == "search"]
    assert len(searched) == len(set(searched)) == 40
    assert min(len(worker.asked) for worker in run.workers) >= 10


def test_products_that_add_to_c_have_a_study_of_their_own(tmp_path):
    """With beta = 1 nothing that was timed with beta = 0 counts, and the other way round; what is
    saved is a record of the same problem.
    """
    first = Run(tmp_path, "--trials 8 --sampler exhaustive")
    second = Run(tmp_path, "--trials 8 --sampler exhaustive --beta 1")
    assert [(r["role"], r["beta"]) for r in second.rows].count(("search", "1")) == 8
    assert {r["beta"] for r in first.rows[:8]} == {"0"}
    assert [r.problem for r in second.records] == [Problem(256, 256, 256)]
    assert all(request.accumulate for request in second.workers[0].requests)
    assert not any(request.accumulate for request in first.workers[0].requests)
    third = Run(tmp_path, "--trials 8 --sampler exhaustive --beta 1")
    added = [r["config"] for r in third.rows if (r["role"], r["beta"]) == ("search", "1")]
    assert len(added) == len(set(added)) == 16, "it goes on with its own"


def test_all_kernels(tmp_path):
    run = Run(tmp_path, "--kernels all --trials 5")
    assert run.status == TUNED
    names = {record.config.kernel_name for record in run.records}
    assert names == {k.name for k in kernels.kernels_for(run.records[0].problem, GPU)}


def test_without_a_gpu_it_says_so(tmp_path):
    cpu = Device("some CPU", "cpu", vector_bytes=32, vector_registers=16)
    run = Run(tmp_path, "--trials 3 --kernels reordered", lambda c, p: 1e-3, device=cpu)
    assert "No NVIDIA GPU" in run.output and run.status == TUNED


def test_half_written_line_of_the_log_is_cut_off(tmp_path):
    path = tmp_path / "trials.csv"
    TrialLog(path).close()
    whole = path.read_text()
    path.write_text(whole + "1,2026-")
    TrialLog(path).close()
    assert path.read_text() == whole
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="other columns"):
        TrialLog(path)
    assert path.read_text() == "a,b\n1,2\n"
