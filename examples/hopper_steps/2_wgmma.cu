// Step 2: wgmma. Four warps, a warpgroup, multiply 64 x 128 x 16 elements with one instruction,
// which reads both operands from shared memory, swizzled as TMA left them.
//
// A descriptor says where an operand lies and how it is swizzled. The sums are in registers: each
// thread of a warpgroup has 64 of its 64 x 128. The tensor cores work and then wait for the next
// tiles, in turn.

#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(256)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* C,
            int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    const unsigned tile = address_of_shared(aligned(shared)), full = tile + STAGE_BYTES;
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    float sum[64] = {};
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        if (threadIdx.x == 0) fetch(tile, full, &a, &b, i0, j0, k0);
        mbarrier_wait(full, k0 / DEPTH % 2);
        multiply(sum, tile + group * 64 * ROW, tile + TILE_BYTES, k0 > 0);
        wgmma_wait_group<0>();
        __syncthreads();
    }
    store(sum, C, m, n, i0 + group * 64, j0);
}
