"""A stand-in for nvcc: compiles a .cu file into a module of the simulator with g++.

Started by the launcher that build.py writes. Imports nothing outside the standard library, so
that it starts in some 30 ms.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

from translate import Refused, translate

SHARED_LIMIT = 48 << 10  # bytes of static shared memory, of every architecture
COMMON_FLAGS = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-w",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-semantic-interposition",
    "-fstack-clash-protection",  # a large frame meets the page that ends a fiber's stack
    "-fno-strict-aliasing",
    "-fwrapv",
    "-ffp-contract=fast",
    # Only loads and stores that the text asks for, each of them checked:
    "-fno-tree-vectorize",
    "-fno-tree-loop-distribute-patterns",
    "-fno-hoist-adjacent-loads",
]
CHECK_FLAGS = [
    "-fsanitize=kernel-address,alignment",
    "-fasan-shadow-offset=0x7fff8000",
    "--param=asan-stack=0",
    "--param=asan-globals=0",
    "--param=asan-instrumentation-with-call-threshold=2000000000",
]
#: Instead of these, to watch for races: see device/races.hpp. The calls are to functions of the
#: module's own, so no library of g++'s is linked.
RACE_FLAGS = [
    "-DPYMM_SIM_RACES",
    "-fsanitize=thread,alignment",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-tree-sra",  # a float4 is read at once, as on a GPU
]
NO_RUNTIME = ["-nodefaultlibs", "-lm", "-lc", "-lgcc"]
#: Instead of -O2, with PYMM_SIMULATOR_OPTIMIZE=0. Multiplications and additions are still fused.
FASTER_TO_COMPILE = ["-Og", "-fexpensive-optimizations"]

# Options that take a value, by every name nvcc knows them by.
_VALUED = {
    "-o": "output",
    "--output-file": "output",
    "-I": "include",
    "--include-path": "include",
    "-isystem": "include",
    "-D": "define",
    "--define-macro": "define",
    "-U": "undefine",
    "--undefine-macro": "undefine",
    "-include": "preinclude",
    "--pre-include": "preinclude",
    "-arch": "arch",
    "--gpu-architecture": "arch",
    "-code": "code",
    "--gpu-code": "code",
    "-gencode": "gencode",
    "--generate-code": "gencode",
    "-std": "std",
    "--std": "std",
    "-Xcompiler": "host",
    "--compiler-options": "host",
    "-Xptxas": "ptxas",
    "--ptxas-options": "ptxas",
    "-fmad": "fmad",
    "--fmad": "fmad",
    "-O": "ignored",
    "--optimize": "ignored",
    "-maxrregcount": "ignored",
    "--maxrregcount": "ignored",
    "-ccbin": "ignored",
    "--compiler-bindir": "ignored",
    "-rdc": "ignored",
    "--relocatable-device-code": "ignored",
    "-x": "ignored",
    "-ftz": "ignored",
    "-prec-div": "ignored",
    "-prec-sqrt": "ignored",
    "-t": "ignored",
    "--threads": "ignored",
    "-diag-suppress": "ignored",
    "--diag-suppress": "ignored",
    "-Xcudafe": "ignored",
    "--cudafe-options": "ignored",
    "-Werror": "ignored",
}
_TARGETS = {"cubin", "ptx", "fatbin", "preprocess"}
_PLAIN = {
    "-w",
    "-g",
    "-G",
    "-lineinfo",
    "--generate-line-info",
    "-m64",
    "-c",
    "--keep",
    "-keep",
    "-restrict",
    "--restrict",
    "-use_fast_math",
    "--use_fast_math",
    "-extra-device-vectorization",
    "--extended-lambda",
    "-extended-lambda",
    "--expt-relaxed-constexpr",
    "-expt-relaxed-constexpr",
    "-v",
    "--verbose",
    "--resource-usage",
    "-res-usage",
    "-dc",
    "--device-debug",
    "--debug",
}


class Fatal(Exception):
    """A command line that nvcc would refuse."""


@dataclass
class Command:
    target: str = "cubin"
    sources: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    def last(self, name: str, default: str = "") -> str:
        return self.values.get(name, [default])[-1]


def parse(arguments: list[str]) -> Command:
    """The command line, by nvcc's rules: `-o x`, `-o=x`, `-DX`, `-O3`. Raises Fatal."""
    command, rest = Command(), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            command.sources.append(word)
        elif word in ("-E", "-P") or word.lstrip("-") in _TARGETS:
            command.target = "preprocess" if word in ("-E", "-P") else word.lstrip("-")
        elif word in _PLAIN:
            command.flags.add(word)
        elif name in _VALUED:
            if not equals:
                if not rest:
                    raise Fatal(f"A single value must follow option '{word}'")
                value = rest.pop(0)
            command.values.setdefault(_VALUED[name], []).append(value)
        elif word[:2] in ("-D", "-I", "-O", "-U") and len(word) > 2:
            command.values.setdefault(_VALUED[word[:2]], []).append(word[2:])
        else:
            raise Fatal(f"Unknown option '{word}'")
    if len(command.sources) != 1:
        raise Fatal(
            "No input files specified"
            if not command.sources
            else "A single input file is required for a non-link phase"
        )
    return command


def architecture(command: Command) -> int:
    """__CUDA_ARCH__: 900 for sm_90 or compute_90a. Without any, the device's."""
    text = command.last("code") or command.last("arch") or "sm_90"
    if "gencode" in command.values:
        text = command.last("gencode").rpartition("code=")[2]
    m = re.fullmatch(r"\[?(?:sm|compute)_(\d{2,3})[af]?\]?", text.split(",")[0])
    if text in ("native", "all", "all-major"):
        return 900
    if not m or int(m[1]) < 75:
        raise Fatal(f"Value '{text}' is not defined for option 'gpu-architecture'")
    return int(m[1]) * 10


def definitions(command: Command, arch: int) -> str:
    """The -D options as lines. On g++'s own command line they would invalidate the precompiled
    header, and reach into it."""
    lines = [f"#undef __CUDA_ARCH__\n#define __CUDA_ARCH__ {arch}"]
    for text in command.values.get("define", []):
        name, equals, value = text.partition("=")
        lines.append(f"#define {name} {value if equals else 1}")
    lines += [f"#undef {name}" for name in command.values.get("undefine", [])]
    lines += [f'#include "{path}"' for path in command.values.get("preinclude", [])]
    return "\n".join(lines) + "\n"


def optimized() -> bool:
    """Whether kernels are to run fast rather than to compile fast."""
    return os.environ.get("PYMM_SIMULATOR_OPTIMIZE") != "0"


def races() -> bool:
    """Whether kernels are watched for races in shared memory."""
    return os.environ.get("PYMM_SIMULATOR_RACES") == "1"


def gpp_flags(command: Command) -> list[str]:
    flags = [*COMMON_FLAGS, *(RACE_FLAGS if races() else CHECK_FLAGS)]
    flags += [] if optimized() else FASTER_TO_COMPILE
    flags += os.environ.get("PYMM_SIMULATOR_MARCH", "-march=native").split()
    if std := command.last("std"):
        flags.append(f"-std={std}")
    if command.last("fmad") in ("false", "0"):
        flags.append("-ffp-contract=off")
    for path in command.values.get("include", []):
        flags += ["-I", path]
    return flags


def compiler() -> str:
    return os.environ.get("CXX", "").strip() or "g++"


def call(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def preprocess(command: Command, cache: str, folder: str, arch: int, *more: str) -> str:
    """The text after the preprocessor. Raises Refused with g++'s words."""
    defines = os.path.join(folder, "defines.hpp")
    with open(defines, "w") as file:
        file.write(definitions(command, arch))
    # The file is named as the user named it, so that messages name it that way too.
    done = call(
        [
            compiler(),
            *gpp_flags(command),
            "-E",
            "-fpch-preprocess",
            *more,
            "-I",
            os.path.join(cache, "device"),
            "-include",
            "cuda.hpp",
            "-include",
            defines,
            "-x",
            "c++",
            command.sources[0],
        ]
    )
    if done.returncode:
        raise Refused(done.stderr.rstrip())
    return done.stdout


def compile_module(command: Command, cache: str, folder: str, arch: int) -> str:
    """Path of the compiled module inside `folder`. Raises Refused with g++'s words."""
    text = translate(preprocess(command, cache, folder, arch), arch, unroll=8 if optimized() else 1)
    translated, out = os.path.join(folder, "kernel.ii"), os.path.join(folder, "kernel.so")
    with open(translated, "w") as file:
        file.write(text)
    done = call(
        [
            compiler(),
            *gpp_flags(command),
            "-shared",
            "-Wl,-Bsymbolic",
            "-Wl,-z,now",
            "-fpreprocessed",
            "-x",
            "c++",
            translated,
            "-o",
            out,
            *(NO_RUNTIME if races() else []),
        ]
    )
    if done.returncode:
        raise Refused(done.stderr.rstrip())
    return out


def shared_bytes(module: str) -> dict[str, int]:
    """Static shared memory of every kernel in a compiled module."""
    function = ctypes.CDLL(module).pymm_kernel_shared  # compiled without checks: no shadow here
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)]
    found, size = {}, ctypes.c_size_t()
    while name := function(len(found), ctypes.byref(size)):
        found[name.decode()] = size.value
    return found


def run(command: Command, cache: str) -> None:
    """Does what the command line says. Raises Fatal or Refused."""
    arch = architecture(command)
    beside = os.path.dirname(os.path.abspath(command.last("output") or "output"))
    with tempfile.TemporaryDirectory(prefix="nvcc-", dir=beside) as folder:
        os.environ["TMPDIR"] = folder  # g++'s
        if command.target == "preprocess":
            text = preprocess(command, cache, folder, arch, "-P").replace(folder, "")
            if command.last("output"):
                with open(command.last("output"), "w") as file:
                    file.write(text)
            else:
                sys.stdout.write(text)
            return
        module = compile_module(command, cache, folder, arch)
        for name, size in shared_bytes(module).items():
            if size > SHARED_LIMIT:
                raise Refused(
                    f"ptxas error   : Entry function '{name}' uses too much shared data "
                    f"({size:#x} bytes, {SHARED_LIMIT:#x} max)"
                )
            if "-v" in " ".join(command.values.get("ptxas", [])).split():
                print(
                    f"ptxas info    : Function '{name}': Used 32 registers, {size} bytes smem",
                    file=sys.stderr,
                )
        stem = os.path.splitext(os.path.basename(command.sources[0]))[0]
        out = command.last("output") or f"{stem}.{command.target}"
        with open(module, "rb") as file:
            content = file.read()
        with open(out, "wb") as file:
            file.write(content)


def precompile(cache: str) -> None:
    """The header as g++ keeps it in memory: saves 0.3 s per kernel."""
    header = os.path.join(cache, "device", "cuda.hpp")
    done = call([compiler(), *gpp_flags(Command()), "-x", "c++-header", header])
    if done.returncode:
        raise Refused(done.stderr.rstrip())


def main(arguments: list[str]) -> int:
    cache, *rest = arguments
    try:
        if rest == ["--precompile"]:
            precompile(cache)
            return 0
        rest = shlex.split(os.environ.get("NVCC_PREPEND_FLAGS", "")) + rest
        run(parse(rest), cache)
    except Fatal as error:
        print(f"nvcc fatal   : {error}", file=sys.stderr)
        return 1
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"nvcc fatal   : {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
