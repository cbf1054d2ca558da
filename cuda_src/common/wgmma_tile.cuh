// Tiles of A and B as TMA loads them for wgmma, and the tile of C as it is stored.
//
// The kernel defines REAL, OUT; TA, TB; BOX (columns of a box along k) and K_BOXES (boxes of a tile
// along k); STAGES, SPLIT; STREAMED (loads carry an L2 policy); ROWS (pieces of 64 rows of a
// warpgroup) and WARPGROUPS_N; SLOTS, LINE and PIECE_COLUMNS (columns of C in 128 bytes and in a
// piece), PIECE (bytes of 64 rows of 128), STAGED_BYTES (of a slot) and WARPS_STORE (each warp
// stores its own rows, without TMA); CONSUMER_REGISTERS (common/warpgroups.cuh). Units of work come
// from common/split_k_schedule.cuh.

#include "common/epilogue.cuh"
#include "common/l2_policy.cuh"
#include "common/unaligned_rows.cuh"

// The position in the ring of stages: the stage, and the parity of its barriers' phase.
struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// A batch of matrices, `stride` apart along the map's third axis.
struct Operand {
    const TensorMap* map;
    unsigned stride;
    L2Policy l2_hint;
};

// Into how many boxes blocks of a cluster divide EXTENT rows: one for each block or fewer, all of
// whole groups of 8 rows, in which shared memory is swizzled.
template <int EXTENT, int BLOCKS>
constexpr int PARTS_OF_ROWS =
    EXTENT % (8 * BLOCKS) == 0 ? BLOCKS : PARTS_OF_ROWS<EXTENT, BLOCKS - 1>;
template <int EXTENT>
constexpr int PARTS_OF_ROWS<EXTENT, 1> = 1;

// Loads EXTENT rows (or columns) of one matrix, from `outer` of op(X) on, at depth k0. A box of a
// K-major operand has all rows, of an MN-major one 64 columns or fewer. Where BLOCKS of a cluster
// share the tile, each loads a part for all of them (multicast): rows of a K-major box, some of the
// MN-major ones, or where these are at most half as many as blocks, a part of the depth of one.
// Where that does not come out even, the last blocks load fewer or none. `place` counts this block
// among them, `all` has a bit for each of them by its number in the cluster.
template <bool K_MAJOR, int BLOCKS, int EXTENT>
__device__ __forceinline__ void fetch(unsigned tile, const Operand& from, unsigned full,
                                      unsigned outer, unsigned k0, unsigned matrix,
                                      unsigned place = 0, unsigned short all = 1) {
    constexpr int ROWS_OF_BOX = EXTENT / PARTS_OF_ROWS<EXTENT, BLOCKS>;
    constexpr int HIGH = K_MAJOR ? ROWS_OF_BOX : EXTENT < 64 ? EXTENT : 64;
    constexpr int SLICES = !K_MAJOR && EXTENT / HIGH < BLOCKS ? BLOCKS * HIGH / EXTENT : 1;
    constexpr int BOXES = EXTENT / HIGH * SLICES;
    constexpr int SHARE = (BOXES + BLOCKS - 1) / BLOCKS;  // boxes that a block loads, at most
    const unsigned first = BLOCKS > 1 ? place * SHARE : 0, z = matrix * from.stride;
#pragma unroll
    for (int deep = 0; deep < K_BOXES; deep++)
#pragma unroll
        for (int box = 0; box < SHARE; box++) {
            if (BOXES % BLOCKS && first + box >= BOXES) break;
            const unsigned at = (first + box) / SLICES * HIGH;
            const unsigned slice = (first + box) % SLICES * (BOX / SLICES);
            const unsigned o = outer + at, k = k0 + deep * BOX + slice;
            const unsigned target = tile + (deep * EXTENT + at) * 2 * BOX + slice * 128;
            const unsigned x = K_MAJOR ? k : o, y = K_MAJOR ? o : k;
            if constexpr (BLOCKS > 1 && STREAMED)
                tma_load(target, from.map, full, x, y, z, all, from.l2_hint);
            else if constexpr (BLOCKS > 1)
                tma_load(target, from.map, full, x, y, z, all);
            else if constexpr (STREAMED)
                tma_load(target, from.map, full, x, y, z, from.l2_hint);
            else
                tma_load(target, from.map, full, x, y, z);
        }
}

// Words of C for which a lane reads before it stores one, where rows start anywhere: two where the
// sums leave too few registers for four. With fewer yet, elements are stored one by one.
constexpr int REGISTERS_LEFT = CONSUMER_REGISTERS - ROWS * TB / 2;
constexpr int WORDS_AHEAD = REGISTERS_LEFT < 50 ? 0 : REGISTERS_LEFT < 56 ? 2 : 4;

// Sixteen staged rows of a piece, from a multiple of 8 rows on, for store_unaligned_rows: the
// 16-byte chunks of a row are swapped by the number of the row, modulo 8.
struct StagedRows {
    const unsigned char* rows;
    __device__ __forceinline__ unsigned place(unsigned row, unsigned i) const {
        return i / 16 * PIECE + row * 128 + ((i % 16 / 2 ^ row) << 4) + i % 2 * 8;
    }
    __device__ __forceinline__ const unsigned char* word(unsigned place, int r) const {
        return rows + (place ^ ((r % 8) << 4)) + r * 128;
    }
};

// C <- alpha sum + beta C, through shared memory in pieces of 64 rows and PIECE_COLUMNS columns.
struct Output {
    const TensorMap* map;
    OUT* C;
    float* parts;
    long long ld, step;
    unsigned m, n, batch, end_m, end_n;  // where the matrix ends, and the tile
    float alpha, beta;
    bool boxed;
    EPILOGUE_MEMBER

    // sum <- alpha sum + beta C, of 64 rows and TB columns. Apart from what follows, so that the
    // way without C is short: its instructions come from device memory when a kernel is new.
    __device__ __forceinline__ void scale(float (&sum)[TB / 2], unsigned i0, unsigned j0) const {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
        for (int e = 0; e < TB / 2; e++) sum[e] *= alpha;
        if (beta == 0.0f) return;
#pragma unroll
        for (int e = 0; e < TB / 2; e++) {
            const unsigned row = i0 + warp * 16 + lane / 4 + e / 2 % 2 * 8;
            const unsigned column = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
            if (row < end_m && column < end_n && is_stored(row, column))
                sum[e] += beta * widen(C[row * ld + column]);
        }
    }
#if EPILOGUE
    // The elements of the same 64 rows as they are stored. By eight columns: what is beyond C ends
    // it, and the compiler mixes no more of them, for each takes registers.
    __device__ __forceinline__ void finish(float (&sum)[TB / 2], unsigned i0, unsigned j0) const {
        const unsigned row = i0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const unsigned column = j0 + threadIdx.x % 4 * 2;
#pragma unroll
        for (int e = 0; e < TB / 2; e += 4) {
            if (j0 + e * 2 >= end_n) break;
#pragma unroll
            for (int x = e; x < e + 4; x++)
                sum[x] = epilogue(sum[x], row + x / 2 % 2 * 8, column + x / 4 * 8 + x % 2);
        }
    }
#endif
    // A piece to where `staged` lies, swizzled as TMA does it.
    static __device__ __forceinline__ void stage(unsigned staged, const float* sum) {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        if constexpr (sizeof(OUT) == 4) {
#pragma unroll
            for (int e = 0; e < PIECE_COLUMNS / 2; e += 2) {
                const unsigned row = warp * 16 + lane / 4 + e / 2 % 2 * 8;
                const unsigned chunk = e / 4 % 4 * 2 + lane % 4 / 2 ^ row % 8;
                store_shared_pair(staged + e / 16 * PIECE + row * 128 + chunk * 16 + lane % 2 * 8,
                                  sum[e], sum[e + 1]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < PIECE_COLUMNS / 16; j++) {
                unsigned packed[4];
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const float* s = sum + j * 8 + q / 2 * 4 + q % 2 * 2;
                    packed[q] = narrow(REAL{}, s[0], s[1]);
                }
                const unsigned row = warp * 16 + lane % 16, chunk = j % 4 * 2 + lane / 16;
                stmatrix_x4(staged + j / 4 * PIECE + row * 128 + ((chunk ^ row % 8) << 4), packed);
            }
        }
    }
    // A warp's own 16 rows of a staged piece: 16 bytes at a time where C allows it, 8 where its
    // rows start anywhere, and one element where registers are few or not all is kept.
    __device__ __forceinline__ void copy(const unsigned char* staged, unsigned i0, unsigned j0,
                                         bool cut) const {
        constexpr unsigned EACH = 16 / sizeof(OUT), CHUNKS = PIECE_COLUMNS / EACH;
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        if (boxed && !cut) {
#pragma unroll
            for (unsigned x = lane; x < 16 * CHUNKS; x += 32) {
                const unsigned row = warp * 16 + x / CHUNKS, column = x % CHUNKS * EACH;
                const uint4 chunk = *reinterpret_cast<const uint4*>(staged + place(row, column));
                if (i0 + row < end_m && j0 + column < end_n)
                    *reinterpret_cast<uint4*>(C + (i0 + row) * ld + j0 + column) = chunk;
            }
            return;
        }
        const unsigned first = i0 + warp * 16;
        if constexpr (WORDS_AHEAD > 0) {
            if (!cut) {
                if (first < end_m && j0 < end_n)
                    store_unaligned_rows<16, PIECE_COLUMNS, WORDS_AHEAD>(
                        C + first * ld + j0, ld, end_m - first, end_n - j0,
                        StagedRows{staged + warp * 16 * 128});
                return;
            }
        }
        for (unsigned row = warp * 16; row < warp * 16 + 16 && i0 + row < end_m; row++)
#pragma unroll
            for (unsigned column = lane; column < PIECE_COLUMNS; column += 32)
                if (j0 + column < end_n && is_stored(i0 + row, j0 + column))
                    C[(i0 + row) * ld + j0 + column] = *reinterpret_cast<const OUT*>(
                        staged + place(row, column) + column % EACH * sizeof(OUT));
    }
    // Where in a piece the 16 bytes are that hold an element.
    static __device__ __forceinline__ unsigned place(unsigned row, unsigned column) {
        const unsigned chunk = column % LINE / (16 / sizeof(OUT)) ^ row % 8;
        return column / LINE * PIECE + row * 128 + chunk * 16;
    }
    // The sums of a part as they are, 64 rows and TB columns.
    __device__ __forceinline__ void store_part(const float (&sum)[TB / 2], unsigned part,
                                               unsigned matrix, unsigned i0, unsigned j0) const {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        const unsigned pitch = (n + 3) / 4 * 4, most = (end_n + 3) / 4 * 4;
        float* const to = parts + 1ull * (part * batch + matrix) * m * pitch;
#pragma unroll
        for (int e = 0; e < TB / 2; e += 2) {
            const unsigned row = i0 + warp * 16 + lane / 4 + e / 2 % 2 * 8;
            const unsigned column = j0 + e / 4 * 8 + lane % 4 * 2;
            if (row < end_m && column < most)
                *reinterpret_cast<float2*>(to + 1ull * row * pitch + column) = {sum[e], sum[e + 1]};
        }
    }
};
