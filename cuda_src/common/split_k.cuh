// Split k: SPLIT blocks share one tile of C, each with its part of k. For products whose tiles
// alone would leave multiprocessors idle.

#ifndef SPLIT
#define SPLIT 1  // blocks that share a tile of C
#endif

#ifndef BLOCK  // of common/split_check.cuh, where a block computes several of the product in turn
#define BLOCK blockIdx
#define ALL_BLOCKS gridDim
#define BLOCK_PARAMETERS
#define BLOCK_ARGUMENTS
#endif

constexpr unsigned COUNTERS = 16384;  // at the start of the workspace, zero between launches

// Adds up the parts of a tile in the fixed order of the blocks, whichever of them comes last: the
// result does not depend on timing. Each block leaves its sums in the workspace, neighbouring
// threads side by side; the last to arrive reads them all (from L2, where they still are), has the
// totals in `sum` and gets true. The others have nothing more to do.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ bool combine(REAL (&sum)[ROWS][COLS], void* workspace,
                                        unsigned thread BLOCK_PARAMETERS) {
    if constexpr (SPLIT == 1) {
        return true;
    } else {
        __shared__ unsigned arrived;
        const unsigned tile = BLOCK.z * ALL_BLOCKS.x + BLOCK.x;
        unsigned* const counter = static_cast<unsigned*>(workspace) + tile;
        REAL* const parts = reinterpret_cast<REAL*>(static_cast<unsigned*>(workspace) + COUNTERS) +
                            static_cast<size_t>(tile) * SPLIT * ROWS * COLS * THREADS + thread;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
                parts[((BLOCK.y * ROWS + i) * COLS + j) * THREADS] = sum[i][j];
        __threadfence();  // the parts are seen before the arrival
        __syncthreads();
        if (thread == 0) arrived = atomicAdd(counter, 1u);
        __syncthreads();
        if (arrived != SPLIT - 1) return false;
        __threadfence();
        // So many parts at a time that a thread has 64 reads under way, and registers for them.
        constexpr int READS = 64 * sizeof(float) / sizeof(REAL) / (ROWS * COLS);
        constexpr int AT_ONCE = READS < 1 ? 1 : READS < SPLIT ? READS : SPLIT;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++) sum[i][j] = 0;
#pragma unroll 1
        for (int first = 0; first < SPLIT; first += AT_ONCE)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLS; j++)
#pragma unroll
                    for (int part = 0; part < AT_ONCE; part++)
                        if (SPLIT % AT_ONCE == 0 || first + part < SPLIT)
                            sum[i][j] +=
                                __ldcg(&parts[(((first + part) * ROWS + i) * COLS + j) * THREADS]);
        if (thread == 0) *counter = 0;
        return true;
    }
}
