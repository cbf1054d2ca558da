"""A kernel of your own, tuned by pymm: the softmax of each row of a matrix.

    python examples/own_kernel/softmax.py --rows 4096 --columns 1000 --trials 60
    PYMM_SIMULATOR=1 python examples/own_kernel/softmax.py --rows 9 --columns 40 --trials 3

The first line is for a GPU, the second needs none. See docs/howto/tune-own-kernel.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from pymm.tune import CustomKernel, In, Out, Rule, load_kernel, tune_kernel


def reference(x, rows, columns):
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


SOFTMAX = CustomKernel(
    "softmax",
    Path(__file__).with_name("softmax.cu"),
    space={"THREADS": (32, 64, 128, 256, 512), "ROWS": (1, 2, 4, 8), "CACHED": (1, 2)},
    default=lambda p: {"THREADS": 128 if p.columns >= 128 else 32, "ROWS": 1, "CACHED": 1},
    rules=[
        Rule("no warp is idle", lambda c, p, d: c.THREADS < p.columns + 32),
    ],
    grid=lambda c, p: -(-p.rows // c.ROWS),
    block=lambda c, p: (c.THREADS, c.ROWS),
    shared=lambda c, p: 4 * p.columns * c.ROWS if c.CACHED == 2 else 0,
    arguments=lambda p: {
        "x": In((p.rows, p.columns), np.float32),
        "y": Out((p.rows, p.columns), np.float32),
        "rows": np.int32(p.rows),
        "columns": np.int32(p.columns),
    },
    reference=reference,
    rtol=1e-5,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune a softmax.")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=60)
    given = parser.parse_args()
    sizes = {"rows": given.rows, "columns": given.columns}
    with tempfile.TemporaryDirectory() as folder:  # leave it out to keep what is tuned
        output = Path(folder)
        tuned = tune_kernel(SOFTMAX, sizes, trials=given.trials, output=output)
        softmax = load_kernel(SOFTMAX, sizes, directory=output)
    print(f"{softmax.config.slug}: {softmax.reason}")
    tuned.show()


if __name__ == "__main__":  # the measuring process imports this file, and must not tune
    main()
