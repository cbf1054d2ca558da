"""The search for the best configuration of a problem on a device; for users, of their own kernels
(docs/howto/tune-own-kernel.md).
"""

from __future__ import annotations

from typing import Any

from pymm.kernels.custom import CustomKernel, In, InOut, Out
from pymm.kernels.kernel import Rule
from pymm.runtime.custom import LoadedKernel, load_kernel

__all__ = [
    "CustomKernel",
    "In",
    "InOut",
    "LoadedKernel",
    "Out",
    "Rule",
    "TunedKernel",
    "TuningFailed",
    "load_kernel",
    "tune_kernel",
]


def __getattr__(name: str) -> Any:
    """What needs Optuna is imported when it is asked for: launching a tuned kernel does not."""
    if name in ("TunedKernel", "TuningFailed", "tune_kernel"):
        from pymm.tune import custom

        return getattr(custom, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
