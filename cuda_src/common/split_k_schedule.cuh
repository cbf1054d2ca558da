// Units of work of persistent blocks: tiles of C, and where k is split the parts of their sums, for
// `combine` to add up. A cluster of CLUSTER blocks along m times CLUSTER_N along n takes as many
// neighbouring tiles.

#ifndef CLUSTER_N
#define CLUSTER_N 1
#endif
#define TILE_M (MB * CLUSTER)
#define TILE_N (NB * CLUSTER_N)

#include "common/schedule.cuh"

constexpr int CLUSTER_BLOCKS = CLUSTER * CLUSTER_N;

// The place of this block in its cluster, whose blocks are counted column by column.
__device__ __forceinline__ unsigned row_in_cluster() {
    if (CLUSTER == 1) return 0;
    return CLUSTER_N == 1 ? block_in_cluster() : block_in_cluster() % CLUSTER;
}
__device__ __forceinline__ unsigned column_in_cluster() {
    return CLUSTER_N == 1 ? 0 : block_in_cluster() / CLUSTER;
}

// What a block computes at a time: a tile of C, or a part of its sums, those of so many steps.
struct Unit {
    unsigned i0, j0, matrix, part, first, steps;
};

struct Product {
    unsigned batch, steps, tiles_m, tiles_n;  // of clusters
#if FILL == 0
    __device__ __forceinline__ unsigned each() const { return tiles_m * tiles_n; }
#else
    unsigned count = tiles_in(tiles_m, tiles_n);  // walked through once, not for every unit
    __device__ __forceinline__ unsigned each() const { return count; }
#endif
    __device__ __forceinline__ unsigned units() const { return each() * SPLIT * batch; }
    // Steps of all units that this block computes.
    __device__ __forceinline__ unsigned steps_of_block() const {
        const unsigned first = blockIdx.x / CLUSTER_BLOCKS, stride = gridDim.x / CLUSTER_BLOCKS;
        if (SPLIT == 1) return (units() - first + stride - 1) / stride * steps;
        unsigned sum = 0;
        for (unsigned id = first; id < units(); id += stride) sum += (*this)[id].steps;
        return sum;
    }
    // Neighbours have the same part of k: they find it in L2.
    __device__ __forceinline__ Unit operator[](unsigned id) const {
        const unsigned tiles = each();
        unsigned tile_m, tile_n, rest = 0;
        if (id >= tiles) rest = id / tiles, id %= tiles;
        tile_of(id, tiles_m, tiles_n, tile_m, tile_n);
        const unsigned part = rest % SPLIT, row = row_in_cluster(), column = column_in_cluster();
        const unsigned first = static_cast<unsigned long long>(part) * steps / SPLIT;
        const unsigned last = static_cast<unsigned long long>(part + 1) * steps / SPLIT;
        const unsigned i = tile_m * CLUSTER + row, j = tile_n * CLUSTER_N + column;
        return {i * MB, j * NB, rest / SPLIT, part, first, last - first};
    }
};
