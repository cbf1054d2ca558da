"""O3: C = A^T A in double precision, beside cuBLAS and a naive kernel."""

from __future__ import annotations

from pymm.suites.declaration import CHOSEN, Experiment

#: The original's tile: 48 x 48 elements, 16 x 16 threads, 3 x 3 elements each. With eight steps
#: along k both tiles take 6 KiB.
TILE_48 = "03-MB48-NB48-KB8-TA3-TB3"

#: A is N x N for N from 500 to 18500, then N/2 x N up to 20500.
WHOLE, HALVED = range(500, 18501, 1000), range(500, 20501, 1000)

EXPERIMENTS = (
    Experiment(
        "o3",
        "C = A^T A, A of N x N and of N/2 x N",
        ",".join([*map(str, WHOLE), *(f"{n}x{n}x{n // 2}" for n in HALVED)]),
        rungs=("00", TILE_48, CHOSEN), dtypes=("f64",), layout="TN", op="syrk", runs=3,
    ),
)  # fmt: skip
