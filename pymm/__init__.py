"""Matrix multiplication for Python on NVIDIA GPUs, autotuned.

`pymm.matmul(a, b)` multiplies, `pymm.plan` multiplies many times, `pymm.explain` says what would
run and why, `pymm.configs` lists what is tuned. `python -m pymm.tune` tunes,
`python -m pymm.doctor` says what this machine lacks.
"""

__version__ = "0.1.0"

from pymm.api import Plan, Tuned, configs, matmul, plan
from pymm.backends.base import CompileFailed, LaunchFailed, NoDevice
from pymm.choose import reload
from pymm.explanation import Explanation, explain

__all__ = [
    "CompileFailed",
    "Explanation",
    "LaunchFailed",
    "NoDevice",
    "Plan",
    "Tuned",
    "configs",
    "explain",
    "matmul",
    "plan",
    "reload",
]
