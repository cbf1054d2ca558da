"""Several tuners on one storage: nothing is measured twice, what a dead one has begun is measured
by another, and each of them can finish and save.
"""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_run import Run, numbered, smooth

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure.workbench import Trial
from pymm.tune import study as studies
from pymm.tune.options import parse
from pymm.tune.storage import open_shared, open_study, parse_storage, shown
from pymm.tune.study import LASTING, Company, Search
from pymm.tune.trial_log import read_trials
from pymm.tune.tuner import BAD_OPTIONS, NOT_ALL, TUNED

PROBLEM = Problem(256, 256, 256)
DEVICE = Device("recorder", "cuda", capability=(9, 0), memory_bytes=2**33)
CONFIGS = find_kernel("register_tile").configs(PROBLEM, DEVICE)[0][::40][:24]


def member(study, seed=0, sampler="random", configs=CONFIGS):
    """One tuner of a study."""
    study = optuna.load_study(study_name=study.study_name, storage=study._storage)
    return Search(study, configs, sampler, seed, Company(study))


def ok(config):
    return Trial(PROBLEM, config, "ok", 1e-3)


def urls(tmp_path):
    return [f"{tmp_path}/all.journal", f"sqlite:///{tmp_path}/all.db"]


# Nothing twice


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_tuners_do_nothing_is_measured_twice(data):
    """Three tuners ask, tell, give up and die in any order, and see of each other what the storage
    says. In the end every configuration was measured, once by those who lived.
    """
    study, told, dead = optuna.create_study(), [], set()
    sampler = data.draw(st.sampled_from(["random", "exhaustive"]))

    def joins(seed):
        tuner = member(study, seed, sampler)
        tuner.company.lives = lambda owner, number: owner not in dead
        return tuner

    tuners = [joins(seed) for seed in range(3)]
    if data.draw(st.booleans()):
        for tuner in tuners[:2]:
            tuner.enqueue(CONFIGS[:3])
    under_way = [[], [], []]
    for _ in range(data.draw(st.integers(0, 60))):
        who = data.draw(st.integers(0, 2))
        act = data.draw(st.sampled_from(["ask", "ask", "ask", "tell", "forget", "die"]))
        tuner, own = tuners[who], under_way[who]
        if act == "ask" and (asked := tuner.ask()):
            mine = {config for other in under_way for _, config in other}
            assert asked[1] not in mine | set(told)
            own.append(asked)
        elif act == "tell" and own:
            number, config = own.pop(0)
            tuner.tell(number, ok(config))
            told.append(config)
        elif act == "forget" and own:
            tuner.forget(*own.pop())
        elif act == "die":
            dead.add(tuner.company.me)
            tuners[who], under_way[who] = joins(who), []
    for tuner, own in zip(tuners, under_way, strict=True):
        for number, config in own:
            tuner.tell(number, ok(config))
            told.append(config)
    while asked := tuners[0].ask():
        tuners[0].tell(asked[0], ok(asked[1]))
        told.append(asked[1])
    assert Counter(told) == Counter(CONFIGS)
    assert len(member(study)) == len(CONFIGS)


@pytest.mark.parametrize("place", [0, 1], ids=["journal", "sqlite"])
@pytest.mark.parametrize("sampler", ["exhaustive", "random"])
def test_tuners_at_the_same_time(tmp_path, place, sampler):
    """Four at once, each with a connection of its own; the exhaustive ones want the same every
    time.
    """
    url, told, failures = urls(tmp_path)[place], [], []
    with open_shared(url) as storage:
        open_study(storage, "k", {})

    def work(seed):
        try:
            with open_shared(url) as storage:
                study = open_study(storage, "k", {})
                search = Search(study, CONFIGS, sampler, seed, Company(study))
                search.enqueue(CONFIGS[:4])
                while asked := search.ask(len(CONFIGS) - 1):
                    told.append(asked[1])
                    search.tell(asked[0], ok(asked[1]))
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert set(Counter(told).values()) == {1}
    assert len(told) == len(CONFIGS) - 1, "the limit is that of all of them together"


# Who lives


def test_what_a_dead_process_has_begun_is_asked_for_at_once():
    study = optuna.create_study()
    code = "import os; print(os.getpid())"
    gone = int(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
    dead = member(study, sampler="exhaustive")
    dead.company.me = f"{dead.company.me.partition(':')[0]}:{gone}:dead"
    begun = [dead.ask()[1] for _ in range(3)]
    living = member(study)
    assert [living.ask()[1] for _ in range(3)] == begun
    living_too = member(study)
    assert living_too.ask()[1] not in begun


def test_one_of_another_machine_is_dead_when_it_is_silent(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(studies.time, "monotonic", lambda: now[0])
    study = optuna.create_study()
    other = member(study, sampler="exhaustive")
    other.company.me = "elsewhere:1:other"
    other.attend()
    number, config = other.ask()
    here = member(study, sampler="exhaustive")
    for _ in range(40):  # it lives, however long it measures
        now[0] += studies.SILENT / 4
        other.attend()
        assert here.ask(1) is None
    now[0] += studies.SILENT / 2
    assert here.ask(1) is None
    now[0] += studies.SILENT
    asked = here.ask(1)
    assert asked is not None and asked[1] == config
    other.tell(number, ok(config))  # it was only slow: what it says comes too late
    here.tell(asked[0], ok(config))
    assert len(member(study)) == 1


def test_failures_of_others_count_while_the_run_lasts():
    """What crashed with another tuner is not tried again now, but by the next run."""
    study = optuna.create_study()
    one, other = member(study, 1, "exhaustive"), member(study, 2, "exhaustive")
    number, config = one.ask()
    one.tell(number, Trial(PROBLEM, config, "crashed"))
    assert "crashed" not in LASTING and other.ask()[1] != config
    assert member(study, 3, "exhaustive").ask()[1] == config


# The command


def shared_run(folder, url, arguments, device, **details):
    return Run(folder, f"{arguments} --storage {url}", device=device, **details)


@pytest.mark.parametrize("place", [0, 1], ids=["journal", "sqlite"])
def test_two_tuners_share_a_study(tmp_path, place):
    """Both finish and save; together they have made the trials of one."""
    url, runs = urls(tmp_path)[place], {}

    def work(name):
        runs[name] = shared_run(
            tmp_path / name,
            url,
            f"--trials 40 --devices {name}",
            numbered,
            before=lambda config: time.sleep(0.01),
        )

    threads = [threading.Thread(target=work, args=(name,)) for name in "01"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: run.status for name, run in runs.items()} == {"0": TUNED, "1": TUNED}
    rows = [row for run in runs.values() for row in run.rows if row["role"] == "search"]
    counts = Counter(row["config"] for row in rows)
    assert set(counts.values()) == {1} and len(counts) == 40
    assert len({row["measured_on"] for row in rows}) == 2
    assert all(len(run.records) == 1 for run in runs.values())
    with open_shared(url) as storage:
        (name,) = optuna.get_all_study_names(storage)
    assert name.startswith("recorded-gpu/f32-NN-256x256x256/register_tile@")


def test_another_model_has_another_study(tmp_path):
    url = urls(tmp_path)[1]
    other = Device(**numbered(0).__dict__ | {"name": "another GPU"})
    for folder, device in (("a", numbered), ("b", other)):
        assert shared_run(tmp_path / folder, url, "--trials 5", device).status == TUNED
    with open_shared(url) as storage:
        assert len(optuna.get_all_study_names(storage)) == 2


@pytest.mark.parametrize("place", [0, 1], ids=["journal", "sqlite"])
def test_a_tuner_that_is_killed(tmp_path, place):
    """`kill -9` of the first: the second goes on where it was, on the same storage."""
    url = urls(tmp_path)[place]

    def command(folder):
        where = f"--storage {url} --output {tmp_path}/out --csv {tmp_path}/{folder}.csv"
        options = f"--shapes 33x20x17 --dtypes f32 --sampler exhaustive --trials 7 {where}"
        return [sys.executable, "-m", "pymm.tune", *options.split(), "--devices", "cpu:1"]

    def rows(folder):
        path = tmp_path / f"{folder}.csv"
        found = list(read_trials(path)) if path.exists() else []
        return [row for row in found if row["role"] == "search"]

    first = subprocess.Popen(command("a"), stdout=subprocess.DEVNULL)
    with first:
        deadline = time.monotonic() + 120
        while len(rows("a")) < 2 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
    before = [row["config"] for row in rows("a")]
    assert len(before) >= 2
    done = subprocess.run(command("b"), capture_output=True, text=True, timeout=300)
    assert done.returncode in (TUNED, NOT_ALL), done.stdout + done.stderr
    after = [row["config"] for row in rows("b")]
    twice = set(before) & set(after)
    assert len(twice) <= 1, "at most the one whose end the first could not tell any more"
    assert len(set(before) | set(after)) == 7


# What is refused


@pytest.mark.parametrize(
    "url, says",
    [
        ("grpc://nowhere", "write grpc://host:port"),
        ("grpc://host:port", "write grpc://host:port"),
        ("file name://x", "no URL of a database"),
    ],
)
def test_a_url_that_cannot_be_one(url, says, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--storage", url])
    assert ended.value.code == BAD_OPTIONS and says in capsys.readouterr().err


@pytest.mark.parametrize(
    "url, says",
    [
        ("sqlite:////no/such/folder/x.db", "unable to open database file"),
        ("nosuchdatabase://host/name", "nosuchdatabase"),
        ("nosuchdatabase://me:secret@host/name", "nosuchdatabase"),
    ],
)
def test_what_cannot_be_opened_is_refused_before_anything_is_done(tmp_path, url, says):
    run = shared_run(tmp_path, url, "--trials 5", numbered)
    assert run.status == BAD_OPTIONS and says in run.output and "secret" not in run.output
    assert len(run.output.splitlines()) == 1
    assert not run.workers and not list(tmp_path.iterdir())


def test_a_file_of_somebody_else_is_left_alone(tmp_path):
    path = tmp_path / "mine.journal"
    path.write_text("dear diary\nnot a line of it is yours\n")
    run = shared_run(tmp_path / "run", path, "--trials 5", numbered)
    assert run.status == BAD_OPTIONS and "is no journal of studies" in run.output
    assert path.read_text() == "dear diary\nnot a line of it is yours\n" and not run.workers


def test_passwords_are_not_shown():
    assert shown("postgresql://me:secret@host/name") == "postgresql://me:***@host/name"
    assert parse_storage("a/folder") == (Path("a/folder"), "")
    assert parse_storage("a/file.journal") == (None, "a/file.journal")
    assert parse_storage(None) == (None, "")


def test_a_storage_that_is_lost_in_the_middle(tmp_path):
    """One message; what was measured is in the table of trials."""
    url, count = urls(tmp_path)[1], []

    def outcome(config, problem):
        count.append(config)
        if len(count) == 10:
            with sqlite3.connect(f"{tmp_path}/all.db") as database:
                database.execute("DROP TABLE trials")
            database.close()
        return smooth(config, problem)

    run = shared_run(tmp_path / "run", url, "--trials 40", numbered, outcome=outcome)
    assert run.status == NOT_ALL
    (said,) = [line for line in run.output.splitlines() if "failed:" in line]
    assert said.startswith(f"the storage {url} failed:") and "no such table" in said
    assert len(run.rows) == 10 and not math.isnan(float(run.rows[-1]["seconds"] or "nan"))
