// 06 tensor_f64: kernel 05 with the multiply-adds done by the tensor cores, in double precision.
//
// A warp multiplies together: one instruction adds the product of 16 x KI and KI x 8 elements to 16
// x 8 accumulators that its 32 lanes share. On sm_90 that is twice the rate of DFMA. What changes:
//
// - TA x TB is the tile of a warp: ROWS x COLUMNS instructions for each depth of KI.
// - A fragment is made of single elements (common/ptx.cuh says which), so either tile may lie in
//   shared memory as it does in memory. All four layouts come by cp.async, nothing is transposed
//   (common/padded_tile.cuh).
// - The fragments of one depth are read while those of the depth before are multiplied, across the
//   barrier too. Two depths of fragments and the accumulators fill the registers: 64 x 32 with KI 8
//   takes 254 of 255, and deeper instructions, though they are cooler, leave no room to read ahead.
// - Rows of C that start anywhere are stored by way of shared memory (common/row_buffer.cuh).
//
// Main loop of 128 x 128 x 16, nvcc 13.0 for sm_90a: 32 DMMA.16x8x8, 48 LDS.64, 8 LDGSTS. One H200:
// 60.1 TFLOP/s at 4096. Tried without gain: one row of fragments read ahead, with KI 16, where a
// read that overwrites a fragment waits for the instruction that still uses it (57 TFLOP/s).

#ifndef REAL
#define REAL double
#endif

#include "common/tile.cuh"
#include "common/ptx.cuh"

#ifndef MB
#define MB 128  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // depth of a tile
#endif
#ifndef TA
#define TA 64  // rows of C that one warp computes
#endif
#ifndef TB
#define TB 32  // columns of C that one warp computes
#endif
#ifndef TK
#define TK KB  // depth of a tile that one warp takes
#endif
#ifndef KI
#define KI 8  // depth of one mma: 4, 8 or 16
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef BOTH
#define BOTH 0  // 1: what is kept of a half goes to the other half, too
#endif
#ifndef BLOCKS
#define BLOCKS 1  // blocks that one multiprocessor is to hold: bounds the registers of a thread
#endif

#include "common/schedule.cuh"
#include "common/split_k.cuh"
#include "common/padded_tile.cuh"
#include "common/row_buffer.cuh"

constexpr int WARPS_N = NB / TB, WARPS_MN = MB / TA * WARPS_N, PARTS = KB / TK;
constexpr int THREADS = 32 * WARPS_MN * PARTS;
constexpr int ROWS = TA / 16, COLUMNS = TB / 8;  // mma of a warp along m and n

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 16 == 0 && TB % 8 == 0,
              "warps tile the block evenly, in pieces of 16 x 8: TA divides MB, TB divides NB");
static_assert((KI == 4 || KI == 8 || KI == 16) && TK % (2 * KI) == 0 && KB % TK == 0,
              "KI is the depth of an instruction, 4, 8 or 16; 2 * KI divides TK, TK KB");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");

// Whether C is stored by way of shared memory. Not into both halves of a symmetric one: lanes that
// have neighbours in a column of one half store neighbours in a row of the other.
constexpr bool BY_ROWS = PIECE == 1 && !BOTH;

using TileA = PaddedTile<!TRANS_A, MB, THREADS>;
using TileB = PaddedTile<TRANS_B, NB, THREADS>;
// What a lane holds of KI columns of the warp's rows of A and of KI rows of its columns of B.
struct Fragments {
    double a[ROWS][KI / 2], b[COLUMNS][KI / 4];

    // `from_a` and `from_b` point at the lane's first element of the warp's part of the tiles.
    __device__ __forceinline__ void read(const double* from_a, const double* from_b, int p) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int x = 0; x < KI / 4; x++) b[j][x] = from_b[TileB::index(j * 8, p + x * 4)];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int x = 0; x < KI / 2; x++)
                a[i][x] = from_a[TileA::index(i * 16 + x % 2 * 8, p + x / 2 * 4)];
    }
};

__device__ __forceinline__ void multiply(double (&sum)[ROWS * COLUMNS][4], const Fragments& f) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) mma<KI>(sum[i * COLUMNS + j], f.a[i], f.b[j]);
}

// The sums of warps that share a tile go to the first of them, by way of the memory of the tiles:
// true for that one.
__device__ __forceinline__ bool add_parts(double (&sum)[ROWS * COLUMNS][4], double* scratch,
                                          unsigned thread) {
    if (PARTS == 1) return true;
    constexpr unsigned EACH = WARPS_MN * 32, PAIRS = ROWS * COLUMNS * 2;
    double2* const mine = reinterpret_cast<double2*>(scratch) + thread % EACH;
    const unsigned part = thread / EACH;
    __syncthreads();  // no thread reads a tile any more
    if (part > 0) {
#pragma unroll
        for (int s = 0; s < PAIRS; s++)
            mine[((part - 1) * PAIRS + s) * EACH] = {sum[s / 2][s % 2 * 2],
                                                     sum[s / 2][s % 2 * 2 + 1]};
    }
    __syncthreads();
    if (part > 0) return false;
#pragma unroll
    for (int other = 0; other < PARTS - 1; other++)
#pragma unroll
        for (int s = 0; s < PAIRS; s++) {
            const double2 more = mine[(other * PAIRS + s) * EACH];
            sum[s / 2][s % 2 * 2] += more.x, sum[s / 2][s % 2 * 2 + 1] += more.y;
        }
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int m, int n, int k, double alpha, const double* __restrict__ A, long long lda,
         long long batch_a, const double* __restrict__ B, long long ldb, long long batch_b,
         double beta, double* C, long long ldc, long long batch_c,
         void* workspace EPILOGUE_PARAMETER) {
    extern __shared__ __align__(16) unsigned char shared[];
    double* const As = reinterpret_cast<double*>(shared);
    double* const Bs = As + STAGES * TileA::ELEMENTS;
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const unsigned tile = warp % WARPS_MN, deep = warp / WARPS_MN * TK;
    const unsigned y = tile / WARPS_N * TA, x = tile % WARPS_N * TB;  // the warp's tile
    unsigned i0, j0;
    tile_of(blockIdx.x, (m + MB - 1u) / MB, (n + NB - 1u) / NB, i0, j0);
    i0 *= MB;
    j0 *= NB;

    double sum[ROWS * COLUMNS][4] = {};
    const unsigned share = ((k + KB - 1u) / KB + SPLIT - 1) / SPLIT * KB;
    const unsigned begin = SPLIT == 1 ? 0 : blockIdx.y * share;  // this block's part of k
    const unsigned end = SPLIT > 1 && begin + share < k ? begin + share : k;
    if (begin < end) {
        AsyncCopies copies;
        TileA tile_a(A + blockIdx.z * batch_a, lda, i0, m, begin, k, thread);
        TileB tile_b(B + blockIdx.z * batch_b, ldb, j0, n, begin, k, thread);
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (begin + stage * KB < end) {
                tile_a.fetch(As + stage * TileA::ELEMENTS, begin + stage * KB, copies);
                tile_b.fetch(Bs + stage * TileB::ELEMENTS, begin + stage * KB, copies);
            }
            copies.commit();
        }
        copies.wait<STAGES - 2>();
        __syncthreads();
        const double* const from_a = As + TileA::index(y + lane / 4, deep + lane % 4);
        const double* const from_b = Bs + TileB::index(x + lane / 4, deep + lane % 4);
        Fragments now, next;
        now.read(from_a, from_b, 0);
        int reading = 0;  // the tile in use, that of the columns from k0
#pragma unroll 1
        for (unsigned k0 = begin; k0 < end; k0 += KB) {
            const double* here_a = from_a + reading * TileA::ELEMENTS;
            const double* here_b = from_b + reading * TileB::ELEMENTS;
#pragma unroll
            for (int p = 0; p < TK; p += 2 * KI) {
                next.read(here_a, here_b, p + KI);
                if (p == 0) {  // every warp has left the tile before this one: it is overwritten
                    const unsigned later = k0 + (STAGES - 1) * KB;
                    if (later < end) {
                        const int writing = reading == 0 ? STAGES - 1 : reading - 1;
                        tile_a.fetch(As + writing * TileA::ELEMENTS, later, copies);
                        tile_b.fetch(Bs + writing * TileB::ELEMENTS, later, copies);
                    }
                    copies.commit();
                }
                multiply(sum, now);
                if (p + 2 * KI == TK) {
                    // The next tile, read from now on, must be there. After the last tile its own
                    // beginning is read once more, for nothing: cheaper than a branch.
                    copies.wait<STAGES - 2>();
                    __syncthreads();
                    if (k0 + KB < end) reading = reading + 1 == STAGES ? 0 : reading + 1;
                    here_a = from_a + reading * TileA::ELEMENTS;
                    here_b = from_b + reading * TileB::ELEMENTS;
                }
                now.read(here_a, here_b, (p + 2 * KI) % TK);
                multiply(sum, next);
            }
        }
    }
    if (!add_parts(sum, As, thread) || !combine<THREADS>(sum, workspace, thread)) return;
    C += blockIdx.z * batch_c;
    if constexpr (BY_ROWS) {
        if (PARTS == 1) __syncthreads();  // no warp reads a tile any more
        double* const rows = As + (PARTS - 1) * MB * NB + warp * RowBuffer<TB>::ELEMENTS;
#pragma unroll
        for (int i = 0; i < ROWS * 2; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const double* const two = sum[i / 2 * COLUMNS + j] + i % 2 * 2;
                RowBuffer<TB>::put(rows, lane / 4, j * 8 + lane % 4 * 2, {two[0], two[1]});
            }
            RowBuffer<TB>::each(rows, lane, [&](unsigned r, unsigned c, double total) {
                const unsigned row = i0 + y + i * 8 + r, column = j0 + x + c;
                if ((!GUARDED || (row < m && column < n)) && is_stored(row, column))
                    store(C + row * ldc + column, alpha, total, beta EPILOGUE_AT(row, column));
            });
        }
    } else {
#pragma unroll
        for (int i = 0; i < ROWS * 2; i++) {
            const unsigned row = i0 + y + i * 8 + lane / 4;
#pragma unroll
            for (int j = 0; j < COLUMNS * 2; j += PIECE) {
                const unsigned column = j0 + x + j / 2 * 8 + lane % 4 * 2 + j % 2;
                if (GUARDED && (row >= m || column >= n)) continue;
                const double (&part)[4] = sum[i / 2 * COLUMNS + j / 2];
                const bool cut = partly_stored(row, column, 1, PIECE);
                Piece* const c = reinterpret_cast<Piece*>(C + row * ldc + column);
                Piece result = beta == 0.0 || cut ? Piece{} : *c;
#pragma unroll
                for (int e = 0; e < PIECE; e++) {
                    if (cut && !is_stored(row, column + e)) continue;
                    if (cut && beta != 0.0) result.x[e] = c->x[e];
                    store(&result.x[e], alpha, part[i % 2 * 2 + (j + e) % 2],
                          beta EPILOGUE_AT(row, column + e));
                    if (cut) c->x[e] = result.x[e];
                    if (BOTH && row != column + e) C[(column + e) * ldc + row] = result.x[e];
                }
                if (!cut) *c = result;
            }
        }
    }
}
