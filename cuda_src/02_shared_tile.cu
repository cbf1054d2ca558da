// 02 shared tile: a block fetches what it needs once, and its threads share it.
//
// The MB x NB elements of a block need MB rows of A and NB columns of B, and every number of them
// is needed by a whole row or column of threads. So the block proceeds in steps of KB along k: all
// threads together copy one square tile of A and one of B into shared memory, then each takes
// its row of As and its column of Bs from there:
//
//                      Bs  . x .
//                          . x .       thread (y, x):  sum += As[y][p] * Bs[p][x],  p = 0 .. KB-1
//                          . x .
//          As  . . .   C   . . .
//              y y y       . * .       a warp reads one broadcast of As and 32 neighbours of Bs
//              . . .       . . .
//
// Two barriers in each step: the first keeps threads from reading a tile that is not complete,
// the second from overwriting one that others still read. The last step may have less than KB
// columns of A. To guard the final write alone is not enough: at k = 641 what lay in the tile
// before would enter the sums. So tiles are filled up with zeros.
// Cost of a thread: 2k operations, 2k / KB + 1 accesses to global memory, but 2k to shared memory.
// They are the bottleneck now, and what kernel 03 attacks.

#include "common/tile.cuh"

#ifndef MB
#define MB 32  // rows of C that one block computes: threads along y
#endif
#ifndef NB
#define NB 32  // columns of C that one block computes: threads along x
#endif
#ifndef KB
#define KB 32  // columns of A and rows of B in shared memory at a time
#endif

#include "common/schedule.cuh"

static_assert(MB == NB && NB == KB, "the tiles are square: MB = NB = KB");
static_assert(MB * NB % 32 == 0, "a block is made of whole warps");

extern "C" __global__ void __launch_bounds__(MB * NB)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c EPILOGUE_PARAMETER) {
    __shared__ REAL As[MB][KB], Bs[KB][NB];
    const unsigned x = threadIdx.x, y = threadIdx.y, thread = y * NB + x;
    const unsigned j0 = blockIdx.x * NB;
    A += blockIdx.z * batch_a;
    B += blockIdx.z * batch_b;
    C += blockIdx.z * batch_c;

    for (unsigned i0 = blockIdx.y * MB; i0 < m; i0 += gridDim.y * MB) {
        if (!any_stored(i0, j0, MB, NB)) continue;
        REAL sum = 0;
        for (unsigned p0 = 0; p0 < k; p0 += KB) {
            load_tile<MB * NB, TRANS_A>(As, A + offset(TRANS_A, i0, p0, lda), lda, m - i0, k - p0,
                                        thread);
            load_tile<MB * NB, TRANS_B>(Bs, B + offset(TRANS_B, p0, j0, ldb), ldb, k - p0, n - j0,
                                        thread);
            __syncthreads();
            for (int p = 0; p < KB; p++) sum += As[y][p] * Bs[p][x];
            __syncthreads();
        }
        if ((!GUARDED || (i0 + y < m && j0 + x < n)) && is_stored(i0 + y, j0 + x))
            store(C + offset(false, i0 + y, j0 + x, ldc), alpha, sum,
                  beta EPILOGUE_AT(i0 + y, j0 + x));
    }
}
