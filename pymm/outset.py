"""What a search begins with: the valid configurations, and of them the first to be tried: the
default, those stored for the nearest problems, and those that the cost model expects most of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from pymm.cost import most_promising
from pymm.device import Device
from pymm.kernels import Config, Kernel
from pymm.problem import Problem
from pymm.records import Record

#: Stored configurations of the nearest problems that are tried, and of the cost model's.
PORTFOLIO, PROMISING = 5, 12


@dataclass(frozen=True)
class Outset:
    """One search before it begins: what may be tried, and what is tried first."""

    problem: Problem
    kernel: Kernel
    valid: tuple[Config, ...]
    default: Config
    promising: tuple[Config, ...]

    def first(self, stored: Iterable[Record]) -> list[Config]:
        """The default, then by turns a configuration of the nearest stored problems and one of the
        cost model's, each once.
        """
        alike = [r for r in stored if r.config.kernel == self.kernel and self._alike(r.problem)]
        alike.sort(key=lambda record: self._distance(record.problem))
        portfolio = list(dict.fromkeys(record.config for record in alike))[:PORTFOLIO]
        pairs = itertools.zip_longest(portfolio, self.promising)
        mixed = [config for pair in pairs for config in pair if config is not None]
        return list(dict.fromkeys([self.default, *mixed]))

    def _alike(self, other: Problem) -> bool:
        """Same operation and precision: a good tile serves other layouts and types, too."""
        return (other.op, other.precision) == (self.problem.op, self.problem.precision)

    def _distance(self, other: Problem) -> float:
        """Same type and layout first, then by the logarithms of the extents."""
        p = self.problem
        pairs = ((other.m, p.m), (other.n, p.n), (other.k, p.k))
        apart = sum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in pairs)
        return apart + 100 * (other.dtype != p.dtype) + 10 * (other.layout != p.layout)


def prepare(problem: Problem, kernel: Kernel, device: Device) -> Outset:
    """Everything about a search that needs no measurement; takes up to seconds."""
    valid, _ = kernel.configs(problem, device)
    default = kernel.default_for(problem, device)
    if not kernel.violations(default, problem, device) and default not in valid:
        valid.append(default)
    promising = most_promising(valid, problem, device, PROMISING)
    return Outset(problem, kernel, tuple(valid), default, tuple(promising))
