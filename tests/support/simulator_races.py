"""Runs kernels of races.cu in processes of their own: ``simulator_races.py MODULE KERNEL ...``
prints, as JSON, what each said on stderr and left in its output.
"""

import json
import sys

import numpy as np
from simulator_faults import in_a_fork, tried  # makes the simulator this process's driver

import pymm.simulator


def launched(module: str, kernel: str) -> dict[str, object]:
    """What the launch says, the output, and the rounds of the banks."""
    import pycuda.driver as drv

    drv.init()
    drv.Device(0).retain_primary_context().push()
    function = drv.module_from_file(module).get_function(kernel)
    source = np.arange(1024, dtype=np.float32) % 31
    out, host = drv.to_device(np.zeros(1024, np.float32)), np.zeros(1024, np.float32)
    function(out, drv.to_device(source), block=(16, 16, 1), shared=64)
    said = tried(lambda: drv.memcpy_dtoh(host, out))
    rounds = [list(row) for row in pymm.simulator.bank_rounds()]
    return {"said": said, "out": host.tolist(), "rounds": rounds}


if __name__ == "__main__":
    module_path, *kernels = sys.argv[1:]
    print(json.dumps({name: in_a_fork(launched, module_path, name) for name in kernels}))
