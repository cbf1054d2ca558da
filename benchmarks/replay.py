"""Searches of recorded spaces by pymm and by others, into `benchmarks/replays.csv`:
`python benchmarks/replay.py`, from which `benchmarks/results.py` makes a table.

The others: Optuna's TPE, CMA-ES (if cmaes is installed) and Gaussian process (if torch is), whose
suggestions are moved to the nearest valid configuration; and strategies of Kernel Tuner in its
simulation mode (if kernel_tuner is installed). All get the space of valid configurations only.
What is not installed is named and left out; `pip install -e '.[replay,test-torch]'` installs all.
Rows that the file has already are not repeated.

`--seeds`, `--spaces` and `--samplers` shorten it: `python benchmarks/replay.py --seeds 5 --samplers
local,random --spaces gemm_rtx_3090`. `--asks` times questions to pymm's sampler instead.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import numpy as np  # noqa: E402
import optuna  # noqa: E402
from optuna.distributions import IntDistribution  # noqa: E402
from optuna.trial import create_trial  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from pymm.core.problem import Problem  # noqa: E402
from pymm.measure.results import REPLAYS  # noqa: E402
from pymm.measure.workbench import Trial  # noqa: E402
from pymm.tune.replay import GOALS, Settings, portfolio, replay, rows_of  # noqa: E402
from pymm.tune.storage import open_storage, open_study  # noqa: E402
from pymm.tune.strategies import Known, Pool, Strategy, Suggestion  # noqa: E402
from pymm.tune.study import Search, suggested_by  # noqa: E402
from pymm.tune.t4 import Recording, read_recordings  # noqa: E402

FILE = ROOT / "benchmarks" / "replays.csv"
SPACES = sorted((ROOT / "tests" / "support" / "data").glob("*.t4.json.gz"))

#: How pymm's own samplers are replayed: depth, compiling, warm.
KINDS = ((1, 0.0, False), (16, 0.0, False), (16, 16.0, False), (16, 0.0, True))

#: Kernel Tuner's strategies: those that did best on such data, and the random one.
KERNEL_TUNER = (
    "adaptive_tabu_greywolf",
    "hybrid_vndx",
    "genetic_algorithm",
    "pso",
    "simulated_annealing",
    "diff_evo",
    "random_sample",
)

SAMPLERS = ("local", "random", "tpe", "cmaes", "gp", *(f"kt:{name}" for name in KERNEL_TUNER))

#: Evaluations at most: TPE's and the Gaussian process's questions take up to seconds.
MOST = {"tpe": 200, "gp": 120, "cmaes": 400}

#: What a sampler needs besides pymm.
NEEDS = {"cmaes": "cmaes", "gp": "torch", "kt": "kernel_tuner"}


Make = Callable[[int], optuna.samplers.BaseSampler]


def by_values(make: Make) -> Strategy:
    """The strategy that asks a sampler of Optuna's, made from a seed, about the values."""

    def strategy(pool: Pool, known: Known, generator: np.random.Generator) -> Suggestion:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return suggested_by(make(int(generator.integers(2**31))), pool, known)

    return strategy


def by_ranks(make: Make) -> Strategy:
    """The strategy that asks a sampler of Optuna's, made from a seed, about the ranks of values, as
    pymm's own knows them. Asked about values, the Gaussian process takes ten times as long: it
    considers every whole number between them.
    """

    def strategy(pool: Pool, known: Known, generator: np.random.Generator) -> Suggestion:
        points = {str(place): ranks for place, ranks in enumerate(pool.ranks)}
        space = {name: IntDistribution(0, int(one.max())) for name, one in points.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(sampler=make(int(generator.integers(2**31))))
            for index, seconds in known.seconds.items():
                if math.isfinite(seconds):
                    params = {name: int(one[index]) for name, one in points.items()}
                    study.add_trial(create_trial(params=params, distributions=space, value=seconds))
            wanted = study.ask(space).params
        free = known.free(pool)
        distance = sum(np.abs(one[free] - wanted[name]) for name, one in points.items())
        return Suggestion(int(free[np.argmin(distance)]), "model")

    return strategy


STRATEGIES = {
    "cmaes": by_values(lambda seed: optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=10)),
    "gp": by_ranks(lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=10)),
}


def kernel_tuner(recording: Recording, strategy: str, most: int, seed: int) -> dict[float, float]:
    """Evaluations that a strategy of Kernel Tuner needs to reach each of `GOALS`."""
    import random

    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel

    random.seed(seed)
    np.random.seed(seed)
    names = list(recording.parameters[0])
    known = {tuple(p.values()): place for place, p in enumerate(recording.parameters)}

    def valid(*given: object) -> bool:
        return given in known

    values = {name: sorted({p[name] for p in recording.parameters}) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cache.json")
        path.write_text(json.dumps(_cache(recording, names, values)))
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, _ = tune_kernel(
                "recorded",
                "__global__ void recorded() {}",
                (1,),
                [],
                values,
                restrictions=[FunctionConstraint(valid)],
                strategy=strategy,
                strategy_options={"max_fevals": most},
                simulation_mode=True,
                cache=str(path),
                lang="CUDA",
                quiet=True,
            )
    needed = dict.fromkeys(GOALS, math.inf)
    tried = dict.fromkeys(tuple(entry[name] for name in names) for entry in found)
    for count, values_of in enumerate(tried, 1):
        for goal in GOALS:
            if recording.reaches(known[values_of], goal):
                needed[goal] = min(needed[goal], count)
    return needed


def _cache(recording: Recording, names: Sequence[str], values: dict) -> dict[str, Any]:
    """The recording as Kernel Tuner's cache file."""
    entries = {}
    for parameters, seconds in zip(recording.parameters, recording.seconds.tolist(), strict=True):
        time = 1e3 * seconds if math.isfinite(seconds) else "RuntimeFailedConfig"
        times = {f"{name}_time": 0.0 for name in ("compile", "verification", "benchmark")}
        others = {"strategy_time": 0.0, "framework_time": 0.0, "timestamp": "2026-01-01"}
        key = ",".join(str(parameters[name]) for name in names)
        entries[key] = {**parameters, "time": time, "times": [time], **times, **others}
    return {
        "device_name": "Simulation",
        "kernel_name": "recorded",
        "problem_size": [1],
        "tune_params_keys": list(names),
        "tune_params": values,
        "objective": "time",
        "cache": entries,
    }


def measured(
    recording: Recording, recordings: Sequence[Recording], sampler: str, seeds: int, have: set
) -> list[dict[str, object]]:
    """Rows of one sampler on one space, but for those that there are."""
    rows = []
    for depth, compiling, warm in KINDS if sampler == "local" else KINDS[:1]:
        most = MOST.get(sampler, 400)
        noise = not sampler.startswith("kt:")
        settings = Settings(sampler, depth, compiling, noise, most)
        if (recording.device, sampler, str(depth), f"{compiling}", str(int(warm))) in have:
            continue
        others = [other for other in recordings if other is not recording]
        first = portfolio(recording, others) if warm else ()
        if sampler.startswith("kt:"):
            one = partial(kernel_tuner, recording, sampler[3:], most)
        else:
            own = STRATEGIES.get(sampler)
            one = partial(_replayed, recording, settings, first, own)
        rows += rows_of(recording, settings, warm, [one(seed) for seed in range(seeds)])
    return rows


def _replayed(recording, settings, first, own, seed) -> dict[float, float]:
    return replay(recording, settings, seed, first, own)


def time_of_asks(recording: Recording, at: Sequence[int] = (100, 200, 400, 800)) -> None:
    """Print how long a question to pymm's sampler takes after so many results, 16 under way."""
    with tempfile.TemporaryDirectory() as folder, open_storage(Path(folder, "j")) as storage:
        search = Search(open_study(storage, "recorded", {}), recording.configs)
        places = {config: place for place, config in enumerate(recording.configs)}
        ahead, took = deque(), []
        while len(search) < max(at) + 10:
            began = time.perf_counter()
            ahead.append(search.ask())
            took.append(1e3 * (time.perf_counter() - began))
            if len(ahead) == 16:
                number, config = ahead.popleft()
                seconds = float(recording.seconds[places[config]])
                search.tell(number, Trial(Problem(1, 1, 1), config, "ok", seconds))
                if len(search) - 10 in at:
                    last = sorted(took[-20:])
                    said = f"median {statistics.median(last):.1f} ms, longest {last[-1]:.1f} ms"
                    print(f"20 questions after {len(search) - 10} results: {said}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--spaces", default=",".join(path.name.split(".")[0] for path in SPACES))
    parser.add_argument("--asks", action="store_true", help="time questions, replay nothing")
    given = parser.parse_args(argv)
    by_name = {path.name.split(".")[0]: read_recordings(path)[0] for path in SPACES}
    for name in given.spaces.split(","):
        if name not in by_name:
            parser.error(f"--spaces {name} is none of {', '.join(by_name)}")
    if given.asks:
        with threadpool_limits(1, user_api="blas"):
            time_of_asks(by_name[given.spaces.split(",")[0]])
        return 0
    key = ("device", "sampler", "depth", "compiling", "warm")
    have = set()
    if REPLAYS.begun(FILE):
        have = {tuple(row[name] for name in key) for row in REPLAYS.rows(FILE)}
    with threadpool_limits(1, user_api="blas"):
        for sampler in given.samplers.split(","):
            if sampler not in SAMPLERS:
                parser.error(f"--samplers {sampler} is none of {', '.join(SAMPLERS)}")
            needs = NEEDS.get(sampler.partition(":")[0])
            if needs and importlib.util.find_spec(needs) is None:
                print(f"{sampler} left out: pip install {needs.replace('_', '-')}")
                continue
            for name in given.spaces.split(","):
                recordings = list(by_name.values())
                rows = measured(by_name[name], recordings, sampler, given.seeds, have)
                REPLAYS.append(FILE, rows)
                for row in rows:
                    print(*(row[column] for column in REPLAYS.columns[1:]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
