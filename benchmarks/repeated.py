"""One product tuned several times, without the results of the others, and how alike they are.

    python benchmarks/repeated.py --shape 1000x3000x500 --dtype f32 --times 10 --csv repeated.csv

Each tuning is a `python -m pymm.tune` of its own, with another seed and with neither records,
studies nor compiled kernels of the others. It begins with what pymm ships: records, and what
`matmul` would choose untuned. Then what they found is measured in turn, each found
configuration once in every round. Prints the times, and how many times as long as the quickest the
slowest takes. Exit status 0 if that is at most 1.015, else 1.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.backends import open_device  # noqa: E402
from pymm.backends.base import Backend  # noqa: E402
from pymm.bench.runner import origin, product  # noqa: E402
from pymm.core.files import commit  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import Config  # noqa: E402
from pymm.kernels.source import render  # noqa: E402
from pymm.measure.precompile import Precompiler  # noqa: E402
from pymm.measure.quick_check import OperandPool  # noqa: E402
from pymm.measure.results import REPEATED  # noqa: E402
from pymm.measure.workbench import Workbench, median_and_spread  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402
from pymm.selection.store import load  # noqa: E402

#: The slowest result may take so many times as long as the quickest.
ALIKE = 1.015

#: Rounds of the comparison.
ROUNDS = 101


def main(arguments: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    given = _parser().parse_args(arguments)
    m, n, k = map(int, given.shape.split("x"))
    problem = Problem(m, n, k, given.dtype, *(letter == "T" for letter in given.layout))
    backend = open_device(given.device)
    found: dict[int, tuple[Config, int, float]] = {}
    for seed in range(given.seed, given.seed + given.times):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            _tune(given, seed, Path(folder))
            seconds = time.monotonic() - began
            record = next(r for r in load(backend.device, Path(folder)) if r.problem == problem)
            with open(Path(folder) / "trials.csv", newline="", encoding="utf-8") as file:
                tried = len({r["config"] for r in csv.DictReader(file) if r["role"] == "search"})
        found[seed] = record.config, tried, seconds
        print(f"seed {seed}: {record.config.slug}, {tried} tried in {seconds:.0f} s", flush=True)
    times = _compare(backend, problem, list(dict.fromkeys(config for config, *_ in found.values())))
    environment = Environment.of(backend.device, backend.toolchain)
    start = origin(backend.device, environment, given.commit) | product(problem)
    rows = []
    for seed, (config, tried, seconds) in found.items():
        median, spread = times[config]
        rows.append(
            {
                **start,
                "seed": seed,
                "budget": given.budget,
                "seconds": f"{seconds:.1f}",
                "tried": tried,
                "config": config.slug,
                "us": f"{median * 1e6:.6g}",
                "spread": f"{spread:.3g}",
            }
        )
    if given.csv:
        REPEATED.append(given.csv, rows)
    medians = {config: median for config, (median, _) in times.items()}
    for config in sorted(medians, key=medians.__getitem__):
        count = sum(one == config for one, *_ in found.values())
        print(f"{medians[config] * 1e6:9.3f} us, found {count} times: {config.slug}")
    ratio = max(medians.values()) / min(medians.values())
    print(f"{problem.slug}, {given.times} tunings: slowest / quickest: {ratio:.4f}")
    return int(ratio > ALIKE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shape", default="1000x3000x500", help="m x n x k (default: %(default)s)")
    add("--dtype", default="f32", help="default: f32")
    add("--layout", default="NN", choices=("NN", "NT", "TN", "TT"), help="default: NN")
    add("--times", type=int, default=10, help="tunings (default: 10)")
    add("--budget", type=float, default=40.0, help="seconds of each (default: 40)")
    add("--seed", type=int, default=1, help="of the first; others count up (default: 1)")
    add("--device", help="0, cpu (default: the first GPU, else the CPU)")
    add("--csv", type=Path, help="file that the rows are appended to")
    add("--commit", default=commit(), help="what rows say of pymm's commit")
    return parser


def _tune(given: argparse.Namespace, seed: int, folder: Path) -> None:
    """One tuning; records and trials are left in the folder."""
    command = [sys.executable, "-m", "pymm.tune", "--shapes", given.shape, "--dtypes", given.dtype]
    command += ["--transposes", given.layout, "--budget", str(given.budget), "--seed", str(seed)]
    command += ["--output", str(folder), "--storage", str(folder / "state")]
    command += ["--csv", str(folder / "trials.csv")]
    if given.device:
        command += ["--devices", given.device]
    (folder / "cache").mkdir(mode=0o700)
    own = {"PYMM_CACHE_DIR": str(folder / "cache"), "PYMM_CONFIG_DIR": str(folder)}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, env={**os.environ, **own, "PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"seed {seed}: the tuner failed\n{done.stdout}{done.stderr}")


def _compare(
    backend: Backend, problem: Problem, configs: Sequence[Config]
) -> dict[Config, tuple[float, float]]:
    """Median seconds and spread of each, measured in turn."""
    with Precompiler(backend) as compilers:
        wait([compilers.submit(render(config, problem)) for config in configs])
    bench = Workbench(backend, problem, 0, OperandPool(backend).verifier(problem))
    calls = {config.slug: bench.call(bench.load(config)) for config in configs}
    times = bench.interleave(calls, ROUNDS)
    if untimed := [slug for slug in calls if not times[slug]]:
        raise SystemExit(f"{problem.slug}: no time of {', '.join(untimed)}")
    return {config: median_and_spread(times[config.slug]) for config in configs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
