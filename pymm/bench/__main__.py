"""`python -m pymm.bench`."""

import sys

from pymm.bench.kernels import main

if __name__ == "__main__":
    sys.exit(main())
