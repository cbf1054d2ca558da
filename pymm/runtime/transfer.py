"""How operands reach the device: used in place, copied on the device, or transferred from and to
the host by as few two-dimensional copies as possible.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pymm.backends.base import TRANSFERS, Backend, Vector
from pymm.core.integers import round_up
from pymm.runtime.arguments import Call
from pymm.runtime.arrays import Form, Operand, adopt, result_maker, view_at
from pymm.runtime.layout import merge_axes

#: Operands of this many bytes or more go through page-locked staging memory, which several threads
#: fill. To an H200, in GB/s, pageable, staged and registered in place: 1 MiB 11, 7, 5; 16 MiB 17,
#: 16, 15; 256 MiB 10, 21, 19. So registering is never chosen by size. Neither are padded rows,
#: which are transferred and multiplied as fast as packed ones.
PINNED_FROM = 64 * 1024 * 1024


@dataclass(frozen=True)
class TransferMode:
    """How host memory is transferred: one of `TRANSFERS`, to rows on the device that are padded
    (`pitched`) or packed. None means chosen by size.
    """

    transfer: str | None = None
    pitched: bool | None = None

    @classmethod
    def parse(cls, text: str | None) -> TransferMode:
        """From `pageable`, `pinned` or `registered`, with or without `+pitched`; None chooses all
        by size. `ValueError` for anything else.
        """
        if text is None:
            return cls()
        transfer, _, rows = str(text).partition("+")
        if transfer not in TRANSFERS or text not in (transfer, f"{transfer}+pitched"):
            known = ", ".join(TRANSFERS)
            raise ValueError(f"transfer={text!r} is none of {known}, with or without +pitched")
        return cls(transfer, rows == "pitched")

    def for_size(self, nbytes: int) -> TransferMode:
        """This mode for an array of `nbytes` bytes, with nothing left to choose."""
        transfer = self.transfer
        if transfer is None:
            transfer = "pageable" if nbytes < PINNED_FROM else "pinned"
        return TransferMode(transfer, bool(self.pitched))

    def __str__(self) -> str:
        return f"{self.transfer}, {'pitched' if self.pitched else 'packed'} rows"


def device_form(form: Form, pitched: bool, backend: Backend) -> Form:
    """The form of a host array's image on the device: row-major stays row-major and column-major
    column-major, rows packed or padded; an axis that is broadcast on the host is broadcast on the
    device.
    """
    if len(form.shape) < 2:
        return Form.packed(form.shape, form.dtype)
    by_columns, _ = form.stored()
    flat = form.transposed() if by_columns else form
    *stack, rows, columns = flat.shape
    step = max(columns, 1) * form.dtype.itemsize
    pitch = backend.row_pitch(step) if pitched else step
    pitch = round_up(pitch, form.dtype.itemsize)
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
    """The array as matrices with contiguous rows, with the offset and pitch of each one's image."""
    form = Form(array.shape, array.strides, array.dtype)
    start = array.__array_interface__["data"][0]
    for here, there, (rows, width), step, pitch in rows_of(form, image):
        matrix = Form((rows, width // array.itemsize), (step, array.itemsize), array.dtype)
        yield view_at(start + here, matrix, array), there, pitch


def rows_of(form: Form, image: Form) -> Iterator[tuple[int, int, tuple[int, int], int, int]]:
    """Two forms of one array, cut into as few matrices with contiguous rows as both allow. For each
    piece: its offsets in the two forms, (rows, bytes of a row), the distances of rows in the two.
    Offsets and distances are in bytes.
    """
    if not form.size:
        return
    by_columns = shared_rows(form, image)
    one, other = (_rows_last(f, by_columns) for f in (form, image))
    width = one.shape[-1] * one.dtype.itemsize
    axes = list(zip(one.shape[:-1], one.strides[:-1], other.strides[:-1], strict=True))
    axes = merge_axes([axis for axis in axes if axis[2] != 0])
    rows, step, pitch = axes[-1] if axes else (1, width, width)
    if min(step, pitch) < width:  # overlapping or reversed: one row at a time
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
    """What is contiguous in both forms of an array: False for its rows, True for its columns, None
    for neither.
    """
    for by_columns in (False, True):
        flats = [_rows_last(f, by_columns) for f in (form, image)]
        if all(f.shape[-1] <= 1 or f.strides[-1] == f.dtype.itemsize for f in flats):
            return by_columns
    return None


def elements(form: Form) -> Form:
    """The form with each element as a row of its own."""
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


Step = Callable[[], None]


@dataclass(frozen=True)
class PlacedOperands:
    """The operands of a call in memory that its kernels can use: `addresses` of a, b and the result
    there, the bias, the stream to launch on, the steps `before` and `after` the launches, and the
    array to return. `owners` are what keeps the memory alive.
    """

    addresses: tuple[int, int, int]
    stream: Any
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    result: Any
    owners: tuple[Any, ...]
    bias: Vector | None = None


class Route(ABC):
    """How the operands of one call reach its launches. Making one touches no memory. `forms` are
    those of a, b and the result as the launches find them; `notes` says in words what is copied.
    """

    def __init__(self, backend: Backend, call: Call) -> None:
        self.backend, self.call = backend, call
        self.copies = self._copies()
        self.forms = (self._form(call.a), self._form(call.b), self._out_form())

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each copy."""
        return tuple(f"{name} is copied: {why}" for name, why in self.copies.items())

    @abstractmethod
    def place(self, stream: Any) -> PlacedOperands:
        """Allocate what is needed. Raises `MemoryError`."""

    def _copies(self) -> dict[str, str]:
        return self.call.copies

    def _form(self, operand: Operand) -> Form:
        if operand.name in self.copies:
            return Form.packed(operand.form.shape, self.call.dtype_of(operand))
        return operand.form

    @property
    def _bias_form(self) -> Form:
        """The bias as the launches find it: contiguous."""
        bias = self.call.bias
        return Form.packed(bias.form.shape, self.call.dtype_of(bias))

    def _out_form(self) -> Form:
        if self.call.out is not None:
            return self._form(self.call.out)
        return Form.packed(self.call.shape, self.call.out_dtype)


class InPlace(Route):
    """NumPy arrays on the CPU: used in place, or copied by NumPy."""

    def place(self, stream: Any) -> PlacedOperands:
        """Copies are in host memory; work is done by the calling thread."""
        call, before, after = self.call, [], []
        bias = None if call.bias is None else self._source(call.bias, before)
        a = self._source(call.a, before)
        b = a if call.b is call.a else self._source(call.b, before)
        if call.out is None:
            target = result = np.empty(call.shape, call.out_dtype)
        else:
            target = result = call.out.owner
            if "out" in self.copies:
                target = np.empty(call.shape, call.out_dtype)
                after.append(partial(np.copyto, result, target, casting="unsafe"))
        if "c" in self.copies:
            before.append(partial(np.copyto, target, call.c.owner, casting="unsafe"))
        addresses = tuple(x.__array_interface__["data"][0] for x in (a, b, target))
        if bias is not None:
            bias = Vector(bias.__array_interface__["data"][0], bias.size, bias)
        stream, owners = self.backend.stream(stream), (a, b, target)
        return PlacedOperands(addresses, stream, tuple(before), tuple(after), result, owners, bias)

    def _source(self, operand: Operand, before: list[Step]) -> np.ndarray:
        if operand.name not in self.copies:
            return operand.owner
        copy = np.empty(operand.form.shape, self.call.dtype_of(operand))
        before.append(partial(np.copyto, copy, operand.owner, casting="unsafe"))
        return copy


class StagedRoute(Route):
    """NumPy arrays and a GPU: operands to the device, the result back."""

    def __init__(self, backend: Backend, call: Call, mode: TransferMode) -> None:
        self.mode = mode
        super().__init__(backend, call)

    @property
    def notes(self) -> tuple[str, ...]:
        """Conversions on the host, then the transfers."""
        notes = []
        factors = (self.call.a,) if self.call.b is self.call.a else (self.call.a, self.call.b)
        for operand, form in zip(factors, self.forms, strict=False):
            notes.append(f"{operand.name}: {form.nbytes} bytes to the device, {self._mode(form)}")
        out = self.forms[2]
        if self.call.reads_c:
            notes.append(f"c: {out.nbytes} bytes to the device, {self._mode(out)}")
        if self.call.bias is not None:
            form = self._bias_form
            notes.append(f"bias: {form.nbytes} bytes to the device, {self._mode(form)}")
        notes.append(f"out: {out.nbytes} bytes to the host, {self._mode(out)}")
        return super().notes + tuple(notes)

    def place(self, stream: Any) -> PlacedOperands:
        """Device memory for a, b and the result; c is transferred to that of the result."""
        call, before = self.call, []
        bias = None
        if call.bias is not None:
            buffer = self._image(call.bias, self._bias_form, before, stream)
            bias = Vector(buffer.address, call.bias.form.size, buffer)
        a = self._image(call.a, self.forms[0], before, stream)
        b = a if call.b.is_at(call.a) else self._image(call.b, self.forms[1], before, stream)
        image = self.forms[2]
        target = self.backend.allocate(max(footprint(image), 1))
        mode = self._mode(image)
        if call.reads_c:
            host = self._host(call.c, image, before)
            before.append(
                partial(upload, self.backend, host, target.address, image, mode.transfer, stream)
            )
        result = call.out.owner if call.out else np.empty(call.shape, call.out_dtype)
        host = np.empty(call.shape, call.out_dtype) if "out" in self.copies else result
        after = [
            partial(download, self.backend, target.address, image, host, mode.transfer, stream)
        ]
        if host is not result:
            after.append(partial(np.copyto, result, host, casting="unsafe"))
        addresses, owners = (a.address, b.address, target.address), (a, b, target)
        return PlacedOperands(addresses, stream, tuple(before), tuple(after), result, owners, bias)

    def _copies(self) -> dict[str, str]:
        copies = dict(self.call.needs_copy)
        for operand in (self.call.a, self.call.b, self.call.out):
            if operand is not None and operand.name not in copies:
                if shared_rows(operand.form, operand.form) is None:
                    copies[operand.name] = "elements of a vector are packed for the transfer"
        return copies

    def _form(self, operand: Operand) -> Form:
        form = super()._form(operand)
        return device_form(form, self._mode(form).pitched, self.backend)

    def _out_form(self) -> Form:
        form = super()._out_form()
        return form if self.call.out else device_form(form, self._mode(form).pitched, self.backend)

    def _mode(self, form: Form) -> TransferMode:
        return self.mode.for_size(form.nbytes)

    def _image(self, operand: Operand, image: Form, before: list[Step], stream: Any) -> Any:
        buffer = self.backend.allocate(max(footprint(image), 1))
        host = self._host(operand, image, before)
        transfer = self._mode(image).transfer
        before.append(partial(upload, self.backend, host, buffer.address, image, transfer, stream))
        return buffer

    def _host(self, operand: Operand, image: Form, before: list[Step]) -> np.ndarray:
        """What is transferred: the operand, or a copy in the dtype and order of its image."""
        fits = operand.form.dtype == image.dtype and operand.aligned
        if (
            fits
            and operand.name not in self.copies
            and shared_rows(operand.form, image) is not None
        ):
            return operand.owner
        by_columns = len(image.shape) > 1 and image.stored()[0]
        shape = image.transposed().shape if by_columns else image.shape
        copy = np.empty(shape, image.dtype)
        copy = copy.swapaxes(-1, -2) if by_columns else copy
        before.append(partial(np.copyto, copy, operand.owner, casting="unsafe"))
        return copy


class OnDevice(Route):
    """Arrays on a device: used in place, or copied there; ordered by streams, without waiting."""

    def place(self, stream: Any) -> PlacedOperands:
        """The launches go to `stream`, else to the stream of the first operand that names one."""
        call, backend = self.call, self.backend
        result = self._result()
        target = call.out or adopt(result, "out")
        streams = [x.stream for x in (target, *call.operands) if x.stream is not None]
        first = stream if stream is not None else backend.stream(streams[0] if streams else None)
        others = dict.fromkeys(streams if stream is not None else streams[1:])
        before: list[Step] = [
            partial(backend.order, backend.stream(other), first)
            for other in others
            if stream is not None or other != streams[0]
        ]
        after: list[Step] = []
        bias = None
        if call.bias is not None:
            place, owner = self._source(call.bias, self._bias_form, before, first)
            bias = Vector(place, call.bias.form.size, owner)
        a = self._source(call.a, self.forms[0], before, first)
        b = a if call.b is call.a else self._source(call.b, self.forms[1], before, first)
        address, buffer, form = target.address, None, self.forms[2]
        if "out" in self.copies:
            buffer = backend.allocate(max(footprint(form), 1))
            address = buffer.address
            after.append(
                partial(copy_across, backend, address, form, target.address, target.form, first)
            )
        if "c" in self.copies:
            before.append(
                partial(copy_across, backend, call.c.address, call.c.form, address, form, first)
            )
        if stream is None and target.stream is None and first is not None:
            after.append(partial(backend.order, first, backend.stream(None)))
        addresses = (a[0], b[0], address)
        owners = (a, b, buffer, [(x.owner, x.held) for x in call.operands])
        return PlacedOperands(addresses, first, tuple(before), tuple(after), result, owners, bias)

    def _copies(self) -> dict[str, str]:
        for operand in self.call.operands:
            wanted = self.call.dtype_of(operand)
            if operand.form.dtype != wanted:
                raise NotImplementedError(
                    f"{operand.name} is {operand.form.dtype} and the product {wanted}: "
                    f"pymm does not convert arrays on a device; convert {operand.name} first"
                )
        return self.call.copies

    def _result(self) -> Any:
        call = self.call
        if call.out is not None:
            return call.out.owner
        make = result_maker(call.a, call.shape, call.out_dtype, self.backend.empty)
        return make(call.a.owner)

    def _source(self, operand: Operand, form: Form, before: list[Step], stream: Any) -> tuple:
        if operand.name not in self.copies:
            return operand.address, operand.owner
        buffer = self.backend.allocate(max(footprint(form), 1))
        before.append(
            partial(
                copy_across,
                self.backend,
                operand.address,
                operand.form,
                buffer.address,
                form,
                stream,
            )
        )
        return buffer.address, buffer
