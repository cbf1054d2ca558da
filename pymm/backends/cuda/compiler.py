"""Sources compiled to cubins by PyCUDA's compiler, into a cache that processes may share."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pymm.backends.base import Compiler
from pymm.core.binaries import key_of, log_compiling, obtain
from pymm.core.errors import CompileFailed
from pymm.core.forking import import_whole
from pymm.core.paths import out_of_space
from pymm.kernels.source import Source

#: -w, because PyCUDA makes a Python warning of every remark of the compiler. -lineinfo costs
#: nothing at run time and lets profilers and compute-sanitizer name lines of the kernel files.
OPTIONS = ("-O3", "-std=c++17", "-lineinfo", "-w")

#: nvcc reads these from the environment; PyCUDA's own key of a binary leaves them out.
_AMBIENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


def import_pycuda(simulator: bool) -> ModuleType:
    """`pycuda.driver`, on the simulator if `simulator`. Opens no device. Raises `ImportError`, and
    `RuntimeError` where there is no simulator.
    """
    if simulator:
        import pymm.simulator

        pymm.simulator.activate()
    import_whole("pycuda.driver")
    import pycuda.driver

    return pycuda.driver


def _import_to_compile(simulator: bool) -> ModuleType:
    """`pycuda.driver` to compile with. It loads a driver, and uses none: where there is no GPU's
    (`pymm precompile --arch`), the simulator's is enough.
    """
    try:
        return import_pycuda(simulator)
    except ImportError as error:
        if "libcuda" not in str(error):
            raise
        return import_pycuda(True)


@dataclass(frozen=True)
class CudaCompiler(Compiler):
    """The nvcc at the path `nvcc`, for one target architecture."""

    nvcc: str
    version: str
    arch: str
    cache: Path
    simulator: bool = False

    @property
    def toolchain(self) -> str:
        return self.version

    @property
    def target(self) -> str:
        return self.arch

    def folder(self, source: Source) -> Path:
        """The folder of a source's cubin. It is given to `SourceModule` as its cache."""
        ambient = [f"{name}={os.environ.get(name, '')}" for name in _AMBIENT]
        key = key_of(source.text, self.nvcc, self.version, self.arch, *OPTIONS, *ambient)
        return self.cache / "cuda" / key

    def arguments(self, folder: Path) -> dict:
        """The arguments of `SourceModule` and `compile` besides the source. They are the same, so
        that one finds what the other has written.
        """
        return dict(
            nvcc=self.nvcc,
            options=list(OPTIONS),
            no_extern_c=True,
            arch=self.arch,
            cache_dir=str(folder),
        )

    def build(self, source: Source) -> Path:
        return obtain(self.folder(source), lambda place: self._compile(source, place))

    def _compile(self, source: Source, place: Path) -> Path:
        """Compile in the private directory `place`. PyCUDA's writing to its cache is not atomic, so
        other processes may see the directory only when it is complete.
        """
        driver = _import_to_compile(self.simulator)
        import_whole("pycuda.compiler")
        from pycuda.compiler import compile

        written = {"PYMM_CACHE_DIR": self.cache, "TMPDIR": Path(tempfile.gettempdir())}
        try:
            with log_compiling(source.config.slug, self.arch):
                binary = compile(source.text, **self.arguments(place))
        except driver.CompileError as error:
            _remove_leftovers(error.msg)
            message = _message(source, self, error)
            raise out_of_space(message, written) or CompileFailed(message) from error
        except OSError as error:
            message = f"{self.nvcc} does not run: {error}"
            raise out_of_space(error, written) or CompileFailed(message) from error
        kept = next(place.glob("*.cubin"), None)
        if kept is None:  # PYCUDA_DISABLE_CACHE: PyCUDA will compile again at every load
            kept = place / "kernel.cubin"
            kept.write_bytes(binary)
        return kept


def _message(source: Source, compiler: CudaCompiler, error: Exception) -> str:
    words = "\n".join(_text(stream).strip() for stream in (error.stderr, error.stdout) if stream)
    return f"{compiler.version} for {compiler.arch} refused {source.config.slug}:\n{words}".rstrip()


def _text(output: str | bytes) -> str:
    """PyCUDA returns the preprocessor's output as bytes and the compiler's as str."""
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output


def _remove_leftovers(message: str) -> None:
    """Remove what PyCUDA leaves behind when a compilation fails, and names in its message: a
    temporary directory, or one file if the preprocessor failed.
    """
    found = re.search(r"nvcc (compilation|preprocessing) of (.+?\.cu) failed", message)
    if not found:
        return
    left = Path(found[2])
    if found[1] == "preprocessing":
        left.unlink(missing_ok=True)
    elif left.name == "kernel.cu" and left.parent.name.startswith("tmp"):
        shutil.rmtree(left.parent, ignore_errors=True)
