"""Processes that fork after they multiplied: children multiply, too, and parents go on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pymm.backends import open_device

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

#: Four threads, whatever the machine has: a team that a child does not have.
HEAD = """
import os, signal, sys, threading, time, traceback
import numpy as np
import pymm
from pymm.backends.cpu import backend as cpu, device as cpu_device

cpu.usable_cores = lambda: 4
A = np.random.default_rng(0).integers(-8, 9, (200, 200)).astype(np.float32)
EXPECTED = A @ A

def multiply(device="cpu"):
    assert np.array_equal(pymm.matmul(A, A, device=device), EXPECTED)

def forked(action):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "the child hangs"

def forget_the_backend():
    '''The next product imports it, as the first one of a process does.'''
    for name in [name for name in sys.modules if name.startswith("pymm.backends.cpu")]:
        del sys.modules[name]

def teams():
    '''Threads of this process besides Python's.'''
    return len(os.listdir("/proc/self/task")) - threading.active_count()
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    script = HEAD + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", script],
        cwd=ROOT,
        env=dict(os.environ, OPENBLAS_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def stored_file(tmp_path, monkeypatch):
    """A file of the user's for this machine's CPU, for which a product imports YAML."""
    device = open_device("cpu").device
    about = f"name: {device.name!r}, kind: cpu, cores: {device.sms}"
    (tmp_path / f"{device.slug}.yaml").write_text(
        f"schema: 2\ndevice: {{{about}, vector_bytes: {device.vector_bytes}}}\n"
        "environments: {}\nrecords: {}\n"
    )
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path))


def check(body: str) -> None:
    done = run(body)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stdout + done.stderr


def test_a_child_multiplies_and_so_does_its_parent():
    check(
        """
        multiply()
        for _ in range(5):
            assert forked(multiply) == 0, "child"
            multiply()
        print("good")
        """
    )


def test_a_child_of_a_child_multiplies():
    check(
        """
        def parent():
            multiply()
            assert forked(multiply) == 0
            assert forked(lambda: None) == 0
            multiply()
        multiply()
        assert forked(parent) == 0
        assert forked(lambda: forked(multiply) == 0 or os._exit(3)) == 0
        print("good")
        """
    )


def test_a_fork_while_other_threads_multiply():
    """From the main thread and from one of those that multiply."""
    check(
        """
        stop, failures = threading.Event(), []
        def busy(forks_too):
            try:
                while not stop.is_set():
                    multiply()
                    if forks_too:
                        assert forked(multiply) == 0, "a child of a thread"
            except BaseException as error:
                failures.append(error)
                stop.set()
        multiply()
        threads = [threading.Thread(target=busy, args=(i == 0,)) for i in range(3)]
        for thread in threads: thread.start()
        for _ in range(10):
            assert forked(multiply) == 0, "a child of the main thread"
            multiply()
        stop.set()
        for thread in threads: thread.join()
        assert not failures, failures
        print("good")
        """
    )


def test_a_fork_while_another_thread_opens_a_device():
    """What that thread holds is not held for ever in the child."""
    check(
        """
        from pymm import backends
        reached, go_on = threading.Event(), threading.Event()
        def slow(*_):
            reached.set()
            go_on.wait()
            raise backends.NoDevice("slow")
        def opens():
            try:
                backends.open_device("cuda:9")
            except backends.NoDevice:
                pass
        opener = backends._backends._open
        backends._backends._open = slow
        thread = threading.Thread(target=opens)
        thread.start()
        reached.wait()
        backends._backends._open = opener
        assert forked(multiply) == 0
        go_on.set()
        thread.join()
        multiply()
        print("good")
        """
    )


@pytest.mark.parametrize(
    "property", ["kernels.source:Source.key", "core.problem:Problem.numpy_dtype"]
)
def test_a_fork_while_another_thread_computes_what_is_kept(property):
    """Up to Python 3.11 `functools.cached_property` holds a lock of its class meanwhile."""
    check(
        """
        import importlib
        module, _, name = "PROPERTY".partition(":")
        owner, _, name = name.partition(".")
        kept = vars(getattr(importlib.import_module(f"pymm.{module}"), owner))[name]
        reached, go_on = threading.Event(), threading.Event()
        slot = "func" if hasattr(kept, "func") else "_function"
        compute = getattr(kept, slot)
        def slow(instance):
            if threading.current_thread() is thread:
                reached.set()
                go_on.wait()
            return compute(instance)
        setattr(kept, slot, slow)
        thread = threading.Thread(target=multiply)
        thread.start()
        reached.wait()
        assert forked(multiply) == 0
        go_on.set()
        thread.join()
        multiply()
        print("good")
        """.replace("PROPERTY", property)
    )


@pytest.mark.usefixtures("stored_file")
def test_no_fork_while_a_product_imports():
    """The lock of a module that is being imported would stay locked in the child. The first
    product of a process imports what it needs, parts of the standard library among it.
    """
    check(
        """
        from importlib.machinery import PathFinder
        importing, imported = [], []
        class Slow:
            def find_spec(self, name, path=None, target=None):
                spec = PathFinder.find_spec(name, path, target)
                execute = spec.loader.exec_module
                def slow(module):
                    importing.append(name)
                    time.sleep(0.02)
                    execute(module)
                    importing.remove(name)
                    imported.append(name)
                spec.loader.exec_module = slow
                return spec
        def look():
            assert not importing, f"forked while {importing[-1]} was imported"
        forget_the_backend()
        sys.meta_path.insert(0, Slow())
        thread = threading.Thread(target=multiply)
        thread.start()
        while thread.is_alive():
            assert forked(look) == 0
        thread.join()
        assert {"pymm.backends.cpu.device", "yaml"} <= set(imported), imported
        assert forked(multiply) == 0
        print("good")
        """
    )


@pytest.mark.parametrize("module", ["yaml.cyaml", "yaml._yaml", "pymm.backends.cpu.device"])
@pytest.mark.usefixtures("stored_file")
def test_a_handler_that_raises_in_the_middle_of_an_import(module):
    """A package whose import is interrupted is imported again without its submodules."""
    check(
        """
        class Interrupt(RuntimeError):
            pass

        def interrupt(number, frame):
            raise Interrupt

        class Finder:
            reached = False
            def find_spec(self, name, path=None, target=None):
                if name == "MODULE" and not self.reached:
                    self.reached = True
                    os.kill(os.getpid(), signal.SIGUSR1)
                    time.sleep(0.2)

        signal.signal(signal.SIGUSR1, interrupt)
        forget_the_backend()
        finder = Finder()
        sys.meta_path.insert(0, finder)
        try:
            multiply()
        except Interrupt:
            pass
        else:
            raise AssertionError("what the handler raised is lost")
        assert finder.reached
        multiply()
        print("good")
        """.replace("MODULE", module)
    )


def test_pools_of_multiprocessing_that_fork():
    check(
        """
        import multiprocessing
        def work(index):
            multiply()
            return index
        multiply()
        context = multiprocessing.get_context("fork")
        with context.Pool(3) as pool:
            assert pool.map_async(work, range(12)).get(60) == list(range(12))
            multiply()
        print("good")
        """
    )


def test_a_plan_and_a_call_made_before_the_fork_work_in_the_child():
    check(
        """
        out = np.empty_like(A)
        plan = pymm.plan(A, A, out=out, device="cpu")
        plan()
        def child():
            out[...] = 0
            assert np.array_equal(plan(), EXPECTED)
            out[...] = 0
            assert np.array_equal(pymm.matmul(A, A, out, device="cpu"), EXPECTED)
        pymm.matmul(A, A, out, device="cpu")
        assert forked(child) == 0
        out[...] = 0
        assert np.array_equal(plan(), EXPECTED)
        print("good")
        """
    )


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_parent_and_child_have_their_threads_again_afterwards():
    check(
        """
        multiply()
        before = teams()
        def child():
            assert teams() == 0
            multiply()
            assert teams() == before, (teams(), before)
        assert forked(child) == 0
        multiply()
        assert before > 0 and teams() == before, (teams(), before)
        print("good")
        """
    )


@pytest.mark.parametrize("context", ["", "import pycuda.autoprimaryctx"], ids=["pymm's", "own"])
def test_after_a_product_on_a_gpu_a_child_is_told_that_cuda_does_not_survive_a_fork(context):
    """Calls of every kind; NumPy products on the CPU work there, and the parent goes on."""
    check(
        """
        from pymm.backends import open_device
        open_device("cuda")
        CONTEXT
        backend = open_device("cuda")
        out = backend.empty(A.shape, A.dtype)
        x = backend.empty(A.shape, A.dtype)
        rows = A.shape[1] * A.itemsize
        backend.copy_in(A, int(x.gpudata), rows)
        plans = [pymm.plan(x, x, out=out), pymm.plan(A, A, device="cuda")]
        calls = [
            lambda: pymm.matmul(A, A, device="cuda"),
            lambda: pymm.matmul(A, A),
            lambda: pymm.matmul(x, x),
            lambda: pymm.matmul(x, x, out),
            lambda: pymm.explain(A, A, device="cuda"),
            lambda: open_device("cuda"),
            lambda: backend.empty(A.shape, A.dtype),
            *plans,
        ]
        for _ in range(4):  # from the third call on as a graph
            for call in calls: call()
        def child():
            multiply()
            for number, call in enumerate(calls):
                try:
                    call()
                except pymm.LaunchFailed as error:
                    assert error.sticky and "'spawn'" in str(error), error
                else:
                    raise AssertionError(f"call {number} went through")
            multiply()
        assert forked(child) == 0
        for call in calls: call()
        multiply()
        result = np.empty_like(A)
        backend.copy_out(int(out.gpudata), rows, result)
        assert np.array_equal(result, EXPECTED)
        print("good")
        """.replace("CONTEXT", context)
    )
