"""How many trials a second the tuner makes on one GPU and on all of them.

    python benchmarks/tune_devices.py --csv tune-devices.csv

The same cold search (one product, quick checks, one seed, so many seconds, empty cache and storage)
runs on the first device alone and then on all. The rate of a search counts its trials from the
start of the first to the end of the last, so neither the start of the processes nor the comparison
at the end. The tuner has up to 16 compilers for each device, as the machine's cores allow; the
column `compilers` says how many. `busy` is the part of that time in which a device measured, on
average; `ratio` the rate divided by that of one device; `twice` how many configurations were
measured more than once without having failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.bench.runner import origin  # noqa: E402
from pymm.core.files import append, commit  # noqa: E402
from pymm.measure.worker import Reply, Request, Site, Worker, WorkerFailed  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402
from pymm.tune.devices import gpu_names  # noqa: E402
from pymm.tune.options import parse  # noqa: E402
from pymm.tune.session import TRIED_AGAIN  # noqa: E402
from pymm.tune.tuner import NO_DEVICE, Tuner  # noqa: E402

COLUMNS = (
    "time",
    "device",
    "driver",
    "compiler",
    "pymm",
    "commit",
    "dtype",
    "m",
    "n",
    "k",
    "devices",
    "compilers",
    "trials",
    "seconds",
    "rate",
    "ratio",
    "busy",
    "twice",
)


class TimedWorker(Worker):
    """A worker that remembers when each trial began and ended, and what was tried."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.trials: list[tuple[float, float]] = []
        self.tried: list[str] = []

    def begin(self, request: Request, limit: float) -> None:
        """Send a request."""
        self.began, self.measures = time.monotonic(), request
        super().begin(request, limit)

    def result(self, timeout: float = 0.0) -> Reply | None:
        """The reply, once it is there."""
        reply = super().result(timeout)
        if reply is not None and self.measures.action == "measure":
            self.trials.append((self.began, time.monotonic()))
            outcome = reply.trials[0].outcome if reply.trials else reply.outcome
            if outcome not in TRIED_AGAIN:
                self.tried.append(self.measures.configs[0].slug)
        return reply


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, help="file that the rows are appended to")
    parser.add_argument("--shape", default="4096", help="m x n x k or a square (default: 4096)")
    parser.add_argument("--dtype", default="f32", help="(default: f32)")
    parser.add_argument("--kernel", help="name or number (default: the highest)")
    parser.add_argument("--seconds", type=float, default=38.0, help="of each search (default: 38)")
    parser.add_argument("--commit", default=commit(), help="what rows say of pymm's commit")
    given = parser.parse_args(arguments)
    try:
        gpus = gpu_names()
        counts = [1, len(gpus)] if len(gpus) > 1 else [1]
        rows: list[dict[str, object]] = []
        for count in counts:
            rows.append(searched(given, gpus[:count] or [0]))
            rows[-1]["ratio"] = f"{rows[-1]['rate'] / rows[0]['rate']:.3f}"
            show(rows[-1])
    except WorkerFailed as failure:
        print(failure)
        return NO_DEVICE
    if len(gpus) == 1:
        print("There is one GPU: nothing to compare with.")
    if given.csv is not None:
        append(given.csv, COLUMNS, [row | {"rate": f"{row['rate']:.3f}"} for row in rows])
    return 0


def searched(given: argparse.Namespace, devices: list) -> dict[str, object]:
    """The row of one search on `devices`, without the ratio. Raises `WorkerFailed`."""
    workers: list[TimedWorker] = []

    def hire(site: Site) -> TimedWorker:
        workers.append(TimedWorker(site))
        return workers[-1]

    with tempfile.TemporaryDirectory(prefix="pymm-tune-devices-") as folder:
        options = f"--shapes {given.shape} --dtypes {given.dtype} --checks quick --seed 1"
        options += f" --budget {given.seconds} --devices {','.join(map(str, devices))}"
        options += f" --kernels {given.kernel}" if given.kernel else ""
        where = ["--storage", folder, "--output", f"{folder}/out", "--csv", f"{folder}/trials.csv"]
        tuner = Tuner(parse([*options.split(), *where]), Site(cache=Path(folder, "cache")), hire)
        status = tuner.run()
    spans = sorted(span for worker in workers for span in worker.trials)
    if len(spans) < 2:
        raise WorkerFailed(f"the search ended with status {status} after {len(spans)} trials")
    seconds = max(end for _, end in spans) - spans[0][0]
    shape, device = tuner.options.shapes[0], tuner.device
    environment = Environment.of(device, tuner.compiler.toolchain)
    counted = Counter(slug for worker in workers for slug in worker.tried)
    return {
        **origin(device, environment, given.commit),
        "dtype": given.dtype,
        **dict(zip("mnk", shape, strict=True)),
        "devices": len(workers),
        "compilers": tuner.ahead,
        "trials": len(spans),
        "seconds": f"{seconds:.2f}",
        "rate": len(spans) / seconds,
        "busy": f"{sum(end - begin for begin, end in spans) / seconds / len(workers):.3f}",
        "twice": sum(count > 1 for count in counted.values()),
    }


def show(row: dict[str, object]) -> None:
    """Print a row in words."""
    print(
        f"{row['devices']} x {row['device']}, {row['compilers']} compilers: {row['trials']} trials "
        f"in {row['seconds']} s, {row['rate']:.2f} a second, {row['ratio']} of one device; devices "
        f"busy {row['busy']} of the time, {row['twice']} configurations measured twice",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
