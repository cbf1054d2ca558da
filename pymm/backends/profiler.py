"""Nsight Compute, where it is installed: what it measures while a command's kernels run."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Sequence

#: Where a CUDA toolkit has it, besides the PATH.
USUAL = "/usr/local/cuda/bin/ncu"

Figures = dict[str, tuple[str, str]]


class ProfileFailed(RuntimeError):
    """No profile; the message says why, in Nsight Compute's words where it has some."""


def find_profiler() -> str | None:
    """Path of `ncu`, None if it is not installed."""
    return shutil.which("ncu") or shutil.which(USUAL)


def profile(
    command: Sequence[str], kernel: str, metrics: Sequence[str], limit: float
) -> list[Figures]:
    """Run `command` under Nsight Compute: for each launch of the kernel of that name, in order,
    value and unit of every metric by its name. Clocks are left as they are. Raises `ProfileFailed`.
    """
    ncu = find_profiler()
    if ncu is None:
        raise ProfileFailed("Nsight Compute (ncu) is not installed")
    options = ["--csv", "--clock-control", "none", "--target-processes", "all",
               "--kernel-name", kernel, "--metrics", ",".join(metrics)]  # fmt: skip
    try:
        done = subprocess.run([ncu, *options, *command], capture_output=True, text=True,
                              timeout=limit, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProfileFailed(f"Nsight Compute was not done after {limit:.0f} s") from None
    except OSError as error:
        raise ProfileFailed(f"{ncu} does not run: {error}") from error
    found = parse(done.stdout)
    if not found:
        words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in words if "ERROR" in line] or words[-1:]
        raise ProfileFailed(" ".join(errors)[:300] or f"ncu: exit status {done.returncode}")
    return found


def parse(text: str) -> list[Figures]:
    """The table in what `ncu --csv` prints, one line for each metric of a launch. The program's own
    words stand before it.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, Figures] = {}
    for row in csv.DictReader(lines[start:]):
        if row.get("Metric Name"):
            figures = found.setdefault(row["ID"], {})
            value = (row["Metric Value"] or "").replace(",", "")
            figures[row["Metric Name"]] = value, row["Metric Unit"] or ""
    return list(found.values())
