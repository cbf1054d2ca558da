"""Registers, spilled bytes and shared memory of the kernels, as nvcc reports them.

data/compiled.csv lists what was compiled before: a test run compiles only the sources whose digest
is not in it. The digest is of the code without its comments, of nvcc's version and of its options,
so that a changed kernel, another nvcc or another architecture is compiled again.

    python tests/support/compiled.py          compile what is not listed, drop what is not needed
    python tests/support/compiled.py --all    compile everything

Both use the nvcc that the project installs (PYMM_NVCC names another) and keep the rows of other
versions whose sources are still wanted. PYMM_TEST_ALL=1 makes a test run ignore the list.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]

from pymm.backends.cuda.nvcc import Nvcc, describe, find_nvcc  # noqa: E402
from pymm.kernels.source import Source  # noqa: E402

LIST = Path(__file__).resolve().parent / "data" / "compiled.csv"

#: Turing, Ampere (two) and Ada, Hopper: the PTX of a target, and the GPUs that it is assembled for.
#: From 8.0 to 8.9 all sources have the same PTX, for they ask for no architecture in between.
TARGETS = {"75": ("75",), "80": ("80", "86", "89"), "90a": ("90a",)}

_NO_CODE = re.compile(r"[ \t]*//[^\n]*|^#line[^\n]*|/\*.*?\*/", re.MULTILINE | re.DOTALL)
_LINE = re.compile(
    r"Compiling entry function '(?P<entry>\w+)' for 'sm_(?P<gpu>\w+)'"
    r"|(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r"|Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?"
)


class NotCompiled(Exception):
    """nvcc failed or warned; the message is what it printed."""


def project_nvcc() -> Nvcc:
    """`$PYMM_NVCC`, else the nvcc that the project's own packages bring, else the first that pymm
    finds: the list should not depend on what else a machine has.
    """
    site = Path(sysconfig.get_path("purelib"))
    wheels = sorted(site.glob("nvidia/*/bin/nvcc"))
    if wheels and "PYMM_NVCC" not in os.environ:
        return describe(str(wheels[-1]))
    return find_nvcc()


@dataclass(frozen=True, order=True)
class Row:
    """What one source became on one architecture: registers and static shared memory of its entry,
    spilled bytes of all its functions.
    """

    nvcc: str
    digest: str
    gpu: str
    registers: int
    spilled: int
    shared: int


def options(source: Source) -> list[str]:
    """nvcc's, for every architecture that the kernel runs on."""
    return [
        f"-gencode=arch=compute_{ptx},code=[{','.join(f'sm_{gpu}' for gpu in gpus)}]"
        for ptx, gpus in _targets(source).items()
    ]


def _targets(source: Source) -> dict[str, tuple[str, ...]]:
    least = source.config.kernel.min_capability
    if source.gate:  # of "emulated", which splits operands on Hopper alone
        least = (9, 0)
    return {ptx: gpus for ptx, gpus in TARGETS.items() if (int(ptx[0]), int(ptx[1])) >= least}


def digest(version: str, source: Source) -> str:
    """Of all that decides what nvcc makes of a source."""
    code = _NO_CODE.sub("", source.text)
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    return hashlib.sha256("\n".join([version, *options(source), *lines]).encode()).hexdigest()[:16]


def listed() -> dict[str, list[Row]]:
    """The rows of the list by digest."""
    rows: dict[str, list[Row]] = {}
    if LIST.exists():
        with LIST.open(newline="", encoding="utf-8") as file:
            for nvcc, key, gpu, *numbers in list(csv.reader(file))[1:]:
                rows.setdefault(key, []).append(Row(nvcc, key, gpu, *map(int, numbers)))
    return rows


def figures(nvcc: Nvcc, source: Source, known: dict[str, list[Row]]) -> list[Row]:
    """One row for each architecture: those of the list, else compiled now."""
    if os.environ.get("PYMM_TEST_ALL") != "1" and (rows := known.get(digest(nvcc.version, source))):
        return rows
    return compile_source(nvcc, source)


def compile_source(nvcc: Nvcc, source: Source) -> list[Row]:
    """Compile as for use. Raises `NotCompiled` on an error, a warning, or C75xx, nvcc's remark that
    it puts asynchronous products in a row.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "gemm.cu").write_text(source.text)
        command = [nvcc.path, "-fatbin", *options(source), "-Xptxas=-v"]
        command += ["-o", "gemm.fatbin", "gemm.cu"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    if done.returncode or "warning" in printed or re.search(r"\bC75\d\d\b", printed):
        raise NotCompiled(printed)
    rows = _parse(nvcc.version, digest(nvcc.version, source), printed, source.entry)
    if [row.gpu for row in rows] != [gpu for gpus in _targets(source).values() for gpu in gpus]:
        raise NotCompiled(printed)
    return rows


def _parse(version: str, key: str, printed: str, kernel: str) -> list[Row]:
    """The rows that nvcc's output with -Xptxas=-v tells of a source whose entry is `kernel`."""
    spilled: dict[str, int] = {}
    used: dict[str, tuple[int, int]] = {}
    entry = gpu = ""
    for found in _LINE.finditer(printed):
        if found["entry"]:
            entry, gpu = found["entry"], found["gpu"]
        elif found["stores"]:
            spilled[gpu] = spilled.get(gpu, 0) + int(found["stores"]) + int(found["loads"])
        elif entry == kernel:
            used[gpu] = int(found["registers"]), int(found["shared"] or 0)
    return [
        Row(version, key, gpu, registers, spilled[gpu], shared)
        for gpu, (registers, shared) in used.items()
    ]


def write(rows: list[Row]) -> None:
    """Replace the list."""
    with LIST.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(map(astuple, sorted(set(rows))))


def main() -> int:
    """The command."""
    from spill_sources import sources

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="compile what is listed, too")
    again = parser.parse_args().all
    nvcc, wanted, known = project_nvcc(), sources(), listed()
    versions = {row.nvcc for rows in known.values() for row in rows}
    if again:
        versions -= {nvcc.version}
    kept = [
        row
        for version in sorted(versions)
        for source in wanted.values()
        for row in known.get(digest(version, source), [])
    ]
    failed = 0

    def obtain(source: Source) -> list[Row] | str:
        rows = [] if again else known.get(digest(nvcc.version, source), [])
        try:
            return rows or compile_source(nvcc, source)
        except NotCompiled as error:
            return str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, rows in zip(wanted, pool.map(obtain, wanted.values()), strict=True):
            if isinstance(rows, str):
                failed += 1
                print(f"{name}: {rows}", file=sys.stderr)
            else:
                kept += rows
                write(kept)  # an interrupted run keeps what it has
    print(f"{LIST}: {len(kept)} rows, {failed} sources failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
