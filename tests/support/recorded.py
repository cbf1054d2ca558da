"""Stand-ins for machines: recorded times instead of a worker, NumPy instead of a device.

With the first the tuner's whole loop runs in milliseconds; with the second kernels can be wrong in
every way that a test wants.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pymm.backends.base import Resources
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.measure.workbench import Trial
from pymm.measure.worker_process import Reply
from pymm.tune.t4 import Recording, read_recordings

#: Recorded spaces of four GPUs, see the README beside them.
RECORDINGS = {
    path.name.split(".")[0]: path
    for path in sorted((Path(__file__).parent / "data").glob("*.t4.json.gz"))
}


@cache
def recording(name: str) -> Recording:
    """One of `RECORDINGS`."""
    (found,) = read_recordings(RECORDINGS[name])
    return found


# A worker that only remembers


@dataclass
class RecordedWorker:
    """Answers as a worker does, from `outcome`: seconds, fields of a trial (`seconds` among them),
    or the name of a failure.
    """

    outcome: Callable[[Config, Problem], float | dict | str]
    device: Device
    started: int = 0
    replaced: int = 0
    asked: list[Config] = field(default_factory=list)
    before: Callable[[Config], None] = lambda config: None
    library: float | Callable[[], list[float]] | None = None
    library_name: str = "library"
    no_energy: str = ""
    compiler = SimpleNamespace(toolchain="recorder 1.0")
    requests: list = field(default_factory=list)
    _reply: Reply | None = None

    def __post_init__(self):
        self.connection, self._other = Pipe()  # always ready: there is something to read
        self._other.send("ready")

    def ready(self, timeout=0.0):
        return True

    def start(self):
        self.started += 1

    def stop(self):
        self._reply = None

    def begin(self, request, limit):
        self.requests.append(request)
        trials = []
        for config in request.configs:
            self.asked.append(config)
            self.before(config)
            trials.append(self._trial(request, config))
        times = {}
        if request.against_others and self.library is not None:
            library = self.library() if callable(self.library) else [self.library]
            times = {self.library_name: library * request.rounds}
        lost = any(trial.outcome in ("crashed", "timed_out") for trial in trials)
        self.replaced += lost
        if lost:
            gone = next(t.outcome for t in trials if t.outcome in ("crashed", "timed_out"))
            self._reply = Reply(outcome=gone, detail="as recorded", lost=True)
        else:
            self._reply = Reply(tuple(trials), times)

    def _trial(self, request, config):
        found = self.outcome(config, request.problem)
        if isinstance(found, str):
            return Trial(request.problem, config, found, detail="as recorded")
        fields = found if isinstance(found, dict) else {"seconds": found}
        found = fields["seconds"]
        slow = request.best_seconds is not None and found > 1.5 * request.best_seconds
        outcome = "too_slow" if slow else "ok"
        fields = {"spread": 0.0, "times": (found,), "error": 0.1} | fields
        return Trial(request.problem, config, outcome, **fields)

    def result(self, timeout=0.0):
        reply, self._reply = self._reply, None
        return reply

    def ask(self, request, limit):
        self.begin(request, limit)
        return self.result()


class NoCompiler:
    """A pool that has compiled everything already, and counts what was asked of it."""

    pending = 0

    def __init__(self, compiler=None, workers=1):
        self.keys = []

    def submit(self, source):
        self.keys.append(source.key)
        done = Future()
        done.set_result(None)
        return done

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


# A device of NumPy arrays


class NumpyBuffer:
    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes + 256, np.uint8)
        start = -self.bytes.ctypes.data % 256
        self.bytes = self.bytes[start : start + nbytes]
        self.address, self.nbytes = self.bytes.ctypes.data, nbytes

    def write(self, array):
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes[: raw.size] = raw

    def read(self, array, offset=0):
        raw = array.reshape(-1).view(np.uint8)
        raw[:] = self.bytes[offset : offset + raw.size]

    def fill(self, byte):
        self.bytes[:] = byte


def view(matrix, dtype, rows, columns, batch=1):
    """A device matrix as an array; `rows` may reach beyond it."""
    item = dtype.itemsize
    description = dict(
        shape=(batch, rows, columns),
        strides=(matrix.batch_stride * item, matrix.ld * item, item),
        typestr=f"|V{item}",
        data=(matrix.address, False),
        version=3,
    )
    plain = np.asarray(SimpleNamespace(__array_interface__=description, owner=matrix.owner))
    return plain.view(dtype)  # bfloat16 has no type string of its own


class NumpyBackend:
    """Computes with NumPy in float64 and then lets `spoil(c, problem, matrix, beta)` spoil it.

    `seconds(config)` is what the stopwatch shows; `timed` lists what was timed, in order.
    `operands` are where the last product's A and B are; a `counter` that is not 0, as scratch
    memory of a kernel that splits k has them, spoils every result.
    """

    def __init__(self, spoil=None, seconds=lambda config: 1e-3, load=None, kind="cpu"):
        self.device = Device("numpy", kind)
        self.spoil, self.seconds, self._load = spoil, seconds, load
        self.timed, self.loaded, self.ahead = [], [], []
        self.counter, self.operands = 0, ()

    def allocate(self, nbytes):
        if nbytes > 2**32:
            raise MemoryError(f"{nbytes} bytes asked for, 4294967296 free")
        return NumpyBuffer(nbytes)

    def load(self, source):
        self.loaded.append(source)
        if self._load is not None:
            self._load(source)
        return NumpyExecutable(self, source)

    def synchronize(self):
        pass

    def reset(self):
        self.counter = 0

    def time(self, calls, ahead=1):
        self.ahead.append(ahead)
        return [call(True) or self._stopwatch(call) for call in calls]

    def _stopwatch(self, call):
        self.timed.append(call.config)
        return self.seconds(call.config)

    def telemetry(self):
        return {"clock": 1000.0}


class NumpyExecutable:
    resources = Resources(registers=32)

    def __init__(self, backend, source):
        self.backend, self.config = backend, source.config

    def bind(self, problem, alpha, a, b, beta, c, stream=None, bias=None):
        def call(timed=False):
            p, dtype = problem, problem.numpy_dtype
            left = view(a, dtype, *((p.k, p.m) if p.trans_a else (p.m, p.k)), p.batch)
            right = view(b, dtype, *((p.n, p.k) if p.trans_b else (p.k, p.n)), p.batch)
            self.backend.operands = (a, b)
            left = left.swapaxes(1, 2) if p.trans_a else left
            right = right.swapaxes(1, 2) if p.trans_b else right
            out = view(c, p.out_dtype, p.m, p.n, p.batch)
            result = alpha * (left.astype(np.float64) @ right.astype(np.float64))
            out[...] = (result + beta * out if beta else result) + self.backend.counter
            if self.backend.spoil is not None:
                self.backend.spoil(out, problem, c, beta)

        call.config = self.config
        return call
