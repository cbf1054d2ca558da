"""Matrices of host arrays on their way to a device and back: which way they take, in which form
they lie there, and the fewest two-dimensional copies that bring them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymm.arrays import Form, view_at
from pymm.backends.base import TRANSFERS, Backend
from pymm.product import merge_axes

#: Bytes from which an operand goes through page-locked staging, copied there by several threads.
#: To an H200, in GB/s, pageable, staged and registered in place: 1 MiB 11, 7, 5; 16 MiB 17, 16, 15;
#: 256 MiB 10, 21, 19. So registering is never chosen by size, and neither are padded rows, which
#: travel and multiply as fast as packed ones.
PINNED_FROM = 64 * 1024 * 1024


@dataclass(frozen=True)
class Way:
    """How host memory travels: one of `TRANSFERS`, to rows on the device that are padded
    ("pitched") or packed. None means chosen by size.
    """

    transfer: str | None = None
    pitched: bool | None = None

    @classmethod
    def parse(cls, text: str | None) -> Way:
        """`pageable`, `pinned` or `registered`, then perhaps `+pitched`; None leaves all to the
        sizes. `ValueError` for anything else.
        """
        if text is None:
            return cls()
        transfer, _, rows = str(text).partition("+")
        if transfer not in TRANSFERS or text not in (transfer, f"{transfer}+pitched"):
            known = ", ".join(TRANSFERS)
            raise ValueError(f"transfer={text!r} is none of {known}, with or without +pitched")
        return cls(transfer, rows == "pitched")

    def for_size(self, nbytes: int) -> Way:
        """What it comes to for an array of so many bytes."""
        transfer = self.transfer
        if transfer is None:
            transfer = "pageable" if nbytes < PINNED_FROM else "pinned"
        return Way(transfer, bool(self.pitched))

    def __str__(self) -> str:
        return f"{self.transfer}, {'pitched' if self.pitched else 'packed'} rows"


def device_form(form: Form, pitched: bool, backend: Backend) -> Form:
    """The form of a host array's image on the device: rows stay rows and columns columns, packed
    or padded; what is broadcast on the host is so on the device.
    """
    if len(form.shape) < 2:
        return Form.packed(form.shape, form.dtype)
    by_columns, _ = form.stored()
    flat = form.transposed() if by_columns else form
    *stack, rows, columns = flat.shape
    step = max(columns, 1) * form.dtype.itemsize
    pitch = backend.row_pitch(step) if pitched else step
    pitch = -(-pitch // form.dtype.itemsize) * form.dtype.itemsize
    strides, step = [], pitch * rows
    for extent, old in zip(reversed(stack), reversed(flat.strides[:-2]), strict=True):
        repeated = old == 0 and extent > 1
        strides.append(0 if repeated else step)
        step *= 1 if repeated else extent
    strides = (*reversed(strides), pitch, form.dtype.itemsize)
    image = Form(flat.shape, strides, form.dtype)
    return image.transposed() if by_columns else image


def footprint(form: Form) -> int:
    """Bytes from the first element of an image to the end of its last row's padding."""
    return form.bounds[1] if form.size else 0


def upload(
    backend: Backend, array: np.ndarray, address: int, image: Form, transfer: str, stream: Any
) -> None:
    """Copy a host array to its image on the device at `address`."""
    for matrix, offset, pitch in _pieces(array, image):
        backend.copy_in(matrix, address + offset, pitch, transfer, stream)


def download(
    backend: Backend, address: int, image: Form, array: np.ndarray, transfer: str, stream: Any
) -> None:
    """Copy an image on the device into a host array; returns when it is there."""
    for matrix, offset, pitch in _pieces(array, image):
        backend.copy_out(address + offset, pitch, matrix, transfer, stream)


def _pieces(array: np.ndarray, image: Form) -> Iterator[tuple[np.ndarray, int, int]]:
    """The array as matrices of neighbouring elements, with the place and pitch of each image."""
    form = Form(array.shape, array.strides, array.dtype)
    start = array.__array_interface__["data"][0]
    for here, there, (rows, width), step, pitch in rows_of(form, image):
        place = Form((rows, width // array.itemsize), (step, array.itemsize), array.dtype)
        yield view_at(start + here, place, array), there, pitch


def rows_of(form: Form, image: Form) -> Iterator[tuple[int, int, tuple[int, int], int, int]]:
    """Two forms of one array walked through together, in as few pieces as both allow: offset of
    the piece in each, its rows and their bytes, distance of rows in each.
    """
    if not form.size:
        return
    by_columns = shared_rows(form, image)
    one, other = (_rows_last(f, by_columns) for f in (form, image))
    width = one.shape[-1] * one.dtype.itemsize
    axes = list(zip(one.shape[:-1], one.strides[:-1], other.strides[:-1], strict=True))
    axes = merge_axes([axis for axis in axes if axis[2] != 0])
    rows, step, pitch = axes[-1] if axes else (1, width, width)
    if min(step, pitch) < width:  # rows that overlap or run backwards go one by one
        rows, step, pitch = 1, width, width
    elif axes:
        axes.pop()
    for index in itertools.product(*(range(extent) for extent, _, _ in axes)):
        here = sum(i * axis[1] for i, axis in zip(index, axes, strict=True))
        there = sum(i * axis[2] for i, axis in zip(index, axes, strict=True))
        yield here, there, (rows, width), step, pitch


def _rows_last(form: Form, by_columns: bool) -> Form:
    """The form as matrices of contiguous rows; a vector is one row, a scalar one element."""
    if len(form.shape) < 2:
        shape, strides = form.shape or (1,), form.strides or (form.dtype.itemsize,)
        return Form((1, *shape), (form.nbytes, *strides), form.dtype)
    return form.transposed() if by_columns else form


def shared_rows(form: Form, image: Form) -> bool | None:
    """Which lines are contiguous in both forms of an array: False for its rows, True for its
    columns, None for neither.
    """
    for by_columns in (False, True):
        flats = [_rows_last(f, by_columns) for f in (form, image)]
        if all(f.shape[-1] <= 1 or f.strides[-1] == f.dtype.itemsize for f in flats):
            return by_columns
    return None


def elements(form: Form) -> Form:
    """The form with every element a row of its own."""
    size = form.dtype.itemsize
    return Form((*form.shape, 1), (*form.strides, size), form.dtype)


def copy_across(
    backend: Backend, source: int, form: Form, target: int, image: Form, stream: Any
) -> None:
    """Copy an array on the device to another place there, whatever the strides of both."""
    if shared_rows(form, image) is None:
        form, image = elements(form), elements(image)
    for here, there, shape, step, pitch in rows_of(form, image):
        backend.copy_within(source + here, step, target + there, pitch, shape, stream)
