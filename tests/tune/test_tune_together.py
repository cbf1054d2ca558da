"""Tuners beside each other, after each other and after another pymm: nothing measures at the same
time, nothing is dropped, nothing that a user has is lost.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

from recorded import RecordedWorker
from recorded_run import GPU, Run
from tuned import record

from pymm.core.files import locked
from pymm.core.paths import state_directory
from pymm.measure import results
from pymm.selection import store
from pymm.selection.records import foreign_because
from pymm.tune import comparison, session, tuner
from pymm.tune.tuner import BAD_OPTIONS, NOT_ALL, TUNED


def device_lock():
    folder = state_directory() / "devices"
    folder.mkdir(exist_ok=True)
    return locked(folder / "cuda-0.lock")


# One device, one journal


def test_two_tuners_never_measure_at_once(tmp_path):
    """Both tune all that they were asked to."""
    measuring, runs = threading.Semaphore(1), {}

    def before(config):
        assert measuring.acquire(blocking=False), "the other one is measuring"
        time.sleep(0.002)
        measuring.release()

    def work(name):
        runs[name] = Run(tmp_path / name, "--shapes 256,300 --trials 15", before=before)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: run.status for name, run in runs.items()} == {"a": TUNED, "b": TUNED}
    assert all(len(run.records) == 2 for run in runs.values())
    assert any("waiting for it" in run.output for run in runs.values())


def test_a_device_that_is_never_free_is_said(tmp_path):
    with device_lock():
        run = Run(tmp_path, "--shapes 256,300 --budget 0.5")
    assert run.status == NOT_ALL and not run.asked
    assert run.output.count("another run measured on this device until the time was over") == 2
    assert Run(tmp_path, "--trials 3").status == TUNED


def test_what_another_tuner_works_on_comes_at_the_end(tmp_path):
    """Its journal is free again only when another problem is being measured."""
    journal = tmp_path / "state" / GPU.slug / "f32-NN-256x256x256.tuner"
    journal.parent.mkdir(parents=True)
    with ExitStack() as other:
        other.enter_context(locked(journal))
        run = Run(tmp_path, "--shapes 256,300 --trials 5", before=lambda config: other.close())
    assert run.status == TUNED and len(run.records) == 2
    assert "f32-NN-256x256x256 is tuned at the end of this run" in run.output
    problems = [row["problem"] for row in run.rows]
    assert problems[0] == "f32-NN-300x300x300" and problems[-1] == "f32-NN-256x256x256"


def test_what_stays_busy_is_said(tmp_path):
    journal = tmp_path / "state" / GPU.slug / "f32-NN-256x256x256.tuner"
    journal.parent.mkdir(parents=True)
    with locked(journal):
        run = Run(tmp_path, "--budget 0.5")
    assert run.status == NOT_ALL and not run.asked
    assert "not tuned, another tuner works with" in run.output


# Files


def test_an_output_that_cannot_be_written_is_refused_before_the_first_trial(tmp_path):
    (tmp_path / "out").write_text("a file")
    run = Run(tmp_path, "--trials 5")
    assert run.status == BAD_OPTIONS and not run.asked
    assert f"cannot be written to {tmp_path / 'out'} (" in run.output and "--output" in run.output
    assert not (tmp_path / "state").exists() and not (tmp_path / "trials.csv").exists()


def test_a_folder_where_no_file_can_be_made_is_refused(tmp_path, monkeypatch):
    """Also where the lock file is there already: a disk that became read-only."""
    Run(tmp_path, "--trials 2")

    def read_only(**options):
        raise OSError(30, "Read-only file system", str(options["dir"]))

    monkeypatch.setattr(store.tempfile, "TemporaryFile", read_only)
    run = Run(tmp_path, "--trials 5")
    assert run.status == BAD_OPTIONS and not run.asked
    assert "(Read-only file system): name another folder" in run.output


def test_trials_of_another_pymm_are_kept_beside_the_new(tmp_path):
    older = "schema,time,device,problem,kernel,config,seconds\n1,now,x,p,k,c,1e-3\n"
    path = tmp_path / "trials.csv"
    for name in ("trials.csv.older", "trials.csv.older-1"):
        path.write_text(older)
        run = Run(tmp_path, "--trials 2 --resume never")
        assert run.status == TUNED and tuple(run.rows[0]) == results.TRIALS.columns
        assert (tmp_path / name).read_text() == older
        assert f"kept as {tmp_path / name}, a new one is begun" in run.output
    path.write_text("mine,not yours\n")
    run = Run(tmp_path, "--trials 2")
    assert run.status == BAD_OPTIONS and path.read_text() == "mine,not yours\n"


def test_a_damaged_journal_is_named(tmp_path):
    Run(tmp_path, "--trials 3")
    (journal,) = (tmp_path / "state").rglob("*.journal")
    before = b"{}\n" + journal.read_bytes()
    journal.write_bytes(before)
    run = Run(tmp_path, "--trials 3")
    assert run.status == TUNED
    assert f"the journal {journal} cannot be used" in run.output
    assert journal.with_name(journal.name + ".damaged").read_bytes() == before


# Records of another pymm


def test_records_of_another_pymm_are_skipped_and_kept(tmp_path):
    """Said once for each of them, with file and reason; a run, a search and `--stale` go on."""
    mine = store.put([record(256, 256, 256, "register_tile")], GPU, tmp_path / "out")
    text = mine.read_text()
    entry = text[text.index("      - kernel: register_tile") :]
    unknown = entry.replace("register_tile", "from_the_future")
    lacking = "      300x256x256:\n" + entry.replace("MB: ", "OLD: ")
    mine.write_text(text + unknown + lacking)
    kept = {r for r in store.load_file(GPU, mine) if foreign_because(r)}
    assert len(kept) == 2
    for arguments in ("--trials 5", "--shapes 300 --kernels all --trials 2", "--stale --trials 2"):
        run = Run(tmp_path, arguments)
        assert run.status == TUNED, run.output
        for config, why in (
            ("from_the_future-MB", "no kernel 'from_the_future'"),
            ("register_tile-OLD", "register_tile takes MB, NB"),
        ):
            (said,) = [x for x in run.output.splitlines() if f" {config}" in x]
            assert said.startswith(f"{mine}: f32-NN-") and "is skipped" in said and why in said
        assert kept <= set(store.load_file(GPU, mine))


# Time


class Slow(RecordedWorker):
    """Takes its time for each request, and must not be stopped while it does."""

    seconds, cut, _ready = 0.2, 0, 0.0

    def begin(self, request, limit):
        super().begin(request, limit)
        self._ready = time.monotonic() + self.seconds

    def result(self, timeout=0.0):
        if time.monotonic() < self._ready:
            time.sleep(0.01)
            return None
        return super().result(timeout)

    def stop(self):
        self.cut += self._reply is not None
        super().stop()


def test_no_worker_is_stopped_in_the_middle(tmp_path, monkeypatch):
    """The run's time is over while a configuration is being measured: it is measured to the end."""
    late = []
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + 1000 * (len(late) >= 10), sleep=time.sleep
    )
    for module in (tuner, session, comparison):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr("recorded_run.RecordedWorker", Slow)
    run = Run(tmp_path, "--budget 100", before=late.append)
    assert run.status == TUNED, run.output
    assert [worker.cut for worker in run.workers] == [0]
    assert sum(row["role"] == "search" for row in run.rows) == 10


def test_what_would_not_end_in_time_is_not_begun(tmp_path, monkeypatch):
    """By the clock, not by what the kernel takes: each request takes half a minute of it."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    for module in (tuner, session, comparison):
        monkeypatch.setattr(module, "time", clock)

    class Long(RecordedWorker):
        def result(self, timeout=0.0):
            now[0] += 30.0
            return super().result(timeout)

    monkeypatch.setattr("recorded_run.RecordedWorker", Long)
    run = Run(tmp_path, "--budget 200")
    assert run.status == TUNED and now[0] <= 200, now


def test_a_worker_that_hangs_is_stopped_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("pymm.tune.session.GRACE", 0.2)
    monkeypatch.setattr("recorded_run.RecordedWorker", Slow)
    monkeypatch.setattr(Slow, "seconds", 3600.0)
    run = Run(tmp_path, "--budget 1")
    assert run.status == NOT_ALL and [worker.cut for worker in run.workers] == [1]
    assert "no configuration was tried in time" in run.output
