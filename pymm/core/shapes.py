"""Shapes of products: as people write them, the sets that have a name, and the classes that are
compared with other libraries as a whole.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymm.core.dtypes import DTYPES, EMULATED
from pymm.core.inputs import BadInput, read_table, shown
from pymm.core.problem import MAX_EXTENT, Problem

Shape = tuple[int, int, int]

#: More shapes than this in one list is a slip of the pen (`1:100000`).
MAX_SHAPES = 10_000

#: Sets by name: what each is for, and its shapes as text.
NAMED_SETS: dict[str, tuple[str, str]] = {
    "standard": (
        "the default of `tune` on a CPU: a small square, one off the tiles, one shallow",
        "256,1000,1024x1024x64",
    ),
    "standard-gpu": (
        "the default of `tune` on a GPU: two squares, one shallow",
        "1024,4096,8192x8192x64",
    ),
    "quick": ("the default of `tune --quick`", "256,512,1000"),
    "cpu-table": (
        "the shapes of the CPU's tables in benchmarks/RESULTS.md",
        "256,512,1000,1024,2048,1024x1024x64",
    ),
    "ladder": (
        "where the kernels of the ladder are compared",
        "512,1024,2048,4096",
    ),
    "spread": (
        "a dozen shapes that represent all classes: what is shipped for a GPU",
        "256,512,641,1000,1024,2048,4096,8192,8192x8192x32,8192x8192x156,8192x16x8192,"
        "256x256x65536",
    ),
    "large": ("large squares", "2048,3200,4096,8192,10000"),
    "small": ("small squares", "256,512,640,1024"),
    "odd": ("extents that no tile divides", "641,1000,4095,4097,8192x8192x156"),
    "rank-k": ("large and shallow", "8192x8192x32,8192x8192x64,8192x8192x128"),
    "skinny": (
        "one or two extents far below the others",
        "8192x16x8192,16x8192x8192,256x256x65536,64x64x262144",
    ),
    "distributed": (
        "tiles of C to which distributed products add thin panels: tune it with --beta 1",
        ",".join(f"{m}x{m}x{k}" for m in (2048, 4096, 5001, 8192) for k in (256, 512, 1024, 2048)),
    ),
    "o4-square": ("squares from 250 to 10000 in steps of 250", "250:10001:250"),
    "o4-rank-k": (
        "m = n in the thousands, k = 32, 64, 128, 156",
        ",".join(f"{m}x{m}x{k}" for k in (32, 64, 128, 156) for m in range(1000, 10001, 1000)),
    ),
    "o2-multiples": ("squares from 128 to 3200 in steps of 32", "128:3201:32"),
    "o2-remainders": ("every square from 1000 to 1100", "1000:1101"),
}

_FORMS = (
    "write 1024, 8192x8192x128, a range 250:10001:250 (also within a shape: 1024x1024x16:257:16), "
    "a file.csv with the columns m, n, k, or one of the sets " + ", ".join(NAMED_SETS)
)


def parse_shapes(text: str | Iterable[str]) -> list[Shape]:
    """The shapes (m, n, k) that `text` names, each once, in the order named.

    `text` is a list of pieces, or one text of pieces between commas or blanks. A piece is an extent
    (`1024`, a square), three extents (`8192x8192x128`), either with ranges that read as Python's
    slices do (`250:10001:250` ends at 10000), a CSV file with columns m, n, k, or the name of a
    set. `ValueError` that quotes the piece for anything else.
    """
    texts = [text] if isinstance(text, str) else text
    found: dict[Shape, None] = {}
    for piece in itertools.chain.from_iterable(map(_pieces, texts)):
        if not piece:
            continue
        for shape in _piece(piece):
            found[shape] = None
            if len(found) > MAX_SHAPES:
                raise ValueError(f"{piece!r}: more than {MAX_SHAPES} shapes")
    if not found:
        raise ValueError(f"no shapes in {text!r}: {_FORMS}")
    return list(found)


def _pieces(text: str) -> list[str]:
    """`text` cut at commas and blanks, unless it is the path of a file that has some."""
    whole = text.lower().endswith(".csv") and Path(text).is_file()
    return [text] if whole else re.split(r"[,\s]+", text.strip())


def _piece(piece: str) -> Iterable[Shape]:
    if piece in NAMED_SETS:
        return parse_shapes(NAMED_SETS[piece][1])
    if piece.lower().endswith(".csv"):
        return _from_file(Path(piece))
    components = [_extents(component, piece) for component in piece.lower().split("x")]
    if len(components) == 1:
        return ((extent, extent, extent) for extent in components[0])
    if len(components) == 3:
        return itertools.product(*components)
    raise ValueError(f"{piece!r} has {len(components)} extents, a shape has 1 or 3: {_FORMS}")


def _extents(component: str, piece: str) -> Iterable[int]:
    """One extent, or those of a range."""
    if not re.fullmatch(r"[0-9]{1,12}(:[0-9]{1,12}){0,2}", component):
        raise ValueError(f"{component!r} in {piece!r} is no extent: {_FORMS}")
    numbers = [int(number) for number in component.split(":")]
    if len(numbers) == 1:
        extents = range(numbers[0], numbers[0] + 1)
    elif numbers[2:] == [0]:
        raise ValueError(f"{component!r} in {piece!r} has steps of 0")
    else:
        extents = range(*numbers)
    if not extents:
        raise ValueError(f"{component!r} in {piece!r} is an empty range: its end is left out")
    if len(extents) > MAX_SHAPES:
        raise ValueError(f"{component!r} in {piece!r}: more than {MAX_SHAPES} shapes")
    if extents[0] < 1 or extents[-1] > MAX_EXTENT:
        raise ValueError(f"{component!r} in {piece!r} is not between 1 and {MAX_EXTENT}")
    return extents


def _from_file(path: Path) -> Iterator[Shape]:
    """The shapes of a CSV file; columns besides m, n, k are left alone."""
    try:
        table = read_table(path)
    except FileNotFoundError:
        raise BadInput(f"{path} cannot be read: there is no such file") from None
    if missing := {"m", "n", "k"} - set(table.columns):
        raise BadInput(f"{path}: no column {', '.join(sorted(missing))} in its first line")
    if table.faults:
        raise BadInput(table.faults[0].rpartition(";")[0])
    for line, row in table.rows:
        where = f"{path}, line {line}"
        yield tuple(_extent(row[axis], f"{axis} of {where}") for axis in ("m", "n", "k"))


def _extent(text: str, where: str) -> int:
    """One extent, not a range."""
    if not re.fullmatch(r"[0-9]{1,12}", text.strip()):
        raise BadInput(f"{shown(text)}, {where}, is no extent")
    return _extents(text.strip(), where)[0]


LAYOUTS = ("NN", "NT", "TN", "TT")

#: Classes whose shapes are the set of that name.
SETS = ("large", "small", "odd", "rank-k", "skinny")

#: Classes of symmetric products, C = A A^T (NT) and A^T A (TN): no part of "all classes".
SYMMETRIC = {
    "syrk-large": "4096,6144,8192,10500",
    "syrk-small": "500,640,1000,1024,1500,2048",
}

#: Classes of the types in `EMULATED`: shapes as `parse_shapes` reads them.
ACCURATE = {
    "2048": "2048",
    "4096": "4096",
    "8192": "8192",
    "rank-k 64 to 156": "8192x8192x64,8192x8192x128,8192x8192x156",
    "641 and 4097": "641,4097",
}


def shapes_of(dtype: str) -> dict[str, str]:
    """The classes of a type: by name their shapes as `parse_shapes` reads them."""
    return ACCURATE if dtype in EMULATED else {name: name for name in SETS}


@dataclass(frozen=True)
class Member:
    """One product of a population, of any type."""

    m: int
    n: int
    k: int
    layout: str
    batch: int = 1
    op: str = "gemm"

    def problem(self, dtype: str) -> Problem:
        """The product in a type."""
        transposed = (letter == "T" for letter in self.layout)
        return Problem(self.m, self.n, self.k, dtype, *transposed, self.batch, self.op)


#: The dense products of language models that DeepGEMM's README lists, all NT: rows, and (n, k)
#: (https://github.com/deepseek-ai/DeepGEMM).
LLM_ROWS = (64, 128, 4096)
LLM = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))

#: Batches of squares: how many matrices, and their extent.
BATCHES = (
    *((10000, 16), (4000, 32), (1000, 64), (256, 128)),
    *((64, 256), (16, 1024), (500, 100)),
)

#: Populations that are the same in every run.
FIXED = {
    "llm": [Member(m, n, k, "NT") for m in LLM_ROWS for n, k in LLM],
    "batch": [
        *(Member(extent, extent, extent, "NN", count) for count, extent in BATCHES),
        Member(1024, 1024, 128, "NT", 64),
    ],
}


def _random(uniform: Callable[[], float]) -> Member:
    """Extents log-uniform between 32 and 8192, in any layout."""
    extents = (round(32 * 256 ** uniform()) for _ in "mnk")
    return Member(*extents, LAYOUTS[int(len(LAYOUTS) * uniform())])


def _syrk_uneven(uniform: Callable[[], float]) -> Member:
    """A A^T or A^T A, odd extents log-uniform: n between 300 and 1500, k between 2000 and 20000."""
    n, k = int(300 * 5 ** uniform()) | 1, int(2000 * 10 ** uniform()) | 1
    return Member(n, n, k, "NT" if uniform() < 0.5 else "TN", op="syrk")


#: Populations that are drawn with a seed: how a product is made of numbers uniform in [0, 1), and
#: how many products there are.
DRAWN = {"random": (_random, 100), "syrk-uneven": (_syrk_uneven, 24)}

#: Names of the populations: sets of products that nothing is tuned for.
POPULATIONS = (*FIXED, *DRAWN)

_SEEDED = re.compile(rf"({'|'.join(DRAWN)})-([0-9]{{1,12}})")


def is_population(name: str) -> bool:
    """Whether a class is a population: `llm`, `batch`, or a drawn one with its seed, `random-7`."""
    return name in FIXED or bool(_SEEDED.fullmatch(name))


def population(name: str, count: int | None = None) -> list[Member]:
    """The products of a population. Of one that is drawn the first `count`, each once: they are the
    same for a seed in every version of Python. `ValueError` for an unknown name.
    """
    if name in FIXED:
        return FIXED[name]
    match = _SEEDED.fullmatch(name)
    if not match:
        known = (*FIXED, *(f"{drawn}-SEED" for drawn in DRAWN))
        raise ValueError(f"{name!r} is none of the populations {', '.join(known)}")
    make, usual = DRAWN[match[1]]
    generator, found = random.Random(int(match[2])), {}
    while len(found) < (usual if count is None else count):
        found[make(generator.random)] = None
    return list(found)


def class_problems(
    classes: Sequence[str],
    dtypes: Sequence[str],
    layouts: Sequence[str],
    count: int | None = None,
) -> list[tuple[str, Problem]]:
    """Every product of the classes named ("all": all but the symmetric ones and the populations)
    with its class, layout by layout and in each type by type, so that a run that is cut off has all
    types; then those of populations, each in all types. Of populations that are drawn there are
    `count`. `ValueError` for an unknown name.
    """
    known = ["all", *dict.fromkeys(name for dtype in DTYPES for name in shapes_of(dtype))]
    known += [*SYMMETRIC, *FIXED, *(f"{name}-SEED" for name in DRAWN)]
    for given, names in ((classes, known), (dtypes, DTYPES), (layouts, LAYOUTS)):
        for name in given:
            if name not in names and not (names is known and is_population(name)):
                raise ValueError(f"{name!r} is none of {', '.join(names)}")
    found = [
        (name, Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", op=op))
        for layout in layouts
        for dtype in dtypes
        for name, text, op in _of_layout(dtype, layout)
        if name in classes or ("all" in classes and op == "gemm")
        for m, n, k in parse_shapes(text)
    ]
    members = [(n, member) for n in classes if is_population(n) for member in population(n, count)]
    return found + [
        (name, member.problem(dtype))
        for name, member in members
        if member.layout in layouts
        for dtype in dtypes
    ]


def _of_layout(dtype: str, layout: str) -> Iterator[tuple[str, str, str]]:
    """Name, shapes and operation of the classes that a type has in a layout."""
    for name, text in shapes_of(dtype).items():
        yield name, text, "gemm"
    if layout in ("NT", "TN"):
        for name, text in SYMMETRIC.items():
            yield name, text, "syrk"
