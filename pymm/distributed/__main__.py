"""`python -m pymm.distributed`: bench, calibrate, explain and simulate."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import math
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from pymm.console import program
from pymm.core.files import commit
from pymm.core.shapes import parse_shapes
from pymm.distributed import calibrate
from pymm.distributed.plan import Grid, Plan, Rates, choose_grid, choose_panel
from pymm.measure.results import SIMULATED

EXAMPLES = """\
examples:
  mpirun -n 4 python -m pymm.distributed bench --sizes 1000,2000 --csv distributed.csv
      C <- C + A B by pymm, by ScaLAPACK and from matrices of one process, in turn
  mpirun -n 4 python -m pymm.distributed bench --suite o4 --csv o4.csv --time-limit 500
      squares 250 to 10000 and m = n from 1000 with k = 32, 64, 128, 156; started again it continues
  mpirun -n 6 python -m pymm.distributed bench --sizes 4000 --processes 1,2,4,6
  mpirun -n 4 python -m pymm.distributed calibrate
      measure what the processes here can do, for plans
  python -m pymm.distributed explain 10000 10000 128 -p 16
      grid, words that a process receives, lower bound and predicted time, without MPI
  python -m pymm.distributed simulate 262144 262144 262144 -p 256 --panel 8192 \\
      --rates flops=50e12,bandwidth=45e9,latency=5e-6,memory=4e12,overlap=1 --csv simulated.csv
      the same plan step by step in SimGrid, on more processes than there are
  python -m pymm.distributed simulate --against distributed.csv --csv simulated.csv
      the products that bench measured, with the rates of calibrate, and how far off that is

exit status: 0 everything measured is right, 1 something is wrong, or was left out for want of time,
2 bad options
"""

#: Sizes of a suite.
SUITES = {"o4": "o4-square,o4-rank-k"}

DTYPES = {"f32": 4, "f64": 8}

ENGINES = "pymm,scalapack,once,document"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes. What all processes would say
    alike is said by one.
    """
    reader, said = parser(), io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            options = reader.parse_args(arguments)
    except SystemExit as end:
        with contextlib.suppress(ImportError):  # without MPI there is one process
            importlib.import_module("pymm.distributed.communicator")
        return _leave(said.getvalue().rstrip(), int(end.code or 0))
    try:
        return options.run(options)
    except (ValueError, MemoryError, OSError, ImportError, RuntimeError) as error:
        if _world() is None or _world().size == 1 or hasattr(error, "said_by_another"):
            return _leave(f"{reader.prog}: {error}", 2)
        raise  # of one process: the job ends


def _world() -> Any:
    """All processes, None where MPI was not started."""
    module = sys.modules.get("pymm.distributed.communicator")
    return module.MPI.COMM_WORLD if hasattr(module, "MPI") else None


def _leave(message: str, status: int) -> int:
    """Print a message on rank 0 before any process ends. Returns the exit status."""
    world = _world()
    if world is None or world.rank == 0:
        print(message, file=sys.stderr if status else sys.stdout, flush=True)
    if world is not None:
        world.Barrier()
    return status


def parser() -> argparse.ArgumentParser:
    """What reads the command line."""
    read = argparse.ArgumentParser(
        prog=program("distributed"),
        description="Products that several processes share, over MPI.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = read.add_subparsers(metavar="COMMAND", required=True)
    for add, run in (
        (_bench, _run_bench),
        (_calibrate, _run_calibrate),
        (_explain, _run_explain),
        (_simulate, _run_simulate),
    ):
        command = add(commands)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.epilog = EXAMPLES
        command.set_defaults(run=run)
    return read


def _bench(commands) -> argparse.ArgumentParser:
    command = commands.add_parser("bench", help="measure pymm, ScaLAPACK and one process alone")
    add = command.add_argument
    add(
        "--sizes",
        action="append",
        metavar="SHAPES",
        help="as for pymm.tune: 1000, 4000x4000x128, 250:2001:250, a CSV file, a named set",
    )
    add("--suite", choices=list(SUITES), help="the sizes of an experiment that pymm comes from")
    add("--engines", default=ENGINES, help="a list (default: %(default)s)")
    add("--processes", metavar="LIST", help="how many take part, 1,2,4 (default: all)")
    add("--grid", type=_grid, help="2x2 or 2x2x2 (default: the least predicted time of PxQ)")
    add("--panel", type=_positive, help="elements of k at a time (default: by the plan)")
    add("--sequential-to", type=int, default=5000, metavar="N", help=_SEQUENTIAL)
    add("--repeats", type=_positive, default=3, help=_REPEATS)
    add("--time-limit", type=float, default=math.inf, metavar="SECONDS", help=_LIMIT)
    add("--csv", type=Path, metavar="FILE", help="file to append to (default: only the table)")
    add("--commit", metavar="ID", help="what rows say of pymm's commit (default: the checkout's)")
    add("--transport", default="auto", choices=("auto", "mpi", "nccl"), help=_TRANSPORT)
    _add_product(add)
    return command


_TRANSPORT = "how panels of GPUs travel (default: from GPU to GPU by NCCL where it can, else MPI)"
_SEQUENTIAL = "largest extent that one process alone computes too (default: %(default)s)"
_LIMIT = "begin no product after so many seconds"


def _add_product(add) -> None:
    add("--dtype", choices=list(DTYPES), default="f64", help="(default: %(default)s)")
    add("--block", type=_positive, default=64, help="edge of the blocks (default: %(default)s)")
    add(
        "--product",
        default="auto",
        choices=("auto", "blas", "cpu", "gpu"),
        help="what multiplies in each process (default: GPUs if all have one, else SciPy's BLAS)",
    )


_REPEATS = "least number of runs of each, up to 25 if they are short (default: %(default)s)"


def _calibrate(commands) -> argparse.ArgumentParser:
    command = commands.add_parser("calibrate", help="measure rates and keep them for explain")
    _add_product(command.add_argument)
    return command


def _explain(commands) -> argparse.ArgumentParser:
    command = commands.add_parser("explain", help="say how a product would be shared, and why")
    add = command.add_argument
    for name in "mnk":
        add(name, type=int)
    add("-p", "--processes", type=_positive, required=True, help="how many there are")
    add("--layers", type=_positive, help="parts of k (default: by predicted time)")
    add("--memory", type=_size, default=math.inf, metavar="8GB", help="of a process, at most")
    _add_product(add)
    return command


def _simulate(commands) -> argparse.ArgumentParser:
    command = commands.add_parser("simulate", help="replay plans in SimGrid, of any size")
    add = command.add_argument
    add("shape", type=int, nargs="*", metavar="M N K", help="unless --against")
    add("-p", "--processes", type=_positive, help="how many there are (default: those of --grid)")
    add("--grid", type=_grid, help="16x16 or 16x16x2 (default: the least predicted time)")
    add("--panel", type=_positive, help="elements of k at a time (default: by the plan)")
    add("--calibrated", type=_positive, metavar="N", help=_CALIBRATED)
    add("--rates", type=_rates, default={}, metavar="NAME=VALUE,...", help=_RATES)
    add("--against", type=Path, metavar="FILE", help="of bench: simulate what it measured")
    add("--csv", type=Path, metavar="FILE", help="file to append to (default: only the text)")
    add("--commit", metavar="ID", help="what rows say of pymm's commit (default: the checkout's)")
    _add_product(add)
    return command


_CALIBRATED = "rates that calibrate measured with N processes (default: as many as simulated)"
_RATES = "flops, bandwidth, latency, memory, overlap: in place of those, per second and in seconds"


def _rates(text: str) -> dict[str, float]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        given = {name: float(value) for name, value in pairs}
        Rates(**given)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return given


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 1 on")
    return int(text)


def _grid(text: str) -> Grid:
    found = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})(?:x([1-9]\d{0,5}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no grid as 2x2 or 2x2x2")
    return Grid(*(int(number or 1) for number in found.groups()))


def _size(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes as 500MB or 8GB")
    return float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]


def _run_bench(options: argparse.Namespace) -> int:
    from pymm.distributed.bench import ENGINES as KNOWN
    from pymm.distributed.bench import Order, run
    from pymm.distributed.communicator import MPI, everywhere

    size = MPI.COMM_WORLD.size
    with everywhere(MPI.COMM_WORLD):
        engines = options.engines.split(",")
        if wrong := [name for name in engines if name not in KNOWN]:
            raise ValueError(f"--engines {wrong[0]!r} is none of {', '.join(KNOWN)}")
        if bool(options.sizes) == bool(options.suite):
            raise ValueError("give --sizes or --suite, one of the two")
        counts = [_positive(text) for text in (options.processes or str(size)).split(",")]
        if max(counts) > size:
            raise ValueError(f"--processes {max(counts)}: there are {size}; use mpirun -n")
        if options.grid and counts != [options.grid.size]:
            raise ValueError(f"--grid {options.grid} takes {options.grid.size} processes")
        order = Order(
            parse_shapes(options.sizes or SUITES[options.suite]),
            counts,
            engines,
            options.suite or "",
            options.dtype,
            options.block,
            options.grid,
            options.panel,
            options.product,
            options.transport,
            options.repeats,
            options.time_limit,
            options.sequential_to,
            options.csv,
            commit() if options.commit is None else options.commit,
        )
    return run(order)


def _run_calibrate(options: argparse.Namespace) -> int:
    from pymm.distributed.bench import DTYPES, rates_of
    from pymm.distributed.communicator import MPI
    from pymm.distributed.local_products import LocalProducts

    world = MPI.COMM_WORLD
    products = LocalProducts(world, options.product)
    rates = rates_of(world, products, DTYPES[options.dtype])
    if world.rank == 0:
        path = calibrate.path_of_rates()
        calibrate.keep(path, calibrate.key_of(world.size, options.product, options.dtype), rates)
        print(f"{world.size} processes, {products.name}, {options.dtype}, kept in {path}")
        print(calibrate.describe(rates))
    return 0


def _run_explain(options: argparse.Namespace) -> int:
    key = calibrate.key_of(options.processes, options.product, options.dtype)
    rates = calibrate.kept(calibrate.path_of_rates(), key)
    plan = choose_grid(
        *(options.m, options.n, options.k, options.processes, DTYPES[options.dtype]),
        memory=options.memory,
        rates=rates,
        block=options.block,
        layers=options.layers,
    )
    print(plan.describe())
    told = "measured by calibrate" if rates else "round figures; measure them with calibrate"
    print(f"\nrates of a process: {told}")
    print(calibrate.describe(rates or Rates()))
    return 0


def _run_simulate(options: argparse.Namespace) -> int:
    from pymm.distributed import simgrid

    simgrid.check()
    if options.csv is not None:
        SIMULATED.begun(options.csv)
    if options.against is None:
        plans = [(_plan_of(options), None)]
    elif options.shape or options.processes or options.grid or options.panel:
        raise ValueError("--against has products, grids and panels: give it alone")
    else:
        plans = simgrid.against(options.against, DTYPES, lambda *key: _measured(options, *key))
    commit_id = commit() if options.commit is None else options.commit
    for plan, real in plans:
        print(f"{simgrid.messages(plan)} messages, twice", flush=True)
        done = simgrid.replay(plan)
        row = done.row(real["dtype"] if real else options.dtype, commit_id)
        print(done.describe(), flush=True)
        if real:
            measured = float(real["seconds"])
            ratio = done.simulated / measured
            row |= {"device": real["device"], "measured": measured, "ratio": ratio}
            print(f"measured              {measured:.4g} s, simulated / measured {ratio:.3f}")
        if options.csv is not None:
            SIMULATED.append(options.csv, [row])
    return 0


def _plan_of(options: argparse.Namespace) -> Plan:
    """What the options of `simulate` ask for."""
    if len(options.shape) != 3:
        raise ValueError("give the extents M N K, or --against FILE")
    count = options.processes or (options.grid and options.grid.size)
    if count is None:
        raise ValueError("give -p, the number of processes, or --grid")
    if options.grid and options.grid.size > count:
        raise ValueError(f"--grid {options.grid} takes {options.grid.size} processes, not {count}")
    key = calibrate.key_of(options.calibrated or count, options.product, options.dtype)
    rates = calibrate.kept(calibrate.path_of_rates(), key)
    if rates is None and options.calibrated:
        raise ValueError(_UNMEASURED.format(options.calibrated, options.product, options.dtype))
    rates = replace(rates or Rates(), **options.rates)
    given = {"itemsize": DTYPES[options.dtype], "rates": rates, "block": options.block}
    if options.grid:
        plan = choose_panel(*options.shape, options.grid, **given)
    else:
        plan = choose_grid(*options.shape, count, **given)
    return replace(plan, panel=options.panel or plan.panel)


_UNMEASURED = (
    "there are no rates of {0} processes: mpirun -n {0} python -m pymm.distributed calibrate "
    "--product {1} --dtype {2}"
)


def _measured(options: argparse.Namespace, count: int, dtype: str) -> Rates:
    """The rates for a row of `bench`."""
    count = options.calibrated or count
    key = calibrate.key_of(count, options.product, dtype)
    rates = calibrate.kept(calibrate.path_of_rates(), key)
    if rates is None:
        raise ValueError(_UNMEASURED.format(count, options.product, dtype))
    return replace(rates, **options.rates)


if __name__ == "__main__":
    sys.exit(main())
