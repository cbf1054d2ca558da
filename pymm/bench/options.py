"""The options of `python -m pymm.bench`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from pymm.bench.classes import ROUNDS, SHORT_ROUNDS
from pymm.bench.experiments.sequential import LARGEST
from pymm.console import program
from pymm.core.dtypes import DTYPES
from pymm.core.problem import FILLS
from pymm.core.shapes import DRAWN, LAYOUTS
from pymm.measure.libraries import BASELINES, ON_REQUEST

EXAMPLES = """\
examples:
  python -m pymm.bench --shapes ladder --kernels all
      every kernel, default and tuned, compared with cuBLAS
  python -m pymm.bench --shapes 4096 --dtypes f32 --rounds 31 --csv ladder.csv
  python -m pymm.bench --shapes 1000 --configs register_tile-MB64-NB64-KB16-TA4-TB4
      this configuration compared with the one that matmul would choose, and with cuBLAS
  python -m pymm.bench --classes all --csv classes.csv --time-limit 250
      every class, type and layout compared with cuBLAS and cuBLASLt, one row each; started
      again it continues
  python -m pymm.bench --classes large,odd --dtypes f32 --transposes NN --dry-run
  python -m pymm.bench --classes random,llm,batch --seed 20261123 --dtypes bf16 --csv new.csv
      populations: random products, those of language models, batches; nothing is tuned for them
  python -m pymm.bench --suite all --dry-run
      what every experiment would measure here, and how long that takes
  python -m pymm.bench --suite o2-remainders --csv suites.csv
      every N from 1000 to 1100; interrupted and started again it continues
  python -m pymm.bench --shapes 641 --dtypes f32 --kernels kernel10
      tiles without guards: wrong, with the first wrong element
  python -m pymm.bench --suite o4-square --shapes 250:2001:250 --sequential-to 1000 --device cpu

exit status: 0 everything measured is right, 1 something failed, is wrong or was left out for want
of time, 2 bad options, 3 no such device, 130 interrupted
"""


def _layouts(text: str) -> tuple[str, ...]:
    given = tuple(text.split(","))
    if not set(given) <= set(LAYOUTS):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(LAYOUTS)}")
    return given


def _natural(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= 12):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at most 12 digits")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """What reads the command line."""
    read = argparse.ArgumentParser(
        prog=program("bench"),
        description="Measure pymm's kernels and other libraries side by side.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_products(read)
    _add_measuring(read)
    _add_limits(read)
    return read


def _add_products(read: argparse.ArgumentParser) -> None:
    add = read.add_argument_group("what is measured").add_argument
    add(
        "--shapes",
        action="append",
        metavar="SHAPES",
        help="as for pymm.tune: 1024, 8192x8192x128, 250:10001:250, a CSV file, a named set",
    )
    add(
        "--classes",
        metavar="CLASSES",
        help="instead of shapes: large, small, odd, rank-k, skinny or all, syrk-large, syrk-small; "
        "then what matmul (syrk) would choose is measured, every type and layout, one row each. "
        "Or populations, with layouts of their own: random, llm, batch, syrk-uneven; they are "
        "measured with the configurations shipped with pymm, or those of --records",
    )
    add(
        "--suite",
        metavar="NAMES",
        help="the experiments that pymm comes from, by name: o1, o2-sizes, o2, o4, goals, all, ... "
        "(--dry-run says what each has); --shapes and --dtypes replace a suite's own",
    )
    add("--dtypes", help=f"{', '.join(DTYPES)} or all (default: f32,f64; of classes all)")
    add(
        "--op",
        default="gemm",
        choices=list(FILLS),
        help="of shapes: what to compute (default: gemm); syrk alone is --suite o3 in f64 and f32",
    )
    _add_kernels(add)
    add(
        "--transposes",
        metavar="LAYOUTS",
        help="NN, NT, TN, TT or all (default: NN, of syrk NT,TN; of classes all)",
    )
    add("--device", help="0, cpu, cpu:1 (default: the first GPU, else the CPU)")
    add(
        "--rounds",
        type=int,
        help=f"times that everything is run (default: 15; with --classes up to {ROUNDS}, "
        f"for short products up to {SHORT_ROUNDS})",
    )


def _add_kernels(add: Callable[..., object]) -> None:
    add(
        "--kernels",
        help="names or numbers (05, wgmma); kernel00, kernel01, kernel10 or kernel11 (one thread "
        "per element or tiles, for multiples of the block or any extents); or all (default: all; "
        "with --configs none)",
    )
    add(
        "--configs",
        metavar="SLUGS",
        help="of shapes: these configurations, separated by commas, and the one that matmul (syrk) "
        "would choose; one that violates a rule of its kernel is reported and left out",
    )
    add(
        "--guarded",
        default="auto",
        choices=["on", "off", "auto"],
        help="bounds checks of kernels 00, 01 and 02: on; off, which is wrong where a block sticks "
        "out of C; or as the extents need them (default: auto)",
    )


def _add_measuring(read: argparse.ArgumentParser) -> None:
    add = read.add_argument_group("how, and where it goes").add_argument
    add(
        "--records",
        type=Path,
        metavar="DIR",
        help="folder of the tuned configurations (default: the user's configuration)",
    )
    add("--csv", type=Path, metavar="FILE", help="file to append to (default: only the table)")
    add(
        "--checks",
        default="thorough",
        choices=["thorough", "quick"],
        help="as for pymm.tune (default: thorough; of classes quick)",
    )
    add("--commit", metavar="ID", help="what rows say of pymm's commit (default: the checkout's)")
    for name in ON_REQUEST:
        baseline = BASELINES[name]
        add(
            f"--{name}",
            nargs="?",
            const=LAYOUTS,
            default=(),
            type=_layouts,
            metavar="LAYOUTS",
            help=f"of classes: compare with {baseline.title} too, in these layouts (NN,TT; without "
            f"any in all four); {baseline.on_request}",
        )
    add(
        "--compile-meanwhile",
        action="store_true",
        help="measure while other sources are compiled (default: compile all first)",
    )
    add(
        "--dry-run",
        action="store_true",
        help="only say what would be measured (of classes and suites also how long it takes)",
    )


def _add_limits(read: argparse.ArgumentParser) -> None:
    add = read.add_argument_group("how much of classes and suites").add_argument
    add(
        "--time-limit",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="of classes and suites: begin no product after so many seconds",
    )
    add(
        "--slowest",
        type=float,
        metavar="SECONDS",
        help="of suites: leave out what takes longer for one run, and say so (default: 10 on a "
        "GPU, else 1)",
    )
    add(
        "--thin",
        type=int,
        default=1,
        metavar="N",
        help="of suites: only every Nth product (default: every one)",
    )
    add(
        "--sequential-to",
        type=int,
        default=LARGEST,
        metavar="N",
        help="of suites: largest square for the CPU's sequential kernel (default: %(default)s)",
    )
    add(
        "--seed",
        type=_natural,
        default=1,
        metavar="N",
        help="of the classes random and syrk-uneven: what they are drawn with (default: 1)",
    )
    add(
        "--count",
        type=_natural,
        metavar="N",
        help="of the same: only the first N products (default: "
        + ", ".join(f"{usual} of {name}" for name, (_, usual) in DRAWN.items())
        + ")",
    )
