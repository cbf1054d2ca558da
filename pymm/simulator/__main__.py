"""Runs a PyCUDA script on the simulator: ``python -m pymm.simulator script.py arguments``."""

from __future__ import annotations

import os
import runpy
import sys

from . import CannotSimulate, activate


def main() -> None:
    if "--races" in sys.argv[1:2]:
        del sys.argv[1]
        os.environ["PYMM_SIMULATOR_RACES"] = "1"
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(
            "usage: python -m pymm.simulator [--races] [-m module | script.py] [arguments]\n\n"
            "Runs a program that uses PyCUDA on a CPU, and reports what its kernels do wrong.\n"
            "--races: watches shared memory for races between threads, which takes longer."
        )
        sys.exit(0 if len(sys.argv) > 1 else 2)
    os.environ["PYMM_SIMULATOR"] = "1"  # for the program's own child processes
    try:
        activate()
    except CannotSimulate as error:
        sys.exit(f"pymm simulator: {error}")
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
