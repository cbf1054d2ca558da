// 06 tensor_f64: rung 05 with the multiply-adds done by the tensor cores, in double precision.

#ifndef REAL
#define REAL double
#endif

#include "common/tile.cuh"
#include "common/ptx.cuh"
#include "common/schedule.cuh"

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
#ifndef KI
#define KI 16  // depth of one mma: 4, 8 or 16
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 1  // blocks that one multiprocessor is to hold: bounds the registers of a thread
#endif

#include "common/copied.cuh"

constexpr int WARPS_M = MB / TA, WARPS_N = NB / TB, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int ROWS = TA / 16, COLUMNS = TB / 8;  // mma of a warp along m and n

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 16 == 0 && TB % 16 == 0,
              "warps tile the block evenly, in pieces of 16 x 16: TA divides MB, TB divides NB");
static_assert((KI == 4 || KI == 8 || KI == 16) && KB % KI == 0,
              "KI is the depth of an instruction, 4, 8 or 16, and divides KB");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");

using TileA = Copied<!TRANS_A, MB, THREADS>;
using TileB = Copied<TRANS_B, NB, THREADS>;
using FragmentA = double[KI / 2];  // 16 x KI
using FragmentB = double[KI / 4];  // KI x 8

// `tile` points at the lane's element of the first fragment; (outer, p) is where this one begins.
__device__ __forceinline__ void read_a(FragmentA& a, const double* tile, int outer, int p) {
#pragma unroll
    for (int x = 0; x < KI / 2; x++)
        a[x] = tile[TileA::place(outer + x % 2 * 8, p + x / 2 * 4)];
}
__device__ __forceinline__ void read_b(FragmentB& b, const double* tile, int outer, int p) {
#pragma unroll
    for (int x = 0; x < KI / 4; x++) b[x] = tile[TileB::place(outer, p + x * 4)];
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int m, int n, int k, double alpha, const double* __restrict__ A, long long lda,
         long long batch_a, const double* __restrict__ B, long long ldb, long long batch_b,
         double beta, double* C, long long ldc, long long batch_c) {
    extern __shared__ __align__(16) unsigned char shared[];
    double* const As = reinterpret_cast<double*>(shared);
    double* const Bs = As + STAGES * TileA::ELEMENTS;
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const unsigned y = warp / WARPS_N * TA, x = warp % WARPS_N * TB;  // the warp's tile
    unsigned i0, j0;
    tile_of(blockIdx.x, (m + MB - 1u) / MB, (n + NB - 1u) / NB, i0, j0);
    i0 *= MB;
    j0 *= NB;

    double sum[ROWS][COLUMNS][4] = {};
    const int steps = (k + KB - 1u) / KB;
    if (steps > 0) {
        AsyncCopies copies;
        const TileA tile_a(A + blockIdx.z * batch_a, lda, i0, m, k, thread);
        const TileB tile_b(B + blockIdx.z * batch_b, ldb, j0, n, k, thread);
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (stage < steps) {
                tile_a.fetch(As + stage * TileA::ELEMENTS, stage * KB, copies);
                tile_b.fetch(Bs + stage * TileB::ELEMENTS, stage * KB, copies);
            }
            copies.commit();
        }
        copies.wait<STAGES - 2>();
        __syncthreads();
        const double* const from_a = As + TileA::place(y + lane / 4, lane % 4);
        const double* const from_b = Bs + TileB::place(x + lane / 4, lane % 4);
        FragmentA a, next;
        FragmentB b[COLUMNS];
        read_a(a, from_a, 0, 0);
#pragma unroll
        for (int j = 0; j + 1 < COLUMNS; j++) read_b(b[j], from_b, j * 8, 0);
        int reading = 0, writing = STAGES - 1;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const double* here_a = from_a + reading * TileA::ELEMENTS;
            const double* here_b = from_b + reading * TileB::ELEMENTS;
#pragma unroll
            for (int p = 0; p < KB; p += KI) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    const bool last_row = i + 1 == ROWS, last = last_row && p + KI == KB;
                    const bool more = !last || step + 1 < steps;
                    const int ahead = last_row ? (p + KI) % KB : p;
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) {
                        mma<KI>(sum[i][j], a, b[j]);
                        if (j == 0) {
                            if (i == 0) read_b(b[COLUMNS - 1], here_b, TB - 8, p);
                            if (last) {  // the next tile, read from now on, must be there
                                copies.wait<STAGES - 2>();
                                __syncthreads();
                                reading = reading + 1 == STAGES ? 0 : reading + 1;
                                here_a = from_a + reading * TileA::ELEMENTS;
                                here_b = from_b + reading * TileB::ELEMENTS;
                            }
                            if (more) read_a(next, here_a, last_row ? 0 : i * 16 + 16, ahead);
                        } else if (last_row && more) {
                            read_b(b[j - 1], here_b, j * 8 - 8, ahead);
                        }
                    }
#pragma unroll
                    for (int e = 0; e < KI / 2; e++) a[e] = next[e];
                    if (p == 0 && i == 0) {  // every warp has left the tile that is overwritten
                        if (step + STAGES - 1 < steps) {
                            const unsigned k0 = (step + STAGES - 1) * KB;
                            tile_a.fetch(As + writing * TileA::ELEMENTS, k0, copies);
                            tile_b.fetch(Bs + writing * TileB::ELEMENTS, k0, copies);
                        }
                        copies.commit();
                        writing = writing + 1 == STAGES ? 0 : writing + 1;
                    }
                }
            }
        }
    }
    C += blockIdx.z * batch_c;
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const unsigned row = i0 + y + i * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < COLUMNS * 2; j += PIECE) {
            const unsigned column = j0 + x + j / 2 * 8 + lane % 4 * 2 + j % 2;
            if (GUARDED && (row >= m || column >= n)) continue;
            Piece* const c = reinterpret_cast<Piece*>(C + row * ldc + column);
            Piece result = beta == 0.0 ? Piece{} : *c;
#pragma unroll
            for (int e = 0; e < PIECE; e++)
                store(&result.x[e], alpha, sum[i / 2][j / 2][i % 2 * 2 + (j + e) % 2], beta);
            *c = result;
        }
    }
}
