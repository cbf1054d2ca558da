// Units of work of persistent blocks: tiles of MB x NB of a batch of matrices. Those that are left
// when all blocks have had the same number of whole tiles are shared: laid one behind the other
// along k and cut into as many equal pieces as there are blocks, so that none is idle in the last
// round. What a block has of such a tile goes to memory, in a slot of its own, and `combine` adds
// up the slots of each tile.
//
// 4096: 1024 tiles of 128 x 128 are 7.76 waves of 132 blocks and take that long, not 8. A deep
// product has no whole wave at all. Slots are a block's tile each, 34 MB in all, not a multiple of
// C. Nothing is shared where seven blocks of eight have a tile anyway: a second launch and another
// tile to store cost 7 us on an H200.

#include "common/dependent_launch.cuh"
#include "common/epilogue.cuh"
#include "common/schedule.cuh"

#ifndef SPLIT
#define SPLIT 1  // blocks for each tile that is shared, at most and on average; 1: none is
#endif

struct Unit {
    unsigned i0, j0, matrix, begin, end, slot;
    bool shared;
};

struct Product {
    unsigned batch, steps, tiles_m, tiles_n, blocks;
#if FILL == 0
    __device__ __forceinline__ unsigned each() const { return tiles_m * tiles_n; }
#else
    unsigned count = tiles_in(tiles_m, tiles_n);  // walked through once, not for every unit
    __device__ __forceinline__ unsigned each() const { return count; }
#endif
    __device__ __forceinline__ unsigned tiles() const { return each() * batch; }
    __device__ __forceinline__ unsigned whole() const {
        const unsigned left = tiles() % blocks;
        return SPLIT == 1 || nearly_fills_wave(left) ? tiles() : tiles() - left;
    }
    __device__ __forceinline__ bool nearly_fills_wave(unsigned count) const {
        return count * 8 >= blocks * 7;
    }
    __device__ __forceinline__ unsigned rest() const { return tiles() - whole(); }
    // Blocks for each of them, if that keeps nearly all busy: a share is then of one tile, not of
    // two, and its block has one slot to write.
    __device__ __forceinline__ unsigned blocks_per_tile() const {
        const unsigned fit = blocks / rest();
        return SPLIT <= fit ? SPLIT : nearly_fills_wave(fit * rest()) ? fit : 0;
    }
    __device__ __forceinline__ unsigned sharers() const {
        return blocks_per_tile() > 0 ? blocks_per_tile() * rest() : blocks;
    }
    // Each `group` of sharers has a run of steps; the first few have one step more than the others.
    __device__ __forceinline__ unsigned group() const {
        return blocks_per_tile() ? blocks_per_tile() : blocks;
    }
    __device__ __forceinline__ unsigned run() const {
        return blocks_per_tile() ? steps : rest() * steps;
    }
    // Block b takes units b, b + blocks, b + 2 * blocks, ...: whole tiles, then its shares of two.
    __device__ __forceinline__ unsigned units() const {
        return whole() + (rest() > 0 ? 2 * blocks : 0);
    }
    __device__ __forceinline__ void tile(Unit& unit, unsigned id) const {
        unit.matrix = 0;
        if (batch > 1) unit.matrix = id / each(), id %= each();
        tile_of(id, tiles_m, tiles_n, unit.i0, unit.j0);
        unit.i0 *= MB;
        unit.j0 *= NB;
    }
    // Without a step where the block has no second share, or none at all.
    __device__ __forceinline__ Unit unit(unsigned id) const {
        Unit unit{0, 0, 0, 0, steps, 0, false};
        if (SPLIT > 1 && id >= whole()) {
            const unsigned share = share_of((id - whole()) % blocks), from = first_step(share);
            const unsigned to = share < sharers() ? first_step(share + 1) : from;
            const unsigned shared = steps == 0 ? 0 : from / steps + (id - whole()) / blocks;
            const unsigned first = shared * steps, last = first + steps;
            unit.begin = from > first ? from - first : 0;
            unit.end = to <= first ? unit.begin : to < last ? to - first : steps;
            unit.slot = share + shared;
            unit.shared = true;
            id = unit.end > unit.begin ? whole() + shared : 0;
        }
        tile(unit, id);
        return unit;
    }
    // Neighbours have the same part of k of different tiles, and much of what they read in common.
    __device__ __forceinline__ unsigned share_of(unsigned block) const {
        const unsigned each = sharers() / rest();
        return block < each * rest() ? block % rest() * each + block / rest() : block;
    }
    __device__ __forceinline__ unsigned first_step(unsigned share) const {
        const unsigned runs = share / group(), number = share % group(), more = run() % group();
        return runs * run() + run() / group() * number + (number < more ? number : more);
    }
    // The share that has this step.
    __device__ __forceinline__ unsigned sharer(unsigned step) const {
        const unsigned piece = run() / group(), more = run() % group();
        const unsigned before = step / run() * group(), within = step % run();
        if (within < more * (piece + 1)) return before + within / (piece + 1);
        return before + more + (within - more * (piece + 1)) / piece;
    }
};
// The product of the launch that this is in.
__device__ __forceinline__ Product product_of(unsigned m, unsigned n, unsigned k, unsigned batch) {
    return {batch, (k + KB - 1) / KB, (m + MB - 1) / MB, (n + NB - 1) / NB, gridDim.x};
}

// What `combine` must know of the launch before it, at the beginning of the slots' memory.
struct alignas(128) LaunchShape {
    unsigned blocks, steps;
};
constexpr int SLOT = MB * NB;  // elements of a slot
__device__ __forceinline__ double* slot_of(double* parts, unsigned slot) {
    return parts + sizeof(LaunchShape) / sizeof(double) + static_cast<size_t>(slot) * SLOT;
}

#if SPLIT > 1
constexpr unsigned PAIRS = SLOT / 2, PLACES = 4;  // pairs of a slot; of a thread at a time

// What every so many slots have at a thread's places.
__device__ __forceinline__ void add_slots(double2 (&sum)[PLACES], const double2* slots,
                                          unsigned from, unsigned to, unsigned stride,
                                          unsigned first, unsigned across) {
    for (unsigned slot = from; slot <= to; slot += stride * 2) {
        double2 next[2][PLACES];  // all are loaded before the first is added
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
#pragma unroll
            for (unsigned q = 0; q < PLACES; q++) {
                const unsigned s = slot + i * stride, place = first + q * across;
                const bool there = s <= to && place < PAIRS;
                next[i][q] = there ? slots[static_cast<size_t>(s) * PAIRS + place] : double2{};
            }
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
#pragma unroll
            for (unsigned q = 0; q < PLACES; q++)
                sum[q].x += next[i][q].x, sum[q].y += next[i][q].y;
    }
}

// C = alpha (sum of its slots) + beta C for every tile that was shared. A thread has two columns in
// each of four places of a tile, which hides what it takes to find slots and tile; where tiles are
// few and their slots many, several threads share the slots. Added up in a fixed order.
extern "C" __global__ void __launch_bounds__(256, 3)
    combine(const double* parts, double* C, long long ldc, long long batch_c, double alpha,
            double beta, int m, int n, int batch EPILOGUE_PARAMETER) {
    __shared__ double2 totals[PLACES][256];
    griddepcontrol_wait<FILL != 0>();
    const LaunchShape& launch = *reinterpret_cast<const LaunchShape*>(parts);
    const Product p{unsigned(batch), launch.steps, (m + MB - 1u) / MB, (n + NB - 1u) / NB,
                    launch.blocks};
    const double2* const slots = reinterpret_cast<const double2*>(parts + sizeof(LaunchShape) / 8);
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, rest = p.rest();
    if (rest == 0) return;
    unsigned group = 1;  // threads that have the same places
    while (group < 32 && group * 2 * rest <= p.sharers()) group *= 2;
    const unsigned across = 256 / group, number = thread / across;              // of that group
    const unsigned pieces = (PAIRS + across * PLACES - 1) / (across * PLACES);  // of a tile
    for (unsigned piece = blockIdx.x; piece < rest * pieces; piece += gridDim.x) {
        const unsigned shared = piece / pieces;
        const unsigned first = piece % pieces * across * PLACES + thread % across;
        double2 sum[PLACES] = {};
        if (p.steps > 0)
            add_slots(sum, slots, p.sharer(shared * p.steps) + shared + number,
                      p.sharer((shared + 1) * p.steps - 1) + shared, group, first, across);
        if (group > 1) {
            __syncthreads();  // what was there before has been read
#pragma unroll
            for (unsigned q = 0; q < PLACES; q++) totals[q][thread] = sum[q];
            __syncthreads();
            if (number > 0) continue;
            for (unsigned h = 1; h < group; h++)
#pragma unroll
                for (unsigned q = 0; q < PLACES; q++) {
                    const double2 more = totals[q][h * across + thread];
                    sum[q].x += more.x, sum[q].y += more.y;
                }
        }
        Unit unit;
        p.tile(unit, p.whole() + shared);
#pragma unroll
        for (unsigned q = 0; q < PLACES; q++) {
            const unsigned place = first + q * across, row = unit.i0 + place / (NB / 2);
            const unsigned column = unit.j0 + place % (NB / 2) * 2;
            if (place >= PAIRS || row >= unsigned(m)) continue;
            double* const from = C + unit.matrix * batch_c;
            double* const to = from + row * ldc + column;
            double* const over = from + column * ldc + row;  // the same place of the other half
            if (column < unsigned(n) && is_stored(row, column)) {
                const double x = FINISHED(alpha * sum[q].x + (beta != 0 ? beta * to[0] : 0.0), row,
                                          column);
                to[0] = x;
                if (BOTH) over[0] = x;
            }
            if (column + 1 < unsigned(n) && is_stored(row, column + 1)) {
                const double x = FINISHED(alpha * sum[q].y + (beta != 0 ? beta * to[1] : 0.0), row,
                                          column + 1);
                to[1] = x;
                if (BOTH) over[ldc] = x;
            }
        }
    }
}
#endif
