"""Runs kernels of clusters.cu in processes of their own: ``simulator_clusters.py FOLDER KERNEL
...`` compiles them into the folder, and prints as JSON what each said on stderr and left in its
output. With PYMM_SIMULATOR_RACES=1 they are watched for races.
"""

import json
import sys

import numpy as np
from simulator_faults import compiled, in_a_fork, tried  # activates the simulator

GRIDS = {"positions": (2, 1, 2), "eight": (8, 1, 1)}


def launched(module: str, kernel: str) -> dict[str, object]:
    """What the first call after the launch says, and the output."""
    import pycuda.driver as drv

    drv.init()
    drv.Device(0).retain_primary_context().push()
    function = drv.module_from_file(module).get_function(kernel)
    host = np.zeros(256, np.float32)
    out, rows = drv.to_device(host), drv.to_device(np.arange(128, dtype=np.float32))
    grid = GRIDS.get(kernel, (4, 1, 1))
    launch = tried(lambda: function(out, rows, block=(64, 1, 1), grid=grid, shared=1024))
    return {
        "launch": launch,
        "said": tried(lambda: drv.memcpy_dtoh(host, out)),
        "out": host.tolist(),
    }


if __name__ == "__main__":
    module_path = compiled("clusters", sys.argv[1])
    print(json.dumps({name: in_a_fork(launched, module_path, name) for name in sys.argv[2:]}))
