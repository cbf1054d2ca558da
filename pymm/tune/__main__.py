"""`python -m pymm.tune`."""

import sys

from pymm.tune.tuner import main

if __name__ == "__main__":
    sys.exit(main())
