"""What Python brings with it here: its version, NumPy's BLAS, the packages that pymm uses."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

OK, LACKS, BROKEN = "ok", "lacks", "broken"


@dataclass(frozen=True)
class Finding:
    """What was looked at, its state (`ok`, `lacks` something that pymm can do without, `broken`),
    what was found, and what mends it.
    """

    topic: str
    state: str
    found: str
    remedy: str = ""


def python() -> Iterator[Finding]:
    """Python and pymm themselves."""
    state = OK if sys.version_info >= (3, 11) else BROKEN
    found = f"{platform.python_version()}, {sys.executable}"
    yield Finding("Python", state, found, "install Python 3.11 or newer")
    yield Finding("pymm", OK, f"{version('pymm')}, {Path(__file__).parent}")


def numpy() -> Iterator[Finding]:
    """NumPy and the BLAS that it multiplies with."""
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    words = f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()
    yield Finding("NumPy", OK, f"{np.__version__}, {words}")


def packages() -> Iterator[Finding]:
    """What pip installs with pymm, and what it is compared with where it is there."""
    needed = {"optuna": "tune", "yaml": "stored configurations", "rich": "live display"}
    needed |= {"ml_dtypes": "bfloat16"}
    needed |= {"platformdirs": "user's directories", "pynvml": "clock and power while tuning"}
    names = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py"}
    for module, use in needed.items():
        name = names.get(module, module)
        if importlib.util.find_spec(module):
            yield Finding(name, OK, version(name))
        else:
            yield Finding(
                name, BROKEN, f"missing ({use})", f"{sys.executable} -m pip install {name}"
            )
    opponents = [name for name in ("torch", "cupy") if importlib.util.find_spec(name)]
    found = ", ".join(opponents) or "neither torch nor cupy: no column for cuBLAS in tables"
    hint = "pip install torch, where you want to compare with cuBLAS"
    yield Finding("cuBLAS through", OK if opponents else LACKS, found, hint)


def version(name: str) -> str:
    """The version of an installed package."""
    if name == "pymm":
        return sys.modules["pymm"].__version__
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"
