"""Our own C++ under the sanitizers of g++: addresses, undefined behaviour, races between threads.

The CPU's kernels stand alone: a program of their own calls them, without Python, so that nothing
has to be preloaded or suppressed. Each check is also made on a text with a planted fault, which it
has to find.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCTS = Path(__file__).parent / "sanitized" / "products.cpp"
CXX = os.environ.get("CXX", "g++")

pytestmark = pytest.mark.sanitizers

MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread",)
SMALL = {
    "reordered.cpp": dict(MB=24, NB=48, KB=40),
    "blocked.cpp": dict(MB=24, NB=192, KB=40, TA=2, TB=16),
}

#: Text of a kernel and what takes its place: one fault of each kind.
BESIDE = ("for (int j = 0; j < columns; j++) {", "for (int j = 0; j <= columns; j++) {")
BESIDE_PLAIN = ("j < least(j0 + NB, n)", "j <= least(j0 + NB, n)")
OVERFLOW = ("const bool multiply =", "volatile int x = 2147483647; x = x + m; const bool multiply =")
SHARED = ("omp_get_thread_num() * WORKSPACE", "0 * WORKSPACE")


def run_kernel(folder, file, sanitizers, real="float", layout="NN", planted=None):
    """Compile and run the products of one kernel; the finished process."""
    text = (ROOT / "cpu_src" / file).read_text()
    if planted:
        assert planted[0] in text
        text = text.replace(*planted)
    kernel = folder / file
    kernel.write_text(text)
    parameters = SMALL[file] | {"TB": 8} if real == "double" and "TB" in SMALL[file] else SMALL[file]
    defines = dict(REAL=real, TRANS_A=int(layout[0] == "T"), TRANS_B=int(layout[1] == "T"))
    flags = [f"-D{name}={value}" for name, value in (defines | parameters).items()]
    common = ["-std=c++17", "-O1", "-g1", "-march=native", "-fopenmp", "-ffp-contract=fast"]
    made = [str(folder / "products.o"), str(folder / "products")]
    quoted = f'-DKERNEL="{kernel}"'
    compiled = [CXX, *common, *sanitizers, *flags, quoted, "-c", str(PRODUCTS), "-o", made[0]]
    subprocess.run(compiled, check=True, capture_output=True, text=True)
    linked = [CXX, *sanitizers, "-pthread", made[0], "-o", made[1]]  # without libgomp: see there
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
