// 04 transposed A: kernel 03 with the tile of A stored as KB x MB: fragments load as vectors.
//
// The TA elements of A that a thread needs for one p are KB apart in kernel 03's As[MB][KB]. With A
// transposed they are neighbours, like those of B, and are read 16 bytes at a time:
//
//     As[KB][MB]   row p  | . . . . a0 a1 a2 a3 . . . . |   one vector read for 4 floats
//     Bs[KB][NB]   row p  | . . b0 b1 b2 b3 . . . . . . |   one vector read for 4 floats
//
// What it brings is registers. nvcc reads vectors in kernel 03 too, but along k: four columns of A,
// of which three wait. For sm_90a, MB = NB = 128, KB = TA = TB = 8 takes 117 registers here and 130
// there: two blocks of 256 threads on a multiprocessor instead of one. Of the main loop 87 % are
// multiply-adds in both. Operations and accesses are those of kernel 03; reads of shared memory
// come four floats or two doubles at once where TA and TB are multiples of that. If A is stored by
// rows, loading transposes the tile: lanes read along k and store MB elements apart, into one bank
// when MB is a multiple of 32: the smaller KB, the fewer wait in line.

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
    alignas(16) __shared__ REAL As[KB][MB], Bs[KB][NB];
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
            load_tile<THREADS, !TRANS_A>(As, A + offset(TRANS_A, i0, p0, lda), lda, k - p0, m - i0,
                                         thread);
            load_tile<THREADS, TRANS_B>(Bs, B + offset(TRANS_B, p0, j0, ldb), ldb, k - p0, n - j0,
                                        thread);
            __syncthreads();
#pragma unroll
            for (int p = 0; p < KB; p++) {
                REAL a[TA], b[TB];
#pragma unroll
                for (int i = 0; i < TA; i++) a[i] = As[p][y + i];
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
