// 12 tensor: kernel 06 for 16-bit elements and for tf32, on every GPU since Ampere.
//
// The ring of STAGES tiles, the tiles of warps and the order of blocks are those of kernel 06; sums
// are float32. One instruction multiplies 32 bytes along k, sixteen 16-bit elements or eight of
// tf32, and a fragment is words of two elements or one. What this kernel adds:
//
// - `ldmatrix`: a warp reads a fragment of 16 x 32 bytes of A, or two of B, with one instruction,
//   and with `.trans` also where the tile is MN-major. So all four layouts have the same
//   layout in shared as in global memory, and none is transposed. tf32 that is MN-major has no such
//   instruction: its elements are read one by one.
// - No padding: the 16-byte chunks of a line are swapped (common/swizzled_tile.cuh), so that
//   neither reads nor copies meet a bank twice.
// - A row of A's fragments is read again, 32 bytes deeper, once its last product is issued;
//   those of B, which all rows need, are kept twice. So 64 x 64 fits in the registers.
// - The order of the words of A and of B is the one in which an instruction takes them, one after
//   the other. With another order for B the main loop had 76 moves of registers.
// - float32 is rounded to tf32 when it is used, not when it is read: rounding at once would wait
//   for the read.
// - SLICES groups of warps share a tile: each multiplies its own part of every step along k, and
//   their sums are added at the end. Small tiles have more warps then, which load more at a time.
// - Rows of 16-bit elements may start at any multiple of 2 bytes, and cp.async copies 4 at least.
//   Such rows are copied with what is before and behind them, 16 bytes at a time, and are read
//   word by word (common/shifted_tile.cuh). So are K-major rows of tf32 that are not aligned.
// - C of 16 bits is stored through shared memory, the whole tile at a time. So is one of 32 bits
//   whose rows start at multiples of 4 bytes, or of 8 if a warp has 32 x 32 elements or more.
//
// Main loop of 128 x 128 x 32, 64 x 64 per warp, bf16, nvcc 13.0 for sm_90a: 64 HMMA of 147
// instructions, 16 LDSM, 8 LDGSTS. One H200: 455 TFLOP/s at 4096; these HMMA without
// anything else reach 546. `wgmma` (kernel 07) has nearly twice that rate: on Hopper this kernel is
// the second choice.

#ifndef REAL
#define REAL BF16  // element type of A and B: F16, BF16, or float, which is rounded to tf32
#endif
#ifndef OUT
#define OUT REAL  // element type of C
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T
#endif
#ifndef GUARDED
#define GUARDED 1  // 0: m, n, k are multiples of MB, NB, KB; nothing is checked
#endif
#ifndef MB
#define MB 128  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 32  // depth of a tile
#endif
#ifndef TA
#define TA 64  // rows of C that one warp computes
#endif
#ifndef TB
#define TB 64  // columns of C that one warp computes
#endif
#ifndef SLICES
#define SLICES 1  // groups of warps that share a tile, each with its own part of every step along k
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 2  // blocks that one multiprocessor is to hold: bounds the registers of a thread
#endif

#include "common/schedule.cuh"
#include "common/shifted_tile.cuh"
#include "common/swizzled_tile.cuh"
#include "common/epilogue.cuh"
#include "common/unaligned_rows.cuh"

constexpr int WARPS_M = MB / TA, WARPS_N = NB / TB, WARPS_MN = WARPS_M * WARPS_N;
constexpr int THREADS = 32 * WARPS_MN * SLICES;
constexpr int ROWS = TA / 16, COLUMNS = TB / 8;        // mma of a warp along m and n
constexpr int DEEP = KB * sizeof(REAL) / 32 / SLICES;  // mma of a warp along k in one tile

constexpr bool powers_of_two(int x) { return (x & (x - 1)) == 0; }
static_assert(powers_of_two(MB) && powers_of_two(NB) && powers_of_two(KB) && powers_of_two(TA) &&
                  powers_of_two(TB) && powers_of_two(SLICES),
              "the swizzle wants powers of two: MB, NB, KB, TA, TB, SLICES");
static_assert(MB % TA == 0 && NB % TB == 0 && TA % 16 == 0 && TB % 16 == 0,
              "warps tile the block evenly, in pieces of 16 x 16: TA divides MB, TB divides NB");
static_assert(64 * SLICES <= TA * TB,
              "slices share the sums of a warp's tile, 64 at least: SLICES <= TA TB / 64");
static_assert(KB * sizeof(REAL) % (64 * SLICES) == 0,
              "two instructions of a slice lie along k: 64 SLICES bytes divide those of KB");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");

// Which lines are copied with what is before and behind them: of 16-bit elements those that
// cp.async could not copy; of 32-bit ones those that are K-major. MN-major ones are not: shifted
// lines have more conflicts of banks (1.05 times slower).
constexpr bool shifted(bool k_major) {
    return sizeof(REAL) == 2 ? ALIGN < 4 : k_major && ALIGN < 16;
}
template <bool SHIFTED, bool LEFT, bool K_MAJOR, int OUTER>
struct TileOf {
    using Type = SwizzledTile<LEFT, K_MAJOR, OUTER, THREADS>;
};
template <bool LEFT, bool K_MAJOR, int OUTER>
struct TileOf<true, LEFT, K_MAJOR, OUTER> {
    using Type = ShiftedTile<LEFT, K_MAJOR, OUTER, THREADS>;
};
using Number = REAL;
using TileA = TileOf<shifted(!TRANS_A), true, !TRANS_A, MB>::Type;
using TileB = TileOf<shifted(TRANS_B), false, TRANS_B, NB>::Type;
constexpr int STAGE = TileA::BYTES + TileB::BYTES;

using Output = OUT;
constexpr int PAIR = ALIGN / sizeof(OUT) >= 2 ? 2 : 1;  // elements of C stored at a time
struct alignas(PAIR * sizeof(OUT)) Results {
    OUT x[PAIR];
};
// Neighbours in a row of the tile, as they are put into shared memory.
struct alignas(2 * sizeof(OUT)) Neighbours {
    OUT x[2];
};
// Whether C is stored by way of shared memory, whole rows of the tile at a time: from where the mma
// leave it, an instruction would write to 8 rows, and of none a whole sector of 32 bytes. (If two
// elements of 32 bits can be stored at a time, warps with less than 32 x 32 are quicker without
// shared memory.) The rows of the tile are 8 elements longer than they need to be, which keeps them
// out of each other's banks.
constexpr bool BY_ROWS = sizeof(OUT) == 2 || PAIR == 1 || (ALIGN < 16 && TA * TB >= 32 * 32);
constexpr int PITCH = NB + 8;

#undef REAL
#define REAL float  // from here on the type of the sums, which blocks that share a tile add up
#include "common/split_k.cuh"

template <int I>
struct Constant {
    static constexpr int value = I;
};
// Runs `use` with the constants below N: arrays that it indexes by them stay in registers, whatever
// the compiler thinks of the length of the loop.
template <int N, int I = 0, class Use>
__device__ __forceinline__ void repeat(const Use& use) {
    if constexpr (I < N) {
        use(Constant<I>{});
        repeat<N, I + 1>(use);
    }
}

// At the end the slices share the 8 x 8 pieces of a warp's tile: each has LINES x PLACES of them.
constexpr int ACROSS = SLICES < COLUMNS ? SLICES : COLUMNS;
constexpr int LINES = ROWS * 2 * ACROSS / SLICES, PLACES = COLUMNS / ACROSS;

// The lane's two sums of piece (i, j).
__device__ __forceinline__ float* two_of(float (&sum)[ROWS * COLUMNS][4], int i, int j) {
    return sum[i / 2 * COLUMNS + j] + i % 2 * 2;
}
__device__ __forceinline__ float* two_of(float (&total)[LINES * PLACES][2], int i, int j) {
    return total[i * PLACES + j];
}

// What a slice finishes: the totals of its pieces, or the sums of the only one.
template <class Sums, class Totals>
__device__ __forceinline__ auto& sums_of_slice(Sums& sum, Totals& total) {
    if constexpr (SLICES == 1)
        return sum;
    else
        return total;
}

// The totals of a slice's pieces, the first of which is (line, place): all slices leave their sums
// in the memory of the tiles and add up their own pieces, in the order of the slices.
__device__ __forceinline__ void add_slices(float (&total)[LINES * PLACES][2],
                                           float (&sum)[ROWS * COLUMNS][4], unsigned char* shared,
                                           unsigned thread, unsigned line, unsigned place) {
    constexpr int EACH = THREADS / SLICES, PIECES = ROWS * 2 * COLUMNS;
    float2* const slices = reinterpret_cast<float2*>(shared) + thread % EACH;
    float2* const own = slices + thread / EACH * PIECES * EACH;
    __syncthreads();  // no warp reads a tile any more
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const float* const two = two_of(sum, i, j);
            own[(i * COLUMNS + j) * EACH] = {two[0], two[1]};
        }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LINES; i++)
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            float2 all = {0.0f, 0.0f};
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const float2 two =
                    slices[(slice * PIECES + (line + i) * COLUMNS + place + j) * EACH];
                all.x += two.x, all.y += two.y;
            }
            two_of(total, i, j)[0] = all.x, two_of(total, i, j)[1] = all.y;
        }
}

// Runs `use(pair, c, row, column)` for the sums of the lane and where they belong, PAIR at a time.
template <class Sums, class Use>
__device__ __forceinline__ void each(Sums& sums, Output* C, long long ldc, int rows, int columns,
                                     unsigned row, unsigned column, Use use) {
#pragma unroll
    for (int i = 0; i < LINES; i++, C += 8 * ldc) {
#pragma unroll
        for (int j = 0; j < PLACES; j++)
#pragma unroll
            for (int e = 0; e < 2; e += PAIR)
                if ((!GUARDED || (i * 8 < rows && j * 8 + e < columns)) &&
                    any_stored(row + i * 8, column + j * 8 + e, 1, PAIR))
                    use(two_of(sums, i, j) + e, reinterpret_cast<Results*>(C + j * 8 + e),
                        row + i * 8, column + j * 8 + e);
        __syncwarp();  // reads of C stay here: registers for all of them there are not
    }
}

// Rows of the tile of C in shared memory, for store_unaligned_rows.
struct StagedRows {
    const unsigned char* rows;
    __device__ __forceinline__ unsigned place(unsigned row, unsigned i) const {
        return row * (PITCH * sizeof(Output)) + i * 8;
    }
    __device__ __forceinline__ const unsigned char* word(unsigned place, int r) const {
        return rows + place + r * int(PITCH * sizeof(Output));
    }
};

// The tile to rows of C that start at multiples of 8 or 16 bytes, so many at a time.
template <int BYTES>
struct WordOf {
    using Type = uint2;
};
template <>
struct WordOf<16> {
    using Type = uint4;
};
using Word = WordOf<ALIGN>::Type;
__device__ __forceinline__ void store_words(const Output* tile, Output* C, long long ldc,
                                            unsigned rows, unsigned columns, unsigned thread) {
    constexpr unsigned IN_WORD = sizeof(Word) / sizeof(Output), IN_ROW = NB / IN_WORD;
    constexpr unsigned WORDS = MB * IN_ROW, EACH = (WORDS + THREADS - 1) / THREADS;
    constexpr unsigned BATCH = EACH < 4 ? EACH : 4;  // words that are read before one is stored
    static_assert(THREADS % IN_ROW == 0, "threads store whole rows of C, 8 bytes or more each");
#pragma unroll 1
    for (unsigned first = thread; first < WORDS; first += BATCH * THREADS) {
        Word x[BATCH];
#pragma unroll
        for (unsigned b = 0; b < BATCH; b++) {
            const unsigned i = (first + b * THREADS) / IN_ROW, j = first % IN_ROW * IN_WORD;
            if (WORDS % (BATCH * THREADS) == 0 || i < MB)
                x[b] = *reinterpret_cast<const Word*>(tile + i * PITCH + j);
        }
#pragma unroll
        for (unsigned b = 0; b < BATCH; b++) {
            const unsigned i = (first + b * THREADS) / IN_ROW, j = first % IN_ROW * IN_WORD;
            if (i < MB && i < rows && j < columns)
                __stwb(reinterpret_cast<Word*>(C + i * ldc + j), x[b]);  // nvcc would split it
        }
    }
}

// The tile in shared memory to C, which points at the first element.
__device__ __forceinline__ void store_tile(const Output* tile, Output* C, long long ldc,
                                           unsigned i0, unsigned j0, unsigned m, unsigned n,
                                           unsigned thread) {
    constexpr unsigned MOST = 256 / sizeof(Output), COUNT = NB < MOST ? NB : MOST;  // columns
    if (partly_stored(i0, j0, MB, NB)) {
#pragma unroll 8
        for (unsigned e = thread; e < MB * NB; e += THREADS) {
            const unsigned i = e / NB, j = e % NB;
            if (i0 + i < m && j0 + j < n && is_stored(i0 + i, j0 + j))
                C[i * ldc + j] = tile[i * PITCH + j];
        }
        return;
    }
    if constexpr (ALIGN >= 8) {
        store_words(tile, C, ldc, m - i0, n - j0, thread);
    } else {
        // Warps take eight rows at a time.
#pragma unroll 1
        for (unsigned i = thread / 32 * 8; i < MB && i0 + i < m; i += THREADS / 4)
#pragma unroll
            for (unsigned j = 0; j < NB; j += COUNT)
                if (j == 0 || j0 + j < n)
                    store_unaligned_rows<8, COUNT>(
                        C + i * ldc + j, ldc, m - i0 - i, n - j0 - j,
                        StagedRows{reinterpret_cast<const unsigned char*>(tile + i * PITCH + j)});
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int m, int n, int k, float alpha, const Number* __restrict__ A, long long lda,
         long long batch_a, const Number* __restrict__ B, long long ldb, long long batch_b,
         float beta, Output* C, long long ldc, long long batch_c,
         void* workspace EPILOGUE_PARAMETER) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const unsigned tile = SLICES == 1 ? warp : warp % WARPS_MN;
    const unsigned slice = SLICES == 1 ? 0 : warp / WARPS_MN;
    const unsigned y = tile / WARPS_N * TA, x = tile % WARPS_N * TB;  // the warp's tile
    unsigned i0, j0;
    tile_of(blockIdx.x, (m + MB - 1u) / MB, (n + NB - 1u) / NB, i0, j0);
    i0 *= MB;
    j0 *= NB;

    float sum[ROWS * COLUMNS][4] = {};
    const unsigned share = ((k + KB - 1u) / KB + SPLIT - 1) / SPLIT * KB;
    const unsigned begin = SPLIT == 1 ? 0 : blockIdx.y * share;  // this block's part of k
    const unsigned end = SPLIT > 1 && begin + share < k ? begin + share : k;
    if (begin < end) {
        AsyncCopies copies;
        TileA tile_a(A + blockIdx.z * batch_a, lda, i0, m, begin, k, thread);
        TileB tile_b(B + blockIdx.z * batch_b, ldb, j0, n, begin, k, thread);
        const auto fetch = [&](unsigned char* stage, unsigned k0) {
            tile_a.fetch(stage, k0, copies);
            tile_b.fetch(stage + TileA::BYTES, k0, copies);
        };
        const auto place_a = tile_a.lane_place(y, slice * DEEP, lane);
        const auto place_b = tile_b.lane_place(x, slice * DEEP, lane);
#pragma unroll 1  // a block that is new to a multiprocessor waits for every line of code
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (begin + stage * KB < end) fetch(shared + stage * STAGE, begin + stage * KB);
            copies.commit();
        }
        copies.wait<STAGES - 2>();
        __syncthreads();
        unsigned a[ROWS][4], b[2][COLUMNS / 2][4];
        const auto read_a = [&](const unsigned char* stage, int i, int p) {
            TileA::read(a[i], stage, place_a, i, p);
        };
        const auto read_b = [&](const unsigned char* stage, int p) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j++)
                TileB::read(b[p % 2][j], stage + TileA::BYTES, place_b, j, p);
        };
#pragma unroll
        for (int i = 0; i < ROWS; i++) read_a(shared, i, 0);
        read_b(shared, 0);
        int reading = 0;  // the tile in use, that of the columns from k0
#pragma unroll 1
        for (unsigned k0 = begin; k0 < end; k0 += KB) {
            // Every warp has left the tile before this one: it is overwritten.
            const unsigned later = k0 + (STAGES - 1) * KB;
            unsigned char* const writing =
                shared + (reading == 0 ? STAGES - 1 : reading - 1) * STAGE;
            const unsigned char* here = shared + reading * STAGE;
            repeat<DEEP>([&](auto depth) {
                constexpr int p = decltype(depth)::value, next = (p + 1) % DEEP;
                if (p == DEEP - 1) {
                    // The next tile, read from now on, must be there. After the last tile its own
                    // beginning is read once more, for nothing: cheaper than a branch.
                    copies.wait<STAGES - 2>();
                    __syncthreads();
                    if (k0 + KB < end) reading = reading + 1 == STAGES ? 0 : reading + 1;
                    here = shared + reading * STAGE;
                }
                read_b(here, next);
                if (p == 0 && later < end) fetch(writing, later);
                if (p == 0) copies.commit();
#pragma unroll
                for (int j = 0; j < COLUMNS / 2; j++) TileB::round_operands(b[p % 2][j]);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    TileA::round_operands(a[i]);
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        const unsigned* const pair = b[p % 2][j / 2] + j % 2 * 2;
                        mma(Number{}, sum[i * COLUMNS + j], a[i], pair[0], pair[1]);
                    }
                    read_a(here, i, next);
                }
            });
        }
    }
    float total[LINES * PLACES][2];
    const unsigned line = slice / ACROSS * LINES, place = slice % ACROSS * PLACES;
    if constexpr (SLICES > 1) add_slices(total, sum, shared, thread, line, place);
    auto& own = sums_of_slice(sum, total);
    if (!combine<THREADS>(own, workspace, thread)) return;
    const unsigned row = i0 + y + line * 8 + lane / 4, column = j0 + x + place * 8 + lane % 4 * 2;
    C += blockIdx.z * batch_c + row * ldc + column;
    const int rows = m - row, columns = n - column;
    if (beta != 0.0f) {  // apart, so that the way without C is short
        each(own, C, ldc, rows, columns, row, column, [&](float* s, const Results* c, int, int) {
            const Results old = *c;
#pragma unroll
            for (int e = 0; e < PAIR; e++) s[e] = alpha * s[e] + beta * widen(old.x[e]);
        });
    }
    if constexpr (BY_ROWS) {
        Output* const out = reinterpret_cast<Output*>(shared);
        auto* const first = reinterpret_cast<Neighbours*>(out + (row - i0) * PITCH + column - j0);
        const float scale = beta == 0.0f ? alpha : 1.0f;
        __syncthreads();  // no warp reads a tile, or the sums of a slice, any more
#pragma unroll
        for (int i = 0; i < LINES; i++) {
#pragma unroll
            for (int j = 0; j < PLACES; j++) {
                const float* const s = two_of(own, i, j);
                Neighbours two;
                put(two.x[0], FINISHED(scale * s[0], row + i * 8, column + j * 8));
                put(two.x[1], FINISHED(scale * s[1], row + i * 8, column + j * 8 + 1));
                first[(i * 8 * PITCH + j * 8) / 2] = two;
            }
            if (EPILOGUE) __syncwarp();  // one row at a time: all need too many registers
        }
        __syncthreads();
        store_tile(out, C - ((row - i0) * ldc + column - j0), ldc, i0, j0, m, n, thread);
        return;
    }
    const auto store = [&](const float* s, Results* c, unsigned i, unsigned j) {
        Results result;
#pragma unroll
        for (int e = 0; e < PAIR; e++)
            put(result.x[e], FINISHED(beta == 0.0f ? alpha * s[e] : s[e], i, j + e));
        if (!partly_stored(i, j, 1, PAIR)) {
            *c = result;
            return;
        }
#pragma unroll
        for (int e = 0; e < PAIR; e++)
            if (is_stored(i, j + e)) c->x[e] = result.x[e];
    };
    each(own, C, ldc, rows, columns, row, column, store);
}
