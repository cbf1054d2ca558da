"""Where the variables of a kernel are: who shares each, and how long it lives. Every thread adds 1
to a variable of each kind, in two launches; what it then finds there tells.

python examples/variable_placement.py                      (a GPU)
python -m pymm.simulator examples/variable_placement.py    (none)
"""

import numpy as np
import pycuda.autoprimaryctx  # noqa: F401  (makes the device ready)
import pycuda.driver as cuda
from pycuda.compiler import SourceModule

SOURCE = """
extern "C" __global__ void count(int* in_global, int slot, int* found) {
    int in_register = 0;       // automatic variable: a register of each thread
    int in_local[4] = {};      // automatic array with an index that is known at run time: memory
    __shared__ int in_shared;  // shared memory of each block
    if (threadIdx.x == 0) in_shared = 0;
    __syncthreads();  // nobody adds before it is 0

    in_register += 1;
    in_local[slot] += 1;
    atomicAdd(&in_shared, 1);
    atomicAdd(in_global, 1);  // the pointer is in constant memory, what it points to is not
    __syncthreads();  // all threads of the block have added

    int* own = found + 3 * (blockIdx.x * blockDim.x + threadIdx.x);
    own[0] = in_register, own[1] = in_local[slot], own[2] = in_shared;
}
"""

BLOCKS, THREADS = 4, 32
ROWS = (
    ("int in_register", "register", "a thread", "a launch"),
    ("int in_local[4]", "local memory (or registers)", "a thread", "a launch"),
    ("__shared__ int in_shared", "shared memory", "a block", "a launch"),
    ("*in_global", "global memory", "all threads", "until it is freed"),
)

kernel = SourceModule(SOURCE, no_extern_c=True).get_function("count")
in_global = cuda.mem_alloc(4)
cuda.memset_d32(in_global, 0, 1)

values = []
for _ in range(2):
    found = np.zeros((BLOCKS * THREADS, 3), np.int32)
    kernel(in_global, np.int32(2), cuda.Out(found), block=(THREADS, 1, 1), grid=(BLOCKS, 1))
    total = np.empty(1, np.int32)
    cuda.memcpy_dtoh(total, in_global)
    assert (found == found[0]).all()  # every thread finds the same
    values.append([*found[0], *total])

print(f"{BLOCKS} blocks of {THREADS} threads each add 1; the values after two launches:")
print(f"{'variable':26}{'where':29}{'one for':13}{'lives':20}{'1st':>5}{'2nd':>5}")
for (name, where, owner, life), first, second in zip(ROWS, *values, strict=True):
    print(f"{name:26}{where:29}{owner:13}{life:20}{first:5}{second:5}")
print(
    f"resources of the kernel: {kernel.num_regs} registers and {kernel.local_size_bytes} bytes of "
    f"local memory of a thread, {kernel.shared_size_bytes} bytes of shared memory of a block"
)
