"""A survey of a GPU: times of configurations for random products, from which `matmul` chooses where
nothing is tuned (pymm/kernels/survey.py).

    python benchmarks/survey.py measure --products 120 --seed 31
    python benchmarks/survey.py measure --products 60 --seed 32 --kernels tma_f32_in_place
    python benchmarks/survey.py measure --products 24 --seed 35 --deepest 100 --more 48
    python benchmarks/survey.py measure --products 60 --seed 36 --weights
    python benchmarks/survey.py measure --kernels pipelined --again
    python benchmarks/survey.py fit
    python benchmarks/survey.py fit --left-out 5
    python benchmarks/survey.py scales --seconds 600

`measure` draws products (extents log-uniform between 32 and 8192, layouts random), each in float32,
float64, bfloat16, tf32 and bfloat16 with C in float32, and times in turn the configurations that
are expected to be quickest, and two at random of those that should be nearly as quick. With
`--kernels` only the products are measured for which one of these kernels offers configurations:
four of the eight that its model expects to be quickest, and the four quickest of all other kernels.
So a new kernel gets times, without which `matmul` does not choose it. `--deepest K` draws k between
32 and K, `--least N` products of at least N operations. `--weights` draws what language models
multiply, the types in turn: 16 to 8192 rows (with `--rows N` 16 to N), n and k from 512 to 32768,
multiples of 64 to 2048. `--again` draws nothing: what the file has of these kernels is measured
again, as it should be when one was changed; the newest time of a configuration counts. The rows are
appended to benchmarks/surveys/DEVICE.csv.
120 products of four types take an H200 with 16 cores four minutes, nearly all of it for compiling;
so `--more N` draws N others, of which those configurations are measured that are compiled by then.

`fit` writes tuning_configs/DEVICE.survey.npz from that file; it needs no GPU. Run it when the file,
a kernel's `options` or what its model expects has changed. With `--left-out N` it writes nothing:
N times it predicts one N-th of the products from the others, and says how slow the configurations
are that would be chosen.

`scales` looks for better `SCALES` of pymm/kernels/survey.py by random steps, and prints them.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.backends import open_device  # noqa: E402
from pymm.bench.runner import origin, product  # noqa: E402
from pymm.core.device import Device  # noqa: E402
from pymm.core.errors import CompileFailed  # noqa: E402
from pymm.core.files import commit  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import (  # noqa: E402
    KERNELS,
    Config,
    Kernel,
    find_kernel,
    parse_slug,
    survey,
)
from pymm.kernels.source import render  # noqa: E402
from pymm.measure.precompile import Precompiler  # noqa: E402
from pymm.measure.quick_check import OperandPool  # noqa: E402
from pymm.measure.results import SURVEY  # noqa: E402
from pymm.measure.workbench import Workbench, median_and_spread  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402

#: The GPUs that were surveyed, with all that the kernels' models use of a device.
DEVICES = {
    "nvidia-h200": Device(
        "NVIDIA H200",
        "cuda",
        capability=(9, 0),
        sms=132,
        clock_hz=1.98e9,
        bandwidth=4.916736e12,
        shared_per_block=232448,
        shared_per_sm=233472,
        l2_bytes=60 * 2**20,
        memory_bytes=2**37,
    ),
    "nvidia-h100-80gb-hbm3": Device(
        "NVIDIA H100 80GB HBM3",
        "cuda",
        capability=(9, 0),
        sms=132,
        clock_hz=1.98e9,
        bandwidth=3.35232e12,
        shared_per_block=232448,
        shared_per_sm=233472,
        l2_bytes=50 * 2**20,
        memory_bytes=2**36,
    ),
}

DTYPES = "f32", "f64", "bf16", "tf32", "bf16_f32"

#: Random products: least and greatest extent, most operations. Products with weights: the same of
#: the rows, the same of n and k, what these are multiples of, most operations.
LEAST, GREATEST, MOST_FLOPS = 32, 8192, 1e11
ROWS, WEIGHTS, MOST_OF_WEIGHTS = (16, 8192), (512, 32768), 1e12
UNITS = 64, 128, 256, 512, 1024, 2048

#: Draws for each product that is wanted, before none are expected to come.
TRIES = 500

#: Configurations of a product, and of one of more than MANY_FLOPS.
MOST, FEWER, MANY_FLOPS = 8, 5, 3e10

#: So many of them are drawn at random from so many that are quickest by the models alone.
AT_RANDOM, OF = 2, 14

#: The most expected time of the others, relative to the least.
WITHIN = 1.3

#: With `--kernels`: configurations of each of these kernels, drawn from so many that its model
#: expects to be quickest, and of all others together.
OF_EACH, OF_OWN, BESIDE = 4, 8, 4

#: Times of each.
ROUNDS = 11

#: Variance of the logarithm of a measured time: that of a long time; the time, in microseconds, at
#: which it is twice that; and the variance that all configurations of a product share.
NOISE, SHORT, COMMON = 0.0002, 8.0, 0.0003

#: Rows and columns of the equations that are computed together.
AT_A_TIME = 1024

#: A choice is slow from this time relative to the least on, or very slow.
SLOW, VERY_SLOW = 1.08, 1.15


@dataclass
class Measured:
    """What a file has of one type: rows of `survey.row`, expected and measured microseconds,
    and the number of the product of each row.
    """

    rows: np.ndarray
    expected: np.ndarray
    measured: np.ndarray
    product: np.ndarray


def main(arguments: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    given = _parser().parse_args(arguments)
    if given.command == "measure":
        if given.weights and given.least:
            raise SystemExit("survey: --least is for random products, not for --weights")
        if given.rows < ROWS[0]:
            raise SystemExit(f"survey: --rows {given.rows}: at least {ROWS[0]}")
        if given.again and not given.kernels:
            raise SystemExit("survey: --again needs --kernels, those to measure again")
        kernels = [find_kernel(name) for name in given.kernels.split(",") if name]
        return measure(given, kernels)
    path = given.csv or results(given.device)
    every = {dtype: read(path, dtype, DEVICES[given.device]) for dtype in DTYPES}
    found = {dtype: data for dtype, data in every.items() if len(data.rows)}
    if given.command == "scales":
        return search(found, given.seconds)
    if given.left_out:
        for dtype, data in found.items():
            print(f"{dtype}: models alone: {summary(data, np.zeros(len(data.measured)))}")
            print(f"{dtype}: corrected:    {summary(data, predicted(data, dtype, given.left_out))}")
        return 0
    device = DEVICES[given.device]
    facts = "capability", "sms", "bandwidth"
    arrays = {fact: np.array(getattr(device, fact)) for fact in facts}
    for dtype, data in found.items():
        weights, mean = fit(data, dtype, device.sms)
        arrays |= {f"{dtype}_rows": data.rows.astype(np.int32), f"{dtype}_mean": np.array(mean)}
        arrays[f"{dtype}_weights"] = weights.astype(np.float32)
    target = given.output or ROOT / "tuning_configs" / f"{given.device}.survey.npz"
    np.savez_compressed(target, **arrays)
    print(f"{target}: {', '.join(f'{len(d.rows)} times of {t}' for t, d in found.items())}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "fit", "scales"):
        add = commands.add_parser(name).add_argument
        add("--csv", type=Path, help="the file of times (default: that of the device's results)")
        if name == "measure":
            add("--products", type=int, default=120, help="how many to draw (default: 120)")
            add("--seed", type=int, default=1, help="what they are drawn from (default: 1)")
            add("--deepest", type=int, default=GREATEST, help="largest k (default: %(default)s)")
            add("--least", type=float, default=0.0, metavar="N", help="at least so many operations")
            add("--weights", action="store_true", help="products of language models")
            add("--rows", type=int, default=ROWS[1], metavar="N", help="of weights: rows at most")
            add("--dtypes", default=",".join(DTYPES), help="types, with commas (%(default)s)")
            add("--more", type=int, default=0, metavar="N", help="N others, of what is compiled")
            add("--kernels", default="", help="measure these kernels, with commas between")
            add("--again", action="store_true", help="measure what the file has of --kernels again")
            add("--commit", default=commit(), help="what rows say of pymm's commit")
            continue
        add("--device", choices=tuple(DEVICES), default="nvidia-h200")
        if name == "fit":
            add("--left-out", type=int, default=0, metavar="N")
            add("--output", type=Path, help="the file to write")
        else:
            add("--seconds", type=float, default=600.0)
    return parser


def results(device: str) -> Path:
    """The file of a device's times."""
    return ROOT / "benchmarks" / "surveys" / f"{device}.csv"


# Measuring


def _log_uniform(generator: random.Random, least: int, greatest: int) -> int:
    return round(math.exp(generator.uniform(math.log(least), math.log(greatest))))


def draw(
    count: int,
    seed: int,
    deepest: int = GREATEST,
    dtypes: Sequence[str] = DTYPES,
    least: float = 0.0,
) -> list[list[Problem]]:
    """Random products with k up to `deepest` and at least so many operations, each in these types;
    none of those that take long. `SystemExit` if there are hardly any.
    """
    generator, found, tries = random.Random(seed), [], 0
    while len(found) < count:
        if (tries := tries + 1) > TRIES * count:
            raise SystemExit(f"survey: hardly any product has {least:.3g} operations or more")
        extents = [_log_uniform(generator, LEAST, most) for most in (GREATEST, GREATEST, deepest)]
        flags = [generator.random() < 0.5 for _ in "ab"]
        every = [Problem(*extents, dtype, *flags) for dtype in dtypes]
        group = [problem for problem in every if least <= problem.flops <= MOST_FLOPS]
        if group or not least:
            found.append(group)
    return found


def draw_weights(
    count: int, seed: int, dtypes: Sequence[str], rows: int = ROWS[1]
) -> list[Problem]:
    """Products of some rows, at most so many, with the weights of a language model, which are
    stored as n x k or, of each fourth product, as k x n; the types in turn.
    """
    generator, found = random.Random(seed), []
    for at in range(count):
        units = [generator.choice(UNITS) for _ in "nk"]
        n, k = (max(round(_log_uniform(generator, *WEIGHTS) / u), 1) * u for u in units)
        dtype = dtypes[at // 4 % len(dtypes)]
        m = _log_uniform(generator, ROWS[0], rows)
        found.append(Problem(m, n, k, dtype, False, at % 4 > 0))
    return [problem for problem in found if problem.flops <= MOST_OF_WEIGHTS]


def options(
    problem: Problem,
    device: Device,
    kernels: Iterable[Kernel] = KERNELS,
    among: Container[Config] | None = None,
) -> dict[Config, float]:
    """Every configuration, or every one of `among`, that may run, and the time that the models
    expect of it.
    """
    found: dict[Config, float] = {}
    for kernel in kernels:
        if kernel.options and problem.dtype in kernel.dtypes and kernel.runs_on(device):
            for expected, config in kernel.options(problem, device):
                if among is None or config in among:
                    found.setdefault(config, expected)
    return {c: t for c, t in found.items() if not c.kernel.violations(c, problem, device)}


def promising(
    problem: Problem,
    device: Device,
    generator: random.Random,
    kernels: Sequence[Kernel] = (),
    compiled: Container[str] | None = None,
) -> list[Config]:
    """The configurations to measure: those that should be quickest and some at random; with
    `kernels`, `OF_EACH` of each of them and `BESIDE` others. With `compiled` only such whose
    sources have one of these keys.
    """
    known = options(problem, device)
    if compiled is not None:
        known = {c: t for c, t in known.items() if render(c, problem).key in compiled}
    if not known:
        return []
    by_models = sorted(known, key=known.__getitem__)
    times = dict(known)
    if found := survey.survey_of(problem, device):
        corrections = np.exp(found.corrections(problem, by_models))
        times = {c: known[c] * by for c, by in zip(by_models, corrections, strict=True)}
    quick = sorted(times, key=times.__getitem__)
    if kernels:
        chosen = [c for c in quick if c.kernel not in kernels][:BESIDE]
        for kernel in kernels:
            own = [c for c in by_models if c.kernel is kernel][:OF_OWN]
            chosen += generator.sample(own, min(OF_EACH, len(own)))
        return chosen
    quick = [c for c in quick if times[c] <= WITHIN * times[quick[0]]]
    most = FEWER if problem.flops > MANY_FLOPS else MOST
    chosen = quick[: most - AT_RANDOM]
    others = [c for c in by_models[:OF] if c not in chosen]
    return chosen + generator.sample(others, min(AT_RANDOM, len(others)))


def measure(given: argparse.Namespace, kernels: Sequence[Kernel]) -> int:
    """Time the promising configurations of random products on the first GPU."""
    backend = open_device("cuda")
    device, pool = backend.device, OperandPool(backend)
    path = given.csv or results(device.slug)
    SURVEY.begun(path)
    chosen = _again(path, kernels, device) if given.again else _chosen(given, kernels, device)
    sources = {render(config, problem) for problem, configs in chosen.items() for config in configs}
    with Precompiler(backend) as compilers:
        wait([compilers.submit(source) for source in sources])
    environment = Environment.of(device, backend.toolchain)
    for done, (problem, configs) in enumerate(chosen.items(), 1):
        bench, calls = Workbench(backend, problem, 0, pool.verifier(problem)), {}
        for config in configs:
            try:
                calls[config.slug] = bench.call(bench.load(config))
            except CompileFailed as error:
                print(f"{problem.slug}: {config.slug} is left out: {error}", flush=True)
        start = origin(device, environment, given.commit) | product(problem) | {"seed": given.seed}
        rows = []
        for slug, taken in bench.interleave(calls, ROUNDS).items():
            if taken:
                seconds, spread = median_and_spread(taken)
                figures = {"us": f"{seconds * 1e6:.6g}", "spread": f"{spread:.3g}"}
                rows.append(start | {"config": slug} | figures)
        SURVEY.append(path, rows)
        print(f"{done} of {len(chosen)}: {problem.slug}, {len(rows)} times", flush=True)
    return 0


def _chosen(
    given: argparse.Namespace, kernels: Sequence[Kernel], device: Device
) -> dict[Problem, list[Config]]:
    """The configurations to measure of each product that is drawn."""
    generator, count = random.Random(given.seed), given.products + given.more
    groups = (
        [[p] for p in draw_weights(count, given.seed, given.dtypes.split(","), given.rows)]
        if given.weights
        else draw(count, given.seed, given.deepest, given.dtypes.split(","), given.least)
    )
    chosen: dict[Problem, list[Config]] = {}
    compiled: set[str] = set()
    for at, group in enumerate(groups):
        for problem in group:
            if kernels and not options(problem, device, kernels):
                continue
            among = compiled if at >= given.products else None
            chosen[problem] = promising(problem, device, generator, kernels, among)
            compiled |= {render(config, problem).key for config in chosen[problem]}
    return chosen


def _again(path: Path, kernels: Sequence[Kernel], device: Device) -> dict[Problem, list[Config]]:
    """What a file has of these kernels and may still run."""
    found: dict[Problem, list[Config]] = {}
    for problem, config, _ in measurements(path):
        if config.kernel in kernels and config not in found.setdefault(problem, []):
            found[problem].append(config)
    known = {problem: options(problem, device, kernels, found[problem]) for problem in found}
    kept = {p: [c for c in configs if c in known[p]] for p, configs in found.items()}
    return {problem: configs for problem, configs in kept.items() if configs}


# Fitting


def measurements(path: Path, dtype: str = "") -> Iterator[tuple[Problem, Config, float]]:
    """Product, configuration and microseconds of each row of a file, or of those of one type."""
    for row in SURVEY.rows(path, ("us",)):
        if dtype not in ("", row["dtype"]):
            continue
        trans = (letter == "T" for letter in row["layout"])
        problem = Problem(*(int(row[axis]) for axis in "mnk"), row["dtype"], *trans)
        yield problem, parse_slug(row["config"]), float(row["us"])


def read(path: Path, dtype: str, device: Device) -> Measured:
    """The newest times of one type, of configurations that are still among the options."""
    times = {(p, config): us for p, config, us in measurements(path, dtype)}
    measured: dict[Problem, set[Config]] = {}
    for problem, config in times:
        measured.setdefault(problem, set()).add(config)
    known = {
        problem: options(problem, device, {c.kernel for c in configs}, configs)
        for problem, configs in measured.items()
    }
    kept = [(p, c) for p, c in times if c in known[p]]
    order = {problem: at for at, problem in enumerate(dict.fromkeys(p for p, _ in kept))}
    return Measured(
        np.array([survey.row(p, c) for p, c in kept]),
        np.array([known[p][c] for p, c in kept]),
        np.array([times[pair] for pair in kept]),
        np.array([order[p] for p, _ in kept]),
    )


def part(data: Measured, use: np.ndarray) -> Measured:
    """Some of the rows."""
    return Measured(*(getattr(data, field.name)[use] for field in fields(data)))


def equations(data: Measured, at: np.ndarray, some: slice = slice(None)) -> np.ndarray:
    """What multiplies the weights of all rows to give the corrections of some, less their mean:
    covariances of the rows with these features, and the noise of measured times, some of which all
    configurations of one product share. Of the columns those up to the end of `some`.
    """
    found = survey.covariance(at[some], at[: some.stop].T)
    found += COMMON * (data.product[some, None] == data.product[: some.stop])
    here = np.arange(len(at))[some]
    found[np.arange(len(here)), here] += NOISE * (1 + SHORT / data.measured[some])
    return found


def fit(data: Measured, dtype: str, sms: int) -> tuple[np.ndarray, float]:
    """Weights of the measured points and the mean correction."""
    wanted = np.log(data.measured / data.expected)
    at = survey.features(data.rows, dtype, sms)
    left = np.empty((len(at), len(at)))
    for some in slices(len(at)):
        left[some, : some.stop] = equations(data, at, some)
    mean = float(wanted.mean())
    return solved(left, wanted - mean), mean


def slices(size: int) -> list[slice]:
    """Slices of `AT_A_TIME` up to a size."""
    return [slice(first, min(first + AT_A_TIME, size)) for first in range(0, size, AT_A_TIME)]


def solved(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution of symmetric, positive definite equations by Cholesky's method, block by block
    (Golub and Van Loan, Matrix Computations, 2013, section 4.2). Of `left` only the lower half is
    read, and it is overwritten: 35,548 equations take 9.4 GiB. NumPy's own solver copies it, and
    has ended with a segmentation fault for 22,606.
    """
    found = right.copy()
    for here in slices(len(left)):
        done, rest = slice(0, here.start), slice(here.stop, len(left))
        left[here, here] -= left[here, done] @ left[here, done].T
        inverse = np.linalg.inv(np.linalg.cholesky(left[here, here]))
        for piece in slices(len(left) - here.stop):
            below = slice(rest.start + piece.start, rest.start + piece.stop)
            left[below, here] -= left[below, done] @ left[here, done].T
            left[below, here] = left[below, here] @ inverse.T
        left[here, here] = inverse
        found[here] = inverse @ (found[here] - left[here, done] @ found[done])
    for here in reversed(slices(len(left))):
        rest = slice(here.stop, len(left))
        found[here] = left[here, here].T @ (found[here] - left[rest, here].T @ found[rest])
    return found


def predicted(data: Measured, dtype: str, folds: int, sms: int = 132) -> np.ndarray:
    """Corrections of every product, predicted by a fit to the products of the other folds."""
    found = np.zeros(len(data.measured))
    for one in range(folds):
        own = fold(data, folds, one)
        found[own] = predicted_by_others(data, own, dtype, sms)
    return found


def fold(data: Measured, folds: int, one: int) -> np.ndarray:
    """Which rows are of the products of one fold."""
    drawn = np.random.default_rng(0).integers(folds, size=data.product.max() + 1)
    return drawn[data.product] == one


def predicted_by_others(data: Measured, own: np.ndarray, dtype: str, sms: int = 132) -> np.ndarray:
    """Corrections of the rows `own`, predicted by a fit to all other rows."""
    at = survey.features(data.rows, dtype, sms)
    weights, mean = fit(part(data, ~own), dtype, sms)
    return mean + survey.covariance(at[own], at[~own].T) @ weights


def errors(data: Measured, corrections: np.ndarray) -> tuple[float, list[float]]:
    """Root mean square error of the logarithms of times, less each product's mean error; and for
    each product the time of the configuration with the least expected time / the least time.
    """
    times = data.expected * np.exp(corrections)
    error, of_choices, squares = np.log(times / data.measured), [], []
    for one in range(data.product.max() + 1):
        own = np.flatnonzero(data.product == one)
        if len(own) >= 4:
            squares += list((error[own] - error[own].mean()) ** 2)
            choice = own[times[own].argmin()]
            of_choices.append(float(data.measured[choice] / data.measured[own].min()))
    return math.sqrt(np.mean(squares)), of_choices


def summary(data: Measured, corrections: np.ndarray) -> str:
    """`errors` as a sentence."""
    error, choices = errors(data, corrections)
    mean = math.exp(np.mean(np.log(choices)))
    slow, slower = (sum(x > limit for x in choices) for limit in (SLOW, VERY_SLOW))
    return (
        f"error {error:.1%}, choices take {mean:.3f} of the best time; of {len(choices)} products "
        f"{slow} are above {SLOW}, {slower} above {VERY_SLOW}"
    )


def search(found: dict[str, Measured], seconds: float) -> int:
    """Change one scale after the other at random, and keep what lowers the error."""

    def error() -> float:
        return sum(errors(d, predicted(d, t, 3))[0] for t, d in found.items()) / len(found)

    generator, ends, best = random.Random(1), time.monotonic() + seconds, error()
    steps = dict.fromkeys(survey.SCALES, 0.5)
    print(f"{best:.4f} at first", flush=True)
    while time.monotonic() < ends:
        name = generator.choice(list(steps))
        before = survey.SCALES[name]
        after = before * math.exp(generator.choice((-1, 1)) * steps[name])
        survey.SCALES[name] = min(max(after, 0.01), 4.0)
        now = error()
        if now < best:
            best, steps[name] = now, 1.3 * steps[name]
        else:
            survey.SCALES[name], steps[name] = before, 0.75 * steps[name]
    rounded = {name: round(x, 3) for name, x in survey.SCALES.items()}
    print(f"{best:.4f} with {rounded}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
