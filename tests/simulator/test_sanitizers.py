"""Our own C++ under the sanitizers of g++: addresses, undefined behaviour, races between threads.

The CPU's kernels stand alone: a program of their own calls them, without Python, so that nothing
has to be preloaded or suppressed. Each check is also made on a text with a planted fault, which it
has to find.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from pymm.kernels.source import kernel_text

ROOT = Path(__file__).parents[2]
PRODUCTS = Path(__file__).parents[1] / "support" / "sanitized" / "products.cpp"
CXX = os.environ.get("CXX", "g++")

pytestmark = pytest.mark.sanitizers

MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread",)
SMALL = {
    "reordered.cpp": dict(MB=24, NB=48, KB=40),
    "blocked.cpp": dict(
        MB=24, NB=192, KB=40, TA=2, TB=16, ONE_THREAD=0, PIECE=1000, DIRECT_BYTES=2000
    ),
}

#: Text of a kernel and what takes its place: one fault of each kind.
BESIDE = ("for (int j = 0; j < columns; j++) {", "for (int j = 0; j <= columns; j++) {")
BESIDE_PLAIN = ("j < least(j0 + NB, n)", "j <= least(j0 + NB, n)")
OVERFLOW = ("const bool multiply", "volatile int x = 1 << 30; x = x + x; const bool multiply")
SHARED = ("worker * WORKSPACE", "0 * WORKSPACE")


def run_kernel(folder, file, sanitizers, real="float", layout="NN", planted=None):
    """Compile and run the products of one kernel; the finished process."""
    text = kernel_text("cpu", file)
    if planted:
        assert planted[0] in text
        text = text.replace(*planted)
    kernel = folder / file
    kernel.write_text(text)
    parameters = dict(SMALL[file])
    if real == "double" and "TB" in parameters:
        parameters["TB"] = 8
    defines = dict(REAL=real, TRANS_A=int(layout[0] == "T"), TRANS_B=int(layout[1] == "T"))
    flags = [f"-D{name}={value}" for name, value in (defines | parameters).items()]
    flags += [f"-I{ROOT / 'cpu_src'}"]
    common = ["-std=c++17", "-O1", "-g1", "-march=native", "-pthread", "-ffp-contract=fast"]
    made = [str(folder / "products.o"), str(folder / "products")]
    quoted = f'-DKERNEL="{kernel}"'
    compiled = [CXX, *common, *sanitizers, *flags, quoted, "-c", str(PRODUCTS), "-o", made[0]]
    subprocess.run(compiled, check=True, capture_output=True, text=True)
    linked = [CXX, *sanitizers, "-pthread", made[0], "-o", made[1]]
    subprocess.run(linked, check=True, capture_output=True, text=True)
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
    return subprocess.run(
        made[1], capture_output=True, text=True, timeout=300, env=environment, check=False
    )


@pytest.mark.parametrize(
    "file, real, layout, sanitizers",
    [
        ("blocked.cpp", "float", "NN", MEMORY),
        ("blocked.cpp", "double", "TT", MEMORY),
        ("reordered.cpp", "double", "NT", MEMORY),
        ("blocked.cpp", "float", "TN", THREADS),
    ],
)
def test_cpu_kernels(tmp_path, file, real, layout, sanitizers):
    done = run_kernel(tmp_path, file, sanitizers, real, layout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "file, sanitizers, planted, words",
    [
        ("blocked.cpp", MEMORY, BESIDE, "heap-buffer-overflow"),
        ("reordered.cpp", MEMORY, BESIDE_PLAIN, "heap-buffer-overflow"),
        ("blocked.cpp", MEMORY, OVERFLOW, "signed integer overflow"),
        ("blocked.cpp", THREADS, SHARED, "data race"),
    ],
)
def test_planted_faults_of_cpu_kernels_are_found(tmp_path, file, sanitizers, planted, words):
    done = run_kernel(tmp_path, file, sanitizers, planted=planted)
    assert done.returncode != 0
    assert words in done.stderr, done.stdout + done.stderr


# The simulator

DRIVER = ROOT / "pymm" / "simulator" / "driver"

DRIVER_FLAGS = ("-std=c++17", "-O1", "-g1", "-pthread", "-U_FORTIFY_SOURCE")

#: By the sanitizers that the driver is under: how it is compiled, and how kernels are. The place of
#: the checks' shadow is the sanitizer's own: the simulator's goes elsewhere. Fibers change stacks
#: behind the sanitizer's back: the one does not look at what is on stacks, the other keeps none of
#: calls. That one also leaves no 16 TiB free, so that kernels go unchecked there.
UNDER = {
    MEMORY: (
        [
            "-DPYMM_SIM_SHADOW=0x200000000000",
            "-DPYMM_SIM_SHADOW_BITS=44",
            "-DPYMM_SIM_ARENA_BITS=40",
            "--param=asan-stack=0",
        ],
        ["-fasan-shadow-offset=0x200000000000"],
    ),
    THREADS: (
        [
            "-DPYMM_SIM_SHADOW=0x7e9000000000",
            "-DPYMM_SIM_SHADOW_BITS=36",
            "-DPYMM_SIM_ARENA_BITS=37",  # the sanitizer leaves few addresses
            "--param=tsan-instrument-func-entry-exit=0",
        ],
        ["--param=asan-instrument-reads=0", "--param=asan-instrument-writes=0"],
    ),
}

#: Text of a driver's file and what takes its place.
FREED = (
    "memory.cpp",
    "regions.erase(it);\n    close_pages(begin, bytes);",
    "auto* gone = it->second.get();\n    regions.erase(it);\n    close_pages(begin, gone->bytes);",
)
SHARED_COUNT = (
    "block.cpp",
    "    block.index = index;",
    "    static int runs = 0;\n    runs++;\n    block.index = index;",
)
PAST_THE_END = ("block.cpp", "w.order.resize(w.threads)", "w.order.resize(40)")


class Simulator:
    """The driver under sanitizers, compiled file by file, and a program that uses it. `planted` (a
    file, its text and what takes its place) is compiled anew and linked with the others.
    """

    def __init__(self, folder, sanitizers):
        self.sanitizers = sanitizers
        self.flags, self.kernel_flags = UNDER[sanitizers]
        self.ahead = self.precompile(folder)
        self.harness = self.compile(PRODUCTS.with_name("simulator.cpp"), folder)
        self.objects = {
            path.name: self.compile(path, folder) for path in sorted(DRIVER.glob("*.cpp"))
        }

    def precompile(self, folder):
        """The headers that nearly every file includes, a third of the time of compiling them."""
        header = folder / "ahead.hpp"
        header.write_text('#include "driver.hpp"\n#include "worker.hpp"\n')
        self.run_compiler("-x", "c++-header", str(header), "-o", f"{header}.gch")
        return ["-include", str(header)]

    def compile(self, path, folder):
        made = folder / f"{path.stem}.o"
        self.run_compiler(*self.ahead, "-c", str(path), "-o", str(made))
        return str(made)

    def run_compiler(self, *words):
        flags = [*DRIVER_FLAGS, *self.flags, *self.sanitizers, f"-I{DRIVER}"]
        subprocess.run([CXX, *flags, *words], check=True, capture_output=True, text=True)

    def program(self, folder, planted=None):
        objects = dict(self.objects)
        if planted:
            name, text, instead = planted
            before = (DRIVER / name).read_text()
            assert text in before
            (folder / name).write_text(before.replace(text, instead))
            objects[name] = self.compile(folder / name, folder)
        made = str(folder / "simulator")
        parts = [self.harness, *objects.values(), "-ldl", "-o", made]
        linked = [CXX, *self.sanitizers, "-pthread", *parts]
        subprocess.run(linked, check=True, capture_output=True, text=True)
        return made


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The driver under either kind, compiled when it is first asked for."""
    return cache(lambda kind: Simulator(tmp_path_factory.mktemp("simulator"), kind))


def module_of(folder, name, parameters, flags):
    """A kernel of pymm's compiled by the stand-in nvcc, and the numbers of its launch."""
    from pymm import simulator
    from pymm.core.problem import Problem
    from pymm.kernels import find_kernel
    from pymm.kernels.source import render

    problem = Problem(67, 65, 66)
    config = find_kernel(name).config(parameters)
    text = folder / f"{name}.cu"
    text.write_text(render(config, problem, alignment=4).text)
    environment = os.environ | {"PYMM_SIMULATOR_MARCH": " ".join(["-march=native", *flags])}
    made = folder / f"{name}.cubin"
    subprocess.run(
        [simulator.nvcc(), "-cubin", "-arch=sm_90", "-o", str(made), str(text)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    kernel = config.kernel
    block, grid = kernel.block(config), (-(-65 // config.NB), -(-67 // config.MB))
    return [str(made), *map(str, (*block[:2], *grid))]


def run_simulator(program, *arguments):
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "PYMM_SIMULATOR_THREADS": "2"}
    environment |= {"TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )


TILES = {"MB": 16, "NB": 16, "KB": 16}


@pytest.mark.simulator
@pytest.mark.xdist_group("sanitizers")
@pytest.mark.parametrize("kind", [MEMORY, THREADS], ids=["memory", "threads"])
def test_simulator(tmp_path, simulated, kind):
    """Translated kernels with and without barriers, on two cores and from three threads, and one
    that reads too far.
    """
    program = simulated(kind).program(tmp_path)
    for name in ("naive", "shared_tile"):
        parameters = TILES if name == "shared_tile" else {"MB": 16, "NB": 16}
        launch = module_of(tmp_path, name, parameters, UNDER[kind][1])
        done = run_simulator(program, *launch)
        assert done.returncode == 0 and done.stdout == "0 wrong\n", done.stdout + done.stderr
        if kind == THREADS:
            continue
        done = run_simulator(program, *launch, "fault")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "past the end of allocation" in done.stderr and "Sanitizer" not in done.stderr


@pytest.mark.simulator
@pytest.mark.xdist_group("sanitizers")
@pytest.mark.parametrize(
    "kind, planted, words",
    [
        (MEMORY, FREED, "heap-use-after-free"),
        (MEMORY, PAST_THE_END, "heap-buffer-overflow"),
        (THREADS, SHARED_COUNT, "data race"),
    ],
)
def test_planted_faults_of_the_simulator_are_found(tmp_path, simulated, kind, planted, words):
    program = simulated(kind).program(tmp_path, planted)
    launch = module_of(tmp_path, "naive", {"MB": 16, "NB": 16}, UNDER[kind][1])
    done = run_simulator(program, *launch)
    assert done.returncode != 0 and words in done.stderr, done.stdout + done.stderr
