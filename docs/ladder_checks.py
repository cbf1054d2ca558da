"""What the cells of ladder.ipynb run aside: kernels in a simulator of their own, which watches for
races, and the checks of the exercises.

A fault leaves a process's device unusable, as on a GPU, so each run has a process of its own:
this file, run by ``python -m pymm.simulator``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

import pymm
from pymm import simulator
from pymm.core.integers import ceil_div

ROOT = Path(pymm.__file__).parents[1]
SAYS = "ladder: "  # begins the lines that the child process prints for its parent


def _simulated(text: str, task: str, **numbers: int) -> str:
    """What the simulator and `task` say of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(text)
        command = [sys.executable, "-m", "pymm.simulator", "--races", __file__, task]
        command.append(json.dumps(numbers))
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    lines = (done.stdout + done.stderr).splitlines()
    errors = [line for line in lines if "error:" in line]
    told = [line for line in lines if line.startswith(("pymm simulator:", SAYS))]
    # A fault is said before what follows from it.
    told.sort(key=lambda line: line.startswith(SAYS))
    return "\n".join(line.removeprefix(SAYS) for line in (told or errors or lines)[:8])


def in_simulator(text: str, m: int, n: int, k: int, side: int, **more: int) -> str:
    """Run `product(m, n, k, A, B, C)` on matrices of ones by blocks of side x side threads, and say
    what came of it. `room=1`: memory goes on before and after each matrix, full of sevens.
    `banks=1` adds the rounds of the banks.
    """
    return _simulated(text, "ones", m=m, n=n, k=k, side=side, **more)


def check(exercise: str, text: str) -> bool:
    """Whether the kernel does what the exercise asks for. Prints what is wrong if not."""
    said = _simulated(text, exercise)
    right = said == "right"
    print(f"{exercise}: {said}" if right else f"{exercise}: not yet. {said}")
    return right


@cache
def _nvcc() -> str | None:
    """NVIDIA's compiler, even where the simulator's takes its place on PATH."""
    own = os.path.dirname(simulator.nvcc()) if simulator.active() else None
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)
    ask = "from pymm.backends.cuda.nvcc import find_nvcc; print(find_nvcc().path)"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "PYMM_SIMULATOR": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def resources(text: str, *options: str) -> str:
    """What NVIDIA's compiler says of a kernel's registers and memory, for an H200."""
    nvcc = _nvcc()
    if nvcc is None:
        return "there is no nvcc here: `python -m pymm.doctor` says how to get it"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(text)
        command = [nvcc, "-arch=sm_90", "-cubin", "-Xptxas=-v", *options, "kernel.cu"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    told = re.findall(r"([1-9]\d* bytes gmem.*|\d+ bytes stack frame.*|Used .*)", done.stderr)
    return "\n".join(told) if done.returncode == 0 else done.stderr


# --- the child process ----------------------------------------------------------------------------


def _first_wrong(got: np.ndarray, wanted: np.ndarray) -> str:
    """The first element that is wrong, or "right"."""
    wrong = np.argwhere(~np.isclose(got, wanted, rtol=1e-4, atol=1e-4))
    if len(wrong) == 0:
        return "right"
    at = tuple(int(i) for i in wrong[0])
    name = "C" + "".join(f"[{i}]" for i in at)
    return f"{len(wrong)} of {wanted.size} wrong, first {name} = {got[at]:g}, not {wanted[at]:g}"


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def _launch(function, block: tuple[int, int], grid: tuple[int, int], *arguments) -> None:
    function(*arguments, block=(*block, 1), grid=grid)


def _line(row: simulator.BankRounds) -> int:
    return int(row.line.rpartition(":")[2])


def ones(product, m: int, n: int, k: int, side: int, room: int = 0, banks: int = 0) -> str:
    """C of ones, each element k."""
    import pycuda.driver as cuda

    spare = room * 4 * side * max(m, n, k)
    memory, inside = [], []
    for shape, value in (((m, k), 1), ((k, n), 1), ((m, n), 0)):
        flat = np.full(shape[0] * shape[1] + 2 * spare, 7, np.float32)
        flat[spare : spare + shape[0] * shape[1]] = value
        memory.append(cuda.to_device(flat))
        inside.append(np.uintp(int(memory[-1]) + 4 * spare))
    grid = (ceil_div(n, side), ceil_div(m, side))
    _launch(product, (side, side), grid, np.int32(m), np.int32(n), np.int32(k), *inside)
    C = np.empty(m * n + 2 * spare, np.float32)
    cuda.memcpy_dtoh(C, memory[2])
    said = _first_wrong(C[spare : spare + m * n].reshape(m, n), np.full((m, n), k))
    for row in sorted(simulator.bank_rounds(), key=_line) if banks else ():
        rounds = row.rounds / row.requests
        said += (
            f"\n{SAYS}{row.line} {row.access:5s}: {rounds:4.1f} rounds for each request of a warp"
        )
    return said


def indices(number) -> str:
    """Each element of C is its place in memory."""
    import pycuda.driver as cuda

    m, n = 37, 21
    C = np.full((m, n), -1, np.float32)
    grid = (ceil_div(n, 8), ceil_div(m, 4))
    _launch(number, (8, 4), grid, np.int32(m), np.int32(n), cuda.InOut(C))
    return _first_wrong(C, np.arange(m * n, dtype=np.float32).reshape(m, n))


def edges(product) -> str:
    """A product that no tile fits into."""
    import pycuda.driver as cuda

    m, n, k = 41, 37, 43
    A, B, C = _random(m, k), _random(k, n), np.zeros((m, n), np.float32)
    shape = [np.int32(extent) for extent in (m, n, k)]
    _launch(product, (16, 16), (3, 3), *shape, cuda.In(A), cuda.In(B), cuda.InOut(C))
    return _first_wrong(C, A @ B)


def barriers(product) -> str:
    """The same, with two barriers at most."""
    count = len(re.findall(r"__syncthreads\(\)\s*;", Path("kernel.cu").read_text()))
    said = edges(product)
    return f"it has {count} barriers, two are enough" if said == "right" and count > 2 else said


def banks(transpose) -> str:
    """A transposed matrix, without conflicts of banks."""
    import pycuda.driver as cuda

    A, C = _random(64, 64), np.zeros((64, 64), np.float32)
    _launch(transpose, (32, 32), (2, 2), np.int32(64), cuda.In(A), cuda.InOut(C))
    for row in simulator.bank_rounds():
        if row.rounds > row.fewest:
            rounds = row.rounds // row.requests
            return f"{row.line}: a {row.access} of a warp takes {rounds} rounds"
    return _first_wrong(C, A.T)


def beta(product) -> str:
    """C = alpha A B + beta C; C is not read if beta is 0."""
    import pycuda.driver as cuda

    m, n, k = 19, 23, 29
    A, B, before = _random(m, k), _random(k, n), _random(m, n)
    shape = [np.int32(extent) for extent in (m, n, k)]
    for alpha, beta, empty in ((2, 3, False), (-1, 0, True)):
        C = cuda.mem_alloc(before.nbytes)  # with nothing in it
        if not empty:
            cuda.memcpy_htod(C, before)
        numbers = np.float32(alpha), np.float32(beta)
        _launch(product, (16, 16), (2, 2), *shape, *numbers, cuda.In(A), cuda.In(B), C)
        got = np.empty_like(before)
        cuda.memcpy_dtoh(got, C)
        said = _first_wrong(got, alpha * (A @ B) + (0 if empty else beta * before))
        if said != "right":
            return f"alpha = {alpha}, beta = {beta}: {said}"
    return "right"


def symmetry(product) -> str:
    """C = A^T A by half of the blocks and those of the diagonal."""
    import pycuda.driver as cuda

    k, n = 35, 70
    A, C, worked = _random(k, n), np.zeros((n, n), np.float32), np.zeros(1, np.int32)
    tiles = ceil_div(n, 16)
    sizes = np.int32(k), np.int32(n)
    _launch(
        product, (16, 16), (tiles, tiles), *sizes, cuda.In(A), cuda.InOut(C), cuda.InOut(worked)
    )
    said, half = _first_wrong(C, A.T @ A), tiles * (tiles + 1) // 2
    if said == "right" and worked[0] != half:
        return f"C is right, but {worked[0]} blocks worked, and {half} are enough"
    return said


TASKS: dict[str, Callable[..., str]] = {
    task.__name__: task for task in (ones, indices, edges, barriers, banks, beta, symmetry)
}
EXERCISES = [name for name in TASKS if name != "ones"]


def _child(task: str, numbers: str) -> None:
    import pycuda.autoprimaryctx  # noqa: F401
    from pycuda.compiler import SourceModule

    text = Path("kernel.cu").read_text()
    module = SourceModule(text, no_extern_c=True, cache_dir=False)
    name = re.search(r"__global__\s+void\s+(\w+)", text)[1]
    print(SAYS + TASKS[task](module.get_function(name), **json.loads(numbers)))


if __name__ == "__main__":
    _child(*sys.argv[1:])
