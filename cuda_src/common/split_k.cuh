// Split k: SPLIT blocks share one tile of C, each with its part of k. For products whose tiles
// alone would leave multiprocessors idle.

#ifndef SPLIT
#define SPLIT 1  // blocks that share a tile of C
#endif

#ifndef PARTS_AT_ONCE
#define PARTS_AT_ONCE SPLIT  // of a sum that a thread reads before it adds them: registers
#endif
constexpr int PARTS_READ = PARTS_AT_ONCE;

constexpr unsigned COUNTERS = 16384;  // at the start of the workspace, zero between launches

// Adds up the parts of a tile in the fixed order of the blocks, whichever of them comes last: the
// result does not depend on timing. Each block leaves its sums in the workspace, neighbouring
// threads side by side; the last to arrive reads them all (from L2, where they still are), has the
// totals in `sum` and gets true. The others have nothing more to do.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ bool combine(REAL (&sum)[ROWS][COLS], void* workspace, unsigned thread) {
    if constexpr (SPLIT == 1) {
        return true;
    } else {
        __shared__ unsigned arrived;
        const unsigned tile = blockIdx.z * gridDim.x + blockIdx.x;
        unsigned* const counter = static_cast<unsigned*>(workspace) + tile;
        REAL* const parts = reinterpret_cast<REAL*>(static_cast<unsigned*>(workspace) + COUNTERS) +
                            static_cast<size_t>(tile) * SPLIT * ROWS * COLS * THREADS + thread;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
                parts[((blockIdx.y * ROWS + i) * COLS + j) * THREADS] = sum[i][j];
        __threadfence();  // the parts are seen before the arrival
        __syncthreads();
        if (thread == 0) arrived = atomicAdd(counter, 1u);
        __syncthreads();
        if (arrived != SPLIT - 1) return false;
        __threadfence();
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                REAL total = 0;
#pragma unroll PARTS_READ
                for (int part = 0; part < SPLIT; part++)
                    total += __ldcg(&parts[((part * ROWS + i) * COLS + j) * THREADS]);
                sum[i][j] = total;
            }
        if (thread == 0) *counter = 0;
        return true;
    }
}
