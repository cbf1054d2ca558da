// How kernels with common/tf32_wgmma.cuh store C.

#ifndef STORE
#define STORE 1  // 2: rows of C that start anywhere are stored 8 bytes at a time
#endif

#include "common/unaligned_rows.cuh"

// A piece of C: 64 columns of PIECE_ROWS rows, or SWAPPED 64 rows of PIECE_ROWS columns.
constexpr unsigned HIGH = SWAPPED ? 64 : PIECE_ROWS, WIDE = SWAPPED ? PIECE_ROWS : 64;
constexpr unsigned BOXES_C = (WIDE + 31) / 32;
// Whether a tile's first piece takes the oldest slot; else it waits for all.
constexpr bool IN_TURN = TA / PIECE_ROWS * PIECES % SLOTS == 0;

// The first slice of a tile gets the sums of all, added up in their order.
__device__ __forceinline__ void add_slices(Sums& sum, unsigned char* exchange, const Position& at) {
    constexpr unsigned EACH = TA * TB / 512;  // vectors of a thread
    const unsigned together = 1 + CONSUMERS + SLICES + at.warpgroup;
    float4* const room = reinterpret_cast<float4*>(exchange) +
                         at.warpgroup * (SLICES - 1) * (EACH * 128) + threadIdx.x % 128;
    named_barrier_sync<SLICES * 128>(together);  // the unit before has been read
    if (at.slice > 0) {
#pragma unroll
        for (unsigned e = 0; e < EACH; e++) {
            const float* const s = sum[e / (TA / 8)] + e % (TA / 8) * 4;
            room[((at.slice - 1) * EACH + e) * 128] = {s[0], s[1], s[2], s[3]};
        }
    }
    named_barrier_sync<SLICES * 128>(together);
    if (at.slice > 0) return;
#pragma unroll
    for (int other = 0; other < SLICES - 1; other++)
#pragma unroll
        for (unsigned e = 0; e < EACH; e++) {
            float* const s = sum[e / (TA / 8)] + e % (TA / 8) * 4;
            const float4 x = room[(other * EACH + e) * 128];
            s[0] += x.x, s[1] += x.y, s[2] += x.z, s[3] += x.w;
        }
}

// Bytes from the start of a staged piece to its row y, column x, swizzled as TMA does it.
__device__ __forceinline__ unsigned staged_place(unsigned y, unsigned x) {
    return x / 32 * (HIGH * ROW) + y * ROW + ((x % 32 / 4 ^ y % 8) << 4) + x % 4 * 4;
}

// Every fourth row of a staged piece, those of a warp, for store_unaligned_rows.
struct StagedRows {
    const unsigned char* piece;
    unsigned warp;
    __device__ __forceinline__ unsigned place(unsigned row, unsigned i) const {
        return staged_place(warp + 4 * row, 2 * i);
    }
    __device__ __forceinline__ const unsigned char* word(unsigned place, int r) const {
        return piece + (place ^ ((4 * r % 8) << 4)) + 4 * r * ROW;
    }
};

// C <- alpha sum + beta C, or a part of the sums as it is.
struct Output {
    const TensorMap* map;
    float* C;
    long long ld;
    unsigned m, n;
    float alpha, beta;
    bool boxed;
    EPILOGUE_MEMBER

    __device__ __forceinline__ void scale(float* sum, unsigned i0, unsigned j0,
                                          const Position& at) const {
#pragma unroll
        for (int e = 0; e < PIECE_ROWS / 2; e++) sum[e] *= alpha;
        if (beta == 0.0f) return;
#pragma unroll
        for (int e = 0; e < PIECE_ROWS / 2; e++) {
            const unsigned i = i0 + e / 4 * 8 + at.t * 2 + e % 2, j = j0 + at.column(e / 2 % 2);
            const unsigned row = SWAPPED ? j : i, column = SWAPPED ? i : j;
            if (row < m && column < n && is_stored(row, column))
                sum[e] += beta * C[row * ld + column];
        }
    }
#if EPILOGUE
    // The elements of a piece as they are stored.
    __device__ __forceinline__ void finish(float* sum, unsigned i0, unsigned j0,
                                           const Position& at) const {
#pragma unroll
        for (int e = 0; e < PIECE_ROWS / 2; e++) {
            const unsigned i = i0 + e / 4 * 8 + at.t * 2 + e % 2, j = j0 + at.column(e / 2 % 2);
            sum[e] = epilogue(sum[e], SWAPPED ? j : i, SWAPPED ? i : j);
        }
    }
#endif
    static __device__ __forceinline__ void stage(unsigned char* staging, const float* sum,
                                                 const Position& at) {
#pragma unroll
        for (int e = 0; e < PIECE_ROWS / 2; e++) {
            const unsigned i = e / 4 * 8 + at.t * 2 + e % 2, j = at.column(e / 2 % 2);
            if constexpr (!SWAPPED)
                *reinterpret_cast<float*>(staging + staged_place(i, j)) = sum[e];
            else if (e % 2 == 0)
                *reinterpret_cast<float2*>(staging + staged_place(j, i)) = {sum[e], sum[e + 1]};
        }
    }
    // The staged piece by the threads of the warpgroup, where TMA cannot store it.
    __device__ __forceinline__ void copy(const unsigned char* staging, unsigned row,
                                         unsigned column, const Position& at) const {
        const unsigned lane = threadIdx.x % 32, first = row + at.warp;
        if (STORE == 2 && !partly_stored(row, column, HIGH, WIDE)) {
            if (first < m && column < n)
                store_unaligned_rows<HIGH / 4, WIDE>(C + first * ld + column, 4 * ld,
                                                     (m - first + 3) / 4, n - column,
                                                     StagedRows{staging, at.warp});
            return;
        }
#pragma unroll 1
        for (unsigned y = at.warp; y < HIGH && row + y < m; y += 4)
#pragma unroll
            for (unsigned x = lane; x < WIDE; x += 32)
                if (column + x < n && is_stored(row + y, column + x))
                    C[(row + y) * ld + column + x] =
                        *reinterpret_cast<const float*>(staging + staged_place(y, x));
    }
    __device__ __forceinline__ void store(Sums& sum, const Unit& unit, unsigned char* staging,
                                          const Position& at) const {
        const bool elected = threadIdx.x % 128 == 0;
        const unsigned i0 = unit.row + at.down * TA;
#pragma unroll
        for (int u = 0; u < PIECES; u++) {
            const unsigned j0 = unit.column + at.right * TB + u * 64;
#pragma unroll
            for (int r = 0; r < TA; r += PIECE_ROWS) {
                const unsigned piece = u * (TA / PIECE_ROWS) + r / PIECE_ROWS;
                const unsigned row = SWAPPED ? j0 : i0 + r, column = SWAPPED ? i0 + r : j0;
                const bool direct = boxed && !partly_stored(row, column, HIGH, WIDE);
                // A piece that TMA does not store counts as if it did, so that slots take turns.
                if (boxed && !direct && elected) bulk_commit_group();
                if (!any_stored(row, column, HIGH, WIDE)) continue;
                if (SPLIT == 1) scale(sum[u] + r / 2, i0 + r, j0, at);
#if EPILOGUE
                if (SPLIT == 1) finish(sum[u] + r / 2, i0 + r, j0, at);
#endif
                unsigned char* const slot = staging + piece % SLOTS * SLOT_BYTES;
                if (elected)
                    piece > 0 || IN_TURN ? bulk_wait_group_read<SLOTS - 1>()
                                         : bulk_wait_group_read<0>();
                warpgroup_sync(at.group + 1);
                stage(slot, sum[u] + r / 2, at);
                if (direct) fence_proxy_async();
                warpgroup_sync(at.group + 1);
                if (!direct) {
                    copy(slot, row, column, at);
                } else if (elected) {
#pragma unroll
                    for (unsigned q = 0; q < BOXES_C; q++)
                        tma_store(map, address_of_shared(slot) + q * HIGH * ROW, column + q * 32,
                                  row, unit.matrix);
                    bulk_commit_group();
                }
            }
        }
    }
};
