"""What a run of the tuner has to do: problems and kernels, in the order in which they are tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pymm.device import Device
from pymm.kernels import find_kernel, kernels_for
from pymm.options import Options
from pymm.outset import Task
from pymm.problem import DTYPES
from pymm.records import Record
from pymm.shapes import parse_shapes


def tasks_of(
    options: Options, device: Device, stored: Callable[[], Iterable[tuple[Record, str]]]
) -> list[Task]:
    """What the options name, or with `stale` what of `stored` does not describe the present any
    more: records of kernels of this pymm, each with why it is stale ("" if it is not). `ValueError`
    if a kernel or a shape does not fit.
    """
    return _stale(device, stored()) if options.stale else _named(options, device)


def _named(options: Options, device: Device) -> list[Task]:
    names = {"cpu": "standard", "simulator": "16"}
    standard = parse_shapes(names.get(device.kind, "standard-gpu"))
    tasks = []
    for problem in options.problems(standard):
        known = kernels_for(problem, device)
        if not known and options.dtypes == tuple(DTYPES):
            continue  # "all" are those that the device has kernels for
        if not known:
            raise ValueError(f"no kernel computes {problem.slug} on {device.name}")
        chosen = known[-1:]
        if options.kernels == ("all",):
            chosen = known
        elif options.kernels:
            chosen = [find_kernel(name, known[0].backend) for name in options.kernels]
        if 3 * problem.bytes > device.memory_bytes > 0:
            raise ValueError(
                f"{problem.slug} and what checks it take {3 * problem.bytes / 2**30:.1f} GiB, "
                f"{device.name} has {device.memory_bytes / 2**30:.1f}: tune a smaller shape"
            )
        tasks += [(problem, kernel) for kernel in chosen]
    return tasks


def _stale(device: Device, stored: Iterable[tuple[Record, str]]) -> list[Task]:
    """Of several records of a problem and kernel (one's own, the shipped) one may be current."""
    found: dict[Task, bool] = {}
    for record, stale in stored:
        task = record.problem, record.config.kernel
        found[task] = bool(stale) and found.get(task, True)
    tasks = [task for task in found if found[task] and task[1] in kernels_for(task[0], device)]
    return sorted(tasks, key=lambda task: task[0].flops)
