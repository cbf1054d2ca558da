"""Declares the faulty kernels in the process that imports this; run as a program it is
`python -m pymm.tune` with them.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # a checkout need not be installed

import faulty_kernels  # noqa: E402

from pymm import kernels  # noqa: E402

kernels.KERNELS = faulty_kernels.declared()

if __name__ == "__main__":
    from pymm.child import Site
    from pymm.options import parse
    from pymm.tune import Tuner

    sys.exit(Tuner(parse(), Site(modules=("register_faults",))).run())
