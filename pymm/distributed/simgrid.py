"""The plan of a distributed product replayed in SimGrid, for more processes than there are: what
`python -m pymm.distributed simulate` prints and writes.

SimGrid's module for Python comes with the system's Python (Debian and Ubuntu: python3-simgrid) and
is in no package index. So that Python runs the script `simgrid_replay.py`, which imports nothing of
pymm.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pymm.core.errors import Error
from pymm.core.inputs import BadInput, rows_of
from pymm.core.integers import ceil_div, round_up
from pymm.distributed.layout import numroc
from pymm.distributed.plan import Grid, Plan, Rates
from pymm.measure.results import DISTRIBUTED

PYTHON = "/usr/bin/python3"

SCRIPT = Path(__file__).with_name("simgrid_replay.py")


class NoSimGrid(Error, ImportError):
    """The system's Python has no SimGrid."""


@dataclass(frozen=True)
class Replay:
    """A plan as SimGrid ran it. Seconds; received: bytes of each rank."""

    plan: Plan
    blocking: float
    simulated: float
    multiplying: float
    received: tuple[int, ...]
    simgrid: str

    @property
    def efficiency(self) -> float:
        """The part of the time in which the busiest process multiplies."""
        return self.multiplying / self.simulated if self.simulated else 1.0

    def describe(self) -> str:
        """Lines for a reader."""
        plan = self.plan
        without = self.multiplying / self.blocking if self.blocking else 1.0
        return "\n".join(
            (
                f"{plan.m} x {plan.n} x {plan.k}, {plan.itemsize} bytes an element, on "
                f"{plan.grid} = {plan.grid.size} processes, panels of {plan.panel}",
                f"simulated with SimGrid {self.simgrid}, not measured:",
                f"  without look-ahead  {self.blocking:.4g} s, efficiency {without:.3f}",
                f"  with look-ahead     {self.simulated:.4g} s, efficiency {self.efficiency:.3f}",
                f"  busiest process     products {self.multiplying:.4g} s, "
                f"received {max(self.received) / 1e6:.4g} MB",
                f"plan's prediction     {plan.seconds:.4g} s",
            )
        )

    def row(self, dtype: str, commit: str) -> dict[str, object]:
        """For `SIMULATED`, without what is known of real runs."""
        plan = self.plan
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "pymm": sys.modules["pymm"].__version__,
            "commit": commit,
            "simgrid": self.simgrid,
            "dtype": dtype,
            **{"m": plan.m, "n": plan.n, "k": plan.k, "processes": plan.grid.size},
            "grid": str(plan.grid).replace(" ", ""),
            **{"block": plan.block, "panel": plan.panel, **asdict(plan.rates)},
            "multiplying": self.multiplying,
            "blocking": self.blocking,
            "simulated": self.simulated,
            "efficiency": self.efficiency,
            "received": max(self.received),
            "predicted": plan.seconds,
        }


def messages(plan: Plan) -> int:
    """How many a replay has, at most: 100000 take about a minute."""
    grid = plan.grid
    return grid.size * (plan.steps * (grid.p + grid.q - 2) + grid.r - 1)


def replay(plan: Plan) -> Replay:
    """Run the plan without and with look-ahead. `NoSimGrid` where that cannot be."""
    work = work_of(plan)
    blocking, ahead = (_run(work | {"look_ahead": ahead}) for ahead in (False, True))
    return Replay(
        plan,
        blocking["seconds"],
        ahead["seconds"],
        ahead["multiplying"],
        tuple(ahead["received"]),
        ahead["simgrid"],
    )


def check() -> None:
    """Raise `NoSimGrid` unless SimGrid can run."""
    try:
        subprocess.run([PYTHON, "-I", "-c", "import simgrid"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise NoSimGrid(f"{PYTHON} has no SimGrid: apt install python3-simgrid") from None


def _run(work: dict[str, object]) -> dict:
    """What the script answers."""
    # -I: beside the script, this module has the name of SimGrid's.
    command = [PYTHON, "-I", str(SCRIPT)]
    try:
        done = subprocess.run(command, input=json.dumps(work), capture_output=True, text=True)
    except OSError:
        check()
        raise
    if done.returncode:
        check()
        said = [line for line in done.stderr.splitlines() if line and "/INFO]" not in line]
        raise RuntimeError(f"SimGrid ended with status {done.returncode}: {''.join(said[-1:])}")
    return json.loads(done.stdout)


def work_of(plan: Plan) -> dict[str, object]:
    """The plan for the script: rows and columns of C by place in the grid; the steps of each layer
    with the extent of k that each place holds of the panel; rows that layers keep in the end.
    """
    (p, q, r), block = (plan.grid.p, plan.grid.q, plan.grid.r), plan.block
    of_a, _, of_c = plan.layouts
    # As the engine: whole blocks, and no more than a layer has.
    width = min(round_up(plan.panel, block), ceil_div(ceil_div(plan.k, block), r) * block)
    steps = []
    for layer in range(r):
        first, last = of_a.bounds(1, layer)
        ends = range(0, last - first, width) if 0 not in (plan.m, plan.n, plan.k) else ()
        steps.append([_step(begin, min(begin + width, last - first), plan) for begin in ends])
    return {
        "grid": (p, q, r),
        "itemsize": plan.itemsize,
        "rates": asdict(plan.rates),
        "rows": [numroc(plan.m, block, i, p) for i in range(p)],
        "columns": [numroc(plan.n, block, i, q) for i in range(q)],
        "steps": steps,
        "kept": [[of_c.local_shape(j * p + i, 0)[0] for i in range(p)] for j in range(r)],
    }


def _step(begin: int, end: int, plan: Plan) -> dict[str, object]:
    """One panel: its extent of k, and what of it each column and row of the grid holds."""

    def held(count: int) -> list[int]:
        parts = [[numroc(k, plan.block, i, count) for i in range(count)] for k in (begin, end)]
        return [last - first for first, last in zip(*parts, strict=True)]

    return {"depth": end - begin, "of_a": held(plan.grid.q), "of_b": held(plan.grid.p)}


def against(
    path: Path, itemsizes: dict[str, int], rates_of: Callable[[int, str], Rates]
) -> list[tuple[Plan, dict[str, str]]]:
    """The plans of pymm's right rows with several processes in a file of `bench`, with the rows.

    rates_of: of so many processes with this dtype. `BadInput` if the file is another one or has no
    such row.
    """
    numbers = ("m", "n", "k", "processes", "block", "panel", "seconds")
    plans = []
    for row in rows_of(path, DISTRIBUTED.columns, numbers):
        if row["engine"] != "pymm" or row["outcome"] != "ok" or row["processes"] == "1":
            continue
        if row["dtype"] not in itemsizes:
            raise BadInput(f"{path}: dtype {row['dtype']!r} is none of {', '.join(itemsizes)}")
        m, n, k, processes, block, panel = (int(row[name]) for name in numbers[:-1])
        grid = Grid(*map(int, row["grid"].split("x")))
        rates = rates_of(processes, row["dtype"])
        plans.append((Plan(m, n, k, grid, block, panel, itemsizes[row["dtype"]], rates), row))
    if not plans:
        raise BadInput(f"{path}: no row of pymm on several processes whose outcome is ok")
    return plans
