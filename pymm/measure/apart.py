"""A library timed in a process of its own. Two thread pools in one process take each other's cores:
idle threads of one look for work while those of the other multiply. 512 x 512 x 512 in float32 on
two cores reached 100 and 47 GFLOP/s in turn, 152 and 146 alone.
Requests and replies are lines of JSON; the process ends with its standard input.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

import numpy as np

from pymm.backends.cpu.timing import shortest
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem

#: What the process runs: with the path of this one, from which it imports the same modules.
PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pymm.measure.apart import serve
serve(sys.argv[2], int(sys.argv[3]), sys.stdin, sys.stdout)
"""


class Apart:
    """A process in which `maker`, "module:function", makes calls: of a problem, op(A), op(B) and C
    as arrays, the number of threads, and whether the product is added to C. The process is started
    when it is first asked, and ends with this one.
    """

    def __init__(self, maker: str, threads: int) -> None:
        self._maker, self._threads = maker, threads
        self._process: subprocess.Popen | None = None

    def seconds(
        self,
        problem: Problem,
        accumulate: bool = False,
        repeats: int = 1,
        samples: int = 1,
    ) -> list[float]:
        """Seconds of one call, `samples` times, each the mean of so many `repeats`, after one call
        that is not timed. Raises `LaunchFailed` if the process ends or the library does.
        """
        return self._ask(problem, accumulate, repeats=repeats, samples=samples)

    def shortest(self, problem: Problem, accumulate: bool = False) -> float:
        """Seconds of one call as `pymm.backends.cpu.timing.shortest` takes them, after one call
        that is not timed. Raises as `seconds` does.
        """
        return self._ask(problem, accumulate, shortest=True, samples=1)[0]

    def _ask(self, problem: Problem, accumulate: bool, **how: int) -> list[float]:
        names = ("m", "n", "k", "dtype", "trans_a", "trans_b", "batch", "op")
        wanted = {name: getattr(problem, name) for name in names}
        request = dict(problem=wanted, accumulate=accumulate, **how)
        process = self._started()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            self.close()
            status = process.returncode
            raise LaunchFailed(f"the process of {self._maker} ended with exit status {status}")
        reply = json.loads(answer)
        if "error" in reply:
            raise LaunchFailed(f"{self._maker}: {reply['error']}")
        return reply["seconds"]

    def _started(self) -> subprocess.Popen:
        if self._process is None:
            given = json.dumps(sys.path), self._maker, str(self._threads)
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,  # signals to the group of this process are not for that one
            )
            self._end = weakref.finalize(self, _ended, self._process)
        return self._process

    def close(self) -> None:
        """End the process. It is started again when it is next asked."""
        if self._process is not None:
            self._end()
            self._process = None


def _ended(process: subprocess.Popen) -> None:
    for pipe in (process.stdin, process.stdout):
        try:
            pipe.close()
        except OSError:
            pass
    process.kill()
    process.wait()


def serve(maker: str, threads: int, requests: TextIO, replies: TextIO) -> None:
    """Answer until there are no more requests."""
    module, _, function = maker.partition(":")
    make = getattr(importlib.import_module(module), function)
    known, call = None, None
    for line in requests:
        request = json.loads(line)
        try:
            wanted = request["problem"], request["accumulate"]
            if wanted != known:
                problem = Problem(**request["problem"])
                known, call = wanted, make(problem, *operands(problem), threads, wanted[1])
            call()
            if "shortest" in request:
                take = partial(shortest, call)
            else:
                take = partial(timed, call, request["repeats"])
            reply: dict[str, Any] = {"seconds": [take() for _ in range(request["samples"])]}
        except Exception as failure:  # whatever it is, the other process is to say it
            reply = {"error": f"{type(failure).__name__}: {failure}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def operands(problem: Problem) -> list[np.ndarray]:
    """op(A), op(B) and C, stored as the problem says: normal numbers. Of a symmetric C one array
    is both factors.
    """
    random = np.random.default_rng(0)
    stack = (problem.batch,) if problem.batch > 1 else ()
    made = []
    for rows, columns, transposed in (
        (problem.m, problem.k, problem.trans_a),
        (problem.k, problem.n, problem.trans_b),
    ):
        shape = (*stack, columns, rows) if transposed else (*stack, rows, columns)
        array = random.standard_normal(shape).astype(problem.numpy_dtype)
        made.append(array.swapaxes(-1, -2) if transposed else array)
    if problem.symmetric:
        made[1] = made[0].swapaxes(-1, -2)
    return [*made, np.zeros((*stack, problem.m, problem.n), problem.out_dtype)]


def timed(call: Callable[[], object], repeats: int) -> float:
    """Mean seconds of so many calls."""
    start = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return (time.perf_counter_ns() - start) * 1e-9 / repeats
