"""Another configuration for a product whose own is not compiled yet: the best of those that
`pymm precompile` has compiled. The product's own is compiled meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pymm.backends.base import Backend
from pymm.backends.behind import compile_behind
from pymm.core.forking import call_in_child
from pymm.core.paths import compile_mode
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.kernels.source import Source, render
from pymm.selection.choose import forget_choices
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.precompiled import Binary, list_path, read_list
from pymm.selection.select import Choice

LOG = logging.getLogger("pymm")

#: Products whose stand-in is kept, some 300 bytes each.
MOST_KEPT = 65536

#: Bytes that rows may be aligned to.
ALIGNMENTS = (16, 8, 4, 2)


@dataclass(frozen=True)
class StandIn:
    """The configuration that runs, and what it is compiled for: `problem` has the type, the layout
    and the remainders, not the extents, of the product.
    """

    config: Config
    problem: Problem
    reason: str


class _StandIns:
    """The stand-ins of this process, and the lists of what is compiled."""

    def __init__(self) -> None:
        self.clear()
        call_in_child(self.clear)

    def clear(self) -> None:
        """Forget everything, and read the lists anew."""
        self._lists: dict[Path, dict[str, list[tuple[Binary, Source]]]] = {}
        self._kept: dict[tuple[Backend, Problem, int, Config], StandIn | None] = {}

    def find(
        self, backend: Backend, problem: Problem, alignment: int, choice: Choice
    ) -> StandIn | None:
        """What runs instead of `choice` for a product whose rows start at multiples of `alignment`
        bytes. None if the choice itself is to run: it is compiled already, no compiled
        configuration fits, or PYMM_COMPILE is "wait".

        The first answer counts for this process, so that a product repeats bit for bit. With
        PYMM_COMPILE=replace it counts until the choice is compiled.
        """
        mode = compile_mode()
        if mode == "wait" or choice.config.backend != "cuda":
            return None
        if problem.symmetric or problem.type.checked:
            return None
        key = backend, problem, alignment, choice.config
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._found(backend, problem, alignment, choice)
        found = self._kept[key]
        if found and mode == "replace" and backend.compiler.has(_own(choice, problem, alignment)):
            del self._kept[key]
            return None
        return found

    def _found(
        self, backend: Backend, problem: Problem, alignment: int, choice: Choice
    ) -> StandIn | None:
        compiled = self._listed(backend).get(problem.dtype, [])
        own = _own(choice, problem, alignment)
        if not compiled or backend.compiler.has(own):
            return None
        able = [
            (predicted_seconds(binary.config, problem, backend.device), number)
            for number, (binary, source) in enumerate(compiled)
            if serves(binary, source, problem, alignment)
            and not binary.config.kernel.violations(binary.config, problem, backend.device)
        ]
        for _, number in sorted(able):
            best, source = compiled[number]
            if backend.compiler.has(source):
                compile_behind(backend.compiler, own, _told())
                LOG.info("%s: %s until its own kernel is compiled", problem.slug, best.config.slug)
                reason = f"compiled already; {choice.config.slug} is not ({choice.reason})"
                return StandIn(best.config, best.problem, reason)
        return None

    def known(self, backend: Backend, problem: Problem, choice: Choice) -> StandIn | None:
        """What runs instead of `choice` since an earlier call of this process."""
        keys = ((backend, problem, alignment, choice.config) for alignment in ALIGNMENTS)
        return next(filter(None, map(self._kept.get, keys)), None)

    def _listed(self, backend: Backend) -> dict[str, list[tuple[Binary, Source]]]:
        """What is compiled, by type."""
        compiler = backend.compiler
        path = list_path(compiler.cache, compiler.target)
        if path not in self._lists:
            found: dict[str, list[tuple[Binary, Source]]] = {}
            for binary in read_list(path, backend.device.kernel_backend):
                p = binary.problem
                if not p.symmetric and not p.type.checked:
                    found.setdefault(p.dtype, []).append((binary, binary.source))
            self._lists[path] = found
        return self._lists[path]


def serves(binary: Binary, source: Source, problem: Problem, alignment: int) -> bool:
    """Whether what was compiled for another product of the same type computes `problem`: operands
    are loaded in the same layout, rows need no larger alignment, and indices are checked where
    tiles of `problem` are partial.
    """
    kernel, config = binary.config.kernel, binary.config
    loaded = kernel.tma.as_loaded if kernel.tma else lambda problem: problem
    if loaded(problem).layout != loaded(binary.problem).layout:
        return False
    if kernel.aligned and alignment % source.alignment:
        return False
    checks = kernel.tma is not None or kernel.guarded(config, binary.problem)
    return checks or not kernel.guarded(config, problem)


def _own(choice: Choice, problem: Problem, alignment: int) -> Source:
    """The source that the choice is compiled from."""
    return render(choice.config, problem, alignment)


def _told() -> Callable[[], object]:
    """What happens when a choice is compiled: with "replace", calls are prepared anew."""
    return forget_choices if compile_mode() == "replace" else lambda: None


_stand_ins = _StandIns()

find_stand_in, known_stand_in = _stand_ins.find, _stand_ins.known
forget_stand_ins = _stand_ins.clear


def standing_in(choice: Choice, found: StandIn) -> Choice:
    """The choice of the stand-in."""
    return replace(choice, config=found.config, reason=found.reason, record=None)
