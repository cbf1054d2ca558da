"""Runs kernels of races.cu in processes of their own, watched for races: ``simulator_races.py
FOLDER KERNEL ...`` compiles them into the folder, and prints as JSON what each said on stderr and
left in its output.
"""

import json
import os
import sys

import numpy as np

os.environ["PYMM_SIMULATOR_RACES"] = "1"

from simulator_faults import compiled, in_a_fork, tried  # noqa: E402  (activates the simulator)

import pymm.simulator  # noqa: E402


def launched(module: str, kernel: str) -> dict[str, object]:
    """What the first call after the launch says, the output, and the rounds of the banks."""
    import pycuda.driver as drv

    drv.init()
    drv.Device(0).retain_primary_context().push()
    function = drv.module_from_file(module).get_function(kernel)
    source, host = np.arange(1024, dtype=np.float32) % 31, np.zeros(1024, np.float32)
    out, given = drv.to_device(host), drv.to_device(source)
    function(out, given, block=(16, 16, 1), shared=64)
    said = tried(lambda: drv.memcpy_dtoh(host, out))
    return {"said": said, "out": host.tolist(), "rounds": pymm.simulator.bank_rounds()}


if __name__ == "__main__":
    module_path = compiled("races", sys.argv[1])
    print(json.dumps({name: in_a_fork(launched, module_path, name) for name in sys.argv[2:]}))
