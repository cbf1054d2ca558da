"""Runs every faulty kernel in a process of its own: ``simulator_faults.py MODULE`` prints JSON.

The processes are forked before the driver is initialised, which is quicker than starting each.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import pymm.simulator

pymm.simulator.activate()

import pycuda.driver as drv  # noqa: E402

HERE = Path(__file__).parent


def compiled(name: str, folder: str) -> str:
    """Path of the module of a file of simulator_kernels."""
    module = os.path.join(folder, f"{name}.cubin")
    headers, source = HERE.parents[1] / "cuda_src", HERE / "simulator_kernels" / f"{name}.cu"
    command = [pymm.simulator.nvcc(), "--cubin", "-arch=sm_90", "-I", headers, "-o", module, source]
    subprocess.run(command, check=True)
    return module


def tried(call) -> str:
    """ "ok", or the driver's function and words, as PyCUDA raises them."""
    try:
        call()
    except drv.Error as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def fault(module: str, kernel: str) -> dict[str, str]:
    """What each call says: the launch, the next one, and all the others after that."""
    drv.init()
    drv.Device(0).retain_primary_context().push()
    function = drv.module_from_file(module).get_function(kernel)
    a, host = drv.mem_alloc(128), np.arange(32, dtype=np.float32)
    drv.memcpy_htod(a, host)
    launch = lambda: function(a, np.int32(32), block=(32, 1, 1), shared=64)  # noqa: E731
    said = {"launch": tried(launch), "synchronize": tried(drv.Context.synchronize)}
    said["copy"] = tried(lambda: drv.memcpy_dtoh(host, a))
    said["result"] = host.tolist() if said["copy"] == "ok" else None
    said["allocate"] = tried(lambda: drv.mem_alloc(4))
    said["info"] = tried(drv.mem_get_info)
    said["event"] = tried(drv.Event)
    said["load"] = tried(lambda: drv.module_from_file(module))
    said["launch again"] = tried(launch)
    return said


def in_a_fork(work, module: str, kernel: str) -> dict[str, object]:
    """What `work` returns, the process's exit status, and what it printed to stderr."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(err.fileno(), 2)
            json.dump(work(module, kernel), out)
            out.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        out.seek(0)
        err.seek(0)
        text = out.read()
        return {"status": status, "stderr": err.read(), "said": json.loads(text) if text else {}}


if __name__ == "__main__":
    module_path, *kernels = sys.argv[1:]
    print(json.dumps({name: in_a_fork(fault, module_path, name) for name in kernels}))
