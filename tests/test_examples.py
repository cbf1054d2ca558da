"""The example scripts run, without a GPU, and print what they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import project_nvcc

from pymm.backends import open_device

ROOT = Path(__file__).resolve().parents[1]

#: What each script prints, the arguments that keep it short here, and where it runs: on the CPU
#: ("0"), in the simulator ("1"), or in the simulator by its command, knowing nothing of it ("-m").
EXAMPLES = {
    "first_product": ("2.5 times the product: True", [], "0"),
    "plan_in_a_loop": ("largest eigenvalue: 3.0000", [], "0"),
    "tune_two_shapes": ("256 x 192 x 64: blocked-", ["--trials", "1", "--devices", "cpu"], "0"),
    "gram_matrix": ("lower triangle alone: True", [], "0"),
    "linear_layer": ("same as separate operations: True", [], "0"),
    "reduced_precision": ("tf32 ", [], "1"),
    "variable_placement": ("until it is freed     128  256", [], "-m"),
    "tile_phases": ("P is M N: True", ["--width", "5", "--tile", "3"], "-m"),
    "hopper_steps": (
        "5_cluster     clusters that share B         right",
        ["--m", "130", "--n", "150", "--k", "200"],
        "-m",
    ),
    "own_kernel/softmax": (
        "softmax-columns40-rows9",
        ["--rows", "9", "--columns", "40", "--trials", "3"],
        "1",
    ),
    "openmp_loop": ("  the same", ["--threads", "2", "40"], "0"),
    "torch_mlp": ("the loss fell: True; the same losses: True", [], "0"),
}


def test_every_example_is_tested():
    own = {path.relative_to(ROOT / "examples") for path in (ROOT / "examples").rglob("*.py")}
    assert set(EXAMPLES) == {str(path.with_suffix("")) for path in own}


@pytest.mark.simulator
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.torch] if name.startswith("torch") else [])
        for name in EXAMPLES
    ],
)
def test_example_runs(name):
    said, arguments, where = EXAMPLES[name]
    command = ["-m", "pymm.simulator"] if where == "-m" else []
    if where == "1":  # before a measuring process, which has a minute to start, would build it
        open_device("simulator")
    done = subprocess.run(
        [sys.executable, *command, ROOT / "examples" / f"{name}.py", *arguments],
        env=dict(os.environ, PYTHONPATH=str(ROOT), PYMM_SIMULATOR=where.replace("-m", "0")),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples/hopper_steps").glob("*.cu")), ids=str)
def test_hopper_step_compiles_for_a_gpu(path, tmp_path):
    """The simulator knows nothing of registers."""
    command = [project_nvcc().path, "-cubin", "-arch=sm_90a", "-Xptxas=-v"]
    command += ["-I", path.parent, "-I", ROOT / "cuda_src", "-o", tmp_path / "step.cubin", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0 and "warning" not in printed, printed
    assert "0 bytes spill stores, 0 bytes spill loads" in printed and "C75" not in printed
