"""Transfers of operands to the device and of the result back, with and without the kernel. Runs
in the child that has the device.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from pymm.backends.base import Backend
from pymm.bench.experiments.declaration import LOCKED
from pymm.measure.workbench import Workbench
from pymm.measure.worker_process import Reply, Request, compared

#: Rounds of transfers, and seconds after which no further one is begun.
ROUNDS, SECONDS = 7, 0.3

Action = Callable[[], None]


def measure(bench: Workbench, request: Request) -> Reply:
    """The configurations in turn, as `compare` has them; then by the host's clock, for each way of
    transfer in `arguments`, the copies of A and B to the device, that of C to the host, and for
    each configuration that is right all three with its launch between. In the reply's `times` these
    are named "to_device|WAY", "to_host|WAY" and "total|WAY|SLUG". A way that this system does not
    have is left out.
    """
    reply = compared(bench, request)
    right = [trial.config for trial in reply.trials if trial.outcome == "ok"]
    if not right or bench.lost:
        return reply
    arrays = [_rows(array) for array in (*bench.quick.sources(), bench.quick.result())]
    ways = [way for way in request.arguments if way != LOCKED]
    times = timed(bench.backend, _actions(bench, right, arrays, ways), bench.seed)
    if LOCKED in request.arguments:
        with ExitStack() as held:
            if all([held.enter_context(bench.backend.locked(array)) for array in arrays]):
                actions = _actions(bench, right, arrays, [LOCKED])
                times |= timed(bench.backend, actions, bench.seed)
    return replace(reply, times={**reply.times, **times})


def _rows(array: np.ndarray) -> np.ndarray:
    """The only matrix of a batch, in new memory: copies are by rows, and of bfloat16 as bytes."""
    matrix = np.ascontiguousarray(array[0])
    return matrix.view(np.uint8).reshape(matrix.shape[0], -1)


def _actions(bench: Workbench, configs: list, arrays: list, ways: list[str]) -> dict[str, Action]:
    """By name what is timed."""
    places = list(zip((bench.a, bench.b, bench.c), arrays, strict=True))
    actions: dict[str, Action] = {}
    calls = {config.slug: bench.call(bench.load(config)) for config in configs}
    for way in ways:
        transfer = "pageable" if way == LOCKED else way

        def bring(transfer: str = transfer) -> None:
            for matrix, array in places[:2]:
                bench.backend.copy_in(array, matrix.address, array.shape[1], transfer)

        def fetch(transfer: str = transfer) -> None:
            matrix, array = places[2]
            bench.backend.copy_out(matrix.address, array.shape[1], array, transfer)

        actions[f"to_device|{way}"], actions[f"to_host|{way}"] = bring, fetch
        for slug, call in calls.items():
            actions[f"total|{way}|{slug}"] = _in_turn(bring, call, fetch)
    return actions


def _in_turn(*actions: Action) -> Action:
    def run() -> None:
        for action in actions:
            action()

    return run


def timed(backend: Backend, actions: dict[str, Action], seed: int) -> dict[str, list[float]]:
    """Seconds of each action by the host's clock until the device is done, in rounds of an order of
    their own, after one to warm up.
    """
    generator, names = random.Random(seed), list(actions)
    times: dict[str, list[float]] = {name: [] for name in names}
    begun = time.monotonic()
    for count in range(ROUNDS + 1):
        if count > 3 and time.monotonic() - begun > SECONDS:
            break
        for name in generator.sample(names, len(names)):
            backend.synchronize()
            start = time.perf_counter_ns()
            actions[name]()
            backend.synchronize()
            if count:
                times[name].append((time.perf_counter_ns() - start) * 1e-9)
    return times
