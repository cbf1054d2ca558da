"""What `pymm precompile` compiles: the tuned configurations of a device, and what products of many
other sizes get. And the list of it that stays beside the binaries.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pymm.backends.base import Backend
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.files import locked, replace_text
from pymm.core.problem import Problem
from pymm.kernels import Config, kernels_for, parse_slug
from pymm.kernels.source import Source, render
from pymm.selection import store
from pymm.selection.records import Environment, Record, source_changed, unusable_because
from pymm.selection.select import select, tuned_files

#: Extents of products that nothing is tuned for: small to large in three steps, each even enough
#: for aligned rows and no multiple of a tile, so that every index is checked.
SMALL, MIDDLE, LARGE = 72, 520, 4104

#: m x n x k of those products: cubes, and those with one or two small extents.
SHAPES = (
    *((extent, extent, extent) for extent in (SMALL, MIDDLE, LARGE)),
    *itertools.permutations((SMALL, LARGE, LARGE), 3),
    *itertools.permutations((SMALL, SMALL, LARGE), 3),
)

#: Added to each extent for products whose rows have the least alignment there is.
ODD = 1


@dataclass(frozen=True)
class Binary:
    """A kernel that is compiled: its configuration, for the type, the layout, the remainders and
    the alignment of dense matrices that `problem` has.
    """

    config: Config
    problem: Problem

    @property
    def source(self) -> Source:
        """What was compiled."""
        return render(self.config, self.problem)


def of_device(backend: Backend, directory: Path | None) -> list[Binary]:
    """What an open device's products need: its usable records, the user's and those shipped, then
    the choices for `SHAPES` in each type and layout. Each source once.
    """
    device = backend.device
    files, _ = tuned_files.readable(device, directory)
    records = [r for r in itertools.chain.from_iterable(files) if not unusable_because(r, device)]
    environment = Environment.of(device, backend.toolchain)
    chosen = (
        Binary(select(problem, device, directory, environment).config, problem)
        for problem in _untuned(device)
    )
    return _distinct(itertools.chain(_of_records(records), chosen))


def of_architecture(arch: str, directory: Path | None) -> list[Binary]:
    """The records of every GPU whose kernels are compiled for `arch` (`sm_90a`), which need not be
    there: what its untuned products would get depends on limits that only the GPU tells.
    `ValueError` if nothing is tuned for such a GPU.
    """
    found, known = [], set()
    for path in store.files(directory):
        table = store.read(path)
        if table is None or "capability" not in table.device:
            continue
        major, minor = map(int, str(table.device["capability"]).split("."))
        there = Device("", "cuda", capability=(major, minor)).arch
        known.add(there)
        if there == arch:
            found += table.records
    if not found:
        raise ValueError(
            f"nothing is tuned for {arch}, but for {', '.join(sorted(known)) or 'nothing'}"
        )
    return _distinct(_of_records(r for r in found if not source_changed(r)))


def _of_records(records: Iterable[Record]) -> list[Binary]:
    return [Binary(record.config, record.problem) for record in records]


def _untuned(device: Device) -> list[Problem]:
    """`SHAPES` in every type and layout that a kernel on `device` computes, with even and with odd
    extents.
    """
    flags = tuple(itertools.product((False, True), repeat=2))
    return [
        Problem(m + odd, n + odd, k + odd, dtype, trans_a, trans_b)
        for dtype, row in DTYPES.items()
        if not row.checked and kernels_for(Problem(1, 1, 1, dtype), device)
        for trans_a, trans_b in flags
        for odd in (0, ODD)
        for m, n, k in dict.fromkeys(SHAPES)
    ]


def _distinct(binaries: Iterable[Binary]) -> list[Binary]:
    """The first of those with the same source."""
    return list({binary.source.key: binary for binary in reversed(list(binaries))}.values())[::-1]


# The list of what is compiled


def list_path(cache: Path, arch: str) -> Path:
    """The file that lists what was compiled for `arch`, in the directory of compiled kernels."""
    return cache / f"precompiled-{arch}.json"


def add_to_list(path: Path, binaries: Iterable[Binary]) -> None:
    """Put `binaries` into the list, before those that it has."""
    with locked(path.with_name(path.name + ".lock")):
        lines = [json.dumps(_row(b)) for b in _distinct([*binaries, *read_list(path)])]
        replace_text(path, "[\n" + ",\n".join(lines) + "\n]\n")


def _row(binary: Binary) -> list[str | int]:
    p = binary.problem
    return [binary.config.slug, p.dtype, p.trans_a, p.trans_b, p.m, p.n, p.k, p.batch, p.op]


def read_list(path: Path, backend: str = "cuda") -> list[Binary]:
    """The list; empty if there is none or it is damaged. What this pymm does not have is left out,
    and whether a binary is still there has to be asked of the compiler.
    """
    found = []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    for row in rows if isinstance(rows, list) else ():
        try:
            slug, dtype, trans_a, trans_b, m, n, k, batch, op = row
            problem = Problem(m, n, k, dtype, trans_a, trans_b, batch, op)
            found.append(Binary(parse_slug(slug, backend), problem))
        except (ValueError, TypeError, NotImplementedError, KeyError):
            continue
    return found
