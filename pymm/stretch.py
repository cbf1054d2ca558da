"""A long row of numbers on the device that the matrices of many problems are cut from."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymm.backends.base import Backend, Matrix


class Stretch:
    """A long row of numbers on the device, `pattern` again and again."""

    def __init__(self, backend: Backend, pattern: np.ndarray, count: int) -> None:
        self.pattern, self.count = pattern, count
        size = pattern.itemsize
        self.buffer = backend.allocate(max(count, pattern.size) * size)
        self.buffer.write(pattern.view(np.uint8))  # bfloat16 has no buffer of its own
        address, done = self.buffer.address, pattern.size
        while done < count:  # each copy doubles what is there
            more = min(done, count - done)
            nbytes = more * size
            backend.copy_within(address, nbytes, address + done * size, nbytes, (1, nbytes))
            done += more
        backend.synchronize()

    def matrix(self, shape: tuple[int, int, int]) -> Matrix:
        """Dense matrices (batch, rows, columns) from the start of the stretch on."""
        _, rows, columns = shape
        return Matrix(self.buffer.address, columns, rows * columns, owner=self.buffer)

    def values(self, shape: tuple[int, int, int], rows: Any = None, columns: Any = None) -> Any:
        """The same on the host; of each matrix all rows and columns, or those named."""
        batch, height, width = shape
        if rows is None and columns is None:
            return np.resize(self.pattern, batch * height * width).reshape(shape)
        rows = np.arange(height) if rows is None else rows
        columns = np.arange(width) if columns is None else columns
        first = np.arange(batch)[:, None, None] * height + rows[:, None]
        return self.pattern[(first * width + columns) % self.pattern.size]
