// Step 3: a ring of stages, and a warpgroup that only fetches.
//
// Each stage has two barriers. "full" ends a phase when the bytes of both tiles have arrived,
// "empty" when both warpgroups have multiplied them. The producer runs ahead until no stage is
// empty; nobody waits for the whole block any more. The producer needs few registers: it gives its
// own to the warpgroups that hold the sums.

#include "tile.cuh"

constexpr int STAGES = 4;

// The stage of a step, and the parity of its barriers' phase.
struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(384)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* C,
            int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    const unsigned stages = address_of_shared(aligned(shared));
    const unsigned full = stages + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 2);  // a thread of each warpgroup arrives
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    Ring ring;
    if (group == 2) {
        setmaxnreg_dec<40>();
        if (threadIdx.x % 128) return;
        for (int k0 = 0; k0 < k; k0 += DEPTH, ring.advance()) {
            mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);  // at first all are empty
            fetch(stages + ring.stage * STAGE_BYTES, full + 8 * ring.stage, &a, &b, i0, j0, k0);
        }
        return;
    }
    setmaxnreg_inc<232>();
    float sum[64] = {};
    for (int k0 = 0; k0 < k; k0 += DEPTH, ring.advance()) {
        const unsigned tile = stages + ring.stage * STAGE_BYTES;
        mbarrier_wait(full + 8 * ring.stage, ring.parity);
        multiply(sum, tile + group * 64 * ROW, tile + TILE_BYTES, k0 > 0);
        wgmma_wait_group<0>();
        if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + 8 * ring.stage);
    }
    store(sum, C, m, n, i0 + group * 64, j0);
}
