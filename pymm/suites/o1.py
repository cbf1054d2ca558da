"""O1: tiles in shared memory, against one thread that reads all it needs by itself."""

from __future__ import annotations

from pymm.suites.declaration import Experiment

#: Widths of the tiles, and of the blocks of both kernels.
WIDTHS = (16, 32)

EXPERIMENTS = (
    Experiment(
        "o1",
        "simple against tiled, over growing sizes",
        "128,256,512,768,1024,1536,2048,3072,4096",
        rungs=(
            *(f"01-MB{width}-NB{width}" for width in WIDTHS),
            *(f"02-MB{width}-NB{width}-KB{width}" for width in WIDTHS),
        ),
    ),
)
