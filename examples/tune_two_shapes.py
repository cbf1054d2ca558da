"""Tune two shapes, and see that products of these shapes use the result.

    python examples/tune_two_shapes.py            # 30 seconds for each
    python examples/tune_two_shapes.py --trials 3

On a machine that is busy with other programs, times vary and nothing may be saved: pymm says so.
"""

import subprocess
import sys

import pymm

SHAPES = (256, 192, 64), (200, 200, 200)  # m, n, k

shapes = ",".join(f"{m}x{n}x{k}" for m, n, k in SHAPES)
limit = sys.argv[1:] or ["--budget", "60"]
subprocess.run(
    [sys.executable, "-m", "pymm.tune", "--shapes", shapes, "--dtypes", "f32", *limit], check=False
)

for m, n, k in SHAPES:
    told = pymm.explain((m, k), (k, n), dtype="f32")
    print(f"{m} x {n} x {k}: {told.config.slug}\n    because {told.reason}")

for tuned in pymm.configs():
    record = tuned.record
    print(f"{record.problem.slug}: {record.seconds * 1e6:.1f} us, {tuned.stale or 'current'}")
