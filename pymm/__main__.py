"""The command `pymm`, also `python -m pymm`: tune, bench, report, verify, doctor, configs,
explain, version.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence

from pymm import __version__

EXAMPLES = """\
examples:
  pymm tune                               tune a standard set of shapes on this machine
  pymm tune --shapes 4096,8192x8192x128   tune two shapes
  pymm report                             pages of all that was measured, under reports/
  pymm doctor                             what is missing here, and the line that mends it
  pymm configs                            what is tuned for this machine's device
  pymm explain 4096 --dtype f64           what a product would run with, and why

`pymm COMMAND --help` tells the options of a command."""

#: Commands that are modules of their own, each with `main(arguments) -> exit code`.
MODULES = {
    "tune": "find and store the best configurations of this machine's device",
    "bench": "measure shapes into a CSV file",
    "report": "make a page of what was measured of a device, or compare two",
    "doctor": "say what this machine has and lacks, and what mends it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 2 for a command line that makes no sense."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = _commands()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage(commands))
        return 0
    name, *rest = arguments
    if name in ("--version", "-V"):
        name = "version"
    if name not in commands:
        print(f"pymm: no command {name!r}; there are {', '.join(commands)}", file=sys.stderr)
        return 2
    try:
        return commands[name][1](rest) or 0
    except BrokenPipeError:  # `pymm configs | head`
        sys.stderr.close()
        return 0


def _commands() -> dict[str, tuple[str, Callable[[list[str]], int | None]]]:
    """Title and function of each command. A module that is not part of this pymm is left out."""

    def of_module(name: str) -> Callable[[list[str]], int | None]:
        return lambda arguments: importlib.import_module(f"pymm.{name}").main(arguments)

    found = {
        name: (title, of_module(name))
        for name, title in MODULES.items()
        if importlib.util.find_spec(f"pymm.{name}")
    }
    if "report" in found:
        title = "measure a sample of a report again: does it agree?"
        found["verify"] = (title, _verify)
    found["configs"] = ("list what is tuned, and what of it is stale", list_configs)
    found["explain"] = ("say what a product would run with, and why", explain)
    found["version"] = ("print the version", lambda arguments: print(f"pymm {__version__}"))
    return found


def _verify(arguments: list[str]) -> int:
    from pymm.report.again import main

    return main(arguments)


def _usage(commands: dict) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {title}" for name, (title, _) in commands.items()]
    head = "usage: pymm COMMAND [options]\n\nMatrix multiplication, tuned for the device at hand."
    return "\n".join([head, "", "commands:", *lines, "", EXAMPLES])


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"pymm {name}", description=text)
    parser.add_argument(
        "--device", help="cpu, cuda, cuda:1; by default the first GPU, else the CPU"
    )
    return parser


def _open(spec: str | None):
    """The open backend and what its records are compared with."""
    from pymm import backends, cache
    from pymm.records import Environment

    backend = backends.open_device(spec, cache.cache_directory())
    return backend, Environment.of(backend.device, backend.toolchain)


def list_configs(arguments: list[str]) -> int:
    """`pymm configs`."""
    from pymm import cache
    from pymm.backends.base import NoDevice
    from pymm.select import configs
    from pymm.tables import show_table

    parser = _parser("configs", "Lists what is tuned for a device, and what of it is stale.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        backend, environment = _open(options.device)
    except (NoDevice, ValueError) as error:
        print(f"pymm configs: {error}", file=sys.stderr)
        return 1
    directory = cache.config_directory()
    rows = []
    for record, file, stale in configs(backend.device, directory, environment):
        problem, us = record.problem, record.seconds * 1e6
        gflops = problem.flops / record.seconds / 1e9
        where = "yours" if file.startswith(str(directory)) else "shipped"
        times = (f"{us:.4g}", f"{record.spread:.1%}", f"{gflops:.4g}")
        config = record.config.slug
        rows.append((problem.slug, config, *times, record.date, where, stale or "current"))
    columns = ("problem", "configuration", "us", "spread", "GFLOP/s", "date", "file", "state")
    if options.json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
    elif rows:
        title = f"{backend.device.name}: {len(rows)} records"
        show_table(columns, rows, title, numbers=("us", "spread", "GFLOP/s"))
    else:
        print(f"Nothing is tuned for {backend.device.name} yet: python -m pymm.tune")
    return 0


def explain(arguments: list[str]) -> int:
    """`pymm explain SHAPE`."""
    from pymm.backends.base import CompileFailed, LaunchFailed, NoDevice
    from pymm.explanation import explain
    from pymm.problem import DTYPES, Problem
    from pymm.shapes import parse_shapes

    parser = _parser("explain", "Says what a product would run with, and why.")
    parser.add_argument("shapes", nargs="+", metavar="SHAPE", help="1024, 8192x8192x128")
    parser.add_argument("--dtype", default="f32", help=f"{', '.join(DTYPES)} (default: f32)")
    layouts = ("NN", "NT", "TN", "TT")
    parser.add_argument("--layout", default="NN", choices=layouts, help="how A and B are stored")
    parser.add_argument("--kernel", help="name or number of a kernel")
    options = parser.parse_args(arguments)
    trans_a, trans_b = (letter == "T" for letter in options.layout)
    more = {"kernel": options.kernel, "device": options.device}
    try:
        kind = Problem(0, 0, 0, options.dtype)
        more |= dict(dtype=kind.numpy_dtype, out_dtype=kind.out_dtype, precision=kind.precision)
        for number, (m, n, k) in enumerate(parse_shapes(options.shapes)):
            a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
            told = explain(a, b, trans_a=trans_a, trans_b=trans_b, **more)
            print(f"\n{told}" if number else told)
    except (NoDevice, ValueError, TypeError, NotImplementedError) as error:
        print(f"pymm explain: {error}", file=sys.stderr)
        return 1
    except (CompileFailed, LaunchFailed) as error:
        print(f"pymm explain: the kernel cannot be made here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
