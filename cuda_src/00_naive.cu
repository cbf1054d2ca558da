// 00 naive: one thread computes one element of C, straight from the definition.
//
// Element (i, j) is the sum over p of op(A)(i, p) * op(B)(p, j). Threads are grouped into blocks of
// MB x NB elements. threadIdx.x, in which the neighbouring threads of a warp differ, counts the
// first index of a matrix, so a warp walks *down* a column of C:
//
//             j
//     i    .  0  .  .      lane 0 computes C(i, j)     and reads A[i * lda + p]
//     i+1  .  1  .  .      lane 1 computes C(i+1, j)   and reads A[(i+1) * lda + p], a row further
//     i+2  .  2  .  .      ...
//
// Memory is read in sectors of 32 bytes. A warp of this kernel touches 32 sectors of A for 32
// elements and uses one number of each, and its writes to C scatter likewise. Kernel 01 fixes that.
// Cost of a thread: 2k operations for 2k + 1 accesses to global memory (one more if beta is not 0).
// Sizes that are multiples of the block need no check of j (GUARDED = 0). The check of i costs
// nothing: it ends the loop over rows, which is there because a grid has at most 65535 blocks
// along y. If A is stored transposed, this kernel reads it well by luck; C is still scattered.

#include "common/tile.cuh"

#ifndef MB
#define MB 32  // rows of C that one block computes: threads along x
#endif
#ifndef NB
#define NB 32  // columns of C that one block computes: threads along y
#endif

#include "common/schedule.cuh"

static_assert(MB * NB % 32 == 0, "a block is made of whole warps");

extern "C" __global__ void __launch_bounds__(MB * NB)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c EPILOGUE_PARAMETER) {
    A += blockIdx.z * batch_a;
    B += blockIdx.z * batch_b;
    C += blockIdx.z * batch_c;
    const unsigned j = blockIdx.x * NB + threadIdx.y;
    if (GUARDED && j >= n) return;

    for (unsigned i = blockIdx.y * MB + threadIdx.x; i < m; i += gridDim.y * MB) {
        if (!is_stored(i, j)) continue;
        REAL sum = 0;
        for (int p = 0; p < k; p++)
            sum += A[offset(TRANS_A, i, p, lda)] * B[offset(TRANS_B, p, j, ldb)];
        store(C + offset(false, i, j, ldc), alpha, sum, beta EPILOGUE_AT(i, j));
    }
}
