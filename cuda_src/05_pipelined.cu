// 05 pipelined: kernel 04 with the memory system kept busy while the threads compute.
//
// Kernel 04 loads, waits, computes, waits: no warp multiplies while the next tile is loaded.
// Here a ring of STAGES tiles hides that time, and three smaller waits go with it:
//
//     step s      | fetch tile s + STAGES - 1 |  multiply tile s           | barrier | step s + 1
//     row p of s  |  read the fragments of row p + 1   | TA x TB multiply-adds of row p |
//
// - Tiles come by cp.async, past the registers. A tile that is K-major (A stored by rows) is
//   transposed by it, an element at a time (common/staged_tile.cuh). Read into registers 16 bytes
//   at a time and stored from there, it took up to 13 % longer.
// - Fragments are read one row ahead, the first of the next tile before the last of this one is
//   multiplied: no warp waits for shared memory after the barrier.
// - A warp owns a compact tile, LANES x 32/LANES threads. Its fragments are 16-byte vectors that
//   lie side by side for neighbouring lanes, so each read touches every bank once.
// - Rows of C that start anywhere are stored by way of shared memory: lanes that are neighbours
//   then store neighbours. From registers they would store every fourth element.
//
// The multiply-adds run back and forth (boustrophedon): the number that stays is reused from the
// operand cache, so that each instruction reads two registers and meets no bank conflict. Main loop
// of 128 x 256 x 16, 8 x 16 per thread, nvcc 13.0 for sm_90a: 2048 FFMA of 2207 instructions.
// Tried without gain: reading A along k, 16 bytes of each row, without transposing it (fewer
// instructions, but a column of A then sits in one register bank: 43 instead of 51 TFLOP/s).

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
#define TA 8  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 8  // columns of C that one thread computes
#endif
#ifndef LANES
#define LANES 4  // threads of a warp along m; 32 / LANES along n
#endif
#ifndef STAGES
#define STAGES 3  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 2  // blocks that one multiprocessor is to hold: bounds the registers of a thread
#endif

#include "common/schedule.cuh"
#include "common/staged_tile.cuh"
#include "common/split_k.cuh"
#include "common/fragment.cuh"

#define STRIDE 1  // in the order of the fragment
#include "common/outer_product.cuh"

constexpr int LANES_N = 32 / LANES;  // threads of a warp along n
constexpr int WARPS_M = MB / (TA * LANES), WARPS_N = NB / (TB * LANES_N);
constexpr int THREADS = 32 * WARPS_M * WARPS_N;

static_assert(32 % LANES == 0 && MB % (TA * LANES) == 0 && NB % (TB * LANES_N) == 0,
              "warps tile the block evenly: TA * LANES divides MB and TB * 32 / LANES divides NB");
static_assert(TA % VECTOR == 0 && TB % VECTOR == 0, "fragments are made of 16-byte vectors");
static_assert(STAGES >= 2 && KB >= 2, "a tile is fetched while another is used: STAGES, KB >= 2");

// Whether C is stored by way of shared memory: one row of each lane at a time goes there, and from
// there the lanes store neighbours, where vectors are too wide for rows that start anywhere.
constexpr bool BY_ROWS = PIECE < VECTOR;
constexpr int WIDE = TB * LANES_N;  // columns of a warp's tile

using TileA = StagedTile<!TRANS_A, MB, THREADS>;
using TileB = StagedTile<TRANS_B, NB, THREADS>;

#if GATE  // of common/split_check.cuh: `gemm` below calls this for several blocks in turn
__device__ __forceinline__ void compute
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gemm
#endif
    (int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda, long long batch_a,
     const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta, REAL* C,
     long long ldc, long long batch_c, void* workspace EPILOGUE_PARAMETER BLOCK_PARAMETERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    REAL* const As = reinterpret_cast<REAL*>(shared);
    REAL* const Bs = As + STAGES * TileA::ELEMENTS;
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Offsets of the lane's first vectors: its warp's tile, then its place in the warp.
    const unsigned y = warp / WARPS_N * (TA * LANES) + lane / LANES_N * VECTOR;
    const unsigned x = warp % WARPS_N * (TB * LANES_N) + lane % LANES_N * VECTOR;
    unsigned i0, j0;
    tile_of(BLOCK.x, (m + MB - 1u) / MB, (n + NB - 1u) / NB, i0, j0);
    i0 *= MB;
    j0 *= NB;

    REAL sum[TA][TB] = {};
    const unsigned all = (k + KB - 1u) / KB, share = (all + SPLIT - 1) / SPLIT;
    const unsigned begin = BLOCK.y * share, end = begin + share < all ? begin + share : all;
    const int steps = end - begin;  // of this block, from step `begin` on
    if (steps > 0) {
        AsyncCopies copies;
        TileA tile_a(A + BLOCK.z * batch_a, lda, i0, m, begin * KB, k, thread);
        TileB tile_b(B + BLOCK.z * batch_b, ldb, j0, n, begin * KB, k, thread);
        // Only tiles on the edges of the matrices have anything to check.
        const bool inner = i0 + MB <= m && j0 + NB <= n;
        const auto fetch = [&](int stage, unsigned step) {
            REAL* const a = As + stage * TileA::ELEMENTS;
            REAL* const b = Bs + stage * TileB::ELEMENTS;
            if (!GUARDED || (inner && (begin + step + 1) * KB <= k)) {
                tile_a.fetch<false>(a, copies);
                tile_b.fetch<false>(b, copies);
            } else {
                tile_a.fetch<true>(a, copies);
                tile_b.fetch<true>(b, copies);
            }
        };
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (stage < steps) fetch(stage, stage);
            copies.commit();
        }
        copies.wait<STAGES - 2>();
        __syncthreads();
        REAL a[2][TA], b[2][TB];
        const REAL *row_a = As + y, *row_b = Bs + x;
        read_fragment<TA, LANES>(a[0], row_a);
        read_fragment<TB, LANES_N>(b[0], row_b);
        int reading = 0, writing = STAGES - 1;
        // Where the second half of the last tile is past the end of k, only the first is
        // multiplied. Not of doubles, which nvcc spills then.
        const bool half =
            GUARDED && sizeof(REAL) == 4 && end == all && (k - 1) % KB < KB / 2;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
#pragma unroll
            for (int p = 0; p < KB; p++) {
                if (p == KB / 2 && half && step + 1 == steps) break;
                if (p == KB - 1) {  // the next tile, whose first row is read now, must be there
                    copies.wait<STAGES - 2>();
                    __syncthreads();
                    reading = reading + 1 == STAGES ? 0 : reading + 1;
                    writing = writing + 1 == STAGES ? 0 : writing + 1;
                    row_a = As + reading * TileA::ELEMENTS + y;
                    row_b = Bs + reading * TileB::ELEMENTS + x;
                }
                if (p < KB - 1 || step + 1 < steps) {
                    read_fragment<TA, LANES>(a[(p + 1) % 2], row_a + (p + 1) % KB * TileA::PITCH);
                    read_fragment<TB, LANES_N>(b[(p + 1) % 2], row_b + (p + 1) % KB * TileB::PITCH);
                }
                if (p == 0) {  // every warp has left the tile that is overwritten
                    if (step + STAGES - 1 < steps) fetch(writing, step + STAGES - 1);
                    copies.commit();
                }
                add_outer_product(sum, a[p % 2], b[p % 2]);
            }
        }
    }
    if (!combine<THREADS>(sum, workspace, thread BLOCK_ARGUMENTS)) return;
    C += BLOCK.z * batch_c;
    if constexpr (BY_ROWS) {
        __syncthreads();  // no warp reads a tile any more
        REAL* const rows = As + warp * (LANES * WIDE);
        REAL* const own = rows + lane / LANES_N * WIDE + lane % LANES_N * VECTOR;
        const unsigned first = i0 + warp / WARPS_N * (TA * LANES);
        const unsigned left = j0 + warp % WARPS_N * WIDE;
#pragma unroll
        for (int i = 0; i < TA; i++) {
#pragma unroll
            for (int j = 0; j < TB; j += VECTOR)
                *reinterpret_cast<Vector*>(own + j * LANES_N) =
                    *reinterpret_cast<const Vector*>(sum[i] + j);
            __syncwarp();
#pragma unroll
            for (unsigned e = lane; e < LANES * WIDE; e += 32) {
                const unsigned row = first + (i / VECTOR * LANES + e / WIDE) * VECTOR + i % VECTOR;
                const unsigned column = left + e % WIDE;
                if ((!GUARDED || (row < m && column < n)) && is_stored(row, column))
                    store(C + row * ldc + column, alpha, rows[e], beta EPILOGUE_AT(row, column));
            }
            __syncwarp();
        }
    } else {
#pragma unroll
        for (int i = 0; i < TA; i++)
#pragma unroll
            for (int j = 0; j < TB; j += PIECE) {
                const unsigned row = i0 + y + i / VECTOR * LANES * VECTOR + i % VECTOR;
                const unsigned column = j0 + x + j / VECTOR * LANES_N * VECTOR + j % VECTOR;
                if (GUARDED && (row >= m || column >= n)) continue;
                if (partly_stored(row, column, 1, PIECE)) {
#pragma unroll
                    for (int e = 0; e < PIECE; e++)
                        if (is_stored(row, column + e))
                            store(C + row * ldc + column + e, alpha, sum[i][j + e],
                                  beta EPILOGUE_AT(row, column + e));
                    continue;
                }
                Piece* const c = reinterpret_cast<Piece*>(C + row * ldc + column);
                Piece result = beta == REAL(0) ? Piece{} : *c;
#pragma unroll
                for (int e = 0; e < PIECE; e++)
                    store(&result.x[e], alpha, sum[i][j + e], beta EPILOGUE_AT(row, column + e));
                *c = result;
            }
    }
}

#if GATE
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c,
         void* workspace EPILOGUE_PARAMETER GATE_PARAMETER) {
    RETURN_IF_CLOSED
    run_blocks(blocks, [&](const uint3 block) {
        compute(m, n, k, alpha, A, lda, batch_a, B, ldb, batch_b, beta, C, ldc, batch_c,
                workspace EPILOGUE_ARGUMENT BLOCK_ARGUMENTS);
    });
}
#endif
