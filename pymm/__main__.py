"""The command `pymm`, also `python -m pymm`: tune, bench, report, verify, doctor, precompile,
configs, distributed, explain, version.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from pymm import __version__

EXAMPLES = """\
examples:
  pymm tune                               tune a standard set of shapes on this machine
  pymm tune --shapes 4096,8192x8192x128   tune two shapes
  pymm report                             a page of what is tuned and measured here
  pymm doctor                             what is missing here, and the command that fixes it
  pymm configs                            which devices are tuned, here or as shipped
  pymm configs nvidia-h200                what is tuned for one of them
  pymm explain 4096 --dtype f64           what a product would run with, and why

`pymm COMMAND --help` tells the options of a command."""

#: Commands and the modules that have them as `main(arguments) -> exit code`.
MODULES = {
    "tune": (
        "pymm.tune.__main__",
        "find and store the best configurations of this machine's device",
    ),
    "bench": ("pymm.bench.kernels", "measure shapes into a CSV file"),
    "report": (
        "pymm.report.cli",
        "make a page of what was measured of a device, or compare two",
    ),
    "doctor": ("pymm.doctor", "say what this machine has and lacks, and what fixes it"),
    "verify": ("pymm.report.verify", "measure a sample of a report again: does it agree?"),
    "precompile": ("pymm.precompile", "compile kernels before products need them"),
    "configs": ("pymm.show_configs", "list the devices that are tuned, or what is tuned for one"),
    "distributed": (
        "pymm.distributed.__main__",
        "compare, explain and simulate products over MPI",
    ),
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
    """Title and function of each command."""

    def of_module(name: str) -> Callable[[list[str]], int | None]:
        return lambda arguments: importlib.import_module(name).main(arguments)

    found = {name: (title, of_module(module)) for name, (module, title) in MODULES.items()}
    found["explain"] = ("say what a product would run with, and why", explain)
    found["version"] = ("print the version", lambda arguments: print(f"pymm {__version__}"))
    return found


def _usage(commands: dict) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {title}" for name, (title, _) in commands.items()]
    head = "usage: pymm COMMAND [options]\n\nMatrix multiplication, tuned for the device at hand."
    return "\n".join([head, "", "commands:", *lines, "", EXAMPLES])


def explain(arguments: list[str]) -> int:
    """`pymm explain SHAPE`."""
    from pymm.api import explain
    from pymm.core.dtypes import DTYPES
    from pymm.core.errors import CompileFailed, LaunchFailed, NoDevice
    from pymm.core.problem import Problem
    from pymm.core.shapes import parse_shapes

    text = "Says what a product would run with, and why."
    parser = argparse.ArgumentParser(prog="pymm explain", description=text)
    device = "cpu, cuda, cuda:1, cuda:all; by default the first GPU, else the CPU"
    parser.add_argument("--device", help=device)
    memory = "most of a GPU's memory to take, as 8GB: the product is computed in blocks"
    parser.add_argument("--device-memory", help=memory)
    parser.add_argument(
        "shapes",
        nargs="+",
        metavar="SHAPE",
        help="m x n x k as 8192x8192x128, or one number for a square",
    )
    parser.add_argument("--dtype", default="f32", help=f"{', '.join(DTYPES)} (default: f32)")
    layouts = ("NN", "NT", "TN", "TT")
    parser.add_argument("--layout", default="NN", choices=layouts, help="how A and B are stored")
    parser.add_argument("--kernel", help="name or number of a kernel")
    options = parser.parse_args(arguments)
    trans_a, trans_b = (letter == "T" for letter in options.layout)
    more = {"kernel": options.kernel, "device": options.device}
    if options.device_memory is not None:
        more["device_memory"] = options.device_memory
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
