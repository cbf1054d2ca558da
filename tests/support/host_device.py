"""A device whose memory is the host's and whose kernel is NumPy: everything of a backend but the
machine. Its memory has guard zones and says when it is given back.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np

from pymm.backends.base import Backend, Buffer, Compiler, Executable, Resources
from pymm.core.device import Device
from pymm.core.epilogue import NO_EPILOGUE
from pymm.core.errors import LaunchFailed
from pymm.core.reference import ACTIVATED, computed, mirrored
from pymm.runtime.arrays import ArraySpec, view_at

GUARD = 64  # bytes on either side
FILL = 0xA5


class HostBuffer(Buffer):
    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.memory = np.full(nbytes + 2 * GUARD, FILL, np.uint8)
        self.address = self.memory.ctypes.data + GUARD

    def intact(self):
        return (self.memory[:GUARD] == FILL).all() and (self.memory[-GUARD:] == FILL).all()

    def write(self, array):
        self.memory[GUARD : GUARD + array.nbytes] = array.reshape(-1).view(np.uint8)

    def read(self, array, offset=0):
        start = GUARD + offset
        array.reshape(-1).view(np.uint8)[:] = self.memory[start : start + array.nbytes]

    def fill(self, byte):
        self.memory[GUARD:-GUARD] = byte


class CudaArray:
    """Any library's array on a device: the interface and nothing else."""

    def __init__(self, array, stream=None, version=3, readonly=False):
        self.array = array
        self.__cuda_array_interface__ = dict(
            data=(array.__array_interface__["data"][0], readonly),
            shape=array.shape,
            strides=array.strides,
            typestr=array.dtype.str,
            stream=stream,
            version=version,
        )


class NumpyKernel(Executable):
    def __init__(self, backend, config, epilogue=NO_EPILOGUE):
        self.backend, self.config, self.resources = backend, config, Resources(registers=32)
        self.epilogue = epilogue

    def finished(self, total, bias):
        if self.epilogue.bias is not None:
            assert bias.length == total.shape[1 if self.epilogue.down else 2]
            spec = ArraySpec.packed((bias.length,), self.epilogue.bias)
            row = view_at(bias.address, spec, None).astype(total.dtype)
            total = total + (row[:, None] if self.epilogue.down else row)
        return ACTIVATED[self.epilogue.activation](total)

    def bind(self, problem, alpha, a, b, beta, c, stream=None, bias=None):
        p, sums = problem, problem.scalar_dtype.type
        assert not p.empty

        def matrix(place, rows, columns, dtype=p.numpy_dtype):
            size = dtype.itemsize
            assert place.address % size == 0 and place.ld >= columns
            strides = (place.batch_stride * size, place.ld * size, size)
            return view_at(place.address, ArraySpec((p.batch, rows, columns), strides, dtype), None)

        out = matrix(c, p.m, p.n, p.out_dtype)

        def launch():
            self.backend.log.append(("launch", p, stream))
            total = np.zeros(out.shape, sums)
            if p.k:
                left = matrix(a, *((p.k, p.m) if p.trans_a else (p.m, p.k)))
                right = matrix(b, *((p.n, p.k) if p.trans_b else (p.k, p.n)))
                left = left.swapaxes(1, 2) if p.trans_a else left
                right = right.swapaxes(1, 2) if p.trans_b else right
                total = sums(alpha) * (left.astype(sums) @ right.astype(sums))
            if beta != 0:
                total = total + sums(beta) * mirrored(out, p).astype(sums)
            total = self.finished(total, bias)
            written = computed(p, np.arange(p.m), np.arange(p.n))
            np.copyto(out, mirrored(total, p), where=written, casting="same_kind")

        return launch


class NoCompiler(Compiler):
    toolchain, target, cache = "none 1.0", "nothing", Path("/nonexistent")

    def folder(self, source):
        return Path("/nonexistent")

    def build(self, source):
        return Path("/nonexistent")


class HostDevice(Backend):
    """`kind` "cpu" takes operands where they lie; "simulator" has them copied to and fro."""

    def __init__(self, kind="cpu", **limits):
        limits = dict(vector_bytes=64, vector_registers=32) | limits
        self.device = Device(f"host memory as {kind}", kind, **limits)
        self.compiler = NoCompiler()
        self.log, self.live = [], weakref.WeakSet()

    def load(self, source):
        self.log.append(("load", source.config.slug))
        return NumpyKernel(self, source.config, source.epilogue)

    def allocate(self, nbytes):
        buffer = HostBuffer(nbytes)
        self.live.add(buffer)
        return buffer

    def empty(self, shape, dtype):
        return CudaArray(np.full(shape, np.nan, dtype)) if self._far else np.empty(shape, dtype)

    @property
    def _far(self):
        return self.device.kind != "cpu"

    def is_own(self, array):
        return isinstance(array, CudaArray if self._far else np.ndarray)

    def row_pitch(self, row_bytes):
        return -(-row_bytes // 256) * 256

    def copy_in(self, array, address, pitch, transfer="pageable", stream=None):
        self._rows(array, address, pitch)[...] = array
        self.log.append(("in", transfer, array.shape, stream))

    def copy_out(self, address, pitch, array, transfer="pageable", stream=None):
        array[...] = self._rows(array, address, pitch)
        self.log.append(("out", transfer, array.shape, stream))

    def _rows(self, array, address, pitch):
        rows, columns = array.shape
        size = array.itemsize
        assert columns == 1 or array.strides[1] == size
        assert rows == 1 or (array.strides[0] >= columns * size and pitch >= columns * size)
        return view_at(address, ArraySpec(array.shape, (pitch, size), array.dtype), None)

    def stream(self, stream):
        if stream is not None and not (self._far and isinstance(stream, int)):
            raise TypeError(f"{stream!r} is no stream of {self.device.name}")
        return stream

    def order(self, before, after):
        self.log.append(("order", before, after))

    def synchronize(self, stream=None):
        pass

    def time(self, calls, ahead=1):
        raise LaunchFailed("this device has no clock")

    def telemetry(self):
        return {}
