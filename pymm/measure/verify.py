"""Verification of a configuration, before it is timed and after: a float64 reference, output filled
with NaN before, guard zones around every matrix, operands that must not change, odd extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from pymm.backends.base import Backend, Executable, Matrix
from pymm.core import reference
from pymm.core.integers import round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.core.reference import mirrored, other_half
from pymm.kernels import Config
from pymm.kernels.custom import CustomConfig, render_custom
from pymm.kernels.source import Source, render

#: The byte that memory is poisoned with. In every dtype such bytes are a NaN: no correct kernel
#: writes one here, and it makes every sum that it is read into a NaN.
POISON = 0xFF

#: Bytes that are an ordinary number: 48.5 as float32, 1.6e11 as float64, 3.1 as float16.
NUMBER = 0x42

#: Rows of the guard zone on each side of a matrix: those of the highest tile, so that a store that
#: is wrong by a whole tile is found, too. And the least and most bytes of a guard zone.
GUARD_ROWS, LEAST_GUARD, MOST_GUARD = 256, 1 << 16, 1 << 26


def guard_bytes(row_bytes: int) -> int:
    """Bytes of a guard zone for rows of `row_bytes` bytes: a multiple of 256, so that the matrix
    has the alignment of an allocation.
    """
    wanted = min(max(LEAST_GUARD, GUARD_ROWS * row_bytes), MOST_GUARD)
    return round_up(wanted, 256)


class GuardedMatrix:
    """A matrix (or a stack) on the device between two guard zones, rows `ld` elements apart.

    Guard zones and the gaps between rows are filled with the byte `around`. `POISON` makes every
    result that reads it a NaN. `NUMBER` shows additions that poison hides: a NaN plus one is the
    same NaN. What was written last is kept on the host: `changed` compares with it.
    """

    def __init__(
        self,
        backend: Backend,
        dtype: np.dtype,
        shape: tuple[int, int, int],
        gap: int = 0,
        around: int = POISON,
    ) -> None:
        batch, rows, columns = shape
        self.dtype, self.shape, ld = dtype, shape, columns + gap
        self._around = around
        self._pitched = (batch, rows, ld)
        self._bytes = batch * rows * ld * dtype.itemsize
        self.guard = guard_bytes(ld * dtype.itemsize)
        self._buffer = backend.allocate(self._bytes + 2 * self.guard)
        self._written: np.ndarray | None = None
        address = self._buffer.address + self.guard
        self.matrix = Matrix(address, ld, rows * ld, owner=self._buffer)

    def poison(self) -> None:
        """Fill the elements, the gaps and the guard zones with NaN."""
        self._around = POISON
        self._buffer.fill(POISON)

    def write(self, values: np.ndarray) -> None:
        """Set the elements (batch x rows x columns), the gaps and the guard zones."""
        self._written = np.asarray(values, self.dtype)
        self.restore()

    def restore(self) -> None:
        """Write again what was written last, gaps and guard zones included."""
        image = np.full(self._bytes + 2 * self.guard, self._around, np.uint8)
        self._inner(image)[..., : self.shape[2]] = self._written
        self._buffer.write(image)

    def changed(self) -> str:
        """Where memory differs from what was written last, in words; empty if nowhere."""
        values, touched = self.read()
        bits = f"u{self.dtype.itemsize}"
        same = np.array_equal(values.view(bits), self._written.view(bits))
        return touched if same else "into the matrix"

    def read(self) -> tuple[np.ndarray, str]:
        """The elements, and where memory outside of them was written; empty if nowhere."""
        image = np.empty(self._bytes + 2 * self.guard, np.uint8)
        self._buffer.read(image)
        inner = self._inner(image)
        outside = [
            ("before the matrix", image[: self.guard]),
            ("behind the matrix", image[self.guard + self._bytes :]),
            ("between its rows", inner[..., self.shape[2] :].copy().view(np.uint8)),
        ]
        touched = [name for name, zone in outside if (zone != self._around).any()]
        return inner[..., : self.shape[2]], " and ".join(touched)

    def _inner(self, image: np.ndarray) -> np.ndarray:
        inside = image[self.guard : self.guard + self._bytes]
        return inside.view(self.dtype).reshape(self._pitched)


def normal(problem: Problem, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal A, B and C as stored. Random bits also make a GPU draw the power of real
    data; it multiplies zeros at higher clocks. In a symmetric product A and B are the same.
    """
    generator = np.random.default_rng(seed)
    dtypes = (problem.numpy_dtype, problem.numpy_dtype, problem.out_dtype)
    a, b, c = (
        generator.standard_normal(shape, np.float32).astype(dtype)
        for shape, dtype in zip(stored_shapes(problem), dtypes, strict=True)
    )
    return (a, a if problem.symmetric else b, c)


#: Products of up to this many operations are compared with the float64 product element by element
#: (a second on one core). Larger ones are so in some rows and columns, and Freivalds' check covers
#: the rest.
FULL_CHECK_FLOPS = 2**31

#: Random vectors of Freivalds' check: a wrong product passes with a probability of at most 2^-16.
VECTORS = 16

#: Rows and columns of a large product that are compared by element, besides the first and last.
LINES = 16

#: alpha and beta of the hard problem: exact in every dtype, no powers of two.
HARD_ALPHA, HARD_BETA = -1.25, 0.75

#: Depth of the hard problem for a kernel without KB: a prime.
HARD_DEPTH = 37


@dataclass(frozen=True)
class Finding:
    """The result of a check: `error` is the largest |C - C64| divided by its bound (at most 1 if C
    is right), `detail` says what is wrong, and is empty if nothing is. `stray` is True if memory
    was written that must not be.
    """

    error: float
    detail: str = ""
    stray: bool = False

    @property
    def right(self) -> bool:
        """True if nothing is wrong."""
        return not self.detail


class Verifier:
    """Checks configurations of one problem on one device. Operands are made once, from `seed`."""

    def __init__(self, backend: Backend, problem: Problem, seed: int = 0) -> None:
        if problem.empty:
            raise ValueError(f"{problem.slug} has no element to compute or to verify")
        self.backend, self.problem, self.seed = backend, problem, seed
        self.fields = _fields(backend, problem)
        self._a, self._b, _ = normal(problem, seed)
        self.fields[0].write(self._a)
        self.fields[1].write(self._b)
        self._hard: dict[tuple[int, int, int], _Hard] = {}

    @property
    def operands(self) -> tuple[Matrix, Matrix, Matrix]:
        """A, B and C on the device, dense rows, standard normal A and B."""
        return tuple(field.matrix for field in self.fields)

    def check(self, executable: Executable, load: Callable[[Problem], Executable]) -> Finding:
        """Run the configuration on the problem and on a small hard one, and check the results.

        `load` gives the executable for another problem of the same configuration. Raises
        `LaunchFailed`, `CompileFailed`, `MemoryError`.
        """
        a, b, c = self.fields
        finding = self._judge(executable, a, b, c)
        if finding.right and not self._small:
            finding = self._freivalds(executable) or finding
        hard = hard_problem(executable.config, self.problem)
        if finding.right and self._may_run(executable.config, hard):
            found = self._hard_case(hard).judge(load(hard))
            error = max(finding.error, found.error)
            detail = found.detail and f"{hard.slug}: {found.detail}"
            finding = Finding(error, detail, found.stray)
        return finding

    def again(self, executable: Executable) -> Finding:
        """Check every element of the problem's product once more after timing, for errors that
        occur in some launches only. Raises `LaunchFailed`, `MemoryError`.
        """
        a, b, c = self.fields
        if self._small:
            return self._judge(executable, a, b, c)
        return self.untouched() or self._freivalds(executable) or Finding(0.0)

    def untouched(self) -> Finding | None:
        """A finding if A or B, or memory around them, was written since they were made."""
        return _written_into(self.fields[:2])

    def refresh(self) -> None:
        """Write all operands again. Raises `LaunchFailed`, `MemoryError`."""
        self._hard.clear()
        fields = [*self.fields[:2], *(self._integers[0] if "_integers" in vars(self) else ())]
        for field in fields:
            field.restore()

    def _may_run(self, config: Config, hard: Problem) -> bool:
        return not config.kernel.violations(config, hard, self.backend.device)

    def _hard_case(self, hard: Problem) -> _Hard:
        key = (hard.m, hard.n, hard.k)
        if key not in self._hard:
            if len(self._hard) >= 16:  # a few hundred kilobytes each
                self._hard.pop(next(iter(self._hard)))
            self._hard[key] = _Hard(self.backend, hard, self.seed + 1)
        return self._hard[key]

    @property
    def _small(self) -> bool:
        return self.problem.flops <= FULL_CHECK_FLOPS

    def _judge(
        self, executable: Executable, a: GuardedMatrix, b: GuardedMatrix, c: GuardedMatrix
    ) -> Finding:
        c.poison()
        executable.bind(self.problem, 1.0, a.matrix, b.matrix, 0.0, c.matrix)()
        self.backend.synchronize()
        values, touched = c.read()
        if wrong := _stray(touched, values, self.problem) or _written_into((a, b)):
            return wrong
        values = mirrored(values, self.problem)
        if self._small:
            return compare(values, *self._full)
        for pick, expected, bound in self._lines:
            finding = compare(values[pick], expected, bound)
            if not finding.right:
                return finding
        return finding

    @cached_property
    def _full(self) -> tuple[np.ndarray, np.ndarray]:
        arguments = (self.problem, self._a, self._b)
        return reference.product(*arguments), reference.error_bound(*arguments)

    @cached_property
    def _lines(self) -> list[tuple[tuple, np.ndarray, np.ndarray]]:
        """Rows and columns of C that are compared: index, float64 values, bounds."""
        p, generator = self.problem, np.random.default_rng(self.seed)
        rows = np.unique(np.r_[0, p.m - 1, generator.integers(0, p.m, LINES)])
        columns = np.unique(np.r_[0, p.n - 1, generator.integers(0, p.n, LINES)])
        left, right = reference.oriented(p, self._a, self._b)
        plain = replace(p, trans_a=False, trans_b=False, op="gemm")
        lines = []
        for pick, a, b in (
            ((slice(None), rows), left[:, rows], right),
            ((slice(None), slice(None), columns), left, right[:, :, columns]),
        ):
            expected = reference.product(plain, a, b)
            lines.append((pick, expected, reference.error_bound(plain, a, b)))
        return lines

    @cached_property
    def _integers(self) -> tuple[list[GuardedMatrix], np.ndarray, np.ndarray]:
        """Integer operands on the device, random signs X and op(A) (op(B) X), all exact."""
        p, generator = self.problem, np.random.default_rng(self.seed + 2)
        shapes = stored_shapes(p)[:2]
        a, b = reference.exact_operands(p, shapes, generator)
        b = a if p.symmetric else b
        fields = _fields(self.backend, p)[:2]
        for field, values in zip(fields, (a, b), strict=True):
            field.write(values)
        left, right = reference.oriented(p, a.astype(np.float64), b.astype(np.float64))
        x = reference.signs(p.n, VECTORS, self.seed + 3)
        return fields, x, left @ (right @ x)

    def _freivalds(self, executable: Executable) -> Finding | None:
        (a, b), x, expected = self._integers
        c = self.fields[2]
        c.poison()
        executable.bind(self.problem, 1.0, a.matrix, b.matrix, 0.0, c.matrix)()
        self.backend.synchronize()
        values, touched = c.read()
        if wrong := _stray(touched, values, self.problem) or _written_into((a, b)):
            return wrong
        values = mirrored(values, self.problem)
        block = max(1, 2**22 // max(1, self.problem.n))  # 32 MiB of float64 at a time
        for batch in range(self.problem.batch):
            for row in range(0, self.problem.m, block):
                rows = slice(row, row + block)
                got = values[batch, rows].astype(np.float64) @ x
                wrong = (got != expected[batch, rows]).any(axis=1)  # NaN counts as wrong, too
                if wrong.any():
                    where = f"row {row + int(np.argmax(wrong))}"
                    return Finding(np.inf, f"wrong in {where} (Freivalds' check on integers)")
        return None


class _Hard:
    """The hard problem: extents that are no multiples of the tile, gaps between rows, alpha and
    beta.
    """

    def __init__(self, backend: Backend, problem: Problem, seed: int) -> None:
        self.backend, self.problem = backend, problem
        self.values = normal(problem, seed)
        gaps = (3, 5, 7)  # odd, so that no row but the first is aligned
        arounds = (POISON, POISON, NUMBER)
        self.fields = _fields(backend, problem, gaps, arounds)
        for field, values in zip(self.fields, self.values, strict=True):
            field.write(values)
        arguments = (problem, *self.values, HARD_ALPHA, HARD_BETA)
        self.expected = reference.product(*arguments)
        self.bound = reference.error_bound(*arguments)

    def judge(self, executable: Executable) -> Finding:
        a, b, c = self.fields
        c.write(self.values[2])
        bound = executable.bind(self.problem, HARD_ALPHA, a.matrix, b.matrix, HARD_BETA, c.matrix)
        bound()
        self.backend.synchronize()
        got, touched = c.read()
        stray = _stray(touched, got, self.problem, self.values[2])
        if wrong := stray or _written_into((a, b)):
            return wrong
        return compare(mirrored(got, self.problem), self.expected, self.bound)


def _fields(
    backend: Backend,
    problem: Problem,
    gaps: tuple[int, int, int] = (0, 0, 0),
    arounds: tuple[int, int, int] = (POISON, POISON, POISON),
) -> list[GuardedMatrix]:
    """Matrices A, B and C; in a symmetric product A and B are one."""
    described = zip(_dtypes(problem), stored_shapes(problem), gaps, arounds, strict=True)
    a, b, c = (partial(GuardedMatrix, backend, *details) for details in described)
    first = a()
    return [first, first if problem.symmetric else b(), c()]


def _stray(
    touched: str, values: np.ndarray, problem: Problem, before: np.ndarray | None = None
) -> Finding | None:
    """A finding if memory around C was written, or the half that is not computed, which held
    `before` (None: poison).
    """
    if touched:
        return Finding(np.inf, f"writes {touched}", stray=True)
    if before is None:
        poison = np.full(values.itemsize, POISON, np.uint8).view(values.dtype)
        before = np.broadcast_to(poison, values.shape)
    wrong = other_half(values, before, problem)
    return Finding(np.inf, wrong) if wrong else None


def _written_into(operands: Sequence[GuardedMatrix]) -> Finding | None:
    """A finding if A or B, or memory around them, was written."""
    for name, field in zip("AB", dict.fromkeys(operands), strict=False):
        if where := field.changed():
            return Finding(np.inf, f"writes {where} (operand {name})", stray=True)
    return None


def _dtypes(problem: Problem) -> tuple[np.dtype, ...]:
    """Dtypes of A, B and C."""
    return problem.numpy_dtype, problem.numpy_dtype, problem.out_dtype


def hard_problem(config: Config, problem: Problem) -> Problem:
    """A small problem of the same kind with partial tiles on every side: m = MB + 1, n = NB - 1 (in
    a symmetric product both are the larger of the two), k = KB + 3, or SPLIT KB + 3. Only one half
    of it is computed if that is so in `problem`.
    """
    tile = config.as_dict()
    m, n = tile.get("MB", 32) + 1, max(tile.get("NB", 32) - 1, 1)
    if problem.symmetric:
        m = n = max(m, n)
        op = "syrk_lower" if problem.halved and problem.fill == "full" else problem.op
        problem = replace(problem, m=m, n=n, op=op)
    k = tile["KB"] * tile.get("SPLIT", 1) + 3 if "KB" in tile else HARD_DEPTH
    return replace(problem, m=m, n=n, k=k, batch=1)


def compare(values: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> Finding:
    """Compare every element of `values` with the float64 `expected` and its `bound`."""
    difference = np.abs(values.astype(np.float64) - expected)
    ratio = np.divide(difference, bound, where=bound > 0, out=np.zeros_like(bound))
    ratio[(bound == 0) & (difference > 0)] = np.inf
    ratio[np.isnan(difference)] = np.inf
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    error = float(ratio[worst])
    if error <= 1:
        return Finding(error)
    count = int((ratio > 1).sum())
    where = ", ".join(str(int(i)) for i in worst[1:])
    got, wanted = float(values[worst]), float(expected[worst])
    what = "is not written or not a number" if np.isnan(got) else f"is {got!r}"
    return Finding(
        error, f"{count} of {ratio.size} elements wrong; C[{where}] {what} instead of {wanted!r}"
    )


def render_hard(config: Config, hard: Problem) -> Source:
    """The source for the hard problem, whose rows may start at any element."""
    return render(config, hard, alignment=hard.numpy_dtype.itemsize)


def sources(config: Config, problem: Problem) -> list[Source]:
    """The sources that are compiled to check and time `config`: one, or two if the problem has no
    partial tile, or rows of a higher alignment. Of a user's kernel one.
    """
    if isinstance(config, CustomConfig):
        return [render_custom(config, problem)]
    both = (render(config, problem), render_hard(config, hard_problem(config, problem)))
    return list({source.key: source for source in both}.values())
