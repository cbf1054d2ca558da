"""Products of numbers of every size by every reduced precision, beside float32's own.

    python benchmarks/ranges.py --count 400 --csv ranges.csv

For each precision and kind of operands (`pymm.measure.ranges.KINDS`: one size, each row and column
of its own size, each element of its own, graded, outliers, at the edges of the range, anywhere)
`--count` cases are drawn, with and without zeros, infinities and NaN, and compared in float64: NaN
and infinite where IEEE 754 has them, finite elsewhere and within the bound of the precision. The
same matrices are multiplied by a float32 kernel where they are float32. Errors are parts of
|A| |B|, the largest of all elements. Cases come in stacks, one launch each. Kernels that the
device does not have are left out, and it says so. Exit status 0 if no element is wrong, else 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.backends import open_device  # noqa: E402
from pymm.backends.base import Backend  # noqa: E402
from pymm.core.files import append, commit  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import Config, parse_slug  # noqa: E402
from pymm.measure import ranges  # noqa: E402
from pymm.measure.verify import GuardedMatrix  # noqa: E402
from pymm.runtime.bind import executable  # noqa: E402

#: One configuration of each kernel, for any size and small ones.
KERNELS = (
    ("f16x3", "wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2"),
    ("tf32x3", "wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1"),
    ("tf32", "wgmma_tf32-MB64-NB64-KB32-TA64-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1"),
    ("tf32", "tensor-MB64-NB64-KB32-TA32-TB32-STAGES3-BLOCKS1-GROUP8-SPLIT1"),
    ("bf16_f32", "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1"),
    ("f16_f32", "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1"),
)
FLOAT32 = "register_tile-MB32-NB32-KB8-TA2-TB2"

#: Rows, columns and depths of a case: whole tiles and steps, and not.
SIZES = ((64, 64, 128), (61, 67, 131))

COLUMNS = (
    "time",
    "device",
    "commit",
    "seed",
    "precision",
    "kernel",
    "numbers",
    "cases",
    "elements",
    "error",
    "f32_error",
    "mismatches",
    "f32_mismatches",
    "beyond",
    "detail",
)


def multiply(
    backend: Backend, config: Config, problem: Problem, a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """The stack of products, into memory full of NaN."""
    c = np.full((problem.batch, problem.m, problem.n), np.nan, np.float32)
    fields = [GuardedMatrix(backend, x.dtype, x.shape) for x in (a, b, c)]
    for field, values in zip(fields, (a, b, c), strict=True):
        field.write(values)
    at = [field.matrix for field in fields]
    call = executable(backend, config, problem).bind(problem, 1.0, *at[:2], 0.0, at[2])
    call()
    backend.synchronize()
    return fields[2].read()[0]


def stacks(
    dtype: str, kind: str, count: int, seed: int
) -> Iterator[tuple[Problem, np.ndarray, np.ndarray]]:
    """About `count` cases: one stack for each size and special numbers."""
    generator = np.random.default_rng([seed, list(ranges.KINDS).index(kind)])
    batch = max(1, round(count / len(SIZES) / len(ranges.SPECIALS)))
    for size in SIZES:
        for special in ranges.SPECIALS:
            problem = Problem(*size, dtype, batch=batch)
            yield problem, *ranges.draw(problem, kind, special, generator)


def measure(backend: Backend, dtype: str, slug: str, kind: str, count: int, seed: int) -> dict:
    """A row of the table: all cases of one kind by one kernel."""
    config, compared = parse_slug(slug), dtype in ("tf32", "tf32x3", "f16x3")
    found, plain, cases, elements = [], [], 0, 0
    for problem, a, b in stacks(dtype, kind, count, seed):
        got = multiply(backend, config, problem, a, b)
        found.append(ranges.judge(problem, a, b, got))
        cases, elements = cases + problem.batch, elements + got.size
        if compared:
            single = ranges.in_float32(problem)
            own = multiply(backend, parse_slug(FLOAT32), single, a, b)
            plain.append(ranges.judge(single, a, b, own))
    return {
        "precision": dtype,
        "kernel": config.kernel_name,
        "numbers": kind,
        "cases": cases,
        "elements": elements,
        "error": f"{max(x.error for x in found):.3g}",
        "f32_error": f"{max(x.error for x in plain):.3g}" if plain else "",
        "mismatches": sum(x.mismatches for x in found),
        "f32_mismatches": sum(x.mismatches for x in plain) if plain else "",
        "beyond": sum(x.beyond for x in found),
        "detail": next((x.detail for x in found if x.detail), ""),
    }


def main(arguments: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    given = _parser().parse_args(arguments)
    backend = open_device(given.device)
    head = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": backend.device.slug,
        "commit": commit(),
        "seed": given.seed,
    }
    simulated = backend.device.kind == "simulator"
    wrong = 0
    for dtype, slug in KERNELS:
        kernel = parse_slug(slug).kernel
        if not simulated and not kernel.runs_on(backend.device):
            print(f"{dtype}: {kernel.name} is for other devices than {backend.device.name}")
            continue
        for kind in ranges.KINDS:
            row = head | measure(backend, dtype, slug, kind, given.count, given.seed)
            wrong += row["mismatches"] + row["beyond"]
            print("  ".join(f"{row[name]}" for name in COLUMNS[4:] if row[name] != ""), flush=True)
            if given.csv:
                append(given.csv, COLUMNS, [row])
    print(f"{wrong} elements are wrong")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--count", type=int, default=400, help="cases of each kind (default: 400)")
    add("--seed", type=int, default=1, help="of the numbers (default: 1)")
    add("--device", default="cuda", help="cuda, cuda:1 (default: cuda)")
    add("--csv", type=Path, help="file that rows are appended to")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
