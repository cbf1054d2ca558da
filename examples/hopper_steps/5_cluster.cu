// Step 5: clusters. Two blocks, one above the other, need the same tile of B: each fetches half of
// its rows, and TMA writes them into the shared memory of both (multicast).
//
// That saves a quarter of what is read from L2. A stage is empty when the warpgroups of both blocks
// have used it, for the other block writes into it, too: each arrives at both blocks' barriers. No
// block may leave while the other can still reach into its shared memory.
//
// Kernel 07 has all five steps. More than here: blocks that do not wait for each other before they
// end; wider tiles, C stored by TMA through shared memory, wgmma that goes on while the next is
// issued, all layouts, batches, and k shared among blocks.

#define CLUSTER 2
#include "tile.cuh"

constexpr int STAGES = 4, GROUP = 8;

struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// All threads of the cluster, and what they did before.
__device__ __forceinline__ void cluster_sync() {
#ifdef PYMM_SIMULATOR
    cluster_arrive(true), cluster_wait();
#else
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// As in step 4, with tiles two high: `count` is that of pairs.
struct Tiles {
    int down, across;
    __device__ int count() const { return down * across; }
    __device__ int2 operator[](int number) const {
        const int group = number / (GROUP * across), first = group * GROUP;
        const int rows = min(down - first, GROUP), in_group = number - first * across;
        return {(first + in_group % rows) * CLUSTER * TILE, in_group / rows * TILE};
    }
};

extern "C" __global__ void __launch_bounds__(384) __cluster_dims__(CLUSTER, 1, 1)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* C,
            int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    const unsigned stages = address_of_shared(aligned(shared));
    const unsigned full = stages + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const Tiles tiles{(m + CLUSTER * TILE - 1) / (CLUSTER * TILE), (n + TILE - 1) / TILE};
    const int group = threadIdx.x / 128, rank = block_in_cluster();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 2 * CLUSTER);  // both warpgroups of both blocks
        }
        fence_mbarrier_init();
    }
    cluster_sync();  // the other block's barriers are ready, too
    Ring ring;
    if (group == 2) {
        setmaxnreg_dec<40>();
        if (threadIdx.x % 128 == 0)
            for (int number = blockIdx.x / CLUSTER; number < tiles.count();
                 number += gridDim.x / CLUSTER) {
                const int2 at = tiles[number];
                for (int k0 = 0; k0 < k; k0 += DEPTH, ring.advance()) {
                    const unsigned stage = stages + ring.stage * STAGE_BYTES;
                    const unsigned filled = full + 8 * ring.stage;
                    const int half = rank * TILE / CLUSTER;
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                    mbarrier_expect_tx(filled, STAGE_BYTES);
                    tma_load(stage, &a, filled, k0, at.x + rank * TILE, 0);
                    tma_load(stage + TILE_BYTES + half * ROW, &b, filled, k0, at.y + half, 0,
                             static_cast<unsigned short>((1 << CLUSTER) - 1));
                }
            }
    } else {
        setmaxnreg_inc<232>();
        for (int number = blockIdx.x / CLUSTER; number < tiles.count();
             number += gridDim.x / CLUSTER) {
            const int2 at = tiles[number];
            float sum[64] = {};
            for (int k0 = 0; k0 < k; k0 += DEPTH, ring.advance()) {
                const unsigned tile = stages + ring.stage * STAGE_BYTES;
                mbarrier_wait(full + 8 * ring.stage, ring.parity);
                multiply(sum, tile + group * 64 * ROW, tile + TILE_BYTES, k0 > 0);
                wgmma_wait_group<0>();
                if (threadIdx.x % 128 < CLUSTER)
                    mbarrier_arrive(empty + 8 * ring.stage, threadIdx.x % 128);
            }
            store(sum, C, m, n, at.x + rank * TILE + group * 64, at.y);
        }
    }
    cluster_sync();
}
