"""Which nvcc compiles the kernels: the one asked for, on the path, or from a wheel, if the driver
supports its version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pymm.core.errors import NoDevice

#: The command that installs PyCUDA and a toolkit. (The name pymm on PyPI is another project's.)
INSTALL = "`pip install '.[cuda]'` in a checkout of pymm"


@dataclass(frozen=True)
class Nvcc:
    """A compiler that works: its absolute path, its release and its version as it prints it."""

    path: str
    release: tuple[int, int]
    version: str


def find_nvcc(driver: tuple[int, int] | None = None) -> Nvcc:
    """The first nvcc that works, of: `$PYMM_NVCC`; `$CUDA_HOME/bin` and `$CUDA_PATH/bin`; the
    path; the toolkit wheels and other places that cuda-pathfinder knows.

    `driver` is the CUDA version that the driver supports. An nvcc of a later major version makes
    binaries that the driver cannot load, and is not taken. `NoDevice` lists what was found and what
    is wrong with each.
    """
    refused = []
    for path, origin in _candidates():
        try:
            found = describe(path)
        except (OSError, ValueError) as error:
            refused.append(f"{path} ({origin}): {error}")
        else:
            if driver is None or found.release[0] <= driver[0]:
                return found
            refused.append(
                f"{path} ({origin}) is of CUDA {_dotted(found.release)}, and the driver supports "
                f"CUDA {_dotted(driver)}: use an nvcc of {driver[0]}.x or older, or a newer "
                "driver"
            )
        if origin == "PYMM_NVCC":
            break
    looked = "; ".join(refused) or "PYMM_NVCC, CUDA_HOME, the path and the wheels have none"
    raise NoDevice(
        f"no nvcc that can compile for this GPU: {looked}. "
        f"{INSTALL} brings one, or set PYMM_NVCC to its path"
    )


def describe(path: str) -> Nvcc:
    """The nvcc at `path`. `OSError` or `ValueError` if that is not an nvcc."""
    done = subprocess.run(
        [path, "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    found = re.search(r"release (\d+)\.(\d+)(?:, V([\d.]+))?", done.stdout)
    if done.returncode or not found:
        said = (done.stderr or done.stdout).strip()[-200:]
        raise ValueError(f"nvcc --version gives exit status {done.returncode}: {said}")
    release = int(found[1]), int(found[2])
    return Nvcc(path, release, f"nvcc {found[3] or _dotted(release)}")


def _candidates() -> Iterator[tuple[str, str]]:
    """Paths that may be an nvcc, in order of preference, each with its origin."""
    explicit = os.environ.get("PYMM_NVCC")
    if explicit:
        yield shutil.which(explicit) or explicit, "PYMM_NVCC"
        return
    for setting in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(setting)
        if home and (Path(home) / "bin" / "nvcc").is_file():
            yield _unlinked(str(Path(home) / "bin" / "nvcc")), setting
    on_path = shutil.which("nvcc")
    if on_path:
        yield _unlinked(on_path), "PATH"
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return
    from_wheel = find_nvidia_binary_utility("nvcc")
    if from_wheel:
        yield _unlinked(from_wheel), "cuda-pathfinder"


def _unlinked(path: str) -> str:
    """The target of a link to nvcc, since nvcc looks for its parts next to the path it is called
    by. Links to a program of another name (ccache) stay.
    """
    real = os.path.realpath(path)
    return real if os.path.basename(real) == os.path.basename(path) else os.path.abspath(path)


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
