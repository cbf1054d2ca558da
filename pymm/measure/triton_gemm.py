"""The baseline in Triton: a blocked product in the language's plain style, the fastest of a handful
of configurations. Imports Triton, which pymm does not require: only `pymm.measure.libraries`
imports this module, where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

#: Rows and columns of a tile, depth of a step, warps, stages: for 16 bits and tf32, then for
#: float32 and float64, whose products `tl.dot` computes without tensor cores.
WIDE = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4))
NARROW = ((128, 128, 16, 8, 3), (64, 128, 16, 4, 3), (64, 64, 32, 4, 3))

#: Runs of each configuration from which the fastest is chosen, after one to warm up.
RUNS = 3


@triton.jit
def _multiply(
    a,
    b,
    c,
    m,
    n,
    k,
    a_m,
    a_k,
    b_k,
    b_n,
    c_m,
    MB: tl.constexpr,
    NB: tl.constexpr,
    KB: tl.constexpr,
    GROUP: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """C = A B, one tile for each program, in groups of GROUP rows of tiles."""
    program, across = tl.program_id(0), tl.cdiv(n, NB)
    group = program // (GROUP * across)
    height = min(tl.cdiv(m, MB) - group * GROUP, GROUP)
    within = program % (GROUP * across)
    rows = (group * GROUP + within % height) * MB + tl.arange(0, MB)
    columns = (within // height) * NB + tl.arange(0, NB)
    steps = tl.arange(0, KB)
    from_a = a + (rows % m)[:, None] * a_m + steps[None, :] * a_k
    from_b = b + steps[:, None] * b_k + (columns % n)[None, :] * b_n
    total = tl.zeros((MB, NB), dtype=SUM)
    for step in range(0, tl.cdiv(k, KB)):
        left = k - step * KB
        x = tl.load(from_a, mask=steps[None, :] < left, other=0.0)
        y = tl.load(from_b, mask=steps[:, None] < left, other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        from_a += KB * a_k
        from_b += KB * b_k
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    to = c + rows[:, None].to(tl.int64) * c_m + columns[None, :]
    tl.store(to, total.to(c.dtype.element_ty), mask=inside)


def fastest(torch: Any, a: Any, b: Any, c: Any, tf32: bool) -> Callable[[], Any] | None:
    """The call that computes C = A B fastest (op(A) and op(B), two-dimensional). None where the
    language does not compute in this type, or for a batch.
    """
    if a.dim() != 2 or a.dtype == torch.float64:
        return None
    wide = tf32 or a.dtype != torch.float32
    found = []
    for numbers in WIDE if wide else NARROW:
        call = _call(a, b, c, numbers, "tf32" if tf32 else "ieee")
        try:
            found.append((_seconds(torch, call), call))
        except (triton.runtime.errors.OutOfResources, triton.CompilationError):
            continue
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _call(a: Any, b: Any, c: Any, numbers: tuple, precision: str) -> Callable[[], Any]:
    (m, k), n = a.shape, b.shape[1]
    height, width, depth, warps, stages = numbers
    programs = triton.cdiv(m, height) * triton.cdiv(n, width)
    if a.element_size() == 4 and precision == "tf32":
        depth //= 2

    def call() -> None:
        _multiply[(programs,)](
            a,
            b,
            c,
            m,
            n,
            k,
            a.stride(0),
            a.stride(1),
            b.stride(0),
            b.stride(1),
            c.stride(0),
            MB=height,
            NB=width,
            KB=depth,
            GROUP=8,
            SUM=tl.float32,
            PRECISION=precision,
            num_warps=warps,
            num_stages=stages,
        )

    return call


def _seconds(torch: Any, call: Callable[[], Any]) -> float:
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(RUNS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / RUNS
