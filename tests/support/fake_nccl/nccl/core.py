"""What pymm uses of nccl4py, for simulated GPUs: MPI moves the bytes, by way of the hosts. The work
of the stream is done before; NCCL would wait for it on the GPU.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np
from mpi4py import MPI


def call(name: str, *arguments) -> None:
    """A call of the simulated driver."""
    status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert status == 0, (name, status)


class UniqueId:
    """128 bytes that tell communicators apart."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __bytes__(self) -> bytes:
        return self._content

    @staticmethod
    def from_bytes(content: bytes) -> UniqueId:
        assert len(content) == 128
        return UniqueId(content)


def get_unique_id() -> UniqueId:
    return UniqueId(os.urandom(128))


class Communicator:
    """Of the processes that call `init` with one id, while the others do so with theirs."""

    @classmethod
    def init(cls, nranks: int, rank: int, unique_id: UniqueId) -> Communicator:
        self = cls()
        color = int.from_bytes(bytes(unique_id)[:4], "big") >> 1
        self._part = MPI.COMM_WORLD.Split(color, rank)
        assert (self._part.size, self._part.rank) == (nranks, rank)
        return self

    def broadcast(self, sent, received, root: int, *, stream: int) -> None:
        described = received.__cuda_array_interface__
        (count,), itemsize = described["shape"], np.dtype(described["typestr"]).itemsize
        assert described["strides"] in (None, (itemsize,))
        address, host = ctypes.c_uint64(described["data"][0]), np.empty(count * itemsize, np.uint8)
        call("cuStreamSynchronize", ctypes.c_void_p(stream))
        if self._part.rank == root:
            assert sent.__cuda_array_interface__["data"] == described["data"]
            call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(host.ctypes.data),
                address,
                ctypes.c_size_t(host.size),
            )
        self._part.Bcast(host, root)
        call(
            "cuMemcpyHtoD_v2",
            address,
            ctypes.c_void_p(host.ctypes.data),
            ctypes.c_size_t(host.size),
        )

    def destroy(self) -> None:
        self._part.Free()
