"""A long row of numbers on the device that the matrices of many problems are cut from."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymm.backends.base import Backend, Matrix


class Stretch:
    """A long row of numbers on the device, `pattern` again and again.

    Matrices begin `guard` bytes after its start and end as many before its end: the numbers around
    them are guard zones, since all of the row is known and `intact` looks at all of it.
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
        """What the row begins with: the matrices' first element is the pattern's."""
        return np.roll(self.pattern, self._lead)

    def fill(self) -> None:
        """Write all numbers."""
        size = self.pattern.itemsize
        self.buffer.write(self._head.view(np.uint8))  # bfloat16 has no buffer of its own
        address, done = self.buffer.address, self.pattern.size
        while done < self._total:  # each copy doubles what is there
            nbytes = min(done, self._total - done) * size
            self.backend.copy_within(address, nbytes, address + done * size, nbytes, (1, nbytes))
            done += nbytes // size
        self.backend.synchronize()

    def intact(self, torch: Any = None) -> bool:
        """Whether every number is as it was written. With PyTorch only the first period comes to
        the host: on the device the row is compared with itself, a period apart.
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

    def values(self, shape: tuple[int, int, int], rows: Any = None, columns: Any = None) -> Any:
        """The same on the host; of each matrix all rows and columns, or those named."""
        batch, height, width = shape
        if rows is None and columns is None:
            return np.resize(self.pattern, batch * height * width).reshape(shape)
        rows = np.arange(height) if rows is None else rows
        columns = np.arange(width) if columns is None else columns
        first = np.arange(batch)[:, None, None] * height + rows[:, None]
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
