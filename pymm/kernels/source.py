"""From a configuration and a kernel file to one self-contained source: nothing included, every
parameter defined on top.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pymm.core.dtypes import ELEMENTS
from pymm.core.epilogue import ACTIVATIONS, NO_EPILOGUE, Epilogue
from pymm.core.forking import cached_property, import_whole
from pymm.core.problem import Problem
from pymm.kernels import Config, Guards, Tma
from pymm.kernels.emulated import Gate

#: Headers that a kernel may include although they are not inserted into its source: none, since the
#: source is the key of a binary.
ALLOWED_INCLUDES: tuple[str, ...] = ()

#: F16 and BF16 are the kernels' own (common/half_types.cuh, cpu_src/half.hpp): CUDA's names need
#: an include.
_C_NAMES = {"f32": "float", "f64": "double", "f16": "F16", "bf16": "BF16"}
#: Unsigned types by their bytes.
_BITS = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}

C_TYPES = {ELEMENTS[name]: spelled for name, spelled in _C_NAMES.items()}


@dataclass(frozen=True)
class Source:
    """One source to compile, the name of its entry point, and its configuration. The kernel needs
    rows that start at multiples of `alignment` bytes. With `mirrors` it also has the entry
    `mirror`, which copies the computed half of C to the other one. With an `epilogue`, entries that
    store C have its bias as their last parameter; with a `gate` what decides whether a launch runs
    (common/split_check.cuh) comes behind it, also in `repack`.
    """

    text: str
    entry: str
    config: Config
    alignment: int = 1
    mirrors: bool = False
    epilogue: Epilogue = NO_EPILOGUE
    gate: Gate = Gate.ALWAYS

    @cached_property
    def key(self) -> str:
        """SHA-256 of the source: two sources with the same key compile to the same binary with the
        same compiler.
        """
        return hashlib.sha256(self.text.encode()).hexdigest()


def render(
    config: Config,
    problem: Problem,
    alignment: int | None = None,
    epilogue: Epilogue = NO_EPILOGUE,
    gate: Gate = Gate.ALWAYS,
) -> Source:
    """The source of `config`'s kernel for the types, layout and remainders of `problem`, for rows
    that start at multiples of `alignment` bytes (None: as dense matrices have them), and with an
    epilogue. That of a checked type has the gate `EXACT`, that in its plain type `NOT_EXACT`.

    Raises `ValueError` on a missing parameter and for the epilogue of a symmetric C.
    """
    if epilogue and problem.symmetric:
        raise ValueError(f"{problem.op}: a symmetric C has no epilogue")
    kernel = config.kernel
    missing = set(kernel.space) - set(dict(config.parameters))
    if missing:
        raise ValueError(f"{config.slug} lacks {', '.join(sorted(missing))}")
    forced = dict(config.forced)
    given = kernel.tma.as_loaded(problem) if kernel.tma else problem
    defines = {"TRANS_A": int(given.trans_a), "TRANS_B": int(given.trans_b)}
    if kernel.tma:
        defines |= _tma_defines(kernel.tma, problem)
    elif kernel.backend == "cuda":
        defines["GUARDED"] = forced.get("GUARDED", int(kernel.guarded(config, problem)))
    if not kernel.tma and problem.out_dtype != problem.numpy_dtype:
        defines["OUT"] = C_TYPES[problem.out_dtype]
    if not kernel.aligned:
        alignment = problem.numpy_dtype.itemsize
    elif alignment is None:
        alignment = problem.alignment
    scaled = kernel.tma is not None and kernel.tma.scaled
    defines["REAL"] = _C_NAMES["f16"] if scaled else C_TYPES[problem.numpy_dtype]
    defines |= _symmetric_defines(config, problem) | _epilogue_defines(epilogue)
    gate = Gate.EXACT if problem.type.checked else gate
    if gate:
        defines["GATE"] = int(gate)
    return _render(config, alignment, tuple(defines.items()), epilogue, gate)


def _epilogue_defines(epilogue: Epilogue) -> dict[str, int | str]:
    """Macros of common/epilogue.cuh; none without an epilogue."""
    defines: dict[str, int | str] = {}
    if epilogue.activation:
        defines["ACTIVATION"] = ACTIVATIONS[epilogue.activation]
    if epilogue.bias is not None:
        defines |= {"BIAS": 2 if epilogue.down else 1, "BIAS_REAL": C_TYPES[epilogue.bias]}
    return defines


def _symmetric_defines(config: Config, problem: Problem) -> dict[str, int | str]:
    """Macros of common/triangle.cuh and common/mirror.cuh for a symmetric C: which half of it is
    computed, if not both, and the size of its elements if the other half may be copied from it.
    """
    if not problem.symmetric or config.kernel.backend != "cuda" or "FILL" in dict(config.forced):
        return {}
    fill = {"FILL": 2 if problem.fill == "upper" else 1} if problem.halved else {}
    if problem.fill != "full":
        return fill
    if problem.halved and config.kernel.both_halves:
        return fill | {"BOTH": 1}
    return fill | {"MIRRORED": _BITS[problem.out_dtype.itemsize]}


def _tma_defines(tma: Tma, problem: Problem) -> dict[str, int | str]:
    """Macros of common/repack.cuh and common/combine.cuh: types of C and of the sums, the terms of
    an element, and whether they are rounded to tf32; and the operand that is read in place.
    """
    in_place = {"IN_PLACE": tma.in_place(problem)} if tma.in_place else {}
    return {
        "OUT": C_TYPES[problem.out_dtype],
        "SUM": C_TYPES[problem.scalar_dtype],
        "TERMS": tma.terms,
        "ROUNDED": int(problem.dtype.startswith("tf32")),
    } | in_place


@lru_cache(maxsize=4096)
def _render(
    config: Config,
    alignment: int,
    defines: tuple[tuple[str, int | str], ...],
    epilogue: Epilogue,
    gate: Gate,
) -> Source:
    kernel = config.kernel
    lines = [*config.parameters, *defines]
    if kernel.aligned:
        lines.append(("ALIGN", alignment))
    head = "".join(f"#define {name} {value}\n" for name, value in lines)
    mirrors = "MIRRORED" in dict(lines)
    before = ("common/split_check.cuh",) if gate else ()
    after = ("common/mirror.cuh",) if mirrors else ()
    text = head + kernel_text(kernel.backend, *before, kernel.file, *after)
    if ("GUARDED", Guards.WRITE) in defines:
        text = _guarding_writes_alone(text)
    return Source(text, "gemm", config, alignment, mirrors, epilogue, gate)


def _guarding_writes_alone(text: str) -> str:
    """The source with nothing guarded in what is included, which loads tiles, and with guards in
    the kernel itself, which stores C.
    """
    text = text.replace(f"#define GUARDED {Guards.WRITE:d}\n", "#define GUARDED 0\n", 1)
    entry = 'extern "C" __global__'
    return text.replace(entry, f"#undef GUARDED\n#define GUARDED 1\n{entry}", 1)


@lru_cache(maxsize=64)
def kernel_text(backend: str, *files: str) -> str:
    """The source of a kernel file, followed by others, with the project's own headers inserted
    where they are included, each at most once.
    """
    folder = shipped_folder("cuda_src" if backend == "cuda" else "cpu_src")
    seen: set[str] = set()
    return "".join(_inline(folder, file, seen) for file in files)


def kernel_digest(backend: str, file: str) -> str:
    """Short digest of the code in `kernel_text`, without comments, `#line` and empty lines: a tuned
    record made from other code is stale.
    """
    return code_digest(kernel_text(backend, file))


@lru_cache(maxsize=64)  # needed for every record, and takes 1 to 2 ms
def code_digest(text: str) -> str:
    """Short digest of a source without comments, `#line` and empty lines."""
    lines = "\n".join(line for line in _NO_CODE.sub("", text).splitlines() if line.strip())
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


_NO_CODE = re.compile(r"[ \t]*//.*|^#line.*|/\*.*?\*/", re.MULTILINE)


def shipped_folder(folder: str) -> Traversable:
    """A folder of files shipped with the package: inside it once installed, next to it in a
    checkout.
    """
    import_whole("importlib.readers")  # at its first use `files` imports it
    inside = resources.files("pymm").joinpath(folder)
    return inside if inside.is_dir() else Path(__file__).parents[2] / folder


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*\n', re.MULTILINE)


def file_text(path: Path) -> str:
    """The source in the file `path`, with the files that it includes by `#include "..."` inserted,
    each at most once. `OSError` for one that cannot be read.
    """
    return _inline(path.parent, path.name, set())


def _inline(folder: Traversable, file: str, seen: set[str]) -> str:
    if file in seen:
        return ""
    seen.add(file)
    text = folder.joinpath(file).read_text(encoding="utf-8")
    if not text.endswith("\n"):
        text += "\n"

    def put(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.end()) + 1
        inner = _inline(folder, match.group(1), seen)
        return f'{inner}#line {line} "{file}"\n' if inner else "\n"

    return f'#line 1 "{file}"\n' + _INCLUDE.sub(put, text)
