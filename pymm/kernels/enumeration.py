"""Every configuration of a kernel's space that obeys its rules.

Spaces have up to 2.5 million points, most of which break a rule that depends on two or three of
their parameters. So parameters get values one after the other, in the order of the space, and where
the first few break a rule all points that begin with them are left out at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymm.core.device import Device
from pymm.core.problem import Problem

if TYPE_CHECKING:
    from pymm.kernels.kernel import Config, Kernel, Rule


class _NoValue(Exception):
    """A rule needs the parameter of this name, which has no value yet, or (None) a whole
    configuration.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name


class _Beginning:
    """A configuration whose first parameters alone have values."""

    def __init__(self, kernel: Kernel, values: Sequence[int]) -> None:
        self.kernel, self.kernel_name = kernel, kernel.name
        self.__dict__.update(zip(kernel.space, values, strict=False))

    def __getattr__(self, name: str):
        if name in self.kernel.space:
            raise _NoValue(name)
        if name.isupper():
            raise AttributeError(name)
        raise _NoValue

    def __hash__(self) -> int:  # what a rule keeps in a cache is of whole configurations
        raise _NoValue


def configs(kernel: Kernel, problem: Problem, device: Device) -> tuple[list[Config], Counter[str]]:
    """The configurations of a kernel that may run, in the order of the space and then those of its
    default and fallbacks that the space lacks, and how many each rule rejected. A configuration
    that breaks several rules counts for one of them.
    """
    valid: list[Config] = []
    rejected: Counter[str] = Counter()
    names, given = list(kernel.space), list(kernel.space.values())

    def search(values: tuple[int, ...], waiting: Sequence[tuple[Rule, str | None]]) -> None:
        """Keep the points that begin with `values` and break none of the rules. Each rule waits for
        the parameter of that name or (None) for a whole configuration.
        """
        count, whole = len(values), len(values) == len(names)
        config = kernel.point(values) if whole else _Beginning(kernel, values)
        latest, still = names[count - 1] if values else None, []
        for rule, needs in waiting:
            if not whole and needs != latest:
                still.append((rule, needs))
                continue
            try:
                if not rule.holds(config, problem, device):
                    rejected[rule.reason] += math.prod(map(len, given[count:]))
                    return
            except _NoValue as missing:
                still.append((rule, missing.name))
        if whole:
            valid.append(config)
            return
        for value in given[count]:
            search((*values, value), still)

    rules = [(rule, names[0]) for rule in kernel.rules]
    search((), rules)
    for values in _extra_points(kernel):
        search(values, rules)
    return valid, rejected


def _extra_points(kernel: Kernel) -> list[tuple[int, ...]]:
    """The values of a `Kernel`'s extra points that are not combinations of its space."""
    forms = [{**kernel.added, **form} for form in kernel.extra_points]
    points = dict.fromkeys(tuple(form[name] for name in kernel.space) for form in forms)
    spaces = list(kernel.space.values())
    return [p for p in points if any(v not in s for v, s in zip(p, spaces, strict=True))]
