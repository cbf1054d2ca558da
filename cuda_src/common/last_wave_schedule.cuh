// Units of work of persistent blocks: tiles of MB x NB of a batch of matrices, and parts of k of
// those that are too few for a last wave of all blocks.

#include "common/schedule.cuh"

#ifndef SPLIT
#define SPLIT 1  // parts of k of such a tile
#endif

struct Product {
    unsigned batch, steps, tiles_m, tiles_n;
#if FILL == 0
    __device__ __forceinline__ unsigned each() const { return tiles_m * tiles_n; }
#else
    unsigned count = tiles_in(tiles_m, tiles_n);  // walked through once, not for every unit
    __device__ __forceinline__ unsigned each() const { return count; }
#endif
    __device__ __forceinline__ unsigned tiles() const { return each() * batch; }
    __device__ __forceinline__ unsigned whole(unsigned blocks) const {
        return SPLIT > 1 ? tiles() / blocks * blocks : tiles();
    }
    __device__ __forceinline__ unsigned units() const {
        return whole(gridDim.x) + (tiles() - whole(gridDim.x)) * SPLIT;
    }
};
struct Unit {
    unsigned i0, j0, matrix, begin, end, part;
    bool is_split = false;
    __device__ __forceinline__ Unit(const Product& p, unsigned id) : begin(0), end(p.steps) {
        const unsigned whole = p.whole(gridDim.x), rest = p.tiles() - whole;
        if (SPLIT > 1 && id >= whole) {
            part = (id - whole) / rest;
            id = whole + (id - whole) % rest;
            begin = static_cast<unsigned long long>(part) * p.steps / SPLIT;
            end = static_cast<unsigned long long>(part + 1) * p.steps / SPLIT;
            is_split = true;
        }
        matrix = id / p.each();
        tile_of(id % p.each(), p.tiles_m, p.tiles_n, i0, j0);
        i0 *= MB;
        j0 *= NB;
    }
    __device__ __forceinline__ unsigned steps() const { return end - begin; }
};

#if SPLIT > 1
// Blocks of the launch, if these had whole tiles: the same number in every launch on a device. Says
// to the launch that adds up the parts which tiles have any.
__device__ unsigned rounds_of;

// Whether the tile of a row of all matrices and of a column was split.
__device__ __forceinline__ bool tile_was_split(unsigned m, unsigned n, unsigned batch,
                                               long long row, unsigned column) {
    const Product p{batch, 0, (m + MB - 1) / MB, (n + NB - 1) / NB};
    const unsigned matrix = row / m, i = row % m / MB, j = column / NB;
    if (!any_stored(i * MB, j * NB, MB, NB)) return false;
    const unsigned id = matrix * p.each() + id_of(i, j, p.tiles_m, p.tiles_n);
    return rounds_of == 0 || id >= p.whole(rounds_of);
}
#define TILE_WAS_SPLIT tile_was_split
#endif
