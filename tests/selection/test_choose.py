"""Which configuration a call gets; that a change of the store is noticed; what is remembered."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from host_device import HostDevice
from products import integers

import pymm
from pymm.core.paths import config_directory
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import kernel_digest
from pymm.runtime import launch_cache
from pymm.selection import choose, store
from pymm.selection.records import Environment, Record

A, B = integers((20, 30), np.float32), integers((30, 40), np.float32)


@pytest.fixture
def device():
    pymm.reload()
    yield HostDevice("cpu")
    pymm.reload()


def tune(device, m=20, n=40, k=30, **more):
    """Put a record of the default configuration with `more` changed into the user's file."""
    kernel = find_kernel("blocked", "cpu")
    config = kernel.config({**kernel.default, **more})
    environment = Environment.of(device.device, device.toolchain)
    digest = kernel_digest("cpu", kernel.file)
    record = Record(Problem(m, n, k), config, 1e-5, 0.01, "2026-11-21", environment, digest)
    store.put([record], device.device, config_directory())


def chosen(device, **options):
    return pymm.explain(A, B, device=device, **options)


def test_a_tuned_configuration_is_chosen_and_says_so(device):
    default = find_kernel("blocked", "cpu").default_config
    assert chosen(device).config == default and "default" in chosen(device).reason
    tune(device, KB=128)
    pymm.reload()
    assert chosen(device).config.KB == 128 and "tuned for this problem" in chosen(device).reason
    assert pymm.plan(A, B, device=device).choice.record.seconds == 1e-5
    assert chosen(device, kernel="reordered").config.kernel_name == "reordered"
    own = default.kernel.config(dict(default.as_dict(), NB=512))
    for config in (own, own.slug):
        told = chosen(device, config=config)
        assert told.config == own and told.reason == "given by the caller"


def test_what_another_process_tunes_is_noticed_within_a_second(device, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(choose.time, "monotonic", lambda: now[0])
    pymm.reload()
    out = np.empty((20, 40), np.float32)
    for _ in range(2):
        pymm.matmul(A, B, out, device=device)
    before = [entry[1] for entry in device.log if entry[0] == "load"]
    tune(device, KB=128)
    now[0] += choose.LOOK_AGAIN / 2
    pymm.matmul(A, B, out, device=device)
    assert [entry[1] for entry in device.log if entry[0] == "load"] == before
    now[0] += choose.LOOK_AGAIN
    pymm.matmul(A, B, out, device=device)
    loaded = [entry[1] for entry in device.log if entry[0] == "load"]
    assert len(loaded) == 2 and "KB128" in loaded[1]
    os.unlink(config_directory() / f"{device.device.slug}.yaml")
    now[0] += 2 * choose.LOOK_AGAIN
    assert "default" in chosen(device).reason


def test_configs_lists_records_and_why_they_are_stale(device):
    tune(device)
    (tuned,) = pymm.configs(device)
    assert tuned.record.problem == Problem(20, 40, 30) and tuned.stale == ""
    device.compiler = type("Other", (type(device.compiler),), {"toolchain": "none 2.0"})()
    (tuned,) = pymm.configs(device)
    assert "none 1.0" in tuned.stale and "none 2.0" in tuned.stale


def test_a_directory_that_cannot_be_made_is_no_obstacle(device, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path / "file" / "below"))
    np.testing.assert_array_equal(pymm.matmul(A, B, device=device), A @ B)


def test_a_call_made_before_is_only_launched(device, monkeypatch):
    out = np.empty((20, 40), np.float32)
    pymm.matmul(A, B, out, alpha=2, device=device)
    monkeypatch.setattr("pymm.api.prepare", None)
    device.log.clear()
    out[...] = np.nan
    assert pymm.matmul(A, B, out, alpha=2, device=device) is out
    np.testing.assert_array_equal(out, 2 * A @ B)
    assert [entry[0] for entry in device.log] == ["launch"]
    with pytest.raises(TypeError, match="not callable"):  # another factor is another call
        pymm.matmul(A, B, out, alpha=3, device=device)


def test_what_was_refused_before_is_refused_again(device):
    out = np.empty((20, 40), np.float32)
    pymm.matmul(A, B, out, device=device)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pymm.matmul(A, B, out, device=device)
    out.flags.writeable = True
    with pytest.raises(TypeError, match="alpha is a complex"):
        pymm.matmul(A, B, out, alpha=1 + 0j, device=device)
    with pytest.raises(ValueError, match="out has shape"):
        pymm.matmul(A, B, out.reshape(40, 20), device=device)
    for _ in range(2):  # a dict is nothing that a call can be recognised by
        config = dict(MB=16, NB=64, KB=16)
        pymm.matmul(A, B, out, kernel="reordered", config=config, device=device)


def test_calls_kept_are_bounded(device, monkeypatch):
    monkeypatch.setattr(launch_cache, "MAX_LAUNCHES", 8)
    out = np.empty((20, 40), np.float32)
    for alpha in range(1, 30):
        pymm.matmul(A, B, out, alpha=alpha, device=device)
        assert len(launch_cache.cache) <= 8
    np.testing.assert_array_equal(out, 29 * A @ B)


def busy(stop, action, failures):
    """A thread that repeats `action` until `stop`."""

    def run():
        try:
            while not stop.is_set():
                action()
        except Exception as error:
            failures.append(error)
            stop.set()

    return threading.Thread(target=run)


def test_files_may_be_reloaded_while_other_threads_multiply(device, monkeypatch):
    """`reload` and `configs` beside calls that are new and known; none may see half a change. The
    file system is slow, which lets other threads in.
    """
    stamp = choose._stamp
    monkeypatch.setattr(choose, "_stamp", lambda path: (time.sleep(1e-5), stamp(path))[1])
    stop, failures, devices = threading.Event(), [], [device, HostDevice("cpu", sms=2)]
    reloaders = [pymm.reload, lambda: pymm.configs(device)]
    threads = [busy(stop, action, failures) for action in reloaders]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in threads:
            thread.start()
        for call in range(1000):
            if stop.is_set():
                break
            rows = 1 + call % 20
            result = pymm.matmul(A[:rows], B, device=devices[call % 2])
            assert call % 500 or np.array_equal(result, A[:rows] @ B)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert not failures


def test_a_choice_made_from_files_of_before_is_not_kept(device, monkeypatch):
    """A file changes and is reloaded while a choice is being made from what it held before."""
    select = choose.select

    def slow(*given):
        found = select(*given)
        if not changed:
            changed.append(True)
            tune(device, KB=128)
            pymm.reload()
        return found

    changed = []
    monkeypatch.setattr(choose, "select", slow)
    assert "default" in chosen(device).reason
    assert chosen(device).config.KB == 128


@pytest.fixture
def thawed():
    yield
    pymm.freeze(False)


def test_a_frozen_process_keeps_its_configurations(device, thawed, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(choose.time, "monotonic", lambda: now[0])
    tune(device, KB=128)
    assert chosen(device).config.KB == 128
    pymm.freeze()
    tune(device, KB=192)
    now[0] += 10 * choose.LOOK_AGAIN
    assert chosen(device).config.KB == 128
    wider = pymm.explain(A[:19], B, device=device)  # a problem that was not met before
    assert wider.config.KB == 128 and "20x40x30" in wider.reason
    pymm.reload()  # on demand the files are read again
    assert chosen(device).config.KB == 192
    tune(device, KB=256)
    now[0] += 10 * choose.LOOK_AGAIN
    assert chosen(device).config.KB == 192
    pymm.freeze(False)
    assert chosen(device).config.KB == 256


@pytest.mark.parametrize(("setting", "frozen"), [("1", True), ("0", False), ("", False)])
def test_the_environment_freezes_a_process_from_its_start(setting, frozen):
    code = "from pymm.selection import choose; print(choose._watch.frozen)"
    environment = dict(os.environ, PYMM_FREEZE=setting)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(frozen)
