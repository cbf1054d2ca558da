"""A user's kernel with many ways to fail, for the tests of `pymm.tune.tune_kernel`.

As a script: launches the tuned kernel in a process of its own, `own_kernel.py FOLDER COUNT`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from pymm.tune import CustomKernel, In, Out, Rule, load_kernel

#: What goes wrong with each value of FAULT, by the outcome of the trial; and what its message says.
FAULTS = {
    1: ("ok", ""),
    2: ("wrong", "1 of 70 elements of y wrong; the first is y[5] = "),
    3: ("wrong", "1 of 70 elements of y wrong; the first is y[69] = "),
    4: ("wrong", "writes into the array (argument x)"),
    5: ("wrong", "writes behind the matrix (argument y)"),
    6: ("launch_failed", "illegal"),
    7: ("compile_failed", "no such fault"),
    8: ("timed_out", "exceeded its time limit"),
}

SOURCE = """
#if FAULT == 7
#error no such fault
#endif
extern "C" __global__ void scale(float* x, float factor, float* y, long long count) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (FAULT == 6 && i == 0) y[1ll << 40] = 0;
    while (FAULT == 8 && i == 0) __nanosleep(1);
    if (i < count - (FAULT == 3)) y[i] = factor * x[i] + (FAULT == 2 && i == 5);
    if (FAULT == 4 && i == 7) x[i] = 0;
    if (FAULT == 5 && i == 0) y[count] = 0;
}
"""

RULE = Rule("a fault has a block of 32 threads", lambda c, p, d: c.FAULT == 1 or c.THREADS == 32)

SCALE = CustomKernel(
    "scale",
    SOURCE,
    space={"THREADS": (32, 64, 96), "FAULT": tuple(FAULTS)},
    default={"THREADS": 64, "FAULT": 1},
    rules=(RULE,),
    grid=lambda c, p: -(-p.count // c.THREADS),
    block=lambda c, p: c.THREADS,
    arguments=lambda p: {
        "x": In(p.count, np.float32),
        "factor": np.float32(0.5),
        "y": Out(p.count, np.float32),
        "count": np.int64(p.count),
    },
    reference=lambda x, factor, count: factor * x.astype(np.float64),
    rtol=1e-6,
)

#: The same without a fault.
RIGHT = replace(SCALE, space={"THREADS": (32, 64, 96), "FAULT": (1,)})


def main() -> None:
    from pycuda import gpuarray

    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    scale = load_kernel(RIGHT, {"count": count}, directory=folder)
    x = np.arange(count, dtype=np.float32)
    y = gpuarray.zeros(count, np.float32)
    scale(gpuarray.to_gpu(x), y, factor=3)
    assert np.array_equal(y.get(), 3 * x)
    print(scale.config.slug, scale.reason, "optuna" in sys.modules)


if __name__ == "__main__":
    import pymm.simulator

    pymm.simulator.activate()
    import pycuda.autoprimaryctx  # noqa: F401

    main()
