"""Devices, environments and records for the tests of what is stored and chosen."""

from __future__ import annotations

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import kernel_digest
from pymm.selection import store
from pymm.selection.records import Environment, Record, device_facts

GPU = Device(
    "Test GPU 9",
    "cuda",
    capability=(9, 0),
    sms=132,
    shared_per_block=227 * 1024,
    shared_per_sm=228 * 1024,
    versions={"driver": "580.10"},
)
CPU = Device("Test CPU, 2 cores", "cpu", sms=2, vector_bytes=64, vector_registers=32)
NOW = Environment("580.10", "nvcc 13.0.88", "0.1.0", "13.0")
ENVIRONMENTS = (NOW, Environment("570.82", "nvcc 12.8", "0.1.0", "12.8"), Environment("", "g++ 12"))


def record(m=64, n=64, k=64, kernel="transposed_a", environment=NOW, seconds=1e-5, **more):
    """A record of a kernel's default configuration, changed by `config`; `more` goes to the record
    or to its problem.
    """
    backend = more.pop("backend", "cuda")
    kernel = find_kernel(kernel, backend)
    changes = more.pop("config", {})
    fields = {"spread": 0.006, "date": "2026-11-21", "digest": kernel_digest(backend, kernel.file)}
    fields |= {name: more.pop(name) for name in list(fields) if name in more}
    problem = Problem(m, n, k, **more)
    default = kernel.default_for(problem, GPU if backend == "cuda" else CPU)
    config = kernel.config({**default.as_dict(), **changes})
    return Record(problem, config, seconds, environment=environment, **fields)


#: A file with one record.
GOOD = store.render_table(store.Table(device_facts(GPU), (record(),)))
