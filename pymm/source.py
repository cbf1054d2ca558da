"""From a configuration and a kernel file to one self-contained text: nothing included, every
parameter defined on top.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pymm.kernels import Config
from pymm.problem import Problem

#: Headers that a kernel may still include because nothing else gives what they declare. None so
#: far: the text is the key.
ALLOWED_INCLUDES: tuple[str, ...] = ()

#: F16 and BF16 are the kernels' own (common/hopper.cuh): CUDA's names need an include.
C_TYPES = {"f32": "float", "f64": "double", "f16": "F16", "bf16": "BF16"}


@dataclass(frozen=True)
class Source:
    """One text to compile, the name of its entry point, and where it came from. The kernel wants
    rows that start at multiples of `alignment` bytes.
    """

    text: str
    entry: str
    config: Config
    alignment: int = 1

    @cached_property
    def key(self) -> str:
        """SHA-256 of the text: two sources with the same key compile to the same binary with the
        same compiler.
        """
        return hashlib.sha256(self.text.encode()).hexdigest()


def render(config: Config, problem: Problem, alignment: int | None = None) -> Source:
    """The text of `config`'s kernel for the types, layout and remainders of `problem`, and for rows
    that start at multiples of `alignment` bytes (None: as dense matrices have them).

    Raises `ValueError` on a missing parameter.
    """
    kernel = config.kernel
    missing = set(kernel.space) - set(dict(config.parameters))
    if missing:
        raise ValueError(f"{config.slug} lacks {', '.join(sorted(missing))}")
    defines = {"TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b)}
    if kernel.backend == "cuda" and not kernel.hopper:
        defines["GUARDED"] = int(kernel.guarded(config, problem))
    if not kernel.aligned:
        alignment = problem.numpy_dtype.itemsize
    elif alignment is None:
        alignment = problem.alignment
    return _render(config, problem.dtype, alignment, tuple(defines.items()))


@lru_cache(maxsize=4096)
def _render(
    config: Config, dtype: str, alignment: int, defines: tuple[tuple[str, int], ...]
) -> Source:
    kernel = config.kernel
    lines = [*config.parameters, ("REAL", C_TYPES[dtype]), *defines]
    if kernel.aligned:
        lines.append(("ALIGN", alignment))
    head = "".join(f"#define {name} {value}\n" for name, value in lines)
    return Source(head + kernel_text(kernel.backend, kernel.file), "gemm", config, alignment)


@lru_cache(maxsize=64)
def kernel_text(backend: str, file: str) -> str:
    """The text of one kernel file with the project's own headers put in their places, each at
    most once.
    """
    folder = "cuda_src" if backend == "cuda" else "cpu_src"
    return _inline(shipped_folder(folder), file, set())


def kernel_digest(backend: str, file: str) -> str:
    """Short digest of `kernel_text`: a tuned record made from another text is stale."""
    return hashlib.sha256(kernel_text(backend, file).encode()).hexdigest()[:12]


def shipped_folder(folder: str) -> Traversable:
    """A folder of files that go with the package: inside it once installed, beside it in a
    checkout.
    """
    inside = resources.files("pymm").joinpath(folder)
    return inside if inside.is_dir() else Path(__file__).parents[1] / folder


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*\n', re.MULTILINE)


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
