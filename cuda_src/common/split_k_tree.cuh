// Split k without a second launch, for any number of parts: blocks add up in a tree.

#include "common/split_k.cuh"

constexpr unsigned FAN = 16;  // parts that one block adds up at a time

constexpr unsigned groups_of(unsigned parts) {
    return parts > 1 ? (parts + FAN - 1) / FAN + groups_of((parts + FAN - 1) / FAN) : 0;
}
constexpr unsigned GROUPS = groups_of(SPLIT);  // of all levels; each has a counter for each tile

// Adds the parts of a tile in an order that does not depend on timing: the last block of each FAN
// to arrive adds up their sums and goes on as one part of the next level. No block waits for
// another, and none reads more than FAN parts of a level: 132 parts of 64 x 64 floats would be 2 MB
// through one multiprocessor. `sum` is the thread's share of the tile, in vectors, and `arrived` a
// number in shared memory. True for the one block of a tile that ends with the total; the others
// have nothing more to do.
template <int THREADS, int VECTORS>
__device__ __forceinline__ bool combine_tree(Vector (&sum)[VECTORS], void* workspace,
                                             unsigned thread, unsigned& arrived) {
    if constexpr (SPLIT > 1) {
        const unsigned tile = blockIdx.z * gridDim.x + blockIdx.x;
        unsigned* counters = static_cast<unsigned*>(workspace) + tile * GROUPS;
        Vector* const parts =
            reinterpret_cast<Vector*>(static_cast<unsigned*>(workspace) + COUNTERS) +
            static_cast<size_t>(tile) * SPLIT * VECTORS * THREADS + thread;
        // Of `count` parts of this level this is number `part`; they lie `stride` slots apart.
        unsigned part = blockIdx.y, count = SPLIT, stride = 1;
        while (count > 1) {
            const unsigned group = part / FAN, left = count - group * FAN;
            const unsigned members = left < FAN ? left : FAN;
            Vector* const slot = parts + static_cast<size_t>(part * stride) * VECTORS * THREADS;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) slot[v * THREADS] = sum[v];
            __threadfence();  // the parts are seen before the arrival
            __syncthreads();
            if (thread == 0) arrived = atomicAdd(&counters[group], 1u);
            __syncthreads();
            if (arrived != members - 1) return false;
            __threadfence();
            const Vector* from =
                parts + static_cast<size_t>(group * FAN * stride) * VECTORS * THREADS;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) sum[v] = Vector{};
#pragma unroll 4
            for (unsigned member = 0; member < members; member++) {
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    const Vector x = from[v * THREADS];
#pragma unroll
                    for (int e = 0; e < VECTOR; e++) sum[v].x[e] += x.x[e];
                }
                from += static_cast<size_t>(stride) * VECTORS * THREADS;
            }
            if (thread == 0) counters[group] = 0;
            counters += (count + FAN - 1) / FAN;
            part = group;
            count = (count + FAN - 1) / FAN;
            stride *= FAN;
        }
    }
    return true;
}
