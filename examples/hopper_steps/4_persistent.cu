// Step 4: persistent blocks. One block for each multiprocessor takes tile after tile.
//
// In step 3 a block ends with its tile: while it stores, and while the next one begins, nothing is
// fetched. Here the producer goes on to the next tile's steps at once, so that the ring is full
// when the warpgroups have stored. Neighbouring tiles are computed at the same time, in groups of 8
// rows of tiles: what they share of A and B is then read from L2.

#include "tile.cuh"

constexpr int STAGES = 4, GROUP = 8;

struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// The first row and column of a tile by its number: down a group of rows, then to its next column.
struct Tiles {
    int down, across;
    __device__ int count() const { return down * across; }
    __device__ int2 operator[](int number) const {
        const int group = number / (GROUP * across), first = group * GROUP;
        const int rows = min(down - first, GROUP), in_group = number - first * across;
        return {(first + in_group % rows) * TILE, in_group / rows * TILE};
    }
};

extern "C" __global__ void __launch_bounds__(384)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* C,
            int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    const unsigned stages = address_of_shared(aligned(shared));
    const unsigned full = stages + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const Tiles tiles{(m + TILE - 1) / TILE, (n + TILE - 1) / TILE};
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 2);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    Ring ring;
    if (group == 2) {
        setmaxnreg_dec<40>();
        if (threadIdx.x % 128) return;
        for (int number = blockIdx.x; number < tiles.count(); number += gridDim.x) {
            const int2 at = tiles[number];
            for (int k0 = 0; k0 < k; k0 += DEPTH, ring.advance()) {
                mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                fetch(stages + ring.stage * STAGE_BYTES, full + 8 * ring.stage, &a, &b, at.x, at.y,
                      k0);
            }
        }
        return;
    }
    setmaxnreg_inc<232>();
    for (int number = blockIdx.x; number < tiles.count(); number += gridDim.x) {
        const int2 at = tiles[number];
        float sum[64] = {};
        for (int k0 = 0; k0 < k; k0 += DEPTH, ring.advance()) {
            const unsigned tile = stages + ring.stage * STAGE_BYTES;
            mbarrier_wait(full + 8 * ring.stage, ring.parity);
            multiply(sum, tile + group * 64 * ROW, tile + TILE_BYTES, k0 > 0);
            wgmma_wait_group<0>();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + 8 * ring.stage);
        }
        store(sum, C, m, n, at.x + group * 64, at.y);
    }
}
