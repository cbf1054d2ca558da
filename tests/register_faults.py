"""Declares the faulty kernels in the process that imports this; run as a program it is
`python -m pymm.tune` with them.
"""

import sys

import faulty_kernels

from pymm import kernels

kernels.KERNELS = faulty_kernels.declared()

if __name__ == "__main__":
    from pymm.child import Site
    from pymm.options import parse
    from pymm.tune import Tuner

    sys.exit(Tuner(parse(), Site(modules=("register_faults",))).run())
