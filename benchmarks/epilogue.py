"""What a fused epilogue costs on a GPU: a product with a bias and an activation, beside the product
alone and beside the product followed by PyTorch's activation.

    python benchmarks/epilogue.py --csv epilogue.csv

First every kernel of the device multiplies with every activation, and each element is compared with
float64. Times are of plans on the default stream with a cold L2 cache, medians of rounds in random
order: `plain` without an epilogue, `fused` with bias and activation, `separate` the plain product,
then PyTorch's addition of the bias and its activation, both in place, `torch` PyTorch's own
`addmm` and activation.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import pymm  # noqa: E402
from pymm.backends import open_device  # noqa: E402
from pymm.backends.base import Backend  # noqa: E402
from pymm.core import reference  # noqa: E402
from pymm.core.epilogue import ACTIVATIONS, Epilogue  # noqa: E402
from pymm.core.files import append, commit  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import kernels_for  # noqa: E402
from pymm.kernels.source import Source, render  # noqa: E402
from pymm.measure.timer import Stopwatch  # noqa: E402
from pymm.measure.verify import normal  # noqa: E402
from pymm.selection.choose import choose  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402

#: Types of the products that are verified, each with a size that leaves parts of tiles.
VERIFIED = ("f32", "f64", "bf16", "f16", "bf16_f32", "tf32", "tf32x3", "f16x3")
SHAPE = 257, 193, 136

#: Products that are timed.
TIMED = (
    Problem(4096, 4096, 4096, "bf16"),
    Problem(4096, 4096, 4096, "f32"),
    Problem(4096, 4096, 512, "bf16"),
)

COLUMNS = (
    *("time", "device", "driver", "pymm", "commit", "dtype", "layout", "m", "n", "k"),
    *("activation", "call", "us", "quartile_1", "quartile_3"),
)


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status: 1 if a result is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, help="file that the rows are appended to")
    parser.add_argument("--rounds", type=int, default=41, help="(default: 41)")
    parser.add_argument("--jobs", type=int, default=8, help="compilers at a time (default: 8)")
    parser.add_argument("--commit", default=commit(), help="what rows say of pymm's commit")
    given = parser.parse_args(arguments)
    backend = open_device("cuda")
    verified = list(_verified(backend))
    sources = [source for *_, source in verified]
    for problem in TIMED:
        config = choose(backend, problem).config
        chosen = [Epilogue(name, problem.out_dtype) for name in ACTIVATIONS]
        sources += [render(config, problem, None, one) for one in (Epilogue(), *chosen)]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(backend.precompile, sources))
    wrong = [words for case in verified if (words := _wrong(*case))]
    print(f"{len(verified)} products verified, {len(wrong)} wrong", *wrong, sep="\n", flush=True)
    start = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": backend.device.slug,
        "driver": Environment.of(backend.device, "").driver,
        "pymm": pymm.__version__,
        "commit": given.commit,
    }
    for problem in TIMED:
        rows = [start | row for row in _timed(backend, problem, given.rounds)]
        if given.csv:
            append(given.csv, COLUMNS, rows)
    return 1 if wrong else 0


Case = tuple[Problem, str, str, Source]


def _verified(backend: Backend) -> Iterator[Case]:
    """Each kernel with each activation: problem, kernel, activation, source."""
    for dtype in VERIFIED:
        problem = Problem(*SHAPE, dtype)
        for kernel in kernels_for(problem, backend.device):
            config = choose(backend, problem, kernel.name).config
            for name in ACTIVATIONS:
                source = render(config, problem, None, Epilogue(name, problem.out_dtype))
                yield problem, kernel.name, name, source


def _wrong(problem: Problem, kernel: str, activation: str, _: Source) -> str:
    """What is wrong with a product: in words, "" if nothing."""
    a, b, c = (x[0] for x in normal(problem, 0))
    bias = np.random.default_rng(1).standard_normal(problem.n).astype(problem.out_dtype)
    scalars = 1.5, 0.5
    got = pymm.matmul(
        *(a, b),
        c=c,
        alpha=scalars[0],
        beta=scalars[1],
        bias=bias,
        activation=activation,
        kernel=kernel,
        precision=problem.precision,
        out_dtype=problem.out_dtype if problem.out_dtype != problem.numpy_dtype else None,
        device="cuda",
    )
    wanted = reference.finished(reference.product(problem, a, b, c, *scalars), activation, bias)
    bound = reference.finished_bound(problem, a, b, c, *scalars, activation, bias)
    error = np.abs(got.astype(np.float64) - wanted) / bound
    if np.all(error <= 1):  # NaN is wrong
        return ""
    return f"{kernel} {problem.slug} {activation}: {np.max(error):.3g} of the bound"


def _timed(backend: Backend, problem: Problem, rounds: int) -> Iterator[dict[str, Any]]:
    """Rows of one product with every activation."""
    import torch  # the only library here that has activations

    functions: dict[str, Callable[..., Any]] = {
        "relu": torch.relu_,
        "gelu": lambda x: torch.ops.aten.gelu_(x),
        "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
        "silu": lambda x: torch.nn.functional.silu(x, inplace=True),
    }
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[problem.dtype]
    m, n, k = problem.m, problem.n, problem.k
    a, b, bias, out = (
        torch.randn(shape, dtype=kind, device="cuda") for shape in ((m, k), (k, n), (n,), (m, n))
    )
    plain = pymm.plan(a, b, out)
    for name, function in functions.items():
        calls = {
            "plain": plain,
            "fused": pymm.plan(a, b, out, bias=bias, activation=name),
            "separate": lambda function=function: (plain(), function(out.add_(bias))),
            "torch": lambda function=function: function(torch.addmm(bias, a, b, out=out)),
        }
        for call in calls.values():
            call()
        times, _ = Stopwatch(backend).rounds(calls, rounds, rounds)
        for call, samples in times.items():
            low, middle, high = statistics.quantiles(samples, n=4)
            figures = {"us": middle, "quartile_1": low, "quartile_3": high}
            print(f"{problem.slug:24} {name:10} {call:9} {middle * 1e6:8.2f} us", flush=True)
            about = {"dtype": problem.dtype, "layout": problem.layout, "m": m, "n": n, "k": k}
            shown = {key: f"{value * 1e6:.4g}" for key, value in figures.items()}
            yield about | {"activation": name, "call": call} | shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
