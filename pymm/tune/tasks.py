"""What a run tunes: problems, each with the kernels that are searched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.core.shapes import parse_shapes
from pymm.kernels import Kernel, find_kernel, kernels_for
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.records import Record
from pymm.tune.options import Options

#: A kernel is left out of the race for a problem if the cost model expects its default to take so
#: many times as long as the fastest default. The model errs by less than half of that.
HOPELESS_BY_MODEL = 4.0

#: The standard set of shapes by backend; the simulator's times mean nothing.
STANDARD = {"cpu": "standard", "cuda": "standard-gpu"}
STANDARD_SIMULATED = "16"


@dataclass(frozen=True)
class Task:
    """A problem and the kernels that compete for it, the preferred one first."""

    problem: Problem
    kernels: tuple[Kernel, ...]

    @property
    def name(self) -> str:
        """The problem, with the kernel if there is only one."""
        words = [self.problem.slug] + [k.name for k in self.kernels if len(self.kernels) == 1]
        return " ".join(words)

    @property
    def label(self) -> str:
        """The kernels in a word or two."""
        return self.kernels[0].name if len(self.kernels) == 1 else f"{len(self.kernels)} kernels"


def tasks_of(
    options: Options, device: Device, stored: Callable[[], Iterable[tuple[Record, str]]]
) -> list[Task]:
    """The problems and kernels that the options name; with `stale` those of the stale records among
    `stored`: records and why each is stale ("" if it is not). `ValueError` if a kernel or a shape
    does not fit.
    """
    return _stale(device, stored()) if options.stale else _named(options, device)


def _named(options: Options, device: Device) -> list[Task]:
    name = STANDARD[device.kernel_backend] if device.times_are_real else STANDARD_SIMULATED
    tasks = []
    for problem in options.problems(parse_shapes(name)):
        known = kernels_for(problem, device)
        if not known and options.dtypes == tuple(DTYPES):
            continue  # "all" means the dtypes that the device has kernels for
        if not known:
            raise ValueError(f"no kernel computes {problem.slug} on {device.name}")
        if 3 * problem.bytes > device.memory_bytes > 0:
            raise ValueError(
                f"{problem.slug} and its verification take {3 * problem.bytes / 2**30:.1f} GiB, "
                f"{device.name} has {device.memory_bytes / 2**30:.1f}: tune a smaller shape"
            )
        if not options.kernels:
            tasks.append(Task(problem, competitors(problem, device)))
            continue
        if options.kernels != ("all",):
            known = [find_kernel(name, known[0].backend) for name in options.kernels]
        tasks += [Task(problem, (kernel,)) for kernel in known]
    return tasks


def competitors(problem: Problem, device: Device) -> tuple[Kernel, ...]:
    """The kernels of a race: all that can compute the problem, the preferred one first, without
    those that their declaration or the cost model rules out.
    """
    highest, *others = reversed(kernels_for(problem, device))
    others = [kernel for kernel in others if kernel.competes(problem, device)]
    if not device.is_gpu:  # the model knows nothing of CPUs
        return (highest, *others)
    expected = {
        kernel: predicted_seconds(kernel.default_for(problem, device), problem, device)
        for kernel in (highest, *others)
    }
    limit = HOPELESS_BY_MODEL * min(expected.values())
    return (highest, *(kernel for kernel in others if expected[kernel] <= limit))


def _stale(device: Device, stored: Iterable[tuple[Record, str]]) -> list[Task]:
    """Problems and kernels of which every record (the user's, the shipped one) is stale."""
    found: dict[Task, bool] = {}
    for record, stale in stored:
        task = Task(record.problem, (record.config.kernel,))
        found[task] = bool(stale) and found.get(task, True)
    tasks = [
        task
        for task, stale in found.items()
        if stale and task.kernels[0] in kernels_for(task.problem, device)
    ]
    return sorted(tasks, key=lambda task: task.problem.flops)


def describe(
    tasks: Iterable[Task], device: Device, say: Callable[[str], object], every: bool
) -> None:
    """Say how many configurations of each task are valid, and which rule rejects how many; or
    `every` valid one.
    """
    for problem, kernel in ((task.problem, k) for task in tasks for k in task.kernels):
        valid, rejected = kernel.configs(problem, device)
        if every:
            for config in valid:
                say(f"{problem.slug} {config.slug}")
            continue
        total = len(valid) + rejected.total()
        name = f"{problem.slug} {kernel.label}"
        say(f"{name}: {len(valid)} of {total} configurations are valid")
        for reason, count in rejected.most_common():
            say(f"  {count:6d} rejected: {reason}")
