"""A stand-in for nvcc: compiles a .cu file into a module of the simulator with g++.

Started for every kernel, by the launcher that build.py writes. Imports little even of the standard
library, so that it starts in some 40 ms.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

from translate import Refused, translate

SHARED_LIMIT = 48 << 10  # bytes of static shared memory, of every architecture
COMMON_FLAGS = [
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
#: module's own.
RACE_FLAGS = [
    "-DPYMM_SIM_RACES",
    "-fsanitize=thread,alignment",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-tree-sra",  # a float4 is read at once, as on a GPU
]
SHARED_FLAGS = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,now"]
#: All that most modules need. To leave out libstdc++ and g++'s sanitizers saves 50 ms of 80.
FEW_LIBRARIES = ["-nodefaultlibs", "-Wl,-z,defs", "-lm", "-lc", "-lgcc"]
#: Instead of -O2, with PYMM_SIMULATOR_OPTIMIZE=0. Multiplications and additions are still fused.
#: The last has registers allocated for a function as a whole: 3 to 8 % less work for g++.
FASTER_TO_COMPILE = ["-Og", "-fexpensive-optimizations", "-fira-region=one"]

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


class Command:
    """What a command line asks for."""

    def __init__(self) -> None:
        self.target = "cubin"
        self.sources: list[str] = []
        self.values: dict[str, list[str]] = {}
        self.flags: set[str] = set()

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
    flags.append(f"-std={command.last('std', 'c++17')}")
    if command.last("fmad") in ("false", "0"):
        flags.append("-ffp-contract=off")
    return flags


def compiler() -> str:
    return os.environ.get("CXX", "").strip() or "g++"


def call(arguments: list[str], folder: str) -> None:
    """g++ with its temporary files in `folder`. Raises Refused with its words."""
    done = subprocess.run(
        [compiler(), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**os.environ, "TMPDIR": folder},
    )
    if done.returncode:
        raise Refused(done.stderr.rstrip())


def preprocess(command: Command, cache: str, folder: str, arch: int, *more: str) -> str:
    """The text after the preprocessor. Raises Refused with g++'s words."""
    defines = os.path.join(folder, "defines.hpp")
    with open(defines, "w") as file:
        file.write(definitions(command, arch))
    device, out = os.path.join(cache, "device"), os.path.join(folder, "kernel.i")
    included = [word for path in command.values.get("include", []) for word in ("-I", path)]
    included += ["-I", device, "-include", "cuda.hpp", "-include", defines]
    # The file is named as the user named it, so that messages name it that way too.
    source = ["-x", "c++", command.sources[0], "-o", out]
    call([*gpp_flags(command), "-E", "-fpch-preprocess", *more, *included, *source], folder)
    with open(out, errors="surrogateescape") as file:
        return file.read()


def runtime(command: Command, cache: str, folder: str) -> str:
    """Path of runtime.cpp compiled with the flags of `command`: the one that was compiled when the
    simulator was built if its flags were these, else one compiled now.
    """
    made, flags = os.path.join(cache, "device", "runtime"), gpp_flags(command)
    with open(f"{made}.flags") as file:
        if file.read() == " ".join(flags):
            return f"{made}.o"
    compile_runtime(f"{made}.cpp", flags, f"{folder}/runtime.o", folder)
    return f"{folder}/runtime.o"


def compile_runtime(source: str, flags: list[str], out: str, folder: str) -> None:
    call([*flags, "-c", source, "-o", out], folder)


def compile_module(command: Command, cache: str, folder: str, arch: int) -> tuple[str, bool]:
    """Path of the compiled module inside `folder`, and whether it has static shared memory. Raises
    Refused with g++'s words.
    """
    text = translate(preprocess(command, cache, folder, arch), arch, unroll=8 if optimized() else 1)
    translated, made = os.path.join(folder, "kernel.ii"), os.path.join(folder, "kernel.o")
    with open(translated, "w", errors="surrogateescape") as file:
        file.write(text)
    flags = gpp_flags(command)
    call([*flags, "-fpreprocessed", "-x", "c++", "-c", translated, "-o", made], folder)
    out, parts = os.path.join(folder, "kernel.so"), [made, runtime(command, cache, folder)]
    linked = [*SHARED_FLAGS, *parts, "-o", out]
    try:
        call([*linked, *FEW_LIBRARIES], folder)
    except Refused:  # with `new`, say
        call([*linked, "-Wl,-z,defs"], folder)
    return out, "pymm_sim::shared<" in text


def shared_bytes(module: str) -> dict[str, int]:
    """Static shared memory of every kernel in a compiled module."""
    import ctypes  # takes 8 ms

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
        if command.target == "preprocess":
            text = preprocess(command, cache, folder, arch, "-P").replace(folder, "")
            if command.last("output"):
                with open(command.last("output"), "w") as file:
                    file.write(text)
            else:
                sys.stdout.write(text)
            return
        module, has_shared = compile_module(command, cache, folder, arch)
        verbose = "-v" in " ".join(command.values.get("ptxas", [])).split()
        for name, size in shared_bytes(module).items() if has_shared or verbose else ():
            if size > SHARED_LIMIT:
                raise Refused(
                    f"ptxas error   : Entry function '{name}' uses too much shared data "
                    f"({size:#x} bytes, {SHARED_LIMIT:#x} max)"
                )
            if verbose:
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
    """The header as g++ keeps it in memory, which saves 0.3 s per kernel, and runtime.cpp."""
    device, flags = os.path.join(cache, "device"), gpp_flags(Command())
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        header = os.path.join(device, "cuda.hpp")
        call([*flags, "-x", "c++-header", header, "-o", f"{header}.gch"], folder)
        made = os.path.join(device, "runtime")
        compile_runtime(f"{made}.cpp", flags, f"{made}.o", folder)
    with open(f"{made}.flags", "w") as file:
        file.write(" ".join(flags))


def main(arguments: list[str]) -> int:
    cache, *rest = arguments
    try:
        if rest == ["--precompile"]:
            precompile(cache)
            return 0
        if prepended := os.environ.get("NVCC_PREPEND_FLAGS"):
            import shlex

            rest = shlex.split(prepended) + rest
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
