"""Many products in one run: operands are cut from two periodic buffers of random elements of each
type, made once on the device, and results are checked without a reference product.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Buffer, Executable, Matrix, TimedCall
from pymm.core import reference
from pymm.core.problem import Problem, stored_shapes
from pymm.core.reference import mirrored, other_half
from pymm.measure.libraries import Operands
from pymm.measure.verify import POISON, Finding, compare, guard_bytes


class PeriodicBuffer:
    """A long array of elements on the device, `pattern` repeated.

    Matrices begin `guard` bytes after its start and end as many before its end: the elements around
    them are guard zones, since the whole array is known and `intact` checks all of it.
    """

    def __init__(self, backend: Backend, pattern: np.ndarray, count: int, guard: int = 0) -> None:
        self.backend, self.pattern = backend, pattern
        self.count, self.guard = count, guard
        self._lead = guard // pattern.itemsize
        self._total = max(count + 2 * self._lead, pattern.size)
        self.buffer = backend.allocate(self._total * pattern.itemsize)
        self.fill()

    @property
    def _head(self) -> np.ndarray:
        """What the array begins with: the matrices' first element is the pattern's."""
        return np.roll(self.pattern, self._lead)

    def fill(self) -> None:
        """Write all elements."""
        size = self.pattern.itemsize
        self.buffer.write(self._head.view(np.uint8))  # bfloat16 has no buffer of its own
        address, done = self.buffer.address, self.pattern.size
        while done < self._total:  # each copy doubles what is there
            nbytes = min(done, self._total - done) * size
            self.backend.copy_within(address, nbytes, address + done * size, nbytes, (1, nbytes))
            done += nbytes // size
        self.backend.synchronize()

    def intact(self, torch: Any = None) -> bool:
        """Whether every element is as it was written. With PyTorch only the first period comes to
        the host: on the device the array is compared with itself, a period apart.
        """
        size, period = self.pattern.itemsize, self.pattern.size
        head, piece = self._head.view(np.uint8), np.empty(period * size, np.uint8)
        for start in range(0, self._total, period):
            some = piece[: min(period, self._total - start) * size]
            self.buffer.read(some, start * size)
            if not np.array_equal(some, head[: some.size]):
                return False
            if torch is not None:
                row = lent_bytes(torch, self.buffer, 0, self._total * size)
                words = row.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
                return torch.equal(words[period:], words[:-period])
        return True

    def matrix(self, shape: tuple[int, int, int]) -> Matrix:
        """Dense matrices (batch, rows, columns), the first `guard` bytes from the start."""
        _, rows, columns = shape
        address = self.buffer.address + self._lead * self.pattern.itemsize
        return Matrix(address, columns, rows * columns, owner=self.buffer)

    def values(
        self,
        shape: tuple[int, int, int],
        rows: Any = None,
        columns: Any = None,
        matrices: Any = None,
    ) -> Any:
        """The same on the host: all rows and columns of all matrices, or those named."""
        batch, height, width = shape
        if rows is None and columns is None and matrices is None:
            return np.resize(self.pattern, batch * height * width).reshape(shape)
        rows = np.arange(height) if rows is None else rows
        columns = np.arange(width) if columns is None else columns
        matrices = np.arange(batch) if matrices is None else matrices
        first = matrices[:, None, None] * height + rows[:, None]
        return self.pattern[(first * width + columns) % self.pattern.size]


class _Bytes:
    """Bytes on a GPU, as other libraries take them."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = dict(
            data=(address, False), shape=(nbytes,), typestr="|u1", strides=None, version=3
        )


def lent_bytes(torch: Any, buffer: Any, offset: int, nbytes: int) -> Any:
    """`nbytes` bytes of a buffer on a GPU from `offset` on, as a tensor of PyTorch."""
    return torch.as_tensor(_Bytes(buffer.address + offset, nbytes, buffer), device="cuda")


#: Elements after which a buffer repeats itself: a prime, so that no two rows of a matrix are
#: equal and a kernel that confuses them is found.
PERIOD = 4_194_301

#: Random vectors of Freivalds' check: a wrong product passes with a probability of at most 2^-8,
#: and what is wrong in more than one row by less.
VECTORS = 8

#: Rows and columns of the normal product at whose crossings elements are compared with float64, of
#: at most so many matrices of a batch.
ROWS, COLUMNS, MATRICES = 12, 24, 16

#: Least depth that the integers of the check are made for: few buffers serve all problems.
LEAST_DEPTH = 2**14

#: The same for symmetric products, whose integers are the rarer, the deeper a product may be.
LEAST_DEPTH_HALF = 2**8


class OperandPool:
    """The operands of all problems on one device, which holds the elements of one type at a time.
    Those of all types are on the host.
    """

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self.backend, self.seed = backend, seed
        self._dtype = ""
        self._buffers: dict[tuple, PeriodicBuffer] = {}
        self._patterns: dict[tuple, np.ndarray] = {}
        self._result: Buffer | None = None

    def verifier(self, problem: Problem, accumulate: bool = False) -> QuickVerifier:
        """The matrices of `problem`, of which C is also added to with `accumulate`. Raises
        `MemoryError`; `ValueError` for an empty problem.
        """
        if problem.empty:
            raise ValueError(f"{problem.slug} has no element to compute or to verify")
        if problem.dtype != self._dtype:
            self._buffers.clear()
            self._dtype = problem.dtype
        if not all(buffer.intact(self.torch) for buffer in self._buffers.values()):
            self.refresh()  # a store of another problem's kernel went further than its guards
        return QuickVerifier(self, problem, accumulate)

    def refresh(self) -> None:
        """Write all operands anew. Raises `LaunchFailed`, `MemoryError`."""
        for buffer in self._buffers.values():
            buffer.fill()

    @cached_property
    def torch(self) -> Any:
        """PyTorch, if it is here and the device a GPU."""
        return _torch() if self.backend.device.is_gpu else None

    def buffer(self, kind: str, operand: int, problem: Problem) -> PeriodicBuffer:
        """Numbers for `operand` (0, 1, or 2 for what is added to): "normal" ones or "integers"
        exact at the problem's depth.
        """
        shape = stored_shapes(problem)[operand]
        count, guard = int(np.prod(shape)), guard_bytes(shape[2] * problem.numpy_dtype.itemsize)
        least = LEAST_DEPTH_HALF if problem.symmetric else LEAST_DEPTH
        depth = max(least, 1 << max(problem.k - 1, 0).bit_length())
        key = (kind, operand, *((depth, problem.symmetric) if kind == "integers" else ()))
        found = self._buffers.get(key)
        if found is None or found.count < count or found.guard < guard:
            self._buffers.pop(key, None)
            of_type = (problem.dtype, *key)
            if of_type not in self._patterns:
                self._patterns[of_type] = self._pattern(kind, operand, depth, problem)
            pattern = self._patterns[of_type]
            found = self._buffers[key] = PeriodicBuffer(self.backend, pattern, count, guard)
        return found

    def _pattern(self, kind: str, operand: int, depth: int, problem: Problem) -> np.ndarray:
        normal = kind == "normal"  # the same for all problems, whichever came first
        of_depth = LEAST_DEPTH if normal else depth
        generator = np.random.default_rng((self.seed, operand, of_depth))
        if normal:
            drawn = generator.standard_normal(PERIOD, np.float32)
            return drawn.astype(problem.numpy_dtype)
        deep = Problem(1, 1, depth, problem.dtype, op=problem.op)
        return reference.exact_operands(deep, ((PERIOD,),), generator)[0]

    def result(self, nbytes: int, guard: int) -> Buffer:
        """Room for C and the guard zones on both of its sides."""
        wanted = nbytes + 2 * guard
        if self._result is None or self._result.nbytes < wanted:
            self._result = None
            self._result = self.backend.allocate(wanted)
        return self._result


class QuickVerifier:
    """One problem's matrices from a pool, on which a `Workbench` verifies and times.

    A result is right if Freivalds' check finds nothing on integers, which every element takes part
    in, if some hundred elements of a product of normal numbers are within the bound of the
    arithmetic, and if nothing is written around C, into A and B or around them. With `accumulate`
    the product of normal numbers is also added to itself (beta = 1) and judged again.
    """

    def __init__(self, pool: OperandPool, problem: Problem, accumulate: bool = False) -> None:
        self.pool, self.problem, self.backend = pool, problem, pool.backend
        self.accumulate = accumulate
        self._shapes = stored_shapes(problem)
        self._result_dtype = problem.out_dtype
        self._nbytes = int(np.prod(self._shapes[2])) * self._result_dtype.itemsize
        _, rows, columns = self._shapes[2]
        self._guard = guard_bytes(columns * self._result_dtype.itemsize)
        self._buffer = pool.result(self._nbytes, self._guard)
        address = self._buffer.address + self._guard
        self.c = Matrix(address, columns, rows * columns, owner=self._buffer)

    def _factors(self, kind: str) -> tuple[PeriodicBuffer, PeriodicBuffer]:
        """What A and B are cut from; of a symmetric product they are one."""
        a = self.pool.buffer(kind, 0, self.problem)
        return a, a if self.problem.symmetric else self.pool.buffer(kind, 1, self.problem)

    def _operands(self, kind: str) -> tuple[Matrix, Matrix, Matrix]:
        a, b = (
            s.matrix(shape) for s, shape in zip(self._factors(kind), self._shapes, strict=False)
        )
        return a, b, self.c

    def _values(self, kind: str, picks: Any = ((), ())) -> tuple[np.ndarray, np.ndarray]:
        """A and B on the host, or the rows and columns of each that are picked."""
        three = zip(self._factors(kind), self._shapes, picks, strict=False)
        return tuple(buffer.values(shape, *pick) for buffer, shape, pick in three)

    @property
    def operands(self) -> tuple[Matrix, Matrix, Matrix]:
        """A, B and C on the device, dense rows, standard normal A and B."""
        return self._operands("normal")

    def check(self, executable: Executable, load: Callable[[Problem], Executable]) -> Finding:
        """Run the configuration and judge what it wrote. `load` is not needed here. Raises
        `LaunchFailed`, `MemoryError`.
        """
        for kind, judge in (("integers", self._freivalds), ("normal", self.compare)):
            a, b, c = self._operands(kind)
            self._buffer.fill(POISON)
            executable.bind(self.problem, 1.0, a, b, 0.0, c)()
            self.backend.synchronize()
            stray, finding = self._around() or self._written_into(kind), judge()
            if stray:  # what is wrong inside C says more than that something is written outside
                detail = "; also ".join(filter(None, (finding.detail, stray.detail)))
                return replace(stray, detail=detail)
            if not finding.right:
                return finding
        return self._added(executable, finding) if self.accumulate else finding

    def _added(self, executable: Executable, before: Finding) -> Finding:
        """Add the normal product to the C that holds it, and judge the elements that are looked
        at.
        """
        held = self._seen()
        executable.bind(self.problem, 1.0, *self._operands("normal")[:2], 1.0, self.c)()
        self.backend.synchronize()
        found = self._around() or self._written_into("normal") or self._compare_sum(held)
        return found if found.stray else replace(found, error=max(before.error, found.error))

    def _compare_sum(self, held: np.ndarray) -> Finding:
        """Judge the elements that are looked at of `held` plus the normal product."""
        if stray := self._stray("normal"):
            return Finding(np.inf, f"beta = 1: {stray}")
        few, a, b = self._few
        arguments = (few, a, b, held.astype(np.float64), 1.0, 1.0)
        bound = reference.error_bound(*arguments)
        found = compare(self._seen(), reference.product(*arguments), bound)
        return replace(found, detail=found.detail and f"beta = 1: {found.detail}")

    def restart(self) -> None:
        """Write what C holds before a product: poison, with `accumulate` normal numbers."""
        self._buffer.fill(POISON)
        if self.accumulate:
            start = self.pool.buffer("normal", 2, self.problem).matrix(self._shapes[2])
            whole = (1, self._nbytes)
            self.backend.copy_within(
                start.address, self._nbytes, self.c.address, self._nbytes, whole
            )
        self.backend.synchronize()

    def run_once(
        self, executable: Executable, seconds: Callable[[Callable[[], object]], float]
    ) -> tuple[float, Finding]:
        """Run the configuration on normal numbers: what `seconds` says of the launch, which begins
        with the same C each time that it is run, and what is wrong with what it wrote. Raises
        `LaunchFailed`, `MemoryError`.
        """
        a, b, c = self._operands("normal")
        launch = executable.bind(self.problem, 1.0, a, b, float(self.accumulate), c)
        self.restart()
        held = self._seen() if self.accumulate else None
        taken = seconds(TimedCall(launch, prepare=self.restart))
        self.backend.synchronize()
        found = self._around() or self._written_into("normal")
        if not found:
            found = self.compare() if held is None else self._compare_sum(held)
        return taken, found

    def again(self, executable: Executable) -> Finding:
        """Judge the configuration once more after it was timed: what is wrong now and then, or from
        some launch on, was right before. Raises `LaunchFailed`, `MemoryError`.
        """
        return self.check(executable, lambda problem: executable)

    def untouched(self) -> Finding | None:
        """What was written into A and B of the normal product, or around them."""
        return self._written_into("normal")

    def refresh(self) -> None:
        """Write all operands anew. Raises `LaunchFailed`, `MemoryError`."""
        self.pool.refresh()

    def _written_into(self, kind: str) -> Finding | None:
        for name, buffer in zip("AB", dict.fromkeys(self._factors(kind)), strict=False):
            if not buffer.intact(self.pool.torch):
                return Finding(np.inf, f"writes into or around operand {name}", stray=True)
        return None

    def _around(self) -> Finding | None:
        zone = np.empty(self._guard, np.uint8)
        for offset, name in ((0, "before"), (self._guard + self._nbytes, "behind")):
            if self.pool.torch:
                lent = lent_bytes(self.pool.torch, self._buffer, offset, self._guard)
                touched = bool((lent != POISON).any())
            else:
                self._buffer.read(zone, offset)
                touched = (zone != POISON).any()
            if touched:
                return Finding(np.inf, f"writes {name} the matrix", stray=True)
        return None

    # Normal numbers

    def compare(self) -> Finding:
        """Judge the elements that are looked at of the normal product that C holds. What is said to
        be symmetric must be so to the bit.
        """
        stray = self._stray("normal")
        return Finding(np.inf, stray) if stray else compare(self._seen(), *self._expected)

    def _stray(self, kind: str) -> str:
        """What is wrong, to the bit, with the half of a symmetric C that is not computed."""
        if not self.problem.symmetric:
            return ""
        torch = self.pool.torch
        if torch and not self._halved:
            c = Operands(self.problem, *self._operands(kind)).tensors(torch)[2]
            if torch.equal(c, c.mT):
                return ""
        poison = np.full(self._result_dtype.itemsize, POISON, np.uint8).view(self._result_dtype)
        return other_half(self.result(), np.broadcast_to(poison, self._shapes[2]), self.problem)

    @property
    def _halved(self) -> bool:
        """Whether the product writes one half of C alone."""
        return self.problem.fill in ("lower", "upper")

    def result(self) -> np.ndarray:
        """What C holds, (batch, m, n)."""
        values = np.empty(self._shapes[2], self._result_dtype)
        self._buffer.read(values.reshape(-1).view(np.uint8), self._guard)
        return values

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """A and B of the normal product on the host, as stored: (batch, rows, columns)."""
        return self._values("normal")

    def deviation(self) -> float:
        """Root of the mean square of C - C64 over that of C64, of the elements looked at."""
        expected, _ = self._expected
        apart = self._seen().astype(np.float64) - expected
        return float(np.sqrt((apart**2).mean() / max((expected**2).mean(), 1e-300)))

    def _seen(self) -> np.ndarray:
        matrices, rows, columns = self._crossings
        if self._halved:
            return mirrored(self.result(), self.problem)[matrices][:, rows][:, :, columns]
        _, height, width = self._shapes[2]
        size = self._result_dtype.itemsize
        lines = np.empty((len(matrices), len(rows), width), self._result_dtype)
        for index in np.ndindex(lines.shape[:2]):
            start = (int(matrices[index[0]]) * height + int(rows[index[1]])) * width * size
            self._buffer.read(lines[index].view(np.uint8), self._guard + start)
        return lines[:, :, columns]

    @cached_property
    def _crossings(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Matrices, rows and columns of the elements that are looked at."""
        generator = np.random.default_rng(self.pool.seed)
        p = self.problem
        rows, columns, matrices = (
            np.unique(np.r_[0, extent - 1, generator.integers(0, extent, most - 2)])
            for extent, most in ((p.m, ROWS), (p.n, COLUMNS), (p.batch, MATRICES))
        )
        return matrices, rows, columns

    @cached_property
    def _expected(self) -> tuple[np.ndarray, np.ndarray]:
        return reference.product(*self._few), reference.error_bound(*self._few)

    @cached_property
    def _few(self) -> tuple[Problem, np.ndarray, np.ndarray]:
        """The product of the elements that are looked at: problem, A and B."""
        p, (matrices, rows, columns) = self.problem, self._crossings
        of_a = (None, rows, matrices) if p.trans_a else (rows, None, matrices)
        of_b = (columns, None, matrices) if p.trans_b else (None, columns, matrices)
        a, b = self._values("normal", (of_a, of_b))
        extents = {"m": len(rows), "n": len(columns), "batch": len(matrices)}
        return replace(p, **extents, op="gemm"), a, b

    # Integers

    def _freivalds(self) -> Finding:
        """C X against op(A) (op(B) X) for random signs X: every number is exact. Of a product that
        writes one half of C, that half and its image.
        """
        if stray := self._stray("integers"):
            return Finding(np.inf, stray)
        wrong = self._wrong_row()
        if wrong is None:
            return Finding(0.0)
        return Finding(np.inf, f"{self._first_wrong(wrong)} (Freivalds' check on integers)")

    def _first_wrong(self, row: int) -> str:
        """Where the first of the stack's rows of that number that is wrong is so, in words."""
        p = self.problem
        of_a = (None, np.array([row])) if p.trans_a else (np.array([row]), None)
        a, b = (x.astype(np.float64) for x in self._values("integers", (of_a, ())))
        expected = reference.product(replace(p, m=1, op="gemm"), a, b)[:, 0]
        got = mirrored(self.result(), p)[:, row].astype(np.float64)
        wrong = np.argwhere(got != expected)  # true for NaN as well
        if not len(wrong):
            return f"wrong in row {row}"
        matrix, column = (int(i) for i in wrong[0])
        place = f"{matrix}, {row}, {column}" if p.batch > 1 else f"{row}, {column}"
        value, wanted = float(got[matrix, column]), float(expected[matrix, column])
        what = "is not written or not a number" if np.isnan(value) else f"is {value!r}"
        return f"C[{place}] {what} instead of {wanted!r}"

    def _wrong_row(self) -> int | None:
        p = self.problem
        x = reference.signs(p.n, VECTORS, self.pool.seed + 3)
        torch = None if self._halved else self.pool.torch
        if torch is None:
            values = mirrored(self.result(), p)
            a, b = self._values("integers")
            left, right = reference.oriented(p, a.astype(np.float64), b.astype(np.float64))
            got, expected = values.astype(np.float64) @ x, left @ (right @ x)
            wrong = (got != expected).any(axis=(0, 2))  # true for NaN as well
        else:
            signs = torch.as_tensor(x, device="cuda")
            a, b, c = Operands(p, *self._operands("integers")).tensors(torch)
            left, right = reference.oriented(p, a, b)
            expected = left.double() @ (right.double() @ signs)
            wrong = (c.double() @ signs != expected).any(dim=-1).reshape(-1, p.m).any(dim=0)
            wrong = wrong.cpu().numpy()
        return int(np.argmax(wrong)) if wrong.any() else None


def _torch() -> Any:
    """PyTorch, which checks a large result on the device in milliseconds, if it is installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None
