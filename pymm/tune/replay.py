"""`python -m pymm.tune replay`: the search on recorded times instead of a device, to compare
strategies and settings without one.

The study, its strategy and the choice among compiled configurations are those of a real search;
only compiling and measuring are replaced by what was recorded.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from pymm.console import program
from pymm.core.inputs import BadInput
from pymm.core.problem import Problem
from pymm.measure.results import REPLAYS
from pymm.measure.workbench import HOPELESS, Trial
from pymm.tune.initial import diverse
from pymm.tune.strategies import Strategy
from pymm.tune.study import SAMPLERS, Search
from pymm.tune.t4 import Recording, read_recordings, write_t4

#: Parts of the optimum that a search is to reach.
GOALS = (0.9, 0.95, 0.99)

#: Runs that a measurement takes the median of, where they are recorded; one run, if it is slower
#: than `HOPELESS` times the best so far, as in a real search.
RUNS = 7

#: Evaluations after which a search has not arrived.
MOST = 400

#: Best configurations of each other device that a warm start chooses from, and how many of all of
#: them it takes.
STORED, WARM = 20, 8

DONE, BAD_OPTIONS = 0, 2

EXAMPLES = """\
examples:
  python -m pymm.tune replay recorded.json.gz
      30 searches, evaluations until they come within 10, 5 and 1 % of the optimum
  python -m pymm.tune replay a.json b.json --depth 16 --noise --sampler local,tpe,random
      16 configurations compiled ahead, single recorded runs as noise, three strategies
  python -m pymm.tune replay a.json b.json c.json --warm
      each device warm-started with the best configurations of the others
  python -m pymm.tune replay trials.csv --only "f32-NN-512x512x512 sliced" --t4 recorded.json
      write one search of pymm's table of trials as T4, the format of the auto-tuning community

Files: T4 (JSON), Kernel Tuner's cache files, pymm's trials.csv; each perhaps compressed (.gz).
"""


@dataclass(frozen=True)
class Settings:
    """How a search is replayed. `depth` configurations are compiled ahead, each of which takes as
    long as `compiling` measurements; `noise` measures by recorded runs instead of their mean;
    `most` evaluations at most.
    """

    sampler: str = "local"
    depth: int = 1
    compiling: float = 0.0
    noise: bool = False
    most: int = MOST


def replay(
    recording: Recording,
    settings: Settings,
    seed: int,
    first: Iterable[int] = (),
    strategy: Strategy | None = None,
    until: float = GOALS[-1],
) -> dict[float, float]:
    """Evaluations that one search takes to reach each of `GOALS` up to `until`, one of them;
    infinite if it does not. `first` are indices of configurations that it begins with; a `strategy`
    stands for the sampler's.
    """
    sampler = strategy or settings.sampler
    search = Search(optuna.create_study(), recording.configs, sampler, seed)
    search.enqueue({recording.configs[index]: "warm" for index in first})
    places = {config: index for index, config in enumerate(recording.configs)}
    generator = np.random.default_rng((seed, 1))
    needed = dict.fromkeys(GOALS, math.inf)
    ahead: list[tuple[float, int, Any]] = []  # compiled when, number, configuration
    now, asked = 0.0, True
    for count in range(1, settings.most + 1):
        while asked and len(ahead) < settings.depth:
            if asked := search.ask():
                ahead.append((now + settings.compiling, *asked))
        if not ahead:
            break
        now = max(now, min(ready for ready, *_ in ahead))
        built = [entry for entry in ahead if entry[0] <= now]
        entry = built[search.most_promising([config for *_, config in built])]
        ahead.remove(entry)
        now += 1.0
        index = places[entry[2]]
        best = search.best[1] if search.best else math.inf
        search.tell(entry[1], _measured(recording, index, settings.noise, best, generator))
        for goal in GOALS:
            if recording.reaches(index, goal):
                needed[goal] = min(needed[goal], count)
        if math.isfinite(needed[until]):
            break
    return needed


def _measured(
    recording: Recording, index: int, noise: bool, best: float, generator: np.random.Generator
) -> Trial:
    """The trial of a configuration as a device would have given it."""
    problem, config = Problem(1, 1, 1), recording.configs[index]
    seconds, runs = float(recording.seconds[index]), recording.runs[index]
    if math.isnan(seconds):
        return Trial(problem, config, "launch_failed", detail=recording.invalidity[index])
    if noise and runs:
        drawn = generator.choice(runs, RUNS)
        seconds = float(drawn[0] if drawn[0] > HOPELESS * best else np.median(drawn))
    outcome = "too_slow" if seconds > HOPELESS * best else "ok"
    return Trial(problem, config, outcome, seconds)


def portfolio(recording: Recording, others: Sequence[Recording]) -> list[int]:
    """Indices of the configurations that a search begins with, from other devices alone: the best
    of each, and diverse ones of their next best.
    """
    places = {tuple(p.items()): index for index, p in enumerate(recording.parameters)}
    columns = []
    for other in others:
        order = np.argsort(other.seconds)[:STORED]  # what failed comes last
        known = [places.get(tuple(other.parameters[index].items())) for index in order]
        columns.append([place for place in known if place is not None])
    mixed = [place for row in itertools.zip_longest(*columns) for place in row if place is not None]
    configs = [recording.configs[place] for place in dict.fromkeys(mixed)]
    indices = {config: index for index, config in enumerate(recording.configs)}
    return [indices[config] for config in diverse(configs, WARM, len(others))]


def summary(needed: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and the share that arrives, of evaluations; a percentile is infinite
    where too few arrive.
    """
    ordered = sorted(needed)
    return {
        "median": _percentile(ordered, 0.5),
        "p90": _percentile(ordered, 0.9),
        "arrived": sum(map(math.isfinite, ordered)) / len(ordered),
    }


def _percentile(ordered: Sequence[float], part: float) -> float:
    """Between two places in proportion, as NumPy has it, without infinity minus infinity."""
    place = part * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low + (high - low) * (place - math.floor(place))


def rows_of(
    recording: Recording,
    settings: Settings,
    warm: bool,
    searches: Sequence[dict[float, float]],
) -> list[dict[str, object]]:
    """The rows of a table of replays for some searches of one kind, one for each goal."""
    return [
        {
            "device": recording.device,
            "space": recording.name,
            "sampler": settings.sampler,
            "depth": settings.depth,
            "compiling": settings.compiling,
            "noise": int(settings.noise),
            "warm": int(warm),
            "most": settings.most,
            "seeds": len(searches),
            "goal": goal,
            **{
                name: f"{value:.4g}" if math.isfinite(value) else ""
                for name, value in summary([needed[goal] for needed in searches]).items()
            },
        }
        for goal in GOALS
    ]


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """The command. Returns the exit status: 2 for options or files that are bad."""
    given = _parser().parse_args(argv)
    console = console or Console()

    def refuse(message: object) -> int:
        console.print(str(message), markup=False, highlight=False, soft_wrap=True)
        return BAD_OPTIONS

    samplers = given.sampler.split(",")
    if unknown := [name for name in samplers if name not in SAMPLERS]:
        return refuse(f"--sampler {unknown[0]} is none of {', '.join(SAMPLERS)}")
    if min(given.seeds, given.depth, given.trials) < 1 or given.compiling < 0:
        return refuse("--seeds, --depth and --trials are at least 1, --compiling at least 0")
    try:
        found = [one for path in given.files for one in read_recordings(path)]
        recordings = [one for one in found if given.only in f"{one.device} {one.name}"]
        if not recordings:
            there = ", ".join(f"{one.device} {one.name}" for one in found)
            return refuse(f"--only {given.only}: no search has that in its name; there are {there}")
        if given.t4:
            return _export(recordings, given.t4, refuse)
        if given.warm and len({recording.device for recording in recordings}) < 2:
            return refuse("--warm needs recordings of two devices or more")
        if given.csv:
            REPLAYS.begun(given.csv)
        rows = []
        with threadpool_limits(1, user_api="blas"):
            for sampler in samplers:
                settings = Settings(
                    sampler, given.depth, given.compiling, given.noise, given.trials
                )
                rows += _searches(recordings, settings, given.warm, given.seeds)
        if given.csv:
            REPLAYS.append(given.csv, rows)
    except (BadInput, OSError) as failure:
        return refuse(failure)
    console.print(_table(rows))
    return DONE


def _searches(
    recordings: Sequence[Recording], settings: Settings, warm: bool, seeds: int
) -> list[dict[str, object]]:
    rows = []
    for recording in recordings:
        others = [other for other in recordings if other.device != recording.device]
        first = portfolio(recording, others) if warm else []
        searches = [replay(recording, settings, seed, first) for seed in range(seeds)]
        rows += rows_of(recording, settings, warm, searches)
    return rows


def _export(recordings: Sequence[Recording], path: Path, refuse: Callable[[object], int]) -> int:
    if len(recordings) != 1:
        named = ", ".join(f"{recording.device} {recording.name}" for recording in recordings)
        return refuse(
            f"--t4 writes one search, and there are {len(recordings)}; choose with --only: {named}"
        )
    write_t4(recordings[0], path)
    return DONE


def _table(rows: Sequence[dict[str, object]]) -> Table:
    table = Table(title="evaluations to a part of the optimum: median / p90, share that arrives")
    for name in ("device", "sampler", "depth", *(f"{goal:.0%}" for goal in GOALS)):
        table.add_column(name, justify="right" if "%" in name else "left")
    for start in range(0, len(rows), len(GOALS)):
        kind = rows[start]
        cells = [_cell(row) for row in rows[start : start + len(GOALS)]]
        sampler = f"{kind['sampler']}{', warm' if kind['warm'] else ''}"
        table.add_row(str(kind["device"]), sampler, str(kind["depth"]), *cells)
    return table


def _cell(row: dict[str, object]) -> str:
    median, p90 = (row[name] or "-" for name in ("median", "p90"))
    return f"{median} / {p90}, {float(str(row['arrived'])):.0%}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("tune replay"),
        description="Search recorded spaces of configurations, without a device.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="recordings, see below")
    add("--sampler", default="local", help=f"{', '.join(SAMPLERS)}; several by commas")
    add("--seeds", type=int, default=30, help="searches of each kind (default: 30)")
    add("--depth", type=int, default=1, help="configurations compiled ahead (default: 1)")
    add(
        "--compiling",
        type=float,
        default=0.0,
        metavar="N",
        help="a compilation takes as long as N measurements (default: 0)",
    )
    add("--noise", action="store_true", help="measure by single recorded runs, not their mean")
    add("--trials", type=int, default=MOST, help=f"evaluations at most (default: {MOST})")
    add("--warm", action="store_true", help="begin with the best ones of the other devices")
    add("--csv", type=Path, metavar="FILE", help="append the table's rows to this file")
    add(
        "--only",
        default="",
        metavar="TEXT",
        help="searches with this in the name of device, problem or kernel",
    )
    add("--t4", type=Path, metavar="FILE", help="only write the recording as T4 to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
