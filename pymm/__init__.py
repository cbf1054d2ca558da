"""Matrix multiplication for Python on NVIDIA GPUs, autotuned.

`pymm.matmul(a, b)` multiplies, `pymm.plan` multiplies many times, `pymm.explain` says what would
run and why, `pymm.configs` lists what is tuned; `pymm.syrk(a)` multiplies a matrix by its
transpose, `pymm.grouped` the matrices of two lists. `python -m pymm.tune` tunes, `python -m
pymm.doctor` says what this machine lacks.
"""

__version__ = "0.1.0"

from pymm.api import (
    Plan,
    Tuned,
    configs,
    explain,
    explain_syrk,
    grouped,
    matmul,
    plan,
    plan_grouped,
    plan_syrk,
    syrk,
)
from pymm.blocked.sharded import ShardedMatrix, scatter
from pymm.core.errors import Busy, CompileFailed, Error, LaunchFailed, NoDevice, StoreError
from pymm.einsum import einsum, tensordot
from pymm.runtime.explain import Explanation
from pymm.runtime.grouped import GroupedPlan
from pymm.runtime.prepared import prepare
from pymm.selection.choose import freeze, reload

__all__ = [
    "Busy",
    "CompileFailed",
    "Error",
    "Explanation",
    "GroupedPlan",
    "LaunchFailed",
    "NoDevice",
    "Plan",
    "ShardedMatrix",
    "StoreError",
    "Tuned",
    "configs",
    "einsum",
    "explain",
    "explain_syrk",
    "freeze",
    "grouped",
    "matmul",
    "plan",
    "plan_grouped",
    "plan_syrk",
    "prepare",
    "reload",
    "scatter",
    "syrk",
    "tensordot",
]
