"""The sequential product: the CPU's scalar kernel on one thread, whose time is the measure of every
speed-up and whose result the measure of every error. It is made first, one product after the other
and nothing beside it, and left in files; then the device's contestants are compared with it.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pymm.backends.base import TimedCall
from pymm.core.problem import Problem
from pymm.kernels import Config, find_kernel
from pymm.measure.libraries import Operands
from pymm.measure.workbench import Workbench
from pymm.measure.worker import Site, Worker, time_limit
from pymm.measure.worker_process import Reply, Request, compared

#: Largest square that is multiplied sequentially (the original's limit): 40 s in float32.
LARGEST = 5000

#: Times of a product, of which the median counts; one of a product that takes more seconds.
RUNS, LONG_SECONDS = 3, 10.0


def affordable(problem: Problem, largest: int) -> bool:
    """Whether a product has at most the operations of the largest square, and a type that the
    scalar kernel has.
    """
    return problem.flops <= 2 * largest**3 and problem.dtype in sequential(problem).kernel.dtypes


def sequential(problem: Problem) -> Config:
    """The scalar kernel."""
    return find_kernel("00", "cpu").default_config


def keep(bench: Workbench, request: Request) -> Reply:
    """In a child on one thread: run what is in `request.configs`, and leave C in the file that
    `arguments` names. The reply's `times` have the runs under "sequential".
    """
    call = TimedCall(bench.call(bench.load(request.configs[0])), prepare=bench.quick.restart)
    taken: list[float] = []
    while len(taken) < RUNS and not (taken and taken[0] > LONG_SECONDS):
        taken += bench.backend.time([call])
    path = Path(request.arguments[0])
    with open(path.with_suffix(".part"), "wb") as file:
        np.save(file, bench.quick.result())
    os.replace(path.with_suffix(".part"), path)
    return Reply(times={"sequential": taken})


def measure(bench: Workbench, request: Request) -> Reply:
    """The configurations and libraries in turn, as `compare` has them, then how far each result is
    from the sequential one in the file that `arguments` names: the reply's `deviations` have
    ||C - S|| / ||S|| in the infinity norm (largest sum of a row's absolute values).
    """
    reply = compared(bench, request)
    if bench.lost:
        return reply
    apart = Distance.of(bench, request.arguments[0])
    calls = dict(bench.calls)
    for trial in reply.trials:
        if trial.outcome == "ok":
            calls[trial.config.slug] = bench.call(bench.load(trial.config))
    found = {}
    for name, call in calls.items():
        bench.quick.restart()  # what a call does not write is not another's result
        TimedCall.of(call)()
        bench.backend.synchronize()
        found[name] = apart.measure()
    return replace(reply, deviations=found)


class Distance:
    """How far the matrix that C holds is from another one, which PyTorch says in milliseconds where
    C is on a GPU, and NumPy in seconds.
    """

    def __init__(self, bench: Workbench, expected: np.ndarray) -> None:
        self._result = bench.quick.result
        self._expected: Any = expected.astype(np.float64)
        if bench.backend.device.is_gpu:
            with suppress(ImportError):
                torch = importlib.import_module("torch")
                c = Operands(bench.problem, bench.a, bench.b, bench.c).tensors(torch)[2]
                self._result = c.double
                self._expected = torch.as_tensor(expected[0]).double().cuda()
        self._size = self._norm(self._expected)

    @classmethod
    def of(cls, bench: Workbench, file: str) -> Distance:
        """From the matrix in a file."""
        return cls(bench, np.load(file))

    @staticmethod
    def _norm(matrix: Any) -> float:
        return float(abs(matrix).sum(-1).max())

    def measure(self) -> float:
        """||C - S|| / ||S|| in the infinity norm."""
        if not self._size:
            return math.nan
        return self._norm(self._result() - self._expected) / self._size


def produce(
    problems: Sequence[Problem], folder: Path, accumulate: bool = False
) -> dict[Problem, tuple[Path, list[float]]]:
    """Run each product sequentially, with `accumulate` C + A B: where its result is, and how long
    each run took. One that fails has no entry. Raises `WorkerFailed` where there is no CPU device.
    """
    found: dict[Problem, tuple[Path, list[float]]] = {}
    worker = Worker(Site("cpu:1"))
    worker.start()
    try:
        for problem in sorted(problems, key=lambda problem: problem.flops):
            path = folder / f"{problem.slug}.npy"
            request = Request(
                f"{__name__}:keep",
                problem,
                (sequential(problem),),
                quick=True,
                arguments=(str(path),),
                accumulate=accumulate,
            )
            reply = worker.ask(request, RUNS * time_limit(problem, worker.device))
            if reply.outcome == "ok" and "sequential" in reply.times:
                found[problem] = path, reply.times["sequential"]
    finally:
        worker.stop()
    return found
