"""The two CPU kernels against float64 NumPy, through their C interface."""

import ctypes
import itertools
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from pymm.backends.cpu.call import Call

SOURCES = Path(__file__).parents[2] / "cpu_src"
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-pthread",
    "-shared",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
)
TYPES = {"float": np.float32, "double": np.float64}
SHAPES = [
    (1, 1, 1),
    (1, 641, 3),
    (641, 1, 17),
    (2, 3, 641),
    (3, 2, 64),
    (17, 63, 65),
    (63, 17, 1),
    (64, 64, 64),
    (65, 127, 63),
    (127, 65, 2),
    (641, 127, 64),
    (127, 641, 65),
]
#: Several threads and packing for every product, however small.
ALWAYS = dict(ONE_THREAD=0, PIECE=1000, DIRECT_BYTES=0)
#: Blocks so small that the shapes above have several of each, whole and partial. The vectorised
#: kernel's tile has rows of 64 bytes, which is a whole number of vectors on every machine.
SMALL = {
    "reordered.cpp": lambda real: dict(MB=16, NB=48, KB=24),
    "blocked.cpp": lambda real: dict(
        MB=24, NB=192, KB=40, TA=2, TB=16 if real == "float" else 8, **ALWAYS
    ),
}


class Kernel:
    """One file compiled with the given parameters; a call takes NumPy arrays."""

    def __init__(self, folder, file, real, layout="NN", parameters=None, flags=FLAGS):
        self.dtype = TYPES[real]
        self.trans_a, self.trans_b = (letter == "T" for letter in layout)
        text = render(file, real, layout, parameters)
        library = folder / f"{len(list(folder.iterdir()))}.so"
        done = compile_text(text, library, flags)
        assert done.returncode == 0, done.stderr
        self.gemm = ctypes.CDLL(str(library)).gemm
        pool = folder / "pool.so"
        if not pool.exists():
            assert compile_text((SOURCES / "pool.cpp").read_text(), pool, flags).returncode == 0
        self.run = ctypes.cast(ctypes.CDLL(str(pool)).run, ctypes.c_void_p).value

    def __call__(self, a, b, c, alpha=1.0, beta=0.0, threads=1):
        """C <- alpha op(A) op(B) + beta C; stacks (batch, rows, columns), any row pitch."""
        batch, m, n = c.shape
        k = a.shape[1] if self.trans_a else a.shape[2]
        where = [
            number
            for x in (a, b, c)
            for number in (x.ctypes.data, x.strides[1] // x.itemsize, x.strides[0] // x.itemsize)
        ]
        call = Call(m, n, k, batch, alpha, beta, *where, None, 1, threads, self.run)
        assert self.gemm(ctypes.byref(call)) == 0


def render(file, real, layout="NN", parameters=None):
    defines = dict(
        REAL=real,
        TRANS_A=int(layout[0] == "T"),
        TRANS_B=int(layout[1] == "T"),
        **(parameters or {}),
    )
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return head + (SOURCES / file).read_text()


def compile_text(text, output, flags):
    command = ["g++", "-x", "c++", "-", f"-I{SOURCES}", *flags, "-o", str(output)]
    return subprocess.run(command, input=text, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cpu_kernels")


def stack(rng, dtype, batch, rows, columns, pad):
    """Numbers in [-1, 1) with `pad` NaNs behind each row, which would show in a result."""
    whole = np.full((batch, rows, columns + pad), np.nan, dtype)
    whole[:, :, :columns] = rng.uniform(-1, 1, (batch, rows, columns))
    return whole, whole[:, :, :columns]


def gamma(terms, dtype):
    """n u / (1 - n u): Higham, Accuracy and Stability of Numerical Algorithms (2002), 3.1."""
    u = np.finfo(dtype).eps / 2
    return terms * u / (1 - terms * u)


def check(kernel, shape, alpha=1.0, beta=0.0, threads=1, batch=1, pad=0, same_a=False, seed=0):
    m, n, k = shape
    rng = np.random.default_rng((seed, m, n, k))
    _, a = stack(rng, kernel.dtype, batch, *((k, m) if kernel.trans_a else (m, k)), pad)
    _, b = stack(rng, kernel.dtype, batch, *((n, k) if kernel.trans_b else (k, n)), pad)
    whole, c = stack(rng, kernel.dtype, batch, m, n, pad)
    if same_a:
        a = np.lib.stride_tricks.as_strided(a, a.shape, (0, *a.strides[1:]))
    if beta == 0:
        c[...] = np.nan
    a64 = np.swapaxes(a, 1, 2).astype(float) if kernel.trans_a else a.astype(float)
    b64 = np.swapaxes(b, 1, 2).astype(float) if kernel.trans_b else b.astype(float)
    old = np.zeros(c.shape) if beta == 0 else c.astype(float)
    alpha, beta = float(kernel.dtype(alpha)), float(kernel.dtype(beta))
    expected = alpha * (a64 @ b64) + beta * old
    size = abs(alpha) * (abs(a64) @ abs(b64)) + abs(beta) * abs(old)
    kernel(a, b, c, alpha, beta, threads)
    # A sum of k products over some blocks along k rounds k + 1 times at most, alpha and beta round
    # twice more: k + 3 in all. The reference has as many of its own.
    bound = (gamma(k + 3, kernel.dtype) + gamma(k + 3, np.float64)) * size
    assert np.all(abs(c - expected) <= bound), (shape, alpha, beta, threads)
    assert np.all(np.isnan(whole[:, :, n:])), "padding of C was written"


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("file", SMALL)
def test_product(folder, file, real, layout):
    """Every shape, with and without beta, alpha, padding and a second thread."""
    kernel = Kernel(folder, file, real, layout, SMALL[file](real))
    for shape in SHAPES:
        check(kernel, shape)
        check(kernel, shape, alpha=-0.7, beta=1.3, threads=2, pad=5)
        check(kernel, shape, alpha=2.0, beta=1.0, threads=3, pad=1)


@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("file", SMALL)
def test_defaults_of_the_file(folder, file, real):
    kernel = Kernel(folder, file, real)
    for shape in [(641, 641, 641), (1, 1, 1), (64, 1537, 257)]:
        for threads in (1, 2):
            check(kernel, shape, threads=threads)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("real", TYPES)
def test_small_products_in_place(folder, real, layout):
    """A and B that fit a cache are used as they are stored: every remainder of rows and columns
    around register tiles and vectors, with NaNs beside what is read.
    """
    kernel = Kernel(folder, "blocked.cpp", real, layout)
    extents = (1, 2, 3, 5, 6, 7, 8, 11, 15, 16, 17, 23, 31, 32, 33)
    for m, n in itertools.product(extents, extents):
        check(kernel, (m, n, (m + n) % 19 + 1), alpha=-0.7, beta=1.3, pad=(m + n) % 3)
    for shape in [(64, 64, 64), (1, 48, 256), (48, 1, 257), (13, 16, 255)]:
        check(kernel, shape, threads=2)


@pytest.mark.parametrize("file", SMALL)
def test_nothing_to_sum(folder, file):
    """k = 0 and alpha = 0 leave beta C, zeros for beta = 0; alpha = 0 reads no NaN of A."""
    kernel = Kernel(folder, file, "float", "NN", SMALL[file]("float"))
    for beta, threads in itertools.product((0.0, 1.0, -2.5), (1, 2)):
        check(kernel, (63, 65, 0), beta=beta, threads=threads, pad=3)
        a = np.full((1, 17, 9), np.nan, np.float32)
        c = np.full((1, 17, 33), 3.0 if beta else np.nan, np.float32)
        kernel(a, np.ones((1, 9, 33), np.float32), c, 0.0, beta, threads)
        assert np.array_equal(c, np.full(c.shape, 3.0 * beta, np.float32))
    for shape in [(0, 5, 3), (5, 0, 3), (0, 0, 0)]:
        check(kernel, shape)


@pytest.mark.parametrize("file", SMALL)
def test_stacks(folder, file):
    """Fewer and more matrices than threads; one A for the whole stack."""
    kernel = Kernel(folder, file, "double", "TN", SMALL[file]("double"))
    for batch, threads in [(1, 2), (2, 2), (3, 2), (13, 3)]:
        check(kernel, (17, 63, 41), beta=0.5, batch=batch, threads=threads, pad=2)
        check(kernel, (65, 3, 17), batch=batch, threads=threads, same_a=True)


@pytest.mark.parametrize("file", SMALL)
def test_not_a_number_goes_where_ieee_sends_it(folder, file):
    """A NaN of A reaches its row of C, an infinity of B its column; nothing else changes."""
    kernel = Kernel(folder, file, "float", "NN", SMALL[file]("float"))
    a, b = np.ones((1, 63, 65), np.float32), np.ones((1, 65, 127), np.float32)
    c = np.empty((1, 63, 127), np.float32)
    a[0, 62, 64], b[0, 0, 126], a[0, 0, 0] = np.nan, np.inf, 0
    kernel(a, b, c)
    assert np.all(np.isnan(c[0, 62])) and np.isnan(c[0, 0, 126])  # 0 times infinity
    assert np.all(np.isinf(c[0, 1:62, 126]))
    assert np.all(c[0, 1:62, :126] == 65) and np.all(c[0, 0, :126] == 64)


def test_two_callers_at_once(folder):
    """Callers in different threads never share the memory that they pack into."""
    kernel = Kernel(folder, "blocked.cpp", "double")
    failures = []

    def caller(seed):
        try:
            for _ in range(20):
                check(kernel, (65, 127, 63), threads=1 + seed % 2, seed=seed)
        except AssertionError as failure:
            failures.append(failure)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not failures


@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("tile", [(1, 1), (5, 1), (6, 2), (4, 3)])
def test_register_tiles(folder, real, tile):
    """Odd tiles, in rows and vectors of 16, 32 or 64 bytes, whichever this machine has."""
    rows, vectors = tile
    columns = f"({vectors} * VECTOR_BYTES / int(sizeof(REAL)))"
    parameters = dict(MB=rows * 3, NB=columns + " * 2", KB=31, TA=rows, TB=columns, **ALWAYS)
    for layout in ("NN", "TT"):
        kernel = Kernel(folder, "blocked.cpp", real, layout, parameters)
        for shape in [(17, 65, 63), (rows, 127, 32), (64, 3, 31)]:
            check(kernel, shape, beta=-1.0, pad=1)


def test_narrower_machines(folder):
    """What the same text becomes on x86 processors without AVX-512, and without AVX."""
    flags = Path("/proc/cpuinfo").read_text().split()
    targets = [t for t, needs in {"x86-64": "sse2", "haswell": "avx2"}.items() if needs in flags]
    for target, (file, small), real in itertools.product(targets, SMALL.items(), TYPES):
        options = [f"-march={target}" if flag == "-march=native" else flag for flag in FLAGS]
        kernel = Kernel(folder, file, real, "NT", small(real), options)
        for shape in SHAPES[:8]:
            check(kernel, shape, alpha=0.5, beta=1.0, threads=2)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (dict(MB=25), "TA divides MB"),
        (dict(NB=200), "TB divides NB"),
        (dict(TB=17), "made of whole vectors"),
        (dict(TA=12, TB=64, MB=24), "fit in the vector registers"),
    ],
)
def test_rules_are_asserted(folder, parameters, reason):
    """A configuration that breaks a rule does not compile, and the compiler says which rule."""
    text = render("blocked.cpp", "float", "NN", SMALL["blocked.cpp"]("float") | parameters)
    done = compile_text(text, folder / "refused.so", FLAGS)
    assert done.returncode != 0 and reason in done.stderr
    assert not (folder / "refused.so").exists()


MAIN = """
#include <cstdio>
#include <initializer_list>
#include <memory>
int main() {
    for (int m : {1, 7, 25}) for (int n : {1, 31, 65}) for (int k : {0, 1, 41})
    for (int threads : {1, 2}) {
        const int lda = TRANS_A ? m : k, ldb = TRANS_B ? k : n;
        std::unique_ptr<REAL[]> a(new REAL[m * k]()), b(new REAL[k * n]()), c(new REAL[m * n]());
        for (int i = 0; i < m * k; i++) a[i] = i % 5 - 2;
        for (int i = 0; i < k * n; i++) b[i] = i % 7 - 3;
        const Call call{m, n, k, 1, 2, 1, a.get(), lda, 0, b.get(), ldb, 0, c.get(), n, 0,
                        nullptr, 1, threads, run};
        if (gemm(&call)) return 1;
        for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {
            REAL sum = 0;
            for (int p = 0; p < k; p++)
                sum += a[TRANS_A ? p * m + i : i * k + p] * b[TRANS_B ? j * k + p : p * n + j];
            if (c[i * n + j] != 2 * sum) return 2;
        }
    }
    std::puts("all right");
}
"""


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("file", SMALL)
def test_no_access_outside(folder, file, layout):
    """Arrays of exactly the size needed, under checks of addresses, alignment and overflow."""
    program = folder / f"{file}-{layout}"
    flags = [
        "-O1",
        "-march=native",
        "-std=c++17",
        "-pthread",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover",
    ]
    pool = '#include "pool.cpp"\n'
    text = render(file, "float", layout, SMALL[file]("float")) + pool + MAIN
    done = compile_text(text, program, flags)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "all right\n"), ran.stderr
