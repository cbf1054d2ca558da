"""NumPy's .npy files, read and written by all processes at once, each its own blocks (MPI-IO).

The layout of the matrix is the datatype that the file is seen through, so that every process
reads or writes all of its elements by one call.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pymm.core.files import named
from pymm.distributed.communicator import MPI, raise_together
from pymm.distributed.datatypes import ELEMENTS, Parts, checked_dtype, contiguous
from pymm.distributed.layout import BlockCyclic


class Header(NamedTuple):
    """What stands before the elements of a .npy file, and its length in bytes."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype
    nbytes: int


def read_header(path: Path) -> Header:
    """The header of a .npy file with a whole matrix. `OSError`; `ValueError` for other files."""
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
            else:
                shape, by_columns, dtype = np.lib.format.read_array_header_2_0(file)
        except ValueError as error:
            raise ValueError(f"{path} is no .npy file: {error}") from None
        start, end = file.tell(), file.seek(0, os.SEEK_END)
    try:
        dtype = checked_dtype(dtype)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None
    if len(shape) != 2:
        raise ValueError(f"{path} has an array of shape {shape}; a matrix has two dimensions")
    needed = start + shape[0] * shape[1] * dtype.itemsize
    if end < needed:
        raise ValueError(
            f"{path} is incomplete: its header says {shape} of {dtype}, {needed} bytes, and it has "
            f"{end}; write it again"
        )
    return Header(shape, by_columns, dtype, start)


def shared_header(communicator: MPI.Comm, path: os.PathLike, shape: tuple[int, int]) -> Header:
    """The header of the file, read by rank 0, on every rank. `ValueError` on every rank if the
    matrix in the file has another shape.
    """
    header = wrong = None
    if communicator.rank == 0:
        try:
            header = read_header(Path(path))
            if header.shape != shape:
                raise ValueError(
                    f"{path} has a matrix of {header.shape}, and the layout is of {shape}: give a "
                    "layout of that shape"
                )
        except (OSError, ValueError) as error:
            wrong = error
    raise_together(communicator, wrong)
    return communicator.bcast(header, 0)


def read(
    communicator: MPI.Comm,
    path: os.PathLike,
    header: Header,
    layout: BlockCyclic,
    local: np.ndarray,
) -> None:
    """Fill every process's `local` from the file. `OSError` on every rank if one cannot."""
    if header.by_columns:  # its bytes are those of the transpose by rows
        part = np.empty(local.shape[::-1], local.dtype)
    else:
        part = local
    wrong = None
    try:
        file = MPI.File.Open(communicator, str(path), MPI.MODE_RDONLY)
    except MPI.Exception as error:
        wrong = OSError(f"{path} cannot be opened on rank {communicator.rank}: {error}")
    raise_together(communicator, wrong)
    view = layout.transposed() if header.by_columns else layout
    try:
        _transfer(file, file.Read_all, header.nbytes, view, layout, part)
    except MPI.Exception as error:
        wrong = OSError(f"{path} cannot be read on rank {communicator.rank}: {error}")
    file.Close()
    raise_together(communicator, wrong)
    if header.by_columns:
        local[...] = part.T


def write(
    communicator: MPI.Comm, path: os.PathLike, layout: BlockCyclic, local: np.ndarray
) -> None:
    """Write every process's `local` to its place in the file, which appears when it is whole."""
    path = Path(os.path.realpath(path))
    temporary = start = wrong = None
    if communicator.rank == 0:
        try:
            temporary, start = _begin(path, layout, local.dtype)
        except OSError as error:
            wrong = error
    raise_together(communicator, wrong)
    temporary, start = communicator.bcast((temporary, start), 0)
    try:
        _write_parts(communicator, temporary, start, layout, local)
        if communicator.rank == 0:
            try:
                _finish(temporary, path)
            except OSError as error:
                wrong = error
        raise_together(communicator, wrong)
    finally:
        if communicator.rank == 0:
            Path(temporary).unlink(missing_ok=True)


def _begin(path: Path, layout: BlockCyclic, dtype: np.dtype) -> tuple[str, int]:
    """A new file beside `path` with the header and its final size, and the header's length."""
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": layout.shape,
    }
    with named(path):
        descriptor, temporary = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".tmp", dir=path.parent
        )
        try:
            with open(descriptor, "wb") as file:
                np.lib.format.write_array_header_1_0(file, described)
                start = file.tell()
                # Reserve the space: a disk that is too small is refused before any data moves.
                elements = layout.shape[0] * layout.shape[1]
                if elements:
                    os.posix_fallocate(file.fileno(), start, elements * dtype.itemsize)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    return temporary, start


def _write_parts(communicator, temporary, start, layout, local) -> None:
    wrong = None
    try:
        file = MPI.File.Open(communicator, temporary, MPI.MODE_WRONLY)
    except MPI.Exception as error:
        wrong = OSError(f"{temporary} cannot be opened on rank {communicator.rank}: {error}")
    raise_together(communicator, wrong)
    try:
        _transfer(file, file.Write_all, start, layout, layout, local)
    except MPI.Exception as error:
        wrong = OSError(f"{temporary} cannot be written on rank {communicator.rank}: {error}")
    file.Close()
    raise_together(communicator, wrong)


def _finish(temporary: str, path: Path) -> None:
    """Put the whole file in the place of `path`, with the permissions of a new file or the old."""
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.chmod(temporary, mode)
    os.replace(temporary, path)


def _transfer(file, act, start: int, view: BlockCyclic, layout: BlockCyclic, part) -> None:
    """Read or write `part`, this process's elements of a file that has the layout `view` from the
    byte `start` on. Ranks are those of `layout`.
    """
    p, q, r = layout.coordinates(file.Get_group().rank)
    rank = view.rank(q, p, r) if view is not layout else view.rank(p, q, r)
    element = ELEMENTS[part.dtype]
    whole = contiguous(part.size, part.dtype)
    with Parts(view, part.dtype) as parts:
        found = parts.of(rank)
        if found is None:  # takes part in the call all the same
            file.Set_view(start, element, element)
            act([part, 0, element])
        else:
            seen, at = found
            file.Set_view(start + at, element, seen)
            act([part, 1, whole])
    whole.Free()
