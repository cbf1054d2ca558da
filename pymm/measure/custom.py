"""Verification and timing of users' kernels: every element of what they write is compared with the
reference, before timing and after, with guard zones around all arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from pymm.backends.base import Backend, Executable, TimedCall
from pymm.kernels.custom import Array, CustomProblem, render_custom
from pymm.measure.timer import Call
from pymm.measure.verify import Finding, GuardedMatrix
from pymm.measure.workbench import Workbench


def save_arrays(folder: Path, before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> None:
    """Write what `CustomKernel.values` returns to the files that a bench reads."""
    for name, array in before.items():
        np.save(folder / f"{name}.npy", array.view(np.uint8), allow_pickle=False)
    for name, array in after.items():
        array = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
        np.save(folder / f"{name}.expected.npy", array, allow_pickle=False)


class CustomBench(Workbench):
    """The arrays of one problem of a user's kernel, on which its configurations are verified and
    timed. A kernel that spills registers counts: its author may have meant it.
    """

    def _take_operands(self) -> None:
        self._verifier = CustomVerifier(self.backend, self.problem)

    def load(self, config) -> Executable:
        return self.backend.load(render_custom(config, self.problem))

    def call(self, executable: Executable) -> Call:
        return self._verifier.call(executable)

    def _check(self, executable: Executable) -> Finding:
        return self._verifier.again(executable)


class CustomVerifier:
    """Checks configurations of a user's kernel on one problem."""

    def __init__(self, backend: Backend, problem: CustomProblem) -> None:
        self.backend, self.problem, self._folder = backend, problem, Path(problem.folder)
        self._fields: dict[str, GuardedMatrix] = {}
        self._expected: dict[str, np.ndarray] = {}
        self._flipped: dict[str, np.ndarray] = {}
        for name, array in self._arrays.items():
            columns = array.shape[-1]
            shape = (1, array.nbytes // array.dtype.itemsize // columns, columns)
            self._fields[name] = GuardedMatrix(backend, array.dtype, shape)
            if array.writes:
                self._expected[name] = np.load(self._file(f"{name}.expected"), allow_pickle=False)
                self._flipped[name] = _flipped(self._expected[name], array.dtype)
        self.refresh()

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        return {name: a for name, a in self.problem.arguments if isinstance(a, Array)}

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def refresh(self) -> None:
        """Write all arrays again. Raises `LaunchFailed`, `MemoryError`."""
        for name, array in self._arrays.items():
            if array.reads:
                elements = np.load(self._file(name), allow_pickle=False).view(array.dtype)
                self._fields[name].write(elements.reshape(self._fields[name].shape))
            else:
                self._spoil(name)

    def _spoil(self, name: str) -> None:
        """Write wrong elements, so that one that the kernel does not write is found."""
        self._fields[name].write(self._flipped[name].reshape(self._fields[name].shape))

    def call(self, executable: Executable) -> Call:
        """A launch of `executable` on the arrays. What it reads and writes is restored before it,
        which is not timed.
        """
        launch = self._launch(executable)
        kept = [(name, self._pristine[name]) for name, a in self._arrays.items() if _both(a)]
        if not kept:
            return launch

        def restore() -> None:
            for name, buffer in kept:
                nbytes = self._arrays[name].nbytes
                address = self._fields[name].matrix.address
                self.backend.copy_within(buffer.address, nbytes, address, nbytes, (1, nbytes))

        return TimedCall(launch, restore)

    @cached_property
    def _pristine(self) -> dict:
        """Copies on the device of the arrays that the kernel reads and writes."""
        found = {}
        for name, array in self._arrays.items():
            if _both(array):
                found[name] = self.backend.allocate(array.nbytes)
                found[name].write(np.load(self._file(name), allow_pickle=False))
        return found

    def _launch(self, executable: Executable) -> Callable[[], None]:
        fields = self._fields
        arguments = [
            np.uint64(fields[name].matrix.address) if name in fields else given
            for name, given in self.problem.arguments
        ]
        geometry = executable.config.geometry
        owners = tuple(field.matrix.owner for field in fields.values())
        flops = self.problem.flops
        return executable.bind_arguments(geometry, arguments, owners, None, flops)

    def again(self, executable: Executable) -> Finding:
        """Launch once, and compare every element that it writes. Raises `LaunchFailed`,
        `MemoryError`.
        """
        launch = self._launch(executable)
        for name, array in self._arrays.items():
            if _both(array):
                self._fields[name].restore()
            elif array.writes:
                self._spoil(name)
        launch()
        self.backend.synchronize()
        worst = Finding(0.0)
        for name, expected in self._expected.items():
            values, touched = self._fields[name].read()
            if touched:
                return Finding(np.inf, f"writes {touched} (argument {name})", stray=True)
            values = values.reshape(expected.shape)
            found = compare(name, values, expected, self.problem.rtol, self.problem.atol)
            if not found.right:
                return found
            worst = max(worst, found, key=lambda finding: finding.error)
        return self.untouched() or worst

    def untouched(self) -> Finding | None:
        """A finding if an array that the kernel only reads, or memory around it, was written."""
        for name, array in self._arrays.items():
            if not array.writes and (where := self._fields[name].changed()):
                where = where.replace("the matrix", "the array")
                return Finding(np.inf, f"writes {where} (argument {name})", stray=True)
        return None


def _both(array: Array) -> bool:
    return array.reads and array.writes


def _flipped(expected: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Elements each of which has all bits of the expected one inverted: of a floating-point number
    that changes the sign, and NaN becomes a number.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        written = np.ascontiguousarray(expected).astype(dtype)
    return ~written if dtype.kind == "b" else (~written.view(np.uint8)).view(dtype)


def compare(
    name: str, values: np.ndarray, expected: np.ndarray, rtol: float, atol: float
) -> Finding:
    """Compare every element with the reference: it may differ by atol + rtol |expected|, as in
    `numpy.testing.assert_allclose`; NaN is equal to NaN. The first wrong one is named.
    """
    exact = values.dtype.kind in "biu" and expected.dtype.kind in "biu" and rtol == atol == 0
    if exact:
        ratio = np.where(values == expected, 0.0, np.inf)
    else:
        kind = np.complex128 if "c" in (values.dtype.kind, expected.dtype.kind) else np.float64
        got, wanted = values.astype(kind), expected.astype(kind)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            difference = np.abs(got - wanted)
            ratio = difference / (atol + rtol * np.abs(wanted))
        ratio[np.isnan(ratio)] = np.inf
        ratio[(got == wanted) | (np.isnan(got) & np.isnan(wanted))] = 0
    wrong = ratio > 1
    if not wrong.any():
        return Finding(float(ratio.max()))
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    where = ", ".join(str(int(i)) for i in first)
    return Finding(
        float(ratio.max()),
        f"{int(wrong.sum())} of {wrong.size} elements of {name} wrong; the first is "
        f"{name}[{where}] = {values[first].item()!r} instead of {expected[first].item()!r}",
    )
