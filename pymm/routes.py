"""What happens to the operands of a call before and after its launches: nothing, a copy beside
them, or a journey to the device and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pymm.arrays import Form, Operand, adopt, result_maker
from pymm.backends.base import Backend
from pymm.call import Call
from pymm.transfer import (
    Way,
    copy_across,
    device_form,
    download,
    footprint,
    shared_rows,
    upload,
)

Step = Callable[[], None]


@dataclass(frozen=True)
class Opened:
    """Memory taken: addresses of a, b and the place of the result, the stream to launch on, what
    to do before and after the launches, and the array to hand back. `kept` must outlive the work.
    """

    addresses: tuple[int, int, int]
    stream: Any
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    result: Any
    kept: tuple[Any, ...]


class Route(ABC):
    """How the operands of one call reach its launches. Making one touches no memory: `forms` are
    those that a, b and the result will have, `notes` says in words what will be copied.
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
    def open(self, stream: Any) -> Opened:
        """Take the memory, and say what to do with it. Raises `MemoryError`."""

    def _copies(self) -> dict[str, str]:
        return self.call.copies

    def _form(self, operand: Operand) -> Form:
        if operand.name in self.copies:
            return Form.packed(operand.form.shape, self.call.dtype_of(operand))
        return operand.form

    def _out_form(self) -> Form:
        if self.call.out is not None:
            return self._form(self.call.out)
        return Form.packed(self.call.shape, self.call.out_dtype)


class InPlace(Route):
    """NumPy arrays on the CPU: used as they lie, or copied by NumPy."""

    def open(self, stream: Any) -> Opened:
        """Copies are host memory; there is no stream but the calling thread."""
        call, before, after = self.call, [], []
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
        stream = self.backend.stream(stream)
        return Opened(addresses, stream, tuple(before), tuple(after), result, (a, b, target))

    def _source(self, operand: Operand, before: list[Step]) -> np.ndarray:
        if operand.name not in self.copies:
            return operand.owner
        copy = np.empty(operand.form.shape, self.call.dtype)
        before.append(partial(np.copyto, copy, operand.owner, casting="unsafe"))
        return copy


class Across(Route):
    """NumPy arrays on a GPU: to the device, and the result back."""

    def __init__(self, backend: Backend, call: Call, way: Way) -> None:
        self.way = way
        super().__init__(backend, call)

    @property
    def notes(self) -> tuple[str, ...]:
        """Conversions on the host, then what travels and how."""
        journeys = []
        factors = (self.call.a,) if self.call.b is self.call.a else (self.call.a, self.call.b)
        for operand, form in zip(factors, self.forms, strict=False):
            journeys.append(f"{operand.name}: {form.nbytes} bytes to the device, {self._way(form)}")
        out = self.forms[2]
        if self.call.reads_c:
            journeys.append(f"c: {out.nbytes} bytes to the device, {self._way(out)}")
        journeys.append(f"out: {out.nbytes} bytes to the host, {self._way(out)}")
        return super().notes + tuple(journeys)

    def open(self, stream: Any) -> Opened:
        """Device memory for all three; c travels to the place of the result."""
        call, before = self.call, []
        a = self._image(call.a, self.forms[0], before, stream)
        b = a if call.b.is_at(call.a) else self._image(call.b, self.forms[1], before, stream)
        image = self.forms[2]
        target = self.backend.allocate(max(footprint(image), 1))
        way = self._way(image)
        if call.reads_c:
            host = self._host(call.c, image, before)
            before.append(partial(upload, self.backend, host, target.address, image,
                                  way.transfer, stream))  # fmt: skip
        result = call.out.owner if call.out else np.empty(call.shape, call.out_dtype)
        host = np.empty(call.shape, call.out_dtype) if "out" in self.copies else result
        after = [partial(download, self.backend, target.address, image, host, way.transfer, stream)]
        if host is not result:
            after.append(partial(np.copyto, result, host, casting="unsafe"))
        addresses = (a.address, b.address, target.address)
        return Opened(addresses, stream, tuple(before), tuple(after), result, (a, b, target))

    def _copies(self) -> dict[str, str]:
        copies = dict(self.call.misfits)
        for operand in (self.call.a, self.call.b, self.call.out):
            if operand is not None and operand.name not in copies:
                if shared_rows(operand.form, operand.form) is None:
                    copies[operand.name] = "elements of a vector are packed for the journey"
        return copies

    def _form(self, operand: Operand) -> Form:
        form = super()._form(operand)
        return device_form(form, self._way(form).pitched, self.backend)

    def _out_form(self) -> Form:
        form = super()._out_form()
        return form if self.call.out else device_form(form, self._way(form).pitched, self.backend)

    def _way(self, form: Form) -> Way:
        return self.way.for_size(form.nbytes)

    def _image(self, operand: Operand, image: Form, before: list[Step], stream: Any) -> Any:
        buffer = self.backend.allocate(max(footprint(image), 1))
        host = self._host(operand, image, before)
        transfer = self._way(image).transfer
        before.append(partial(upload, self.backend, host, buffer.address, image, transfer, stream))
        return buffer

    def _host(self, operand: Operand, image: Form, before: list[Step]) -> np.ndarray:
        """The operand as it can travel: itself, or a copy in the type and order of its image."""
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
    """Arrays of a device: used as they lie, or copied there; ordered by streams alone."""

    def open(self, stream: Any) -> Opened:
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
        a = self._source(call.a, self.forms[0], before, first)
        b = a if call.b is call.a else self._source(call.b, self.forms[1], before, first)
        place, kept = target.address, None
        if "out" in self.copies:
            kept = backend.allocate(max(footprint(self.forms[2]), 1))
            place = kept.address
            after.append(partial(copy_across, backend, place, self.forms[2], target.address,
                                 target.form, first))  # fmt: skip
        if "c" in self.copies:
            before.append(partial(copy_across, backend, call.c.address, call.c.form, place,
                                  self.forms[2], first))  # fmt: skip
        if stream is None and target.stream is None and first is not None:
            after.append(partial(backend.order, first, backend.stream(None)))
        addresses = (a[0], b[0], place)
        owners = (a, b, kept, [operand.owner for operand in call.operands])
        return Opened(addresses, first, tuple(before), tuple(after), result, owners)

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
        before.append(partial(copy_across, self.backend, operand.address, operand.form,
                              buffer.address, form, stream))  # fmt: skip
        return buffer.address, buffer
