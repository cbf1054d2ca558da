"""`python -m pymm.report`."""

import sys

from pymm.report import main

if __name__ == "__main__":
    sys.exit(main())
