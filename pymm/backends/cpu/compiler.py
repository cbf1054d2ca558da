"""The machine's C++ compiler: finding it, its flags, and compiling with it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pymm.backends.base import Compiler
from pymm.core.binaries import key_of, log_compiling, obtain
from pymm.core.errors import CompileFailed, NoDevice
from pymm.core.files import Workplace
from pymm.core.paths import out_of_space
from pymm.kernels.source import Source

#: Without -ffast-math, so that NaN and infinity are computed as IEEE 754 says; contraction lets
#: a*b + c be one instruction.
FLAGS = ("-O3", "-std=c++17", "-pthread", "-shared", "-fPIC", "-ffp-contract=fast")

#: Used as far as the compiler accepts them. The second: tuned for some processors GCC multiplies
#: and adds in two instructions where it expects sums to wait for each other, as in the tile of one
#: row, and its bits would differ from those of larger tiles.
OPTIONAL_FLAGS = ("-march=native", "--param=avoid-fma-max-bits=0")


@dataclass(frozen=True)
class CpuCompiler(Compiler):
    """`path` with `flags` for the processor whose description hashes to `processor`."""

    path: str
    version: str
    flags: tuple[str, ...]
    processor: str
    cache: Path

    @property
    def toolchain(self) -> str:
        return self.version

    @property
    def target(self) -> str:
        return f"cpu-{self.processor}"

    def folder(self, source: Source) -> Path:
        return self._folder(source.text)

    def build(self, source: Source) -> Path:
        return self.build_text(source.text, source.config.slug)

    def build_text(self, text: str, name: str) -> Path:
        """The shared object of a C++ source; the message of `CompileFailed` names it `name`."""
        return obtain(self._folder(text), lambda place: self._compile(text, name, place))

    def _folder(self, text: str) -> Path:
        key = key_of(text, self.path, self.version, " ".join(self.flags), self.processor)
        return self.cache / "cpu" / key

    def _compile(self, text: str, name: str, place: Path) -> Path:
        with log_compiling(name, self.target):
            return compile_shared(self.path, self.flags, text, name, place, self.version)


def compile_shared(
    path: str, flags: Sequence[str], text: str, name: str, place: Path, version: str = ""
) -> Path:
    """The shared object that the compiler at `path` makes of a C++ source in the directory `place`.
    Raises `CompileFailed`, which names the source `name` and the compiler `version`.
    """
    source, made = place / "kernel.cpp", place / "kernel.so"
    source.write_text(text, encoding="utf-8")
    done = _run(path, *flags, "-o", str(made), str(source), temporary=place)
    if done.returncode:
        said = done.stderr or done.stdout
        raise CompileFailed(f"{version or path} refused {name}:\n{said}")
    return made


def find_compiler(cache: Path) -> CpuCompiler:
    """The compiler at `compiler_path`. `NoDevice` if there is none, or none that compiles here."""
    return _described(compiler_path(), cache)


def compiler_path() -> str:
    """The C++ compiler named by `$CXX` (a program, no flags), else g++, c++ or clang++ on the
    path. `NoDevice` if there is none.
    """
    chosen = os.environ.get("CXX", "").strip()
    for name in (chosen,) if chosen else ("g++", "c++", "clang++"):
        path = shutil.which(name)
        if path:
            return path
    wanted = f"the C++ compiler that CXX names ({chosen})" if chosen else "a C++ compiler"
    raise NoDevice(
        f"the CPU device needs {wanted}, and none is on the path: install g++ "
        "(Debian: apt install g++) or set CXX to a compiler's path"
    )


@lru_cache(maxsize=8)
def _described(path: str, cache: Path) -> CpuCompiler:
    shown = _run(path, "--version")
    version = (shown.stdout.splitlines() or [f"{path}, version unknown"])[0].strip()
    for count in range(len(OPTIONAL_FLAGS), -1, -1):  # most compilers take all at the first try
        flags = FLAGS + OPTIONAL_FLAGS[:count]
        if _accepts(path, flags):
            return CpuCompiler(path, version, flags, processor_digest(), cache)
    raise NoDevice(f"{path} ({version}) does not compile C++17 with {' '.join(FLAGS)}")


def _accepts(path: str, flags: tuple[str, ...]) -> bool:
    """True if the compiler accepts these flags. `NoDevice` if that cannot be tried."""
    temporary = Path(tempfile.gettempdir())
    try:
        with Workplace("pymm-probe-", temporary) as place:
            source = place / "empty.cpp"
            source.write_text("int nothing() { return 0; }\n", encoding="utf-8")
            made = str(place / "empty.so")
            done = _run(path, *flags, "-o", made, str(source), temporary=place)
    except OSError as error:
        full = out_of_space(error, {"TMPDIR": temporary})
        raise NoDevice(f"{path} cannot be tried: {full or error}") from error
    if done.returncode and (full := out_of_space(done.stderr, {"TMPDIR": temporary})):
        raise NoDevice(f"{path} cannot be tried: {full}") from full
    return done.returncode == 0


def _run(*command: str, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, LC_ALL="C")
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False
    )


@lru_cache(maxsize=1)
def processor_lines() -> tuple[str, ...]:
    """The system's description of the first processor, as "key: value" lines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        brand = _sysctl("machdep.cpu.brand_string")
        return (f"model name: {brand}", f"flags: {_sysctl('machdep.cpu.features').lower()}")
    first = text.split("\n\n", 1)[0]
    return tuple(":".join(p.strip() for p in line.split(":", 1)) for line in first.splitlines())


def processor_field(*names: str) -> str:
    """The first of the named fields that is there, else the empty string."""
    fields = dict(line.split(":", 1) for line in processor_lines() if ":" in line)
    return next((fields[name].strip() for name in names if fields.get(name)), "")


def processor_digest() -> str:
    """A digest of what -march=native depends on: the model and its instruction sets."""
    parts = (processor_field("model name", "CPU part"), processor_field("flags", "Features"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _sysctl(name: str) -> str:
    try:
        return _run("sysctl", "-n", name).stdout.strip()
    except OSError:
        return ""
