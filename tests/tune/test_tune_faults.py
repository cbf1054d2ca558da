"""The command on kernels that are broken on purpose, killed in the middle and started again.

On a GPU: PYMM_TEST_GPU=1 python -m pytest tests/tune/test_tune_faults.py
"""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import faulty_kernels
import pytest

from pymm.core.problem import Problem
from pymm.tune.session import TRIED_AGAIN
from pymm.tune.trial_log import read_trials

SUPPORT = Path(__file__).resolve().parents[1] / "support"
ROOT = SUPPORT.parents[1]

#: The fault of each device that only the check after timing finds: a trial that seems too slow on a
#: busy machine is not checked again, and need not be, for it is never saved.
RIGHT_AT_FIRST = {"cpu:1": "15", "cuda": "11"}

DEVICES = [
    pytest.param("cpu:1", faulty_kernels.ON_CPU, id="cpu"),
    pytest.param("cuda", faulty_kernels.ON_CUDA, id="simulator", marks=pytest.mark.simulator),
    pytest.param("cuda", faulty_kernels.ON_CUDA, id="gpu", marks=pytest.mark.gpu),
]


def command(folder, device):
    options = "--shapes 33x20x17 --dtypes f32 --kernels faulty --sampler exhaustive --trials 99"
    where = f"--storage {folder}/state --output {folder}/out --csv {folder}/trials.csv"
    arguments = f"{options} {where} --devices {device} --limit 5".split()
    return [sys.executable, str(SUPPORT / "register_faults.py"), *arguments]


def rows(folder):
    """Whole lines of the log, also while it is being written."""
    path = folder / "trials.csv"
    return list(read_trials(path)) if path.exists() else []


@pytest.mark.parametrize("device, expected", DEVICES)
def test_killed_in_the_middle_and_resumed(tmp_path, device, expected):
    """`kill -9` after two trials. The second run ends in order, at most one evaluation is made
    twice besides those whose failure may pass, every fault has its outcome, and only the right
    kernel is saved, if at all: on a busy CPU the times of so small a product may be too far apart.
    """
    first = subprocess.Popen(command(tmp_path, device), stdout=subprocess.DEVNULL, cwd=ROOT)
    with first:
        deadline = time.monotonic() + 120
        while len(rows(tmp_path)) < 2 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        first.kill()
    before = len(rows(tmp_path))
    assert before >= 2
    (journal,) = (tmp_path / "state").rglob("*.journal")
    with open(journal, "ab") as file:
        file.write(b'{"op_code":5,"trial_')  # what a kill within a write leaves behind
    done = subprocess.run(
        command(tmp_path, device),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    unsure = "its times spread by" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    searched = [row for row in rows(tmp_path) if row["role"] == "search"]
    counts = Counter(row["config"] for row in searched)
    again = sum(outcome in TRIED_AGAIN for outcome in expected.values())
    assert len(expected) + again <= sum(counts.values()) <= len(expected) + again + 1
    outcomes = {row["config"].rpartition("FAULT")[2]: row["outcome"] for row in searched}
    if outcomes[RIGHT_AT_FIRST[device]] == "too_slow":
        outcomes[RIGHT_AT_FIRST[device]] = "wrong"
    assert outcomes == {str(fault): outcome for fault, outcome in expected.items()}
    winners = {row["config"] for row in rows(tmp_path) if row["role"] == "final"}
    assert winners == {"faulty-MB16-NB16-FAULT1"}
    saved = list((tmp_path / "out").glob("*.yaml")) if (tmp_path / "out").exists() else []
    if "simulator" in done.stdout or unsure:
        assert not saved
    else:
        text = saved[0].read_text()
        assert text.count("kernel: faulty") == text.count("config: {MB: 16, NB: 16, FAULT: 1}") == 1


def test_problem_of_the_faults_has_partial_tiles():
    """So that the forgotten guard shows: 33 x 20 is no multiple of 16 x 16."""
    assert faulty_kernels.CUDA.guarded(faulty_kernels.CUDA.default_config, Problem(33, 20, 17))
