// 03 register tile: a thread computes TA x TB elements, so that a number read from shared memory is
// used more than once.
//
// In kernel 02 each multiply-add needs two reads from shared memory. Here a thread reads a column
// of TA elements of A and a row of TB elements of B into registers and multiplies each with each:
//
//                             b0 b1 b2        TB elements of row p of Bs
//                           +----------
//     TA elements of     a0  | 00 01 02        TA + TB reads from shared memory,
//     column p of As    a1  | 10 11 12        TA * TB multiply-adds
//
// The tile of the block is no longer tied to the number of threads: MB x NB, KB deep, computed by
// NB / TB x MB / TA threads, which load both tiles together in as many strides as that takes.
// Cost of a thread, for each of its TA TB elements: 2k operations, k / MB + k / NB + 1 accesses to
// global memory, k / TA + k / TB to shared memory: with 4 x 4 a quarter of kernel 02's.
// Multiply-adds are 76 % of the instructions of the default's main loop, 34 % in kernel 02 (sm_90a,
// nvcc 13.0). The price is registers: TA TB sums, TA + TB operands, twice as many for double. A
// thread has 255, and the more it takes, the fewer threads are there to hide each other's latency.

#include "common/tile.cuh"

#ifndef MB
#define MB 64  // rows of C that one block computes
#endif
#ifndef NB
#define NB 64  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // columns of A and rows of B in shared memory at a time
#endif
#ifndef TA
#define TA 4  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 4  // columns of C that one thread computes
#endif

#include "common/schedule.cuh"

static_assert(MB % TA == 0 && NB % TB == 0,
              "threads tile the block evenly: TA divides MB and TB divides NB");
static_assert(MB / TA * (NB / TB) % 32 == 0, "a block is made of whole warps");

constexpr int THREADS = MB / TA * (NB / TB);

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c EPILOGUE_PARAMETER) {
    __shared__ REAL As[MB][KB], Bs[KB][NB];
    const unsigned thread = threadIdx.y * (NB / TB) + threadIdx.x;
    const unsigned y = threadIdx.y * TA, x = threadIdx.x * TB;  // the thread's corner of the tile
    const unsigned j0 = blockIdx.x * NB;
    A += blockIdx.z * batch_a;
    B += blockIdx.z * batch_b;
    C += blockIdx.z * batch_c;

    for (unsigned i0 = blockIdx.y * MB; i0 < m; i0 += gridDim.y * MB) {
        if (!any_stored(i0, j0, MB, NB)) continue;
        REAL sum[TA][TB] = {};
        for (unsigned p0 = 0; p0 < k; p0 += KB) {
            load_tile<THREADS, TRANS_A>(As, A + offset(TRANS_A, i0, p0, lda), lda, m - i0, k - p0,
                                        thread);
            load_tile<THREADS, TRANS_B>(Bs, B + offset(TRANS_B, p0, j0, ldb), ldb, k - p0, n - j0,
                                        thread);
            __syncthreads();
#pragma unroll
            for (int p = 0; p < KB; p++) {
                REAL a[TA], b[TB];
#pragma unroll
                for (int i = 0; i < TA; i++) a[i] = As[y + i][p];
#pragma unroll
                for (int j = 0; j < TB; j++) b[j] = Bs[p][x + j];
#pragma unroll
                for (int i = 0; i < TA; i++)
#pragma unroll
                    for (int j = 0; j < TB; j++) sum[i][j] += a[i] * b[j];
            }
            __syncthreads();
        }
        REAL* c = C + offset(false, i0 + y, j0 + x, ldc);
#pragma unroll
        for (int i = 0; i < TA; i++)
#pragma unroll
            for (int j = 0; j < TB; j++) {
                const unsigned row = i0 + y + i, column = j0 + x + j;
                if ((!GUARDED || (row < m && column < n)) && is_stored(row, column))
                    store(c + i * ldc + j, alpha, sum[i][j], beta EPILOGUE_AT(row, column));
            }
    }
}
