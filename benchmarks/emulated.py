"""How exact products with precision="emulated" are, beside float32's own, f16x3 and tf32x3.

    python benchmarks/emulated.py --csv emulated.csv

For each depth k and each kind of operands the largest componentwise error |C - C64| / (|A| |B|) of
all elements of C, of every way to compute the product: `emulated`, `f16x3`, `tf32x3` by pymm on the
device; `sgemm` is cuBLAS; `fma` adds products in the order of k by float32 multiply-adds, and
`numpy` is NumPy's float32, both on the host. The reference of a row is `sgemm` where cuBLAS is
installed, else the larger of `fma` and `numpy`. `computed` says which type the device chose for
`emulated`: a product that was not split has the bits of its fallback. `mismatches` counts elements
that are NaN or infinite in `emulated` or the reference alone; `order` those of them with |A| |B|
of 2^127 or more, where the order of additions decides whether a sum overflows. Elements with
|A| |B| below 2^-100, where float32 has fewer bits, have no error here.

Exit status 1 if an error of `emulated` is more than twice the reference's and more than 2^-24, or
if there is a mismatch that is no question of order, else 0. In the simulator: --depths 64,128,256
--rows 64 --columns 64.

    python benchmarks/emulated.py --plot docs/explanation/emulated.svg --csv emulated.csv

draws the errors of `emulated` relative to the reference's from a file and measures nothing.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.backends import open_device  # noqa: E402
from pymm.backends.base import Backend  # noqa: E402
from pymm.core.dtypes import EMULATED  # noqa: E402
from pymm.core.files import append, commit  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import Config, parse_slug  # noqa: E402
from pymm.kernels.emulated import fallback_config, plain_problem  # noqa: E402
from pymm.measure.libraries import BASELINES, Operands  # noqa: E402
from pymm.measure.ranges import ORDINARY  # noqa: E402
from pymm.measure.verify import GuardedMatrix  # noqa: E402
from pymm.report.svg import Axes, figure, standalone  # noqa: E402
from pymm.runtime.bind import executable  # noqa: E402

#: Kernels by type: 14 for those that it computes, 13.
SMALL = {
    "f16x3": "wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2",
    "tf32x3": "wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1",
}
SMALL["emulated"] = SMALL["f16x3"]

DEPTHS = (16, 64, 128, 256, 1024, 4096, 16384, 65536)

#: More than twice the reference's error counts as wrong only above this: one rounding.
ROUNDING = 2.0**-24

#: Most products of `fma`, which Python adds one k after the other.
FEW = 2**28

COLUMNS = (
    *("time", "device", "commit", "seed", "operands", "m", "n", "k", "computed", "emulated"),
    *("sgemm", "f16x3", "tf32x3", "fma", "numpy", "ratio", "mismatches", "order"),
)

Pair = tuple[np.ndarray, np.ndarray]


def _normal(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    return draw.standard_normal(a), draw.standard_normal(b)


def _uniform(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    return draw.uniform(0, 1, a), draw.uniform(0, 1, b)


def _log_uniform(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """Magnitudes over 30 binades, random signs."""
    return tuple(draw.choice((-1.0, 1.0), s) * 2.0 ** draw.uniform(-15, 15, s) for s in (a, b))


def _outliers(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """One element of each row of A and of each column of B is 2^20 times larger."""
    left, right = _normal(draw, a, b)
    left[np.arange(a[0]), draw.integers(0, a[1], a[0])] *= 2.0**20
    right[draw.integers(0, b[0], b[1]), np.arange(b[1])] *= 2.0**20
    return left, right


def _graded(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """A D and D^-1 B, D a diagonal matrix of powers of two from 2^-40 to 2^40."""
    left, right = _normal(draw, a, b)
    scale = 2.0 ** draw.integers(-40, 41, a[1])
    return left * scale, right / scale[:, None]


def _hilbert(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """1 / (i + j + 1)."""
    return tuple(1.0 / np.add.outer(np.arange(r) + 1.0, np.arange(c)) for r, c in (a, b))


def _denormal(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """A is subnormal, B large."""
    left, right = _normal(draw, a, b)
    return left * 2.0**-130, right * 2.0**60


def _near_overflow(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """Some sums overflow."""
    left, right = _normal(draw, a, b)
    return left * 2.0**64, right * 2.0 ** (62 - np.log2(a[1]) / 2)


def _special(draw: np.random.Generator, a: tuple, b: tuple) -> Pair:
    """Normal numbers with NaN, infinities and zeros among them."""
    left, right = _normal(draw, a, b)
    for value in (np.nan, np.inf, -np.inf, 0.0):
        left.flat[draw.integers(left.size)] = right.flat[draw.integers(right.size)] = value
    return left, right


KINDS: dict[str, Callable[[np.random.Generator, tuple, tuple], Pair]] = {
    "normal": _normal,
    "uniform": _uniform,
    "log-uniform": _log_uniform,
    "one outlier": _outliers,
    "graded": _graded,
    "Hilbert": _hilbert,
    "subnormal": _denormal,
    "near overflow": _near_overflow,
    "NaN and infinite": _special,
}


def fused(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B by one multiply-add after the other. A product of two float32 is exact in float64, so
    that only its sum with the one before is rounded (twice, which differs from once for hardly any
    sum).
    """
    total = np.zeros((len(a), b.shape[1]), np.float32)
    left, right = a.astype(float), b.astype(float)
    for k in range(a.shape[1]):
        total = (total + left[:, k, None] * right[k]).astype(np.float32)
    return total


class Study:
    """Products on one device."""

    def __init__(self, backend: Backend, m: int, n: int) -> None:
        self.backend, self.m, self.n = backend, m, n
        self.simulated = backend.device.kind == "simulator"

    def config(self, problem: Problem) -> Config:
        """The kernel's own default, or in the simulator a small configuration."""
        small = parse_slug(SMALL[problem.dtype])
        return small if self.simulated else small.kernel.default_for(problem, self.backend.device)

    def products(self, a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
        """C by every way there is here, and by the fallback of `emulated`."""
        c = np.full((self.m, self.n), np.nan, np.float32)
        fields = [GuardedMatrix(self.backend, x.dtype, (1, *x.shape)) for x in (a, b, c)]
        for field, values in zip(fields, (a, b, c), strict=True):
            field.write(values[None])
        at = [field.matrix for field in fields]
        found = {}

        def computed(call: Callable[[], object]) -> np.ndarray:
            fields[2].write(c[None])
            call()
            self.backend.synchronize()
            return fields[2].read()[0][0]

        for dtype in EMULATED:
            problem = Problem(self.m, self.n, a.shape[1], dtype)
            kernel = executable(self.backend, self.config(problem), problem)
            found[dtype] = computed(kernel.bind(problem, 1.0, *at[:2], 0.0, at[2]))
            if problem.type.checked:
                plain = plain_problem(problem)
                config = fallback_config(plain, self.backend.device)
                kernel = executable(self.backend, config, plain)
                found["plain"] = computed(kernel.bind(plain, 1.0, *at[:2], 0.0, at[2]))
        problem = Problem(self.m, self.n, a.shape[1])
        call = None if self.simulated else BASELINES["cublas"].call(Operands(problem, *at))
        if call is not None:
            found["sgemm"] = computed(call)
        if self.m * self.n * a.shape[1] <= FEW:
            found["fma"] = fused(a, b)
        found["numpy"] = a @ b
        return found

    def row(self, kind: str, k: int, seed: int) -> dict[str, object]:
        """A row of the table."""
        draw = np.random.default_rng([seed, list(KINDS).index(kind), k])
        with np.errstate(all="ignore"):
            a, b = (x.astype(np.float32) for x in KINDS[kind](draw, (self.m, k), (k, self.n)))
            found = self.products(a, b)
            left, right = a.astype(float), b.astype(float)
            exact, size = left @ right, np.abs(left) @ np.abs(right)
            errors = {name: largest(c, exact, size) for name, c in found.items()}
            usual = [name for name in ("sgemm",) if name in found] or ["fma", "numpy"]
            usual = [name for name in usual if name in found]
            reference = max(errors[name] for name in usual)
            same = [np.array_equal(found["emulated"], found["plain"], equal_nan=True)]
            differ = unlike(found["emulated"], found[usual[0]])
        return {
            "operands": kind,
            **{"m": self.m, "n": self.n, "k": k},
            "computed": "f32" if same[0] else "f16x3",
            **{name: f"{errors[name]:.3g}" for name in COLUMNS if name in errors},
            "ratio": f"{errors['emulated'] / max(reference, ROUNDING / 2):.3g}",
            "mismatches": int(differ.sum()),
            "order": int((differ & (size >= 2.0**127)).sum()),
        }


def largest(c: np.ndarray, exact: np.ndarray, size: np.ndarray) -> float:
    """The largest error of the elements that are finite."""
    judged = np.isfinite(c) & np.isfinite(exact) & (size >= ORDINARY)
    return float((np.abs(c - exact)[judged] / size[judged]).max(initial=0.0))


def unlike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether of two elements one alone is NaN or infinite, or both are with other signs."""
    differ = (np.isnan(one) != np.isnan(other)) | (np.isinf(one) != np.isinf(other))
    return differ | (np.isinf(one) & np.isinf(other) & (one != other))


def picture(path: Path) -> str:
    """An SVG file: largest error of `emulated`, relative to the reference's, by k and operands."""
    lines: dict[str, dict[float, float]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lines.setdefault(row["operands"], {})[float(row["k"])] = float(row["ratio"])
    title = 'Errors of precision="emulated"'
    caption = "Largest componentwise error, relative to that of cuBLAS SGEMM."
    axes = Axes("k", "error / SGEMM's", "log", limit=2.0, limit_name="limit")
    return standalone(figure("emulated", title, caption, lines, axes))


def main(arguments: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.plot:
        if given.csv is None:
            parser.error("--plot draws the rows of a file: name it by --csv")
        given.plot.write_text(picture(given.csv), encoding="utf-8")
        return 0
    backend = open_device(given.device)
    head = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": backend.device.slug,
        "commit": commit(),
        "seed": given.seed,
    }
    study, wrong = Study(backend, given.rows, given.columns), 0
    for k in map(int, given.depths.split(",")):
        for kind in KINDS:
            row = head | study.row(kind, k, given.seed)
            bad = float(row["ratio"]) > 2 and float(row["emulated"]) > ROUNDING
            wrong += bad or row["mismatches"] > row["order"]
            shown = (f"{name} {row[name]}" for name in COLUMNS[4:] if name in row)
            print("  ".join(shown) + ("  WRONG" if bad else ""), flush=True)
            if given.csv:
                append(given.csv, COLUMNS, [row])
    print(f"{wrong} rows are wrong")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--depths", default=",".join(map(str, DEPTHS)), help="values of k (default: %(default)s)")
    add("--rows", type=int, default=256, help="of A (default: 256)")
    add("--columns", type=int, default=256, help="of B (default: 256)")
    add("--seed", type=int, default=1, help="of the operands (default: 1)")
    add("--device", default="cuda", help="cuda, cuda:1 (default: cuda)")
    add("--csv", type=Path, help="file that rows are appended to")
    add("--plot", type=Path, help="file for a drawing of the rows in --csv; nothing is measured")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
