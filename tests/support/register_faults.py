"""Declares the faulty kernels in the process that imports this; run as a program it is
`python -m pymm.tune` with them.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2]))  # a checkout need not be installed

import faulty_kernels  # noqa: E402

from pymm import kernels  # noqa: E402

kernels.KERNELS = faulty_kernels.declared()

if __name__ == "__main__":
    from pymm.measure.worker_process import Site
    from pymm.tune.options import parse
    from pymm.tune.tuner import Tuner

    sys.exit(Tuner(parse(), Site(modules=("register_faults",))).run())
