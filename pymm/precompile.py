"""The command `pymm precompile`: kernels compiled before products need them."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from pymm.backends import compiler_for, open_device
from pymm.backends.base import Compiler
from pymm.console import Stop, duration, program
from pymm.core.dtypes import DTYPES
from pymm.core.errors import CompileFailed, NoDevice, StoreError
from pymm.measure.precompile import Precompiler
from pymm.selection.choose import tuned_directory
from pymm.selection.precompiled import Binary, add_to_list, list_path, of_architecture, of_device

#: Exit status after Ctrl-C, as a shell has it.
INTERRUPTED = 130

#: Seconds between two lines where the output is no terminal.
PLAIN_EVERY = 10.0

EPILOG = """\
Compiled are the tuned configurations of the device, yours and those shipped, and what products of
other sizes get, in each type and layout. What is compiled already is left as it is, so that an
interrupted run goes on where it was. The kernels are in PYMM_CACHE_DIR, and are used as long as
compiler, pymm and configurations stay the same.

exit status: 0 all is compiled, 1 something is not or there is no device or compiler, 2 for a
command line that makes no sense, 130 interrupted

examples:
  pymm precompile                      for the first GPU, else the CPU
  pymm precompile --dtypes f16,bf16    two types alone
  pymm precompile --arch sm_90a        the tuned configurations of an H200, on a machine without one
"""


@dataclass
class Progress:
    """What has become of the binaries so far, and their bytes on disk."""

    total: int
    there: int = 0
    made: int = 0
    failed: list[str] = field(default_factory=list)
    bytes: int = 0
    done: list[Binary] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many are over."""
        return self.there + self.made + len(self.failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        compiler, binaries = _wanted(options)
    except (NoDevice, StoreError, ValueError, OSError) as error:
        print(f"{program('precompile')}: {error}", file=sys.stderr)
        return 1
    begun = time.monotonic()
    progress, workers, stopped = _compile(compiler, binaries, options.jobs)
    add_to_list(list_path(compiler.cache, compiler.target), progress.done)
    for line in progress.failed:
        print(line, file=sys.stderr)
    print(_summary(compiler, progress, workers, time.monotonic() - begun))
    if stopped:
        print(f"interrupted: {progress.total - progress.count} are not compiled; run it again")
        return INTERRUPTED
    return 1 if progress.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("precompile"),
        description="Compiles kernels before products need them, so that no first call waits for a "
        "compiler.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--device", help="cuda, cuda:1, cpu (default: the first GPU, else the CPU)")
    where.add_argument("--arch", type=_arch, help="sm_90a: the GPU need not be here")
    parser.add_argument("--dtypes", type=_dtypes, help=f"some of {','.join(DTYPES)} (default: all)")
    parser.add_argument(
        "--jobs", type=_jobs, help="compilers at a time (default: one a core, 8 at most)"
    )
    return parser


def _arch(text: str) -> str:
    if not re.fullmatch(r"sm_\d{2,3}a?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no architecture such as sm_80 or sm_90a")
    return text


def _dtypes(text: str) -> set[str]:
    names = set(text.split(","))
    if unknown := names - set(DTYPES):
        raise argparse.ArgumentTypeError(f"no dtype {', '.join(sorted(unknown))}")
    return names


def _jobs(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 999")
    return int(text)


def _wanted(options: argparse.Namespace) -> tuple[Compiler, list[Binary]]:
    """The compiler and what it has to do."""
    directory = tuned_directory()
    if options.arch:
        compiler, found = compiler_for(options.arch), of_architecture(options.arch, directory)
    else:
        backend = open_device(options.device)
        compiler, found = backend.compiler, of_device(backend, directory)
    types = options.dtypes or set(DTYPES)
    return compiler, [binary for binary in found if binary.problem.dtype in types]


def _compile(
    compiler: Compiler, binaries: Sequence[Binary], jobs: int | None
) -> tuple[Progress, int, bool]:
    """Compile them: how it went, by how many processes, and whether Ctrl-C ended it."""
    progress = Progress(len(binaries))
    waiting: dict[Future[None], Binary] = {}
    with Stop().listening() as stop, Precompiler(compiler, jobs) as pool, _shown(progress) as show:
        for binary in binaries:
            if compiler.has(binary.source):
                progress.there += 1
                _add(progress, binary, compiler)
            else:
                waiting[pool.submit(binary.source)] = binary
        for future in _finished(waiting, stop):
            binary = waiting[future]
            try:
                future.result()
            except (CompileFailed, OSError) as error:
                progress.failed.append(str(error))
            else:
                progress.made += 1
                _add(progress, binary, compiler)
            show()
        return progress, pool.workers, stop()


def _finished(waiting: Iterable[Future[None]], stop: Stop) -> Iterator[Future[None]]:
    """Futures as they are done, until `stop` is asked for."""
    left = set(waiting)
    while left and not stop():
        done, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
        yield from done


def _add(progress: Progress, binary: Binary, compiler: Compiler) -> None:
    progress.done.append(binary)
    folder = compiler.folder(binary.source)
    progress.bytes += sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def _shown(progress: Progress) -> Iterator[Callable[[], None]]:
    """What shows the progress: a bar on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console()
    if console.is_terminal:
        columns = TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=progress.total)
            yield lambda: bar.update(task, completed=progress.count)
        return
    told = time.monotonic()

    def tell() -> None:
        nonlocal told
        if time.monotonic() - told > PLAIN_EVERY:
            told = time.monotonic()
            print(f"{progress.count} of {progress.total} compiled", flush=True)

    yield tell


def _summary(compiler: Compiler, progress: Progress, workers: int, seconds: float) -> str:
    counts = f"{progress.made} compiled, {progress.there} were there"
    if progress.failed:
        counts += f", {len(progress.failed)} failed"
    return (
        f"{progress.total} kernels for {compiler.target} with {compiler.toolchain}: {counts}; "
        f"{progress.bytes / 2**20:.1f} MiB in {compiler.cache}; {duration(seconds)} with {workers} "
        f"process{'es' * (workers > 1)}"
    )


if __name__ == "__main__":
    sys.exit(main())
