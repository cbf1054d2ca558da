"""A device that never was, with files of measurements as the tools write them: rates follow from a
formula, so that tests know what a report has to say.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.core.problem import Problem
from pymm.core.shapes import parse_shapes
from pymm.measure import results

SLUG = "test-gpu-9"
PEAK = {"f32": 60e12, "f64": 30e12, "tf32x3": 150e12}

#: Part of the peak that each contestant reaches on a large product.
PART = {
    "00_naive": 0.01,
    "01_coalesced": 0.06,
    "02_shared_tile": 0.13,
    "03_register_tile": 0.55,
    "04_transposed_a": 0.6,
    "05_pipelined": 0.72,
    "08_tma_f32": 0.8,
    "15_symmetric_tile": 0.5,
    "cublas": 0.7,
    "cublaslt": 0.75,
    "sequential": 1e-4,
}

WAYS = {"pageable": 6e9, "pinned": 12e9, "registered": 9e9, "locked": 25e9}

UNSEEN = (
    "time",
    "device",
    "driver",
    "compiler",
    "pymm",
    "seed",
    "dtype",
    "layout",
    "m",
    "n",
    "k",
    "chosen",
    "reason",
    "chosen_us",
    "default",
    "default_us",
    "found",
    "found_us",
    "of_fastest",
    "of_default",
)
TUNE_DEVICES = tuple(
    "time device driver compiler pymm commit dtype m n k devices compilers trials seconds rate "
    "ratio busy twice".split()
)
CALLS = (
    "time",
    "device",
    "driver",
    "pymm",
    "dtype",
    "layout",
    "m",
    "n",
    "k",
    "arrays",
    "call",
    "us",
    "quartile_1",
    "quartile_3",
)
BESIDE_NUMPY = (*(name for name in CALLS if name != "arrays"), "process", "ratio")


def seconds(name: str, problem: Problem) -> float:
    """Time of a contestant: its part of the peak, less for small products and for remainders."""
    tile = 32 if name[:1].isdigit() else 16
    waste = 1.0
    for extent in (problem.m, problem.n):
        waste *= -(-extent // tile) * tile / extent
    return 4e-6 + waste * problem.flops / (PART[name] * PEAK[problem.dtype])


def common(problem: Problem, slug: str) -> dict[str, object]:
    return {
        "time": "2026-11-21T17:00:00+00:00",
        "device": slug,
        "driver": "580.1",
        "compiler": "nvcc 13.0.88",
        "pymm": "0.1.0",
        "dtype": problem.dtype,
        "layout": problem.layout,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "op": problem.op,
    }


def write(path: Path, columns: tuple[str, ...], rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        lines.writeheader()
        lines.writerows(rows)


def class_rows(slug: str = SLUG, faster: float = 1.0) -> list[dict[str, object]]:
    rows = []
    for dtype in ("f32", "f64", "tf32x3"):
        for layout in ("NN", "TN"):
            for name, n in (("large", 4096), ("large", 8192), ("small", 256), ("odd", 4097)):
                problem = Problem(n, n, n, dtype, layout == "TN")
                own = seconds("08_tma_f32", problem) / faster
                library = seconds("cublas", problem)
                config = "tma_f32-MB128-NB128-KB32"
                rows.append(
                    common(problem, slug)
                    | {
                        "schema": results.CLASSES.number,
                        "class": name,
                        "kernel": "08_tma_f32",
                        "config": config,
                        "reason": "the default",
                        "outcome": "ok",
                        "us": own * 1e6,
                        "spread": 0.01,
                        "rounds": 31,
                        "gflops": problem.flops / own / 1e9,
                        "peak": problem.flops / own / PEAK[dtype],
                        "cublas_us": library * 1e6,
                        "cublaslt_us": 1.1 * library * 1e6,
                        "ratio": library / own,
                        "error": 0.01 / n,
                        "rms": 1e-7,
                        "opponent_rms": 2e-7,
                        "power_w": 500.0,
                    }
                )
    return rows


def ladder(slug: str = SLUG) -> list[dict[str, object]]:
    rows = []
    for n in (1024, 2048, 4096):
        problem = Problem(n, n, n)
        for name in PART:
            if name == "sequential":
                continue
            time = seconds(name, problem)
            for variant in ("default", "tuned") if name[:1].isdigit() else ("",):
                time *= 0.8 if variant == "tuned" else 1.0
                rows.append(
                    common(problem, slug)
                    | {
                        "schema": results.KERNELS.number,
                        "name": name,
                        "variant": variant,
                        "outcome": "ok",
                        "config": f"{name[3:]}-MB64-NB64" if variant else "",
                        "seconds": time,
                        "spread": 0.02,
                        "rounds": 9,
                        "gflops": problem.flops / time / 1e9,
                        "ratio": seconds("cublaslt", problem) / time,
                        "registers": 32,
                    }
                )
    return rows


def trials(slug: str = SLUG) -> list[dict[str, object]]:
    """One search whose times depend on MB alone; the default, MB32, is half as fast as MB128."""
    rows = []
    for count in range(40):
        mb, nb = (32, 64, 128)[count % 3], (32, 64, 128)[count // 3 % 3]
        slow = mb == 32 and count > 0
        rows.append(
            {
                "schema": results.TRIALS.number,
                "time": f"2026-11-21T17:00:{count:02d}+00:00",
                "device": slug,
                "problem": "f32-NN-4096x4096x4096",
                "kernel": "pipelined",
                "config": f"pipelined-MB{mb}-NB{nb}",
                "role": "search",
                "origin": ("queue", "random", "neighbour", "neighbour")[count * 4 // 41],
                "outcome": "too_slow" if slow else "ok",
                "seconds": 2e-3 * 64 / mb * (1 + count / 1e5),
            }
        )
    late = {"time": "2026-11-21T17:00:40+00:00", "seconds": "", "origin": "neighbour"}
    rows.append(rows[0] | late | {"outcome": "wrong", "detail": "first wrong: (0, 0)"})
    for mb, time in ((32, 4e-3), (128, 1.6e-3)):
        rows.append(
            rows[0]
            | {
                "config": f"pipelined-MB{mb}-NB32",
                "role": "final",
                "origin": "",
                "outcome": "ok",
                "seconds": time,
            }
        )
    return rows


def unseen(slug: str = SLUG) -> list[dict[str, object]]:
    problem = Problem(300, 700, 1100)
    return [
        common(problem, slug)
        | {
            "chosen": "tma_f32-MB64-NB64",
            "reason": "nearest",
            "chosen_us": 11.0,
            "default_us": 15.0,
            "found_us": 10.0,
            "of_fastest": 0.909,
            "of_default": 1.36,
        }
    ]


def repeated(slug: str = SLUG) -> list[dict[str, object]]:
    figures = {"budget": 26.0, "seconds": 26.5, "tried": 77, "config": "tma_f32-MB64-NB64"}
    figures |= {"us": 10.5, "spread": 0.0125}
    return [common(Problem(300, 700, 1100), slug) | {"seed": n} | figures for n in (1, 2)]


def calls(slug: str = SLUG) -> list[dict[str, object]]:
    figures = {"arrays": "CuPy", "call": "plan()", "us": 2.5, "quartile_1": 2.25, "quartile_3": 3.5}
    return [common(Problem(64, 64, 64), slug) | figures]


def beside_numpy(slug: str = SLUG) -> list[dict[str, object]]:
    figures = {"us": 2.75, "quartile_1": 2.375, "quartile_3": 3.25, "ratio": 1.125}
    calls = (("own", "NumPy"), ("own", "plan"), ("shared", "plan"))
    names = [{"process": process, "call": call} for process, call in calls]
    return [common(Problem(64, 64, 64), slug) | name | figures for name in names]


def blocked(slug: str = SLUG) -> list[dict[str, object]]:
    """One GPU and two, one product larger than the memory, a copy, and a figure that is missing."""
    rows = [
        {"part": "links", "name": "GPU to GPU, ring", "devices": 2, "value": 385.0, "unit": "GB/s"},
        {"part": "single", "name": "pymm, queued", "devices": 1, "ratio": 1},
        {"part": "scaling", "name": "pymm, queued", "devices": 2, "ratio": 0.95},
        {
            "part": "outofcore",
            "name": "pymm, 8GB, again",
            "devices": 1,
            "ratio": 0.75,
            "value": 1.5,
        },
        {"part": "scaling", "name": "NCCL", "outcome": "failed", "detail": "no PyTorch"},
    ]
    product = common(Problem(4000, 4000, 4000), slug)
    copies = {name: "" for name in ("dtype", "m", "n", "k")}
    measured = {"outcome": "ok", "seconds": 0.5, "gflops": 256.0, "schema": results.BLOCKED.number}
    return [product | measured | (copies if row["part"] == "links" else {}) | row for row in rows]


def tune_devices(slug: str = SLUG) -> list[dict[str, object]]:
    """The tuner on one GPU and on two."""
    product = common(Problem(4096, 4096, 4096), slug)
    searches = [(1, 4.0, 1.0), (2, 7.5, 1.875)]
    return [
        product | dict(devices=count, compilers=16, trials=100, rate=rate, ratio=ratio, busy=0.75)
        for count, rate, ratio in searches
    ]


def distributed(slug: str = SLUG) -> list[dict[str, object]]:
    """Two engines on four processes, one of which failed."""
    product = common(Problem(3000, 3000, 3000, "f64"), slug)
    facts = dict(
        processes=4, grid="2x2", seconds=0.5, mean=0.75, gflops=108.0, speedup=3.25, ratio=1.25
    )
    facts |= dict(received=3e6, bound=2e6, error_inf=1e-15, schema=results.DISTRIBUTED.number)
    engines = [("pymm", "ok", ""), ("scalapack", "failed", "no library")]
    return [
        product | facts | dict(engine=engine, product="numpy", outcome=outcome, detail=detail)
        for engine, outcome, detail in engines
    ]


def simulated(slug: str = SLUG) -> list[dict[str, object]]:
    """A product of four processes, compared with a real run, and one of 64, which nobody ran."""
    facts = dict(schema=results.SIMULATED.number, simgrid="3.32", block=64, panel=512)
    facts |= dict(flops=44e9, bandwidth=13e9, latency=2.5e-6, memory=78e9, overlap=0.5)
    known = dict(processes=4, grid="2x2x1", blocking=0.5, simulated=0.4, efficiency=0.875)
    known |= dict(multiplying=0.35, measured=0.5, ratio=0.8)
    alone = dict(processes=64, grid="8x8x1", blocking=0.25, simulated=0.2, efficiency=0.625)
    product = common(Problem(3000, 3000, 3000, "f64"), slug)
    return [product | facts | more for more in (known, alone | {"multiplying": 0.125})]


def suites(slug: str = SLUG, sparse: int = 1) -> list[dict[str, object]]:
    """Every experiment, of its shapes each `sparse`-th."""
    rows: list[dict[str, object]] = []
    for name, experiment in EXPERIMENTS.items():
        layout = experiment.layout
        for dtype in [d for d in experiment.dtypes if d in ("f32", "f64")]:
            for m, n, k in parse_shapes(experiment.shapes)[::sparse]:
                problem = Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T")
                rows += _step(name, problem, slug)
    return rows


def _step(suite: str, problem: Problem, slug: str) -> list[dict[str, object]]:
    experiment = EXPERIMENTS[suite]
    shared = common(problem, slug) | {
        "schema": 1,
        "suite": suite,
        "step": f"{suite}-{problem.slug}",
        "outcome": "ok",
    }
    rows = []
    for name, variant, config in _contestants(suite):
        who = {"name": name, "variant": variant, "config": config}
        if suite == "o2-guards":
            numbers = {"check": "TEST FAIL" if problem.n % 32 else "TEST PASS"}
        elif suite == "o2-counts":
            numbers = {"operations": 2 * problem.k + 1, "global_loads": 2 * problem.k}
        else:
            time = seconds(name, problem)
            rows.append(
                shared
                | who
                | {
                    "quantity": "kernel",
                    "seconds": time,
                    "spread": 0.01,
                    "rounds": 9,
                    "gflops": problem.flops / time / 1e9,
                    "error_inf": 1e-7,
                    "ratio": seconds("cublas", problem) / time,
                    "speedup": seconds("sequential", problem) / time,
                }
            )
            numbers = {"occupancy": 0.5, "grid": "128x128x1"} if suite == "o2-kernels" else {}
            for way in experiment.transfers:
                total = time + problem.bytes / WAYS[way]
                found = {"quantity": "total", "transfer": way, "seconds": total}
                found["gflops"] = problem.flops / total / 1e9
                rows.append(rows[-1 if rows[-1]["quantity"] == "kernel" else 0] | who | found)
        rows += [shared | who | {"quantity": q, "value": value} for q, value in numbers.items()]
    for way in experiment.transfers:
        for quantity, part in (("to_device", 2 / 3), ("to_host", 1 / 3)):
            rows.append(
                shared
                | {
                    "name": "copies",
                    "quantity": quantity,
                    "transfer": way,
                    "seconds": part * problem.bytes / WAYS[way],
                }
            )
    return rows


def _contestants(suite: str) -> list[tuple[str, str, str]]:
    if suite in ("o1", "o2-blocks"):
        return [
            (name, "fixed", f"{name[3:]}-MB{side}-NB{side}")
            for name in ("01_coalesced", "02_shared_tile")
            for side in (8, 16, 32)
        ]
    if suite == "o2-guards":
        return [("01_coalesced", "unguarded", "coalesced-MB32-NB32-GUARDED0")]
    if suite == "o3-pads":
        tile = "symmetric_tile-MB48-NB48-KB48-TA3-TB3"
        return [("15_symmetric_tile", "fixed", f"{tile}-PAD{pad}") for pad in (1, 16)]
    if suite in ("o2-kernels", "o2-counts"):
        return [(name, "default", f"{name[3:]}-MB32-NB32") for name in PART if name[:1] == "0"]
    names = ["01_coalesced", "02_shared_tile"]
    if suite.startswith("o4"):
        names = ["00_naive", *names, "03_register_tile", "04_transposed_a"]
    found = [(name, "default", f"{name[3:]}-MB32-NB32") for name in names]
    return [
        *found,
        ("08_tma_f32", "chosen", "tma_f32-MB128-NB128"),
        ("cublas", "", ""),
        ("cublaslt", "", ""),
    ]


def folder(root: Path, slug: str = SLUG, sparse: int = 8, faster: float = 1.0) -> Path:
    """A whole folder of measurements, with the device's facts beside them."""
    at = root / slug
    write(at / "classes.csv", results.CLASSES.columns, class_rows(slug, faster))
    write(at / "ladder.csv", results.KERNELS.columns, ladder(slug))
    write(at / "tuning.csv", results.TRIALS.columns, trials(slug))
    write(at / "unseen.csv", UNSEEN, unseen(slug))
    write(at / "repeated.csv", results.REPEATED.columns, repeated(slug))
    write(at / "calls.csv", CALLS, calls(slug))
    write(at / "beside-numpy.csv", BESIDE_NUMPY, beside_numpy(slug))
    write(at / "blocked.csv", results.BLOCKED.columns, blocked(slug))
    write(at / "distributed.csv", results.DISTRIBUTED.columns, distributed(slug))
    write(at / "simulated.csv", results.SIMULATED.columns, simulated(slug))
    write(at / "tune-devices.csv", TUNE_DEVICES, tune_devices(slug))
    write(at / "suites.csv", results.EXPERIMENTS.columns, suites(slug, sparse))
    facts = {
        "slug": slug,
        "name": "Test GPU 9",
        "kind": "cuda",
        "bandwidth": 3e12,
        "peak_flops": PEAK,
    }
    (at / "device.json").write_text(json.dumps(facts))
    return at
