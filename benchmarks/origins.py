"""Writes the figures of docs/explanation/origins.md between its markers: `python
benchmarks/origins.py`. They are those of the suites' rows in benchmarks/results, the last of each
contestant on each product.

With `--check` nothing is written and the status is 1 if the page is not what the files say.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.console import significant  # noqa: E402
from pymm.core import inputs  # noqa: E402
from pymm.core.shapes import parse_shapes  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "origins.md"
RESULTS = ROOT / "benchmarks" / "results"
GPU, CPU = RESULTS / "nvidia-h200", RESULTS / "amd-epyc-2-cores"

MARKED = re.compile(r"<!-- (figures|squares|halves) -->\n.*?<!-- end \1 -->", re.DOTALL)

Row = Mapping[str, str]

#: Columns of words and of numbers of the suites' files.
WORDS = ("suite", "step", "name", "variant", "config", "quantity", "transfer", "outcome", "value")
NUMBERS = ("seconds", "gflops", "speedup", "error_inf")

#: What stands where nothing was measured yet.
NOTHING = "not measured"

#: Names of contestants in these tables: pymm's are known by name and variant.
SIMPLE, TILED, TILE_48 = "01_coalesced", "02_shared_tile", "15_symmetric_tile"
SIDES = (8, 16, 32)


class Rows:
    """The rows of suites, the last of each contestant, product and quantity."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.last: dict[tuple[str, ...], Row] = {}
        for row in rows:
            who = row["name"] if row["variant"] != "chosen" else "chosen"
            key = (row["suite"], who, row["variant"], row["config"] if who != "chosen" else "")
            what = (row["m"], row["n"], row["k"], row["dtype"], row["quantity"], row["transfer"])
            self.last[key + what] = row

    def find(self, suite: str, shape: int | str, name: str, **wanted: str) -> Row | None:
        """The row of a contestant ("chosen": matmul's) on a product, f32 and its kernel unless
        `wanted` has other values of columns; `config` is what a configuration begins or ends with.
        """
        ((m, n, k),) = parse_shapes(str(shape))
        config = wanted.pop("config", "")
        wanted = {"dtype": "f32", "quantity": "kernel", "transfer": "", **wanted}
        wanted |= {"suite": suite, "m": str(m), "n": str(n), "k": str(k)}
        found = None
        for (_, who, *_), row in self.last.items():
            fits = who == name and all(row[key] == value for key, value in wanted.items())
            if fits and config in row["config"] and row["outcome"] in ("ok", "left_out"):
                found = row
        return found

    def of(self, suite: str, **wanted: str) -> list[Row]:
        """All rows of a suite with these values of columns."""
        return [
            row
            for row in self.last.values()
            if row["suite"] == suite and all(row[key] == value for key, value in wanted.items())
        ]


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare. Returns the exit status: 2 for a file that is damaged."""
    text = PAGE.read_text(encoding="utf-8")
    try:
        filled = MARKED.sub(Filler(), text)
    except (inputs.BadInput, FileNotFoundError) as failure:
        print(failure, file=sys.stderr)
        return 2
    if "--check" in arguments:
        return int(filled != text)
    PAGE.write_text(filled, encoding="utf-8")
    return 0


class Filler:
    """What stands between each pair of markers."""

    def __init__(self) -> None:
        gpu, cpu = (
            json.loads((folder / "device.json").read_text(encoding="utf-8"))["name"]
            for folder in (GPU, CPU)
        )
        files = [*sorted(GPU.glob("suites*.csv")), GPU / "counts.csv"]
        self.rows = Rows(row for file in files for row in inputs.rows_of(file, WORDS, NUMBERS))
        of_processes = inputs.rows_of(
            CPU / "distributed.csv", ("engine", "processes"), ("speedup",)
        )
        of_cpu = inputs.rows_of(CPU / "cpu.csv", ("name", "dtype", "m", "n", "k"), NUMBERS[:2])
        #: By the name of a source its rows, and the machine that they are from.
        self.sources: dict[str, tuple[Any, str]] = {
            "suites": (self.rows, gpu),
            "processes": (of_processes, cpu),
            "cpu": (of_cpu, cpu),
        }

    def __call__(self, match: re.Match[str]) -> str:
        name = match[1]
        lines = {"figures": self._figures, "squares": self._squares, "halves": self._halves}[name]
        return "\n".join([f"<!-- {name} -->", *lines(), f"<!-- end {name} -->"])

    def _figures(self) -> Iterator[str]:
        yield "| experiment | command | figures then | figures now | on |"
        yield "|---|---|---|---|---|"
        for one in FIGURES:
            rows, where = self.sources[one.source] if one.now else (None, "any")
            said = one.now(rows) if one.now else "printed by the command"
            yield f"| {one.what} | `{one.command}` | {one.then} | {said} | {where} |"

    def _squares(self) -> Iterator[str]:
        return _milliseconds(self.rows, [(n, n) for n in range(500, 18501, 1000)])

    def _halves(self) -> Iterator[str]:
        return _milliseconds(self.rows, [(n // 2, n) for n in range(500, 20501, 1000)])


def _library(rows: Rows, shape: str) -> Row | None:
    """The faster of cuBLAS's two libraries for A^T A in float64."""
    found = (rows.find("o3", shape, name, dtype="f64") for name in ("cublas", "cublaslt"))
    return min(filter(timed, found), key=seconds, default=None)


def _milliseconds(rows: Rows, sizes: list[tuple[int, int]]) -> Iterator[str]:
    """Times of C = A^T A in float64 by rows and columns of A."""
    heads = ("cuBLAS, A^T A", "naive", "optimised", "cuBLAS / optimised", "pymm.syrk")
    yield "| rows x columns of A | " + " | ".join(heads) + " |"
    yield "|---" + "|--:" * len(heads) + "|"
    for k, n in sizes:

        def of(name: str, n: int = n, k: int = k, **more: str) -> Row | None:
            return rows.find("o3", f"{n}x{n}x{k}", name, dtype="f64", **more)

        gemm, tile = _library(rows, f"{n}x{n}x{k}"), of(TILE_48)
        cells = [ms(gemm), ms(of("00_naive", variant="all of C")), ms(tile), gain(gemm, tile)]
        yield f"| {k} x {n} | {' | '.join([*cells, ms(of('chosen'))])} |"


# Cells


def timed(row: Row | None) -> bool:
    """Whether there is a time."""
    return row is not None and row["outcome"] == "ok" and bool(row["seconds"])


def seconds(row: Row) -> float:
    """The time of a row that has one."""
    return float(row["seconds"])


def ms(row: Row | None) -> str:
    """The time in milliseconds, or why there is none."""
    if timed(row):
        return significant(seconds(row) * 1e3)
    return "left out" if row else NOTHING


def rate(row: Row | None) -> str:
    """GFLOP/s, or why there are none."""
    return significant(float(row["gflops"])) if timed(row) else ms(row)


def gain(slow: Row | None, fast: Row | None) -> str:
    """How many times as fast."""
    return f"{seconds(slow) / seconds(fast):.2f}" if timed(slow) and timed(fast) else ""


# What is told of each experiment


def _simple_and_tiled(rows: Rows) -> str:
    of = [rows.find("o1", 4096, name, config="MB32") for name in (SIMPLE, TILED)]
    return f"4096: {ms(of[0])} and {ms(of[1])} ms"


def _transfers(rows: Rows) -> str:
    said = []
    for label, name in (("kernel00", SIMPLE), ("kernel10", TILED)):
        total = [
            ms(rows.find("o2-transfers", 640, name, quantity="total", transfer=way))
            for way in ("pageable", "locked")
        ]
        kernel = rows.find("o2-transfers", 640, name)
        said.append(f"{label} {' / '.join(total)} ms, kernel {ms(kernel)} ms")
    return "; ".join(said)


def _split(rows: Rows) -> str:
    parts = [
        rows.find("o2-split", 4096, "copies", quantity=part, transfer="pageable")
        for part in ("to_device", "to_host")
    ]
    parts.insert(1, rows.find("o2-split", 4096, TILED))
    if not all(map(timed, parts)):
        return NOTHING
    whole = sum(map(seconds, parts))
    shares = [f"{seconds(part) / whole:.0%}" for part in parts]
    return "kernel10 at 4096: to the device {}, kernel {}, to the host {}".format(*shares)


def _sizes(rows: Rows) -> str:
    names = (("kernel01", SIMPLE), ("kernel11", TILED))
    of = {label: rows.find("o2-sizes", 3200, name, variant="guarded") for label, name in names}
    if not any(of.values()):
        return NOTHING
    return "3200: " + ", ".join(f"{label} {rate(row)}" for label, row in of.items()) + " GFLOP/s"


def _remainders(rows: Rows) -> str:
    said = []
    for name in (SIMPLE, TILED):
        at = [rate(rows.find("o2-remainders", n, name, config="MB32-")) for n in (1023, 1024, 1025)]
        said.append(f"{name} {', '.join(at)}")
    return f"1023, 1024, 1025: {'; '.join(said)} GFLOP/s"


def _blocks(rows: Rows) -> str:
    said = []
    for name in (SIMPLE, TILED):
        of = [rate(rows.find("o2-blocks", 3200, name, config=f"MB{side}-")) for side in SIDES]
        said.append(f"{name} {', '.join(of)}")
    return f"3200, 8 to 32: {'; '.join(said)} GFLOP/s"


def _guards(rows: Rows) -> str:
    names = {
        "kernel00": (SIMPLE, "unguarded"),
        "kernel01": (SIMPLE, "guarded"),
        "kernel10": (TILED, "unguarded"),
        "kernel11": (TILED, "guarded"),
        "final write alone": (TILED, "writes guarded"),
    }
    said = []
    for label, (name, variant) in names.items():
        row = rows.find("o2-guards", 641, name, variant=variant, quantity="check", config="MB32")
        said += [f"{label} {row['value'].removeprefix('TEST ')}"] if row else []
    return f"641: {', '.join(said)}" if said else NOTHING


def _profile(rows: Rows) -> str:
    wanted = {
        "registers": "{:.0f} registers",
        "occupancy": "occupancy {:.0%}",
        "ncu:sm__warps_active.avg.pct_of_peak_sustained_active": "achieved {:.0f} %",
        "ncu:dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM {:.0f} %",
    }
    found = {name: rows.find("o2-kernels", 4096, TILED, quantity=name) for name in wanted}
    said = [f.format(float(found[name]["value"])) for name, f in wanted.items() if found[name]]
    return f"{TILED} at 4096: {', '.join(said) or NOTHING}"


def _counts(rows: Rows) -> str:
    said = []
    for name, config in ((SIMPLE, "MB32"), *((TILED, f"MB{side}-") for side in SIDES)):
        row = rows.find("o2-counts", 64, name, config=config, quantity="global_accesses")
        operations = rows.find("o2-counts", 64, name, config=config, quantity="operations")
        if row and operations:
            label = name if name == SIMPLE else f"{name} {config[2:-1]}"
            said.append(f"{label} {float(row['value']):g} of {float(operations['value']):g}")
    return f"64: {', '.join(said)} (accesses, operations)" if said else NOTHING


def _symmetric(rows: Rows) -> str:
    said = []
    for k, n in ((500, 500), (18500, 18500), (10250, 20500)):
        shape = f"{n}x{n}x{k}"
        gemm, tile = _library(rows, shape), rows.find("o3", shape, TILE_48, dtype="f64")
        naive = rows.find("o3", shape, "00_naive", dtype="f64", variant="all of C")
        own = rows.find("o3", shape, "chosen", dtype="f64")
        said.append(f"{k} x {n}: {ms(tile)} / {ms(gemm)} ms, naive {ms(naive)}, syrk {ms(own)}")
    return "; ".join(said)


def _pads(rows: Rows) -> str:
    of = rows.of("o3-pads", n="5500", quantity="kernel", outcome="ok")
    said = [f"{row['config'].rpartition('PAD')[2]}: {ms(row)} ms" for row in of]
    return f"5500, PAD {', '.join(said)}" if said else NOTHING


def _sequential(rows: Rows) -> str:
    of = _alone(rows)
    if not of:
        return NOTHING
    largest = max(of, key=lambda row: int(row["n"]))
    return f"{largest['n']}: {rate(largest)} GFLOP/s, median of {largest['rounds']} runs"


def _alone(rows: Rows) -> list[Row]:
    """Rows of sequential products that were measured alone and repeated, for C + A B."""
    of = rows.of("o4-square", name="sequential", outcome="ok")
    return [row for row in of if int(row["rounds"]) > 1]


def _ladder(rows: Rows) -> str:
    names = ("00_naive", SIMPLE, TILED, "03_register_tile", "04_transposed_a")
    sizes = [int(row["n"]) for row in rows.of("o4-square") if row["name"] == names[0]]
    if not sizes:
        return NOTHING
    of = [rows.find("o4-square", max(sizes), name) for name in names]
    faster = gain(of[0], of[1])
    said = f", kernel 1 is {faster} times as fast as kernel 0" if faster else ""
    return f"{max(sizes)}: {', '.join(map(rate, of))} GFLOP/s{said}"


def _errors(rows: Rows) -> str:
    steps = {row["step"] for row in _alone(rows)}
    of = [row for row in rows.of("o4-square", quantity="kernel") if row["step"] in steps]
    of = [row for row in of if row["name"] != "sequential" and row["error_inf"]]
    if not of:
        return NOTHING
    last = max(int(row["n"]) for row in of)
    found = [float(row["error_inf"]) for row in of]
    gains = [float(row["speedup"]) for row in of if int(row["n"]) == last]
    said = f"up to {last}: {min(found):.2g} to {max(found):.2g}"
    return f"{said}; speed-up at {last} {min(gains):.0f} to {max(gains):.0f}"


def _rectangles(rows: Rows) -> str:
    said = []
    for k in (32, 64, 128, 156):
        row = rows.find("o4-rectangular", f"10000x10000x{k}", "04_transposed_a")
        own = rows.find("o4-rectangular", f"10000x10000x{k}", "chosen")
        said += [f"k = {k}: {rate(row)}, matmul {rate(own)}"] if row or own else []
    return f"m = n = 10000, {'; '.join(said)} GFLOP/s" if said else NOTHING


def _processes(rows: list[Row]) -> str:
    of = [row for row in rows if row["engine"] == "pymm" and inputs.number(row["speedup"]) > 0]
    if not of:
        return NOTHING
    best = max(of, key=lambda row: float(row["speedup"]))
    return f"{best['m']}, {best['processes']} processes: speed-up {float(best['speedup']):.2f}"


def _on_a_cpu(rows: list[Row]) -> str:
    """The scalar loops on one thread, and the kernel that OpenMP runs on all."""
    at = [row for row in rows if row["dtype"] == "f64" and row["m"] == row["k"] == "2048"]
    found = {row["name"]: row for row in at if timed(row)}
    one, every = found.get("00_reordered"), found.get("01_blocked")
    return f"2048, f64: {rate(one)} and {rate(every)} GFLOP/s" if one and every else NOTHING


@dataclass(frozen=True)
class Figure:
    """One experiment: what it is, its command, the figures of its time and those of the files."""

    what: str
    command: str
    then: str
    now: Callable[[Any], str] | None = None
    source: str = "suites"


SUITE = "python -m pymm.bench --suite"

#: In the order of the documents: a course report (2017), a course on graphics cards, a project on a
#: Tesla C2075, a project on parallel computing (2024), and teaching slides.
FIGURES = (
    Figure("O1: simple and tiled kernels by size", f"{SUITE} o1", "", _simple_and_tiled),
    Figure(
        "O2: total (pageable / pinned) and kernel time at 640",
        f"{SUITE} o2-transfers",
        "kernel00 8.70 / 6.15 ms, kernel 4.10 ms; kernel10 6.19 / 3.48 ms, kernel 1.46 ms",
        _transfers,
    ),
    Figure("O2: time by part", f"{SUITE} o2-split", "", _split),
    Figure(
        "O2: GFLOP/s by N, 128 to 3200",
        f"{SUITE} o2-sizes",
        "3200 on a GTX 1080 Ti: kernel01 358, kernel11 1188 GFLOP/s",
        _sizes,
    ),
    Figure(
        "O2: remainders, N from 1000 to 1100",
        f"{SUITE} o2-remainders",
        "peaks at multiples of the block",
        _remainders,
    ),
    Figure("O2: blocks of 8, 16 and 32 squared", f"{SUITE} o2-blocks", "", _blocks),
    Figure(
        "O2: what is not guarded fails",
        f"{SUITE} o2-guards",
        "guards of the final write alone fail at 641",
        _guards,
    ),
    Figure("O2: profile of each kernel", f"{SUITE} o2-kernels", "", _profile),
    Figure(
        "O2: operations and accesses of a thread",
        f"{SUITE} o2-counts",
        "2N operations; 2N + 1 accesses, 2N / SZ + 1 with tiles",
        _counts,
    ),
    Figure(
        "O3: C = A^T A, optimised / Dgemm",
        f"{SUITE} o3",
        "500 x 500: 0.835 / 1.073 ms; 18500 x 18500: 30854 / 43582 ms, naive 360223; "
        "10250 x 20500: 20572 / 29781 ms",
        _symmetric,
    ),
    Figure(
        "O3: padding of shared memory (A A^T, where threads fetch along k)",
        f"{SUITE} o3-pads",
        "found by experiment",
        _pads,
    ),
    Figure(
        "O4: sequential product, on the host of the device",
        f"{SUITE} o4-square",
        "up to 5000",
        _sequential,
    ),
    Figure(
        "O4: kernels 0 to 4",
        f"{SUITE} o4-square",
        "kernel 1 is 14 times as fast as kernel 0",
        _ladder,
    ),
    Figure(
        "O4: relative error and speed-up",
        f"{SUITE} o4-square",
        "error 0: sums in the same order",
        _errors,
    ),
    Figure("O4: m, n far above k", f"{SUITE} o4-rectangular", "", _rectangles),
    Figure(
        "O4: processes, block-cyclic",
        "mpirun -n 4 python -m pymm.distributed bench --suite o4",
        "close to linear up to 20 processes",
        _processes,
        "processes",
    ),
    Figure("O5: where variables are", "python examples/variable_placement.py", ""),
    Figure("O5: tiles, phase by phase", "python examples/tile_phases.py", ""),
    Figure("O5: sequential and OpenMP loops", "python examples/openmp_loop.py", ""),
    Figure(
        "O5: sequential and OpenMP kernels of pymm",
        "python -m pymm.bench --shapes cpu-table --device cpu",
        "",
        _on_a_cpu,
        "cpu",
    ),
    Figure("O5: the ladder as a notebook", "jupyter lab docs/ladder.ipynb", ""),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
