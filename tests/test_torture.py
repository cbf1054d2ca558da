"""A few runs of tools/torture.py. Rare faults need more: its default is 200 of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")


RUNS = [("fork", 3), ("threads", 2), ("signals", 2), ("kill", 1)]


@pytest.mark.parametrize(("kind", "runs"), RUNS)
def test_nothing_hangs_breaks_or_is_left_over(kind, runs):
    command = [sys.executable, "tools/torture.py", "--kinds", kind, "--runs", str(runs)]
    environment = {name: text for name, text in os.environ.items() if name != "PYMM_SIMULATOR"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0 and f"{runs} good" in done.stdout, done.stdout + done.stderr
