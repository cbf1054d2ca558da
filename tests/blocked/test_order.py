"""Products in blocks need every one of their waits: in any order of work that CUDA allows they are
right, and without one kind of wait some order is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "blocked_cases.py"

pytestmark = pytest.mark.simulator


def run(streams, *arguments):
    environment = os.environ | {"PYMM_SIMULATOR_STREAMS": streams}
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("which", ["host", "sharded"])
@pytest.mark.parametrize("streams", ["now", "late", "random:1", "random:2"])
def test_any_order_gives_the_same(which, streams, cuda):
    done = run(streams, which)
    assert done.stdout.endswith("right\n"), (done.stdout + done.stderr)[-4000:]


@pytest.mark.parametrize(
    ("which", "left_out"),
    [("host", one) for one in ("slot", "slice", "c", "tile")]
    + [("sharded", one) for one in ("others", "begin", "strip")],
)
def test_a_wait_that_is_left_out_shows(which, left_out, cuda):
    done = run("late", which, left_out)
    assert done.returncode != 0, f"right without {left_out}"
    assert "AssertionError" in done.stderr or "LaunchFailed" in done.stderr, done.stderr[-4000:]
