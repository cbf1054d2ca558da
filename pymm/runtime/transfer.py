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
from pymm.runtime.arrays import ArraySpec, Operand, adopt, result_maker, view_at
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


def device_spec(spec: ArraySpec, pitched: bool, backend: Backend) -> ArraySpec:
    """A host array's image on the device: row-major stays row-major and column-major column-major,
    rows packed or padded; an axis that is broadcast on the host is broadcast on the device.
    """
    if len(spec.shape) < 2:
        return ArraySpec.packed(spec.shape, spec.dtype)
    by_columns, _ = spec.stored()
    flat = spec.transposed() if by_columns else spec
    *stack, rows, columns = flat.shape
    step = max(columns, 1) * spec.dtype.itemsize
    pitch = backend.row_pitch(step) if pitched else step
    pitch = round_up(pitch, spec.dtype.itemsize)
    strides, step = [], pitch * rows
    for extent, old in zip(reversed(stack), reversed(flat.strides[:-2]), strict=True):
        repeated = old == 0 and extent > 1
        strides.append(0 if repeated else step)
        step *= 1 if repeated else extent
    strides = (*reversed(strides), pitch, spec.dtype.itemsize)
    image = ArraySpec(flat.shape, strides, spec.dtype)
    return image.transposed() if by_columns else image


def footprint(spec: ArraySpec) -> int:
    """Bytes from the first element of an image to the end of its last row's padding."""
    return spec.bounds[1] if spec.size else 0


def upload(
    backend: Backend, array: np.ndarray, address: int, image: ArraySpec, transfer: str, stream: Any
) -> None:
    """Copy a host array to its image on the device at `address`."""
    for matrix, offset, pitch in _pieces(array, image):
        backend.copy_in(matrix, address + offset, pitch, transfer, stream)


def download(
    backend: Backend, address: int, image: ArraySpec, array: np.ndarray, transfer: str, stream: Any
) -> None:
    """Copy an image on the device into a host array; returns when it is there."""
    for matrix, offset, pitch in _pieces(array, image):
        backend.copy_out(address + offset, pitch, matrix, transfer, stream)


def _pieces(array: np.ndarray, image: ArraySpec) -> Iterator[tuple[np.ndarray, int, int]]:
    """The array as matrices with contiguous rows, with the offset and pitch of each one's image."""
    spec = ArraySpec(array.shape, array.strides, array.dtype)
    start = array.__array_interface__["data"][0]
    for here, there, (rows, width), step, pitch in rows_of(spec, image):
        matrix = ArraySpec((rows, width // array.itemsize), (step, array.itemsize), array.dtype)
        yield view_at(start + here, matrix, array), there, pitch


def rows_of(
    spec: ArraySpec, image: ArraySpec
) -> Iterator[tuple[int, int, tuple[int, int], int, int]]:
    """An array and its image, cut into as few matrices with contiguous rows as both allow. For each
    piece: its offsets in the two, (rows, bytes of a row), the distances of rows in the two.
    Offsets and distances are in bytes.
    """
    if not spec.size:
        return
    by_columns = shared_rows(spec, image)
    one, other = (_rows_last(f, by_columns) for f in (spec, image))
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


def _rows_last(spec: ArraySpec, by_columns: bool) -> ArraySpec:
    """An array as matrices of contiguous rows; a vector is one row, a scalar one element."""
    if len(spec.shape) < 2:
        shape, strides = spec.shape or (1,), spec.strides or (spec.dtype.itemsize,)
        return ArraySpec((1, *shape), (spec.nbytes, *strides), spec.dtype)
    return spec.transposed() if by_columns else spec


def shared_rows(spec: ArraySpec, image: ArraySpec) -> bool | None:
    """What is contiguous both in an array and in its image: False for rows, True for columns,
    None for neither.
    """
    for by_columns in (False, True):
        flats = [_rows_last(f, by_columns) for f in (spec, image)]
        if all(f.shape[-1] <= 1 or f.strides[-1] == f.dtype.itemsize for f in flats):
            return by_columns
    return None


def elements(spec: ArraySpec) -> ArraySpec:
    """An array with each element as a row of its own."""
    size = spec.dtype.itemsize
    return ArraySpec((*spec.shape, 1), (*spec.strides, size), spec.dtype)


def copy_across(
    backend: Backend, source: int, spec: ArraySpec, target: int, image: ArraySpec, stream: Any
) -> None:
    """Copy an array on the device to another place there, whatever the strides of both."""
    if shared_rows(spec, image) is None:
        spec, image = elements(spec), elements(image)
    for here, there, shape, step, pitch in rows_of(spec, image):
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
    """How the operands of one call reach its launches. Making one touches no memory. `specs` are
    a, b and the result as the launches find them; `notes` says in words what is copied.
    """

    def __init__(self, backend: Backend, call: Call) -> None:
        self.backend, self.call = backend, call
        self.copies = self._copies()
        self.specs = (self._spec(call.a), self._spec(call.b), self._out_spec())

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each copy."""
        return tuple(f"{name} is copied: {why}" for name, why in self.copies.items())

    @abstractmethod
    def place(self, stream: Any) -> PlacedOperands:
        """Allocate what is needed. Raises `MemoryError`."""

    def _copies(self) -> dict[str, str]:
        return self.call.copies

    def _spec(self, operand: Operand) -> ArraySpec:
        if operand.name in self.copies:
            return ArraySpec.packed(operand.spec.shape, self.call.dtype_of(operand))
        return operand.spec

    @property
    def _bias_spec(self) -> ArraySpec:
        """The bias as the launches find it: contiguous."""
        bias = self.call.bias
        return ArraySpec.packed(bias.spec.shape, self.call.dtype_of(bias))

    def _out_spec(self) -> ArraySpec:
        if self.call.out is not None:
            return self._spec(self.call.out)
        return ArraySpec.packed(self.call.shape, self.call.out_dtype)


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
        copy = np.empty(operand.spec.shape, self.call.dtype_of(operand))
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
        for operand, spec in zip(factors, self.specs, strict=False):
            notes.append(f"{operand.name}: {spec.nbytes} bytes to the device, {self._mode(spec)}")
        out = self.specs[2]
        if self.call.reads_c:
            notes.append(f"c: {out.nbytes} bytes to the device, {self._mode(out)}")
        if self.call.bias is not None:
            spec = self._bias_spec
            notes.append(f"bias: {spec.nbytes} bytes to the device, {self._mode(spec)}")
        notes.append(f"out: {out.nbytes} bytes to the host, {self._mode(out)}")
        return super().notes + tuple(notes)

    def place(self, stream: Any) -> PlacedOperands:
        """Device memory for a, b and the result; c is transferred to that of the result."""
        call, before = self.call, []
        bias = None
        if call.bias is not None:
            buffer = self._image(call.bias, self._bias_spec, before, stream)
            bias = Vector(buffer.address, call.bias.spec.size, buffer)
        a = self._image(call.a, self.specs[0], before, stream)
        b = a if call.b.is_at(call.a) else self._image(call.b, self.specs[1], before, stream)
        image = self.specs[2]
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
                if shared_rows(operand.spec, operand.spec) is None:
                    copies[operand.name] = "elements of a vector are packed for the transfer"
        return copies

    def _spec(self, operand: Operand) -> ArraySpec:
        spec = super()._spec(operand)
        return device_spec(spec, self._mode(spec).pitched, self.backend)

    def _out_spec(self) -> ArraySpec:
        spec = super()._out_spec()
        return spec if self.call.out else device_spec(spec, self._mode(spec).pitched, self.backend)

    def _mode(self, spec: ArraySpec) -> TransferMode:
        return self.mode.for_size(spec.nbytes)

    def _image(self, operand: Operand, image: ArraySpec, before: list[Step], stream: Any) -> Any:
        buffer = self.backend.allocate(max(footprint(image), 1))
        host = self._host(operand, image, before)
        transfer = self._mode(image).transfer
        before.append(partial(upload, self.backend, host, buffer.address, image, transfer, stream))
        return buffer

    def _host(self, operand: Operand, image: ArraySpec, before: list[Step]) -> np.ndarray:
        """What is transferred: the operand, or a copy in the dtype and order of its image."""
        fits = operand.spec.dtype == image.dtype and operand.aligned
        if (
            fits
            and operand.name not in self.copies
            and shared_rows(operand.spec, image) is not None
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
            place, owner = self._source(call.bias, self._bias_spec, before, first)
            bias = Vector(place, call.bias.spec.size, owner)
        a = self._source(call.a, self.specs[0], before, first)
        b = a if call.b is call.a else self._source(call.b, self.specs[1], before, first)
        address, buffer, spec = target.address, None, self.specs[2]
        if "out" in self.copies:
            buffer = backend.allocate(max(footprint(spec), 1))
            address = buffer.address
            after.append(
                partial(copy_across, backend, address, spec, target.address, target.spec, first)
            )
        if "c" in self.copies:
            before.append(
                partial(copy_across, backend, call.c.address, call.c.spec, address, spec, first)
            )
        if stream is None and target.stream is None and first is not None:
            after.append(partial(backend.order, first, backend.stream(None)))
        addresses = (a[0], b[0], address)
        owners = (a, b, buffer, [(x.owner, x.held) for x in call.operands])
        return PlacedOperands(addresses, first, tuple(before), tuple(after), result, owners, bias)

    def _copies(self) -> dict[str, str]:
        for operand in self.call.operands:
            wanted = self.call.dtype_of(operand)
            if operand.spec.dtype != wanted:
                raise NotImplementedError(
                    f"{operand.name} is {operand.spec.dtype} and the product {wanted}: "
                    f"pymm does not convert arrays on a device; convert {operand.name} first"
                )
        return self.call.copies

    def _result(self) -> Any:
        call = self.call
        if call.out is not None:
            return call.out.owner
        make = result_maker(call.a, call.shape, call.out_dtype, self.backend.empty)
        return make(call.a.owner)

    def _source(self, operand: Operand, spec: ArraySpec, before: list[Step], stream: Any) -> tuple:
        if operand.name not in self.copies:
            return operand.address, operand.owner
        buffer = self.backend.allocate(max(footprint(spec), 1))
        before.append(
            partial(
                copy_across,
                self.backend,
                operand.address,
                operand.spec,
                buffer.address,
                spec,
                stream,
            )
        )
        return buffer.address, buffer
