"""Products in blocks whose copies and launches are done in any order that CUDA allows, in a process
of their own: PYMM_SIMULATOR_STREAMS is read once. With an argument one kind of wait is left out,
and the results are wrong for some order.

    python blocked_cases.py [host | sharded] [KIND]
"""

from __future__ import annotations

import sys

import numpy as np

import pymm
import pymm.simulator as simulator
from pymm.backends import open_device

#: What may be left out: by who waits, in which function, for the work of which queue.
HOST = {
    "slot": ("_fill", "_in"),
    "slice": ("_fill", "_compute"),
    "c": ("_begin", "_compute"),
    "tile": ("_take_out", "_out"),
}
SHARDED = ("others", "begin", "strip")


def leave_out_host(kind: str) -> None:
    """Of a streamed product."""
    from pymm.backends.cuda.queues import CudaQueue

    function, name = HOST[kind]
    wait = CudaQueue.wait

    def maybe(self, mark):
        frame = sys._getframe(1)
        streamed = frame.f_locals.get("self")
        if frame.f_code.co_name == function and getattr(streamed, name, None) is self:
            return
        wait(self, mark)

    CudaQueue.wait = maybe


def leave_out_sharded(kind: str) -> None:
    """Of a product on several devices."""
    from pymm.backends.cuda.queues import CudaQueue
    from pymm.blocked import program

    waiting, collect, wait_for = CudaQueue.waiting, program._Part._collect, program._Part.wait_for
    inside: list[str] = []

    def within(name, function):
        def call(self, *arguments):
            inside.append(name)
            try:
                return function(self, *arguments)
            finally:
                inside.pop()

        return call

    def maybe(self, mark):
        where = inside[-1] if inside else ""
        if where == "begin":
            place = "others" if self is PART[-1].compute else "begin"
        else:
            place = where
        return (lambda: None) if place == kind else waiting(self, mark)

    def begin(self, tails):
        PART.append(self)
        return within("begin", wait_for)(self, tails)

    CudaQueue.waiting = maybe
    program._Part._collect = within("strip", collect)
    program._Part.wait_for = begin


PART: list = []


def host(rng: np.random.Generator) -> None:
    """Tiny budgets: every slot is used again and again."""
    for shape, budget in (((50, 60, 40), 9000), ((64, 33, 90), 15000), ((17, 40, 200), 40000)):
        m, n, k = shape
        a, b, c = (integers(rng, *x) for x in ((m, k), (k, n), (m, n)))
        for beta in (None, 2):
            given = {"c": c, "beta": 2} if beta else {}
            got = pymm.matmul(a, b, device_memory=budget, kernel="register_tile", **given)
            np.testing.assert_array_equal(got, a @ b + (2 * c if beta else 0))


def sharded(rng: np.random.Generator) -> None:
    """Results that are operands at once, memory that is written again."""
    from pymm.blocked import program

    program.STRIP = 16
    simulator.set_devices(4)
    for count in (2, 4):
        devices = list(range(count))
        a, b, c = (integers(rng, 70, 70) for _ in range(3))
        x, y, z = (pymm.scatter(one, devices) for one in (a, b, c))
        w = pymm.ShardedMatrix.empty((70, 70), np.float32, devices)
        for _ in range(2):
            pymm.matmul(x, y, out=w, kernel="register_tile")
            pymm.matmul(w, y, out=z, c=z, beta=1, kernel="register_tile")
            pymm.matmul(z, x, out=w, kernel="register_tile")
            c = a @ b @ b + c
        np.testing.assert_array_equal(w.gather(), c @ a)


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-2, 3, shape).astype(np.float32)


def main(arguments: list[str]) -> None:
    which, *left_out = arguments
    open_device("cuda")
    import pycuda.driver  # noqa: F401 it is there now

    if left_out:
        (leave_out_host if which == "host" else leave_out_sharded)(left_out[0])
    {"host": host, "sharded": sharded}[which](np.random.default_rng(16))
    print("right")


if __name__ == "__main__":
    main(sys.argv[1:])
