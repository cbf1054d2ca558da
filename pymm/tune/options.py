"""The options of `python -m pymm.tune`, read and checked before anything is touched."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pymm.console import program
from pymm.core.dtypes import DTYPES
from pymm.core.problem import FILLS, Problem
from pymm.core.shapes import parse_shapes
from pymm.tune.devices import parse_devices
from pymm.tune.objective import OBJECTIVES, TIME
from pymm.tune.storage import parse_storage
from pymm.tune.study import SAMPLERS

EXAMPLES = """\
examples:
  python -m pymm.tune
      tune the standard shapes on this machine's GPU, or on its CPU if it has none
  python -m pymm.tune --shapes 4096 --dtypes f32 --budget 120
      one product, two minutes
  python -m pymm.tune --shapes 250:10001:250,8192x8192x128 --dtypes f64 --trials 100
      squares from 250 to 10000 and a shallow product, at most 100 configurations each
  python -m pymm.tune --shapes shapes.csv --transposes NN,TN --kernels all --devices all
      shapes from a file with the columns m, n, k; every kernel; every GPU
  python -m pymm.tune --shapes large,small,odd,rank-k,skinny --checks quick --budget 300
      every shape of the classes, a few seconds each
  python -m pymm.tune --shapes distributed --beta 1 --checks quick --devices all
      tiles of C that thin panels are added to, on every GPU
  python -m pymm.tune --op syrk --shapes 2048,8192x8192x64 --dtypes f64 --transposes TN
      A^T A for A of 2048 x 2048 and of 64 x 8192, both halves of it
  python -m pymm.tune --shapes 8192 --dtypes bf16 --objective both --budget 600
      time and energy; pymm.matmul(..., prefer="energy") uses the configuration of least energy
  python -m pymm.tune --stale --checks quick
      after a new driver, compiler or pymm: what was tuned with the old one, again
  python -m pymm.tune --shapes 1024 --dry-run
      only say how many configurations are valid, and which rule rejected the others
  python -m pymm.tune replay --help
      search recorded times instead of a device

Ctrl-C ends the search and saves the best so far; a second one leaves at once. The same command
again continues the search, also after a run that was killed. Trials of a study can be watched with
optuna-dashboard: the journal files are in the folder that --storage names.

exit status: 0 tuned (also if times were doubtful and so not saved: the table says where), 1 a
problem could not be tuned, 2 bad options, 3 no such device, 130 interrupted
"""

#: Options that `--stale` stands for.
_WHAT_IS_TUNED = ("op", "shapes", "dtypes", "transposes", "kernels")

#: Seconds of a run without `--budget` and `--trials`: `make tune` in a fresh checkout, with set-up,
#: start and table, stays under five minutes.
DEFAULT_BUDGET = 180.0

#: What `--quick` stands for where nothing else is given: seconds, dtypes, a named set of shapes.
QUICK = {"budget": 75.0, "dtypes": "f32", "shapes": ["quick"]}


@dataclass(frozen=True)
class Options:
    """What to tune, how long, where. `shapes` None: the standard set of the device. `transposes`
    None: NN, of a symmetric C both layouts that it can have. `beta` 1: C += op(A) op(B).
    `storage` is a folder of journals, `shared` a storage that other tuners use at the same time.
    """

    shapes: tuple[tuple[int, int, int], ...] | None = None
    dtypes: tuple[str, ...] = ("f32", "f64")
    transposes: tuple[str, ...] | None = None
    op: str = "gemm"
    beta: int = 0
    kernels: tuple[str, ...] = ()
    stale: bool = False
    trials: int | None = None
    budget: float | None = DEFAULT_BUDGET
    sampler: str = "local"
    objective: str = TIME
    seed: int = 0
    devices: tuple[str | int | None, ...] = (None,)
    storage: Path | None = None
    shared: str = ""
    output: Path | None = None
    csv: Path | None = None
    resume: str = "auto"
    limit: float | None = None
    checks: str = "thorough"
    dry_run: bool = False
    list: bool = False

    def problems(self, standard: Sequence[tuple[int, int, int]]) -> list[Problem]:
        """Every product to tune, small ones first: what they teach serves the large. `ValueError`
        for shapes that the operation does not have.
        """
        symmetric = self.op != "gemm"
        shapes = self.shapes or [s for s in standard if not symmetric or s[0] == s[1]]
        problems = [
            Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", op=self.op)
            for dtype in self.dtypes
            for layout in self.transposes or (("NT", "TN") if symmetric else ("NN",))
            for m, n, k in shapes
        ]
        return sorted(dict.fromkeys(problems), key=lambda problem: problem.flops)


def parse(argv: Sequence[str] | None = None) -> Options:
    """The options of a command line. Ends the process with status 2 and a sentence if they are
    bad.
    """
    parser = _parser()
    given = parser.parse_args(argv)
    if given.quick and not given.stale:
        for name, value in QUICK.items():
            if getattr(given, name) == parser.get_default(name):
                setattr(given, name, value)
    try:
        storage, shared = parse_storage(given.storage)
        fields = {
            "shapes": tuple(parse_shapes(given.shapes)) if given.shapes else None,
            "dtypes": _choose(given.dtypes, tuple(DTYPES), "dtype"),
            "transposes": _layouts(given.transposes, given.op),
            "kernels": tuple(given.kernels.split(",")) if given.kernels else (),
            "devices": parse_devices(given.devices),
            "storage": storage,
            "shared": shared,
        }
    except (ValueError, OSError) as failure:
        parser.error(str(failure))
    if given.stale and any(getattr(given, n) != parser.get_default(n) for n in _WHAT_IS_TUNED):
        parser.error(f"--stale says itself what is tuned: leave out {', '.join(_WHAT_IS_TUNED)}")
    for name in ("trials", "budget", "limit"):
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} {value} is not above 0")
    if given.budget is None and given.trials is None:
        given.budget = DEFAULT_BUDGET
    others = (
        "op",
        "beta",
        "trials",
        "budget",
        "sampler",
        "objective",
        "seed",
        "output",
        "csv",
        "resume",
        "limit",
        "checks",
        "dry_run",
        "list",
        "stale",
    )
    return Options(**fields, **{name: getattr(given, name) for name in others})


def _layouts(text: str | None, op: str) -> tuple[str, ...] | None:
    """Layouts by name. `ValueError` for one that the operation does not have."""
    known = ("NN", "NT", "TN", "TT") if op == "gemm" else ("NT", "TN")
    return None if text is None else _choose(text, known, f"layout of {op}")


def _choose(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    chosen = known if text == "all" else tuple(dict.fromkeys(text.split(",")))
    for name in chosen:
        if name not in known:
            raise ValueError(f"{what} {name!r} is none of {', '.join(known)}, all")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("tune"),
        description="Find the fastest configurations of pymm's kernels for a device and save them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add(parser.add_argument_group("what to tune"), WHAT)
    _add(parser.add_argument_group("how long and how"), HOW)
    _add(parser.add_argument_group("where"), WHERE)
    _add(parser.add_argument_group("only look"), LOOK)
    return parser


def _add(group: argparse._ArgumentGroup, arguments: dict[str, dict]) -> None:
    for name, details in arguments.items():
        group.add_argument(name, **details)


WHAT = {
    "--op": {
        "default": "gemm",
        "choices": list(FILLS),
        "help": "gemm, or a matrix times its transpose, layout NT (A A^T) or TN (A^T A): syrk "
        "(both halves), syrk_lower, syrk_upper (default: gemm)",
    },
    "--beta": {
        "type": int,
        "default": 0,
        "choices": [0, 1],
        "help": "1: time C += op(A) op(B), as a product in panels along k does (default: 0)",
    },
    "--shapes": {
        "action": "append",
        "metavar": "SHAPES",
        "help": "1024 (a square), 8192x8192x128 (m x n x k), 250:10001:250 (a range), a CSV file, "
        "or a named set; several separated by commas (default: a small standard set)",
    },
    "--dtypes": {"default": "f32,f64", "help": f"{', '.join(DTYPES)} or all (default: f32,f64)"},
    "--transposes": {
        "metavar": "LAYOUTS",
        "help": "NN, NT, TN, TT (A, B transposed) or all (default: NN; of syrk NT,TN)",
    },
    "--kernels": {
        "metavar": "KERNELS",
        "help": "names or numbers, or all: each is searched by itself and gets a record (default: "
        "all that can compute the problem compete, and the fastest is saved)",
    },
    "--stale": {
        "action": "store_true",
        "help": "instead of all these: tune again every stale record of the device (pymm configs "
        "--device), starting from its configuration",
    },
}

HOW = {
    "--trials": {
        "type": int,
        "metavar": "N",
        "help": "at most N new configurations for each problem, besides the kernels' defaults",
    },
    "--quick": {
        "action": "store_true",
        "help": f"a first look in {QUICK['budget']:.0f} s: three shapes of {QUICK['dtypes']}, "
        "unless others are named",
    },
    "--budget": {
        "type": float,
        "metavar": "SECONDS",
        "help": f"time for the whole run (default: {DEFAULT_BUDGET:.0f}; with --trials none)",
    },
    "--sampler": {
        "default": "local",
        "choices": SAMPLERS,
        "help": "local: Gaussian process and neighbours of the best; tpe: Optuna's; random; "
        "exhaustive (default: local)",
    },
    "--objective": {
        "default": TIME,
        "choices": list(OBJECTIVES),
        "help": "what is minimised: the time of a product, its energy (NVML's counter, a second or "
        "more for each configuration), or both: then the configurations are shown that none other "
        "is both faster and thriftier than (default: time)",
    },
    "--seed": {"type": int, "default": 0, "help": "of search and operands (default: 0)"},
    "--limit": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time for one trial (default: derived from the problem)",
    },
    "--checks": {
        "default": "thorough",
        "choices": ["thorough", "quick"],
        "help": "quick: integers by Freivalds' check, a sample of elements, guard zones; for many "
        "large products in little time (default: thorough, also strides, alpha and beta)",
    },
}

WHERE = {
    "--devices": {
        "metavar": "DEVICES",
        "help": "0 or cuda:0,cuda:1 (GPUs), all (every GPU), cpu, cpu:1 (one thread); devices of "
        "one model share a study, each other model has its own (default: the first GPU, else the "
        "CPU)",
    },
    "--storage": {
        "metavar": "DIR|URL",
        "help": "folder of the studies' journals (default: the user's state); or one storage that "
        "several tuners share: a file name.journal on this host, sqlite:///name.db, "
        "postgresql://user@host/name, grpc://host:port",
    },
    "--output": {
        "type": Path,
        "metavar": "DIR",
        "help": "folder of the tuned configurations (default: the user's configuration)",
    },
    "--csv": {
        "type": Path,
        "metavar": "FILE",
        "help": "file that every trial is appended to (default: in the folder --storage, else in "
        "the user's state)",
    },
    "--resume": {
        "default": "auto",
        "choices": ["auto", "never"],
        "help": "go on with the last study of a problem (auto), or begin a new one (never; "
        "default: auto)",
    },
}

LOOK = {
    "--dry-run": {
        "action": "store_true",
        "help": "say how many configurations are valid and which rule rejected how many",
    },
    "--list": {"action": "store_true", "help": "list the valid configurations"},
}
