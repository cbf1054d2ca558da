"""Forks, threads, signals and `kill -9` at random times, many runs of each, on the CPU.

    python tools/torture.py --runs 200              all four
    python tools/torture.py --kinds fork --runs 20  one of them
    python tools/torture.py --one signals --seed 7  run number 7 again, here and now

Every run is a process of its own with directories of its own; everything random in it comes from
its seed. Counted are runs that hang (past --deadline), have a wrong result, lose a record or a row,
leave files or processes behind, or fail in any other way. The exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

#: Exit statuses of a run besides 0 and Python's own 1.
WRONG, LOST, LEFT = 3, 4, 5
NAMES = {WRONG: "wrong", LOST: "lost", LEFT: "left"}

#: Names of files and folders that stay. Lock files do, and what pymm keeps.
STAY = re.compile(
    r"[0-9a-f]{40}|rates-[0-9a-f]+|.*\.(lock|yaml|journal|tuner|csv)|report\.(html|json|md)"
    r"|glance\.svg|sha256|.*\.(so|cubin)|cpu"
)

#: The variable by which processes of a run are known.
MARK = "PYMM_TORTURE_RUN"


class Found(Exception):
    """What a run was looking for: `status` says which kind of fault."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class Products:
    """Products with known results, of random shapes and types."""

    def __init__(self, draw: random.Random, largest: int = 160, count: int = 8) -> None:
        rng = np.random.default_rng(draw.randrange(2**32))
        self._known = []
        for _ in range(count):
            m, n, k = (draw.randint(1, largest) for _ in range(3))
            dtype = draw.choice([np.float32, np.float64])
            a, b = (rng.integers(-8, 9, shape).astype(dtype) for shape in ((m, k), (k, n)))
            self._known.append((a, b, a @ b, draw.choice(["cpu", "cpu", "cpu:1"])))

    def multiply(self, draw: random.Random) -> None:
        import pymm

        a, b, expected, device = draw.choice(self._known)
        out = np.full(expected.shape, np.nan, a.dtype) if draw.random() < 0.5 else None
        result = pymm.matmul(a, b, out, device=device)
        if not np.array_equal(result, expected):
            raise Found(WRONG, f"{a.shape} x {b.shape} {a.dtype} on {device} in {os.getpid()}")


def in_child(action: Callable[[], None]) -> None:
    """Run `action` in a forked child and wait for it; its fault is this process's."""
    child = os.fork()
    if child == 0:
        os._exit(status_of(action))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise Found(status if status in NAMES else 1, f"child {child} ended with {status}")


def status_of(action: Callable[[], None]) -> int:
    try:
        action()
    except Found as found:
        print(f"{NAMES.get(found.status, 'failed')}: {found}", file=sys.stderr, flush=True)
        return found.status
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def together(actions: list[Callable[[], None]]) -> None:
    """Each in a thread; the first fault is raised when all have ended."""
    faults: list[BaseException] = []

    def run(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


# What a run does


def fork(draw: random.Random) -> None:
    """Threads that multiply and fork, children that do the same, once more."""

    def busy(seed: int, generations: int) -> None:
        own = random.Random(seed)
        for _ in range(own.randint(2, 6)):
            products.multiply(own)
            if generations and own.random() < 0.4:
                in_child(lambda: family(own, generations - 1))

    def family(own: random.Random, generations: int) -> None:
        seeds = [own.randrange(2**32) for _ in range(own.randint(1, 3))]
        together([lambda seed=seed: busy(seed, generations) for seed in seeds])
        products.multiply(own)

    products = Products(draw)
    if draw.random() < 0.8:
        products.multiply(draw)
    family(draw, 2)


def threads(draw: random.Random) -> None:
    """Threads that multiply beside others that tune, reload and freeze. No record is lost."""
    import pymm
    from pymm.backends import open_device
    from pymm.core.paths import config_directory
    from pymm.core.problem import Problem
    from pymm.kernels import find_kernel
    from pymm.kernels.source import kernel_digest
    from pymm.selection import store
    from pymm.selection.records import Environment, Record

    products, backend = Products(draw), open_device("cpu")
    config = find_kernel("blocked", "cpu").default_for(Problem(8, 8, 8), backend.device)
    environment = Environment.of(backend.device, backend.toolchain)
    digest = kernel_digest("cpu", "blocked.cpp")

    def multiply(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(60):
            products.multiply(own)

    def disturb(seed: int) -> None:
        own = random.Random(seed)
        actions = [pymm.reload, lambda: pymm.configs("cpu"), pymm.freeze]
        actions += [lambda: pymm.freeze(False), lambda: time.sleep(0.001)]
        for _ in range(60):
            own.choice(actions)()

    def tune(start: int) -> None:
        for m in range(start, start + 5):
            record = Record(Problem(m, 8, 8), config, 1e-5, 0.01, "2026-11-22", environment, digest)
            store.put([record], backend.device, config_directory())

    seeds = [draw.randrange(2**32) for _ in range(draw.randint(3, 6))]
    tuners = [lambda i=i: tune(1 + 5 * i) for i in range(2)]
    together(
        [
            *(lambda seed=seed: multiply(seed) for seed in seeds),
            lambda: disturb(seeds[0]),
            lambda: disturb(seeds[1]),
            *tuners,
        ]
    )
    pymm.freeze(False)
    table = store.read(store.record_files(backend.device, config_directory())[0])
    found = {record.problem.m for record in table.records if record.problem.n == 8}
    if not found >= set(range(1, 11)):
        raise Found(LOST, f"records of m in {sorted(set(range(1, 11)) - found)}")


def signals(draw: random.Random) -> None:
    """Interrupts at random times in short and long products, some of them with forks. What is
    computed afterwards is right.
    """
    import pymm

    class Interrupt(Exception):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    products = Products(draw)
    n = draw.choice([300, 700, 1500])
    a = np.random.default_rng(0).integers(-8, 9, (n, n)).astype(np.float32)
    plan, expected = pymm.plan(a, a, device=draw.choice(["cpu", "cpu:1"])), a @ a
    for _ in range(12):
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 0.1))
            while True:
                if draw.random() < 0.5:
                    plan()
                else:
                    products.multiply(draw)
                os.kill(os.getpid(), signal.SIGUSR1)
        except Interrupt:
            pass
        products.multiply(draw)
        if not np.array_equal(plan(), expected):
            raise Found(WRONG, f"{n} x {n} after an interrupt")
    in_child(lambda: products.multiply(draw))


def kill(draw: random.Random) -> None:
    """A tuner killed at random times and started again: it goes on, and what was there stays."""
    state, config = (Path(os.environ[f"PYMM_{kind}_DIR"]) for kind in ("STATE", "CONFIG"))
    sizes = sorted({draw.randint(8, 96) for _ in range(2)})
    command = [
        sys.executable,
        "-m",
        "pymm.tune",
        "--devices",
        "cpu:1",
        "--dtypes",
        "f32",
        "--shapes",
        ",".join(map(str, sizes)),
        "--trials",
        "3",
        "--checks",
        "quick",
    ]
    before: list[list[str]] = []
    for _ in range(draw.randint(1, 2)):
        tuner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            tuner.wait(draw.uniform(0.2, float(os.environ.get("PYMM_TORTURE_KILL", "12"))))
        except subprocess.TimeoutExpired:
            tuner.kill()
        tuner.wait()
        wait_for_others(os.environ[MARK], {os.getpid()})
        before = rows_of(state, before)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    unsure = done.returncode == 1 and "doubtful" in done.stdout  # said, and nothing is saved
    if done.returncode and not unsure:
        raise Found(1, f"the tuner started again ended with {done.returncode}: {done.stderr}")
    rows_of(state, before)
    check_tuned(sizes, config)


def rows_of(state: Path, before: list[list[str]]) -> list[list[str]]:
    """The whole rows of every table of trials, which begins with those of `before`."""
    rows = []
    for path in sorted(state.rglob("trials.csv")):
        text = path.read_text(encoding="utf-8")
        rows += list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if rows[: len(before)] != before:
        raise Found(LOST, f"of {len(before)} rows of trials, {len(rows)} are there")
    return rows


def check_tuned(sizes: list[int], config: Path) -> None:
    import pymm
    from pymm.backends import open_device
    from pymm.selection import store

    device = open_device("cpu:1").device
    saved = {r.problem for r in store.load(device, config) if str(config) in r.file}
    if saved and {p.m for p in saved} - set(sizes):
        raise Found(WRONG, f"records of {saved} instead of {sizes}")
    for n in sizes:
        a = np.arange(n * n).reshape(n, n).astype(np.float32) % 7
        if not np.array_equal(pymm.matmul(a, a, device="cpu:1"), a @ a):
            raise Found(WRONG, f"{n} x {n} after tuning")


KINDS = {"fork": fork, "threads": threads, "signals": signals, "kill": kill}


# The runs


def others(mark: str, known: set[int]) -> list[int]:
    """Processes that belong to a run, besides those known."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in known:
            try:
                theirs = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in theirs:
                found.append(int(entry.name))
    return found


def wait_for_others(mark: str, known: set[int], seconds: float = 30) -> None:
    """What a killed process has started ends by itself."""
    deadline = time.monotonic() + seconds
    while left := others(mark, known):
        if time.monotonic() > deadline:
            raise Found(LEFT, f"processes {left} outlive the one that started them")
        time.sleep(0.05)


def left_over(folder: Path) -> list[str]:
    """Files and folders under `folder` that are nobody's any more."""
    paths = (path for path in folder.rglob("*") if path.name not in ("config", "state", "tmp"))
    temporary = folder / "tmp"
    return sorted(
        str(path.relative_to(folder))
        for path in paths
        if temporary in path.parents
        or not (STAY.fullmatch(path.name) or path.is_dir())
        or path.name.startswith("new-")
    )


def unfinished(cache: Path) -> list[str]:
    """What was being made in the cache by processes that are gone."""
    patterns = ("new-*", "building-*", "*.tmp", "damaged-*")
    return sorted(str(path) for pattern in patterns for path in cache.rglob(pattern))


def run(kind: str, seed: int, cache: Path, deadline: float) -> tuple[str, str]:
    """One run: its outcome, and what it said."""
    with tempfile.TemporaryDirectory(prefix="pymm-torture-") as place:
        folder, mark = Path(place), f"{kind}-{seed}-{os.getpid()}"
        environment = dict(os.environ, PYMM_CACHE_DIR=str(cache), OPENBLAS_NUM_THREADS="2")
        environment |= {MARK: mark, "TMPDIR": str(folder / "tmp")}
        environment |= {f"PYMM_{one.upper()}_DIR": str(folder / one) for one in ("config", "state")}
        (folder / "tmp").mkdir()
        command = [sys.executable, __file__, "--one", kind, "--seed", str(seed)]
        root = Path(__file__).resolve().parents[1]
        with open(folder / "said", "w+") as said:
            process = subprocess.Popen(
                command, cwd=root, env=environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                outcome = process.wait(deadline)
            except subprocess.TimeoutExpired:
                outcome = None
            left = others(mark, {os.getpid()})
            for number in left:
                os.kill(number, signal.SIGKILL)
            process.wait()
            said.seek(0)
            words = said.read()
        (folder / "said").unlink()
        files = left_over(folder) + unfinished(cache)
    if outcome is None:
        return "hang", words
    if outcome:
        return NAMES.get(outcome, "failed"), words
    if files or left:
        return "left", f"files {files}, processes {left}"
    return "good", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="runs of each kind (default: 200)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the first run (default: 0)")
    parser.add_argument("--deadline", type=float, default=300, help="seconds (default: 300)")
    parser.add_argument("--one", choices=KINDS, help="do the run of this kind in this process")
    given = parser.parse_args()
    if given.one:
        return status_of(lambda: KINDS[given.one](random.Random(given.seed)))
    wanted = given.kinds.split(",")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="pymm-torture-cache-") as cache:
        for kind in wanted:
            counts: Counter[str] = Counter()
            for seed in range(given.seed, given.seed + given.runs):
                outcome, words = run(kind, seed, Path(cache), given.deadline)
                counts[outcome] += 1
                if outcome != "good":
                    print(f"{kind} {seed}: {outcome}\n{words}", flush=True)
            bad += given.runs - counts["good"]
            told = ", ".join(f"{counts[n]} {n}" for n in ("hang", *NAMES.values(), "failed"))
            print(f"{kind}: {given.runs} runs, {counts['good']} good, {told}", flush=True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
