"""One launch of each configuration, for a profiler to look at:
`python -m pymm.bench.experiments.profiled DEVICE f32-NN-4096x4096x4096 SLUG PROBLEM SLUG ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pymm.backends import open_device
from pymm.core.problem import Problem
from pymm.kernels import parse_slug
from pymm.kernels.source import render
from pymm.measure.quick_check import OperandPool

#: What Nsight Compute measures, by the names that O2's table has: SM efficiency, achieved
#: occupancy, DRAM use and throughput, global load and store throughput, shared load throughput
#: (Nsight Compute CLI, "nvprof Metric Comparison").
METRICS = (
    "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum.per_second",
    "dram__bytes_write.sum.per_second",
    "lts__t_sector_hit_rate.pct",
    "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second",
    "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum.per_second",
)

#: Name of every kernel's entry point.
KERNEL = "gemm"


def command(device: int, launches: Sequence[tuple[Problem, str]]) -> list[str]:
    """The command that launches configurations (by slug) on problems, one after the other."""
    named = [word for problem, slug in launches for word in (_spelled(problem), slug)]
    return [sys.executable, "-m", __name__, str(device), *named]


def _spelled(problem: Problem) -> str:
    return f"{problem.dtype}-{problem.layout}-{problem.m}x{problem.n}x{problem.k}"


def _problem(text: str) -> Problem:
    dtype, layout, extents = text.split("-")
    m, n, k = map(int, extents.split("x"))
    return Problem(m, n, k, dtype, *(letter == "T" for letter in layout))


def main(arguments: Sequence[str]) -> int:
    """Launch everything once. Returns the exit status."""
    device, *named = arguments
    backend = open_device(int(device) if device.isdigit() else device)
    pool = OperandPool(backend)
    for text, slug in zip(named[::2], named[1::2], strict=True):
        problem = _problem(text)
        quick = pool.verifier(problem)
        executable = backend.load(render(parse_slug(slug, forced=True), problem))
        a, b, c = quick.operands
        executable.bind(problem, 1.0, a, b, 0.0, c)()
        backend.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
