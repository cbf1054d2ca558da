// One thread, one element, and one of several ways to be broken: what a tuner has to survive.
//
// FAULT 1 is right, so that something is left to win. Every other number is a fault that a
// configuration of a real kernel has had once: see faulty_kernels.py for what is expected.
#include "common/tile.cuh"

#if FAULT == 7
#error this configuration does not compile
#endif

__device__ unsigned finished, launches;

extern "C" __global__ void gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A,
                                long long lda, long long batch_a, const REAL* __restrict__ B,
                                long long ldb, long long batch_b, REAL beta, REAL* C,
                                long long ldc, long long batch_c) {
    A += blockIdx.z * batch_a;
    B += blockIdx.z * batch_b;
    C += blockIdx.z * batch_c;
    const unsigned i = blockIdx.y * MB + threadIdx.y, j = blockIdx.x * NB + threadIdx.x;
    if (FAULT != 6 && (i >= m || j >= n)) return;  // 6: the guard is forgotten

    REAL sum = 0;
    for (int p = 0; p < k; p++)
        sum += A[offset(TRANS_A, i, p, lda)] * B[offset(TRANS_B, p, j, ldb)];
    if (FAULT == 2 && i == m - 1 && j == n - 1) sum += 1;  // one wrong element
    if (FAULT == 3 && i == 0 && j == 0) C[1LL << 40] = sum;  // an address that nobody has
    if (FAULT == 4) {  // never ends: A[0] stays equal to itself, and has to be read to be known
        const volatile REAL* running = A;
        while (running[0] == running[0]) {}
    }
    if (FAULT == 5 && i == 0 && j == 0) C[m * ldc + 8] = sum;  // just behind the matrix
    if (FAULT == 10 && i == 0 && j == 0) C[(m + 200) * ldc] = sum;  // a high tile behind it
    if (FAULT == 11 && i == 0 && j == 0 && launches++ > 4) sum += 1;  // right when looked at first
    store(C + offset(false, i, j, ldc), alpha, sum, beta);
    // The last thread of all, when nobody reads them any more: right, but not the next product.
    if ((FAULT == 8 || FAULT == 9) && atomicAdd(&finished, 1u) == unsigned(m * n) - 1) {
        finished = 0;
        if (FAULT == 8) const_cast<REAL*>(A)[0] += 1;
        if (FAULT == 9) const_cast<REAL*>(B)[k * ldb - 1] += 1;
    }
}
