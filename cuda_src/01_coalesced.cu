// 01 coalesced: kernel 00 with threadIdx.x and threadIdx.y exchanged, nothing else.
//
// Still one thread for one element, but the neighbouring threads of a warp now walk *along* a row
// of C, which is how matrices are stored:
//
//             j    j+1  j+2
//     i    .  0    1    2  .      lane 0 reads B[p * ldb + j]       all lanes read the same
//          .  .    .    .  .      lane 1 reads B[p * ldb + j + 1]   A[i * lda + p]: one broadcast
//
// A warp reads 32 elements of B that are neighbours: 4 sectors for float, 8 for double, and uses
// every byte. A comes as one broadcast, C is written in one piece.
// Cost of a thread: the same 2k operations for 2k + 1 accesses as kernel 00; only their
// addresses differ. The origin of this ladder measured a factor of 14 between the two. What remains
// is the number of accesses: each block reads its MB rows of A and NB columns of B again and again,
// from the caches at best. Kernel 02 keeps them close. If B is stored transposed, its reads are a
// column apart here, as those of A in kernel 00.

#include "common/tile.cuh"

#ifndef MB
#define MB 32  // rows of C that one block computes: threads along y
#endif
#ifndef NB
#define NB 32  // columns of C that one block computes: threads along x
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
    const unsigned j = blockIdx.x * NB + threadIdx.x;
    if (GUARDED && j >= n) return;

    for (unsigned i = blockIdx.y * MB + threadIdx.y; i < m; i += gridDim.y * MB) {
        if (!is_stored(i, j)) continue;
        REAL sum = 0;
        for (int p = 0; p < k; p++)
            sum += A[offset(TRANS_A, i, p, lda)] * B[offset(TRANS_B, p, j, ldb)];
        store(C + offset(false, i, j, ldc), alpha, sum, beta EPILOGUE_AT(i, j));
    }
}
