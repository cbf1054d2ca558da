"""Stand-ins for the tuner's command, each run in a process of its own."""

import signal
import sys
import time


def sleep(argv):
    """Until it is interrupted."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(130))
    print("ready", *argv, flush=True)
    time.sleep(600)


def fail_on_one(argv):
    """1 for device 1, else 0."""
    return int(argv[-1] == "1")
