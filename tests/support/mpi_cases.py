"""What the tests of pymm.distributed run under mpirun: `mpirun -n 4 python mpi_cases.py products`.

Each case runs in every process and raises if anything is wrong; the arguments are cases, one after
the other. Expected values come from whole matrices that every process makes for itself.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tracemalloc
from pathlib import Path

import numpy as np

from pymm.core.errors import NoDevice
from pymm.distributed import DistMatrix, Traffic, datatypes, engine, matmul, matmul_from_root
from pymm.distributed.communicator import MPI
from pymm.distributed.layout import BlockCyclic, numroc, product_layouts

WORLD = MPI.COMM_WORLD
FOLDER = Path(os.environ.get("PYMM_TEST_FOLDER", "."))

#: m, n, k and blocks: ones, primes, around whole blocks, k below a block, processes without
#: anything, nothing at all.
SHAPES = (
    (37, 41, 53, (4, 3, 5)),
    (1, 1, 1, 3),
    (1, 7, 3, 2),
    (97, 11, 130, (8, 8, 3)),
    (3, 100, 2, 7),
    (63, 64, 65, 16),
    (48, 48, 48, 8),
    (5, 6, 0, 2),
    (0, 4, 4, 2),
    (4, 0, 4, 2),
)


def grids() -> list[tuple[int, int, int]]:
    """Every P x Q x R of all processes; of nine, where that is slow, those of one layer."""
    size = WORLD.size
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    found = [g for g in itertools.product(divisors, repeat=3) if g[0] * g[1] * g[2] == size]
    return found if size < 9 else [(3, 3, 1), (1, 3, 3)]


def random_matrix(shape: tuple[int, int], seed: int, dtype=np.float64) -> np.ndarray:
    """The same on every rank."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def part(layout: BlockCyclic, whole: np.ndarray) -> np.ndarray:
    """This rank's part of a matrix that every rank has."""
    p, q, r = layout.coordinates(WORLD.rank)
    return whole[np.ix_(layout.rows(p, r), layout.columns(q, r))]


def tolerance(a: np.ndarray, b: np.ndarray, alpha: float, beta: float, c: np.ndarray) -> np.ndarray:
    """Of each element: (k + 3 + additions of the layers) roundings of the sum of absolute values
    (N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.5).
    """
    wide = [np.abs(x).astype(np.float64) for x in (a, b, c)]
    roundings = a.shape[1] + 8 + WORLD.size
    unit = np.finfo(a.dtype).eps / 2
    return roundings * unit * (abs(alpha) * wide[0] @ wide[1] + abs(beta) * wide[2])


def check_product(
    shape, grid, panel, product, dtype=np.float64, look_ahead=True, transport="auto"
) -> None:
    """C <- 2 A B + 0.5 C and C <- A B over NaN, next to NumPy in float64, with what was moved."""
    m, n, k, block = shape
    of_a, of_b, of_c = product_layouts(m, n, k, block, grid)
    a, b = random_matrix((m, k), 1, dtype), random_matrix((k, n), 2, dtype)
    c = random_matrix((m, n), 3, dtype)
    left, right = DistMatrix.from_root(of_a, a), DistMatrix.from_root(of_b, b)
    for alpha, beta in ((2, 0.5), (1, None)):
        result = DistMatrix.from_root(of_c, c)
        if beta is None:
            result.local.fill(np.nan)
        traffic = Traffic()
        given = {"alpha": alpha, "beta": beta, "panel": panel, "product": product}
        given |= {"transport": transport, "look_ahead": look_ahead}
        returned = matmul(left, right, result, **given, traffic=traffic, threads=1)
        assert returned is result
        exact = alpha * a.astype(np.float64) @ b + (beta or 0) * c.astype(np.float64)
        wrong = np.abs(result.local - part(of_c, exact))
        allowed = part(of_c, tolerance(a, b, alpha, beta or 0, c))
        assert (wrong <= allowed).all(), (shape, grid, panel, product, wrong.max())
        if 0 not in (m, n, k):
            check_traffic(traffic, of_a, of_b, of_c)


def check_traffic(traffic: Traffic, of_a, of_b, of_c) -> None:
    """The received elements are those that others own, of the rows of A and columns of B of this
    process in its layer's range of k, and the partial results of its C in the other layers.
    """
    p, q, r = of_a.coordinates(WORLD.rank)
    inner = np.arange(*of_a.bounds(1, r))
    foreign = of_a.owner(of_a.rows(p, r)[:, None], inner[None, :]) != WORLD.rank
    assert traffic.a == foreign.sum()
    foreign = of_b.owner(inner[:, None], of_b.columns(q, r)[None, :]) != WORLD.rank
    assert traffic.b == foreign.sum()
    kept = of_c.local_shape(*of_c.coordinates(WORLD.rank))
    assert traffic.c == (of_a.layers - 1) * kept[0] * kept[1]


def products() -> None:
    """All shapes on all grids, panels from below a block to more than there is in turn."""
    panels = itertools.cycle(((None, True), (1, True), (17, True), (17, False)))
    engine.REDUCED_BYTES = 500  # layers add up some blocks at a time
    for shape, grid in itertools.product(SHAPES, grids()):
        panel, look_ahead = next(panels)
        check_product(shape, grid, panel, "blas", look_ahead=look_ahead)
    for dtype in (np.float32, np.float64):
        check_product(SHAPES[3], grids()[0], 30, "blas", dtype)
    a = DistMatrix.from_root(product_layouts(6, 6, 6, 2, grids()[0])[0], np.ones((6, 6)))
    b = DistMatrix.zeros(product_layouts(6, 6, 6, 2, grids()[0])[1])
    a.local.fill(np.nan)  # alpha = 0 reads neither
    assert not matmul(a, b, alpha=0, product="blas").local.any()


def few_products() -> None:
    """Some of `products`, where messages are slow."""
    for grid, shape in itertools.product(grids()[:3], SHAPES[:4]):
        check_product(shape, grid, 17, "blas")


def kernels() -> None:
    """pymm's own kernels as local products, on the CPU and on the GPU."""
    for product in ("cpu", "gpu", "auto"):
        for shape in (SHAPES[0], SHAPES[8]):
            check_product(shape, (1, WORLD.size, 1), 20, product)
        check_product(SHAPES[0], (1, 1, WORLD.size), None, product, np.float32)


def gpu_panels() -> None:
    """Panels that NCCL moves between (simulated) GPUs, one for each process, on all grids."""
    made = [DistMatrix.zeros(x, np.float32) for x in product_layouts(9, 8, 7, 2, grids()[0])]
    matmul(*made, product="gpu")
    assert (made[0].grid.links is None) == (WORLD.size > 1), "simulated GPUs only if asked for"
    panels = itertools.cycle(((None, True), (1, True), (17, True), (17, False)))
    for shape, grid in itertools.product(SHAPES, grids()):
        panel, look_ahead = next(panels)
        check_product(shape, grid, panel, "gpu", np.float32, look_ahead, "nccl")
    layouts = product_layouts(9, 8, 7, 2, grids()[-1])
    made = [DistMatrix.zeros(layout, np.float32) for layout in layouts]
    links = made[0].grid.links
    matmul(*made, beta=1, product="gpu")
    assert made[0].grid.links is links is not None
    wrong = dict(product="blas", transport="nccl")
    refused(ValueError, "product='gpu'", matmul, *made, beta=1, **wrong)
    refused(ValueError, "none of auto, mpi, nccl", matmul, *made, beta=1, transport="pigeon")


def shared_gpu() -> None:
    """NCCL does not serve two processes on one GPU: said, or done by MPI."""
    layouts = product_layouts(9, 8, 7, 2, (1, WORLD.size))
    made = [DistMatrix.zeros(layout, np.float32) for layout in layouts]
    refused(NoDevice, "have one GPU", matmul, *made, product="gpu", transport="nccl")
    matmul(*made, product="gpu")
    assert made[0].grid.links is None


def without_nccl() -> None:
    """nccl4py is not installed: said, or done by MPI."""
    layouts = product_layouts(9, 8, 7, 2, (1, WORLD.size))
    made = [DistMatrix.zeros(layout, np.float32) for layout in layouts]
    refused(NoDevice, "rank 0 has no nccl4py", matmul, *made, product="gpu", transport="nccl")
    check_product(SHAPES[3], (1, WORLD.size, 1), 20, "gpu", np.float32)


def communicators() -> None:
    """A product on some of the processes, while the others do something else, and on the same
    grid again: its communicators are made once.
    """
    half = WORLD.Split(WORLD.rank % 2)
    of_a, of_b, _ = product_layouts(9, 8, 7, 2, (1, half.size))
    a, b = random_matrix((9, 7), WORLD.rank % 2), random_matrix((7, 8), 5)
    for _ in range(2):
        left = DistMatrix.from_root(of_a, a, half)
        right = DistMatrix.from_root(of_b, b, half)
        whole = matmul(left, right, product="blas").gather()
        if half.rank == 0:
            np.testing.assert_allclose(whole, a @ b, rtol=1e-12, atol=1e-12)
    assert left.grid is right.grid
    del left, right
    half.Free()


def distribution() -> None:
    """From the root and back, with both kinds of datatypes; generated; from any root."""
    for grid, shape in itertools.product(grids(), ((13, 29), (1, 1), (0, 5), (64, 48))):
        layouts = product_layouts(*shape, 2 * shape[1], (4, 4, 3), grid)
        for layout, dtype in zip(layouts, (np.float64, np.float32, np.float64), strict=True):
            whole = random_matrix(layout.shape, 4, dtype)
            for kind in (None, *datatypes.KINDS):
                root = WORLD.size - 1 if kind else 0
                given = np.asfortranarray(whole) if WORLD.rank == root else None
                made = DistMatrix.from_root(layout, given, root=root, datatypes=kind)
                assert made.local.dtype == dtype and np.array_equal(made.local, part(layout, whole))
                back = made.gather(root)
                assert back is None if WORLD.rank != root else np.array_equal(back, whole)
            width = layout.shape[1]
            counted = DistMatrix.generate(layout, lambda i, j, w=width: i * w + j, dtype)
            every = np.arange(whole.size, dtype=dtype).reshape(whole.shape)
            assert np.array_equal(counted.local, part(layout, every))


def refused(error: type, said: str, call, *arguments, **options) -> None:
    """`call` raises the same on every rank."""
    try:
        call(*arguments, **options)
    except error as raised:
        told = str(raised)
    else:
        raise AssertionError(f"{call} did not raise {error.__name__}, {said}")
    assert said in told, told
    assert len(set(WORLD.allgather(told))) == 1


def files() -> None:
    """.npy files read and written by all ranks; bad ones refused by all."""
    for number, grid in enumerate(grids()):
        for layout in product_layouts(13, 29, 30, (4, 4, 3), grid):
            path = FOLDER / f"{WORLD.size}-{number}.npy"
            whole = random_matrix(layout.shape, 6, np.float32)
            DistMatrix.from_root(layout, whole).to_npy(path)
            assert np.array_equal(np.load(path), whole)
            for order in "CF":
                WORLD.Barrier()
                if WORLD.rank == 0:
                    np.save(path, np.asarray(whole, order=order))
                WORLD.Barrier()
                read = DistMatrix.from_npy(path, layout)
                assert read.local.dtype == np.float32
                assert np.array_equal(read.local, part(layout, whole))
    empty = BlockCyclic((0, 3), (2, 2), (WORLD.size, 1))
    DistMatrix.zeros(empty).to_npy(path)
    assert np.load(path).shape == (0, 3)
    WORLD.Barrier()
    assert DistMatrix.from_npy(path, empty).local.size == 0
    bad_files()
    assert not list(FOLDER.glob(".*.tmp"))


def bad_files() -> None:
    """Files that cannot be read, and places that cannot be written."""
    layout = BlockCyclic((6, 5), (2, 2), (1, WORLD.size))
    if WORLD.rank == 0:
        np.save(FOLDER / "other.npy", np.zeros((6, 4)))
        np.save(FOLDER / "vector.npy", np.zeros(30))
        np.save(FOLDER / "integers.npy", np.zeros((6, 5), int))
        np.save(FOLDER / "swapped.npy", np.zeros((6, 5), ">f8"))
        np.save(FOLDER / "short.npy", np.zeros((6, 5)))
        os.truncate(FOLDER / "short.npy", 128 + 29 * 8)
        (FOLDER / "text.npy").write_text("6 5\n")
    for name, said in (
        ("other", "has a matrix of (6, 4), and the layout is of (6, 5)"),
        ("vector", "a matrix has two dimensions"),
        ("integers", "float32 or float64"),
        ("swapped", "byte order"),
        ("short", "is incomplete"),
        ("text", "is no .npy file"),
    ):
        refused(ValueError, said, DistMatrix.from_npy, FOLDER / f"{name}.npy", layout)
    refused(FileNotFoundError, "nowhere", DistMatrix.from_npy, FOLDER / "nowhere.npy", layout)
    made = DistMatrix.zeros(layout)
    refused(OSError, "No such file", made.to_npy, FOLDER / "nowhere" / "x.npy")
    if WORLD.rank == 0:
        (FOLDER / "taken.npy").mkdir(exist_ok=True)
    refused(OSError, "taken.npy", made.to_npy, FOLDER / "taken.npy")


def budget() -> None:
    """Matrices that no process could hold: generated, multiplied, written, read and compared with
    less memory than one of them takes, on each of at least four processes.
    """
    n = 1600
    path = FOLDER / "budget.npy"
    of_a, of_b, _ = product_layouts(n, n, n, 32, (2, WORLD.size // 2))
    tracemalloc.start()
    a = DistMatrix.generate(of_a, lambda i, j: np.cos(i) * (j + 1))
    identity = DistMatrix.generate(of_b, lambda i, j: i == j)
    matmul(a, identity, product="blas", panel=128).to_npy(path)
    assert np.array_equal(DistMatrix.from_npy(path, of_a).local, a.local)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 3 * a.local.nbytes < peak < 8 * n * n, peak / (8 * n * n)


def root_matrices() -> None:
    """Matrices of the root, by groups of rows and columns, and what it has to send for them."""
    sizes = [p for p in range(1, WORLD.size + 1) if WORLD.size % p == 0]
    for grid in ((p, WORLD.size // p) for p in sizes):
        for (m, n, k, block), send in itertools.product(SHAPES, ("copies", "once")):
            a, b, c = (random_matrix(s, 8) for s in ((m, k), (k, n), (m, n)))
            root = WORLD.size - 1 if send == "copies" else 0
            given = (a, b, c) if WORLD.rank == root else (None, None, None)
            block = (block, block) if isinstance(block, int) else block[:2]
            traffic = Traffic()
            whole = matmul_from_root(
                *given,
                grid=grid,
                block=block,
                alpha=2,
                beta=0.5,
                send=send,
                product="blas",
                root=root,
                traffic=traffic,
            )
            if WORLD.rank == root:
                wrong = np.abs(whole - (2 * a @ b + 0.5 * c))
                assert (wrong <= tolerance(a, b, 2, 0.5, c)).all()
                copies = grid[::-1] if send == "copies" else (1, 1)
                assert traffic.handed_out == m * k * copies[0] + k * n * copies[1]
            else:
                assert whole is None and traffic.handed_out == 0
            # The root sends once: in its own row it is another process that broadcasts.
            spared = WORLD.rank == root and (send == "copies" or grid[1] == 1)
            rows = numroc(m, block[0], WORLD.rank // grid[1], grid[0])
            assert traffic.a == (0 if spared else rows * k)


def arguments() -> None:
    """What cannot be multiplied is refused on all ranks alike."""
    across, down = (1, WORLD.size), (WORLD.size, 1)
    a = DistMatrix.zeros(BlockCyclic((6, 5), (2, 2), across))
    b = DistMatrix.zeros(BlockCyclic((5, 4), (2, 2), across))
    c = DistMatrix.zeros(BlockCyclic((6, 4), (2, 2), across))
    refused(ValueError, "shapes do not match", matmul, a, a)
    refused(ValueError, "shapes do not match", matmul, b, a)
    refused(ValueError, "beta = 2 is the factor of c", matmul, a, b, beta=2)
    refused(ValueError, "panel is 1 or more", matmul, a, b, panel=0)
    refused(ValueError, "'magic' is none of auto", matmul, a, b, product="magic")
    refused(ValueError, "threads is 1 or more", matmul, a, b, threads=0)
    refused(TypeError, "alpha is a real number", matmul, a, b, alpha=1j)
    refused(TypeError, "b is a DistMatrix; got ndarray", matmul, a, b.local)
    single = DistMatrix.zeros(b.layout, np.float32)
    refused(TypeError, "a and b are of float64 and float32", matmul, a, single)
    blocks = DistMatrix.zeros(BlockCyclic((5, 4), (1, 2), across))
    refused(ValueError, "blocks do not match", matmul, a, blocks)
    if WORLD.size > 1:
        turned = DistMatrix.zeros(BlockCyclic((5, 4), (2, 2), down))
        refused(ValueError, "are on one grid", matmul, a, turned)
        refused(ValueError, "alpha differs between ranks", matmul, a, b, c, alpha=WORLD.rank + 1)
        mixed = BlockCyclic((6, 5), (2, 2), across if WORLD.rank else down)
        refused(ValueError, "layout differs between ranks", DistMatrix.zeros, mixed)
    refused(TypeError, "float32 or float64", DistMatrix.zeros, a.layout, np.int64)
    refused(ValueError, "takes", DistMatrix.zeros, BlockCyclic((6, 5), (2, 2), (7, 7)))
    refused(ValueError, "root is a rank", DistMatrix.from_root, a.layout, np.zeros((6, 5)), root=99)
    refused(ValueError, "layout is of (6, 5)", DistMatrix.from_root, a.layout, np.zeros((5, 6)))
    refused(ValueError, "neither", DistMatrix.from_root, a.layout, datatypes="ten")


def layouts() -> None:
    """Thousands of random layouts next to MPI's own, one process: sizes, and for some the elements
    that both kinds of datatypes send.
    """
    rng = random.Random(7)
    for case in range(3000):
        shape = rng.randint(1, 60), rng.randint(1, 60)
        block = rng.randint(1, 9), rng.randint(1, 9)
        layout = BlockCyclic(shape, block, (rng.randint(1, 4), rng.randint(1, 4)))
        cyclic = [MPI.DISTRIBUTE_CYCLIC] * 2
        for rank in range(layout.size):
            made = MPI.DOUBLE.Create_darray(
                layout.size, rank, shape, cyclic, block, layout.grid, MPI.ORDER_C
            )
            held = layout.local_shape(*layout.coordinates(rank))
            assert made.Get_size() == held[0] * held[1] * 8
            made.Free()
        if case < 200:
            check_datatypes(layout)


def check_datatypes(layout: BlockCyclic) -> None:
    """Both kinds send each process what the owner of every element says."""
    whole = np.arange(layout.shape[0] * layout.shape[1], dtype=np.float64).reshape(layout.shape)
    i, j = np.indices(layout.shape, sparse=True)
    owners = layout.owner(i, j)
    for kind in datatypes.KINDS:
        with datatypes.Parts(layout, whole.dtype, kind=kind) as parts:
            for rank in range(layout.size):
                expected = whole[owners == rank]
                found = parts.of(rank)
                assert (found is None) == (expected.size == 0)
                if found is not None:
                    made, at = found
                    got = np.empty_like(expected)
                    start = whole.reshape(-1)[at // 8 :]
                    MPI.COMM_SELF.Sendrecv([start, 1, made], 0, recvbuf=got, source=0)
                    assert np.array_equal(got, expected)
            assert kind == "darray" or len(parts.types) <= 9


def large() -> None:
    """A part of more than 2^31 elements, sent by one datatype of each kind: bytes here, so that it
    fits. Pages of zeros take no memory on the root.
    """
    datatypes.ELEMENTS[np.dtype(np.uint8)] = MPI.BYTE
    layout = BlockCyclic((46400, 46400), (1000, 46300), (1, 2))
    for kind in datatypes.KINDS:
        whole = None
        if WORLD.rank == 1:
            whole = np.zeros(layout.shape, np.uint8)
            whole[::4639, 46299] = range(1, 12)
            whole[::4639, 46300] = 99
        made = DistMatrix.from_root(layout, whole, root=1, datatypes=kind)
        if WORLD.rank == 0:
            assert made.local.size > 2**31
            assert made.local[::4639, 46299].tolist() == list(range(1, 12))
            assert not made.local[-1].any() and not made.local[::5000, ::5000].any()
        else:
            assert (made.local[::4639, 0] == 99).all()
        del made, whole


def began() -> None:
    """Say that a case that ends by a killed process has got that far."""
    WORLD.Barrier()
    if WORLD.rank == 0:
        print("began", flush=True)
    WORLD.Barrier()


def differ() -> None:
    """Uncaught: an argument that is another on rank 1."""
    a = DistMatrix.zeros(BlockCyclic((6, 6), (2, 2), (1, WORLD.size)))
    matmul(a, a, alpha=WORLD.rank)


def misfit() -> None:
    """Uncaught: a grid of another number of processes."""
    DistMatrix.zeros(BlockCyclic((6, 6), (2, 2), (5, 5)))


def raises() -> None:
    """Uncaught on one rank alone, while the others wait for it."""
    a = DistMatrix.zeros(BlockCyclic((6, 6), (2, 2), (1, WORLD.size)))
    if WORLD.rank == 1:
        raise RuntimeError("lightning struck")
    a.gather()


def dies() -> None:
    """A killed process."""
    began()
    a = DistMatrix.zeros(BlockCyclic((6, 6), (2, 2), (1, WORLD.size)))
    if WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    a.gather()


def dies_writing() -> None:
    """A process killed between the header of a file and its part of the matrix."""
    from pymm.distributed import npy

    began()
    made = DistMatrix.zeros(BlockCyclic((6, 6), (2, 2), (1, WORLD.size)))
    if WORLD.rank == 1:
        npy._transfer = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
    made.to_npy(FOLDER / "kept.npy")


if __name__ == "__main__":
    for case in sys.argv[1:]:
        globals()[case]()
        WORLD.Barrier()
        if WORLD.rank == 0:
            print(f"{case} passed on {WORLD.size}", flush=True)
