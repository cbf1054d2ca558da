// precision "emulated": which of two kernels computes a product is found on the device.
//
//     repack         | splits A and B, and notes what float16 cannot hold of them  (GATE 1)
//     gemm, combine  | run if nothing was noted                                    (GATE 1)
//     gemm           | of plain multiply-adds: runs if something was               (GATE 2)
//
// All are launched for every product. Those that need not run return at once, so the host never
// waits, and a captured graph decides anew whenever it is launched.

#include "common/dependent_launch.cuh"

#if GATE

// What was noted of a product: zero before it, and zero again behind its last launch.
struct alignas(16) Verdict {
    unsigned refused;     // some row of 64 elements is not split well enough
    unsigned largest[2];  // exponents of the largest elements, as float32 keeps them
    unsigned arrived;     // blocks of the last launch that have read it
};

// The last parameter of a launch. `most`: the largest sum of both exponents for which no sum of
// products can overflow.
struct Gate {
    Verdict* verdict;
    long long most;

    // What was noted. Launches with GATE 1 read it when the split has ended, and only then let the
    // next begin. So the verdict is final when the launch with GATE 2 begins, which reads it before
    // it waits. (PTX promises that what another launch wrote is seen after that wait; here it is
    // enough that atomic operations on L2 have ended and that it is read there.)
    __device__ __forceinline__ uint4 noted() const {
        return __ldcg(reinterpret_cast<const uint4*>(verdict));
    }
    // Whether that says that the split of A or B is not exact enough.
    __device__ __forceinline__ bool refuses(const uint4& noted) const {
        return noted.x != 0 || noted.y + noted.z > most;
    }
    // Whether this launch need not run. Asked once by all threads, before they touch anything else
    // that an earlier launch wrote. The last block of the last launch that has read the verdict
    // clears it; the earlier launches have read it by then.
    __device__ __forceinline__ bool is_closed() const {
#if GATE == 1
        griddepcontrol_wait();
        const bool closed = __syncthreads_or(refuses(noted()));  // all threads have read it
        griddepcontrol_launch_dependents();
        return closed;
#else
        const bool closed = !refuses(noted());
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();  // what was read is read before the arrival
            const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
            if (atomicAdd(&verdict->arrived, 1u) == blocks - 1) {
                __threadfence();
                *verdict = Verdict{};
            }
        }
        griddepcontrol_wait<true>();
        return closed;
#endif
    }
};

#if GATE == 1
#define GATE_PARAMETER , const Gate gate
#else
// A launch that returns takes as long as its blocks take to start, so the one with GATE 2 has no
// more than the device holds at a time. Each of them computes several of the `blocks` of the
// product in turn.
#define GATE_PARAMETER , const Gate gate, const uint3 blocks
#define BLOCK block  // the parameter of a function that computes a block's part of C
#define ALL_BLOCKS blocks
#define BLOCK_PARAMETERS , const uint3 block, const uint3 blocks
#define BLOCK_ARGUMENTS , block, blocks

template <typename Compute>
__device__ __forceinline__ void run_blocks(const uint3 blocks, const Compute& compute) {
    const unsigned all = blocks.x * blocks.y * blocks.z;
    for (unsigned id = blockIdx.x; id < all; id += gridDim.x) {
        const unsigned row = id / blocks.x;
        compute(make_uint3(id % blocks.x, row % blocks.y, row / blocks.y));
        __syncthreads();  // no thread reads shared memory any more, which the next one overwrites
    }
}
#endif

#define RETURN_IF_CLOSED \
    if (gate.is_closed()) return;

#else

#define GATE_PARAMETER
#define RETURN_IF_CLOSED

#endif
