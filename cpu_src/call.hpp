// What a kernel is called with: `int gemm(const Call*)`. pymm/backends/cpu/launch.py has the same
// structure.
//
// C (m x n, rows ldc apart) <- alpha op(A) op(B) + beta C for each of `batch` matrices, batch_*
// elements apart (A and B: 0 for the same one each time), then what epilogue.hpp says. As in BLAS,
// alpha = 0 reads neither A nor B and beta = 0 does not read C. alpha and beta are numbers of the
// type of the sums. `complete` says whether the sums are complete with this call, so that the
// epilogue is due. gemm returns 0, or 1 if there is no memory to pack into: C is then untouched.

#ifndef CALL_HPP
#define CALL_HPP

// One piece of the work behind `data`, done by the calling thread (worker 0) or by another one.
typedef void (*Work)(void* data, int piece, int worker);

// Runs pieces 0 to `pieces` - 1 of `work` with at most `threads` threads (pool.cpp).
typedef void (*Run)(Work work, void* data, int pieces, int threads);

struct Call {
    int m, n, k, batch;
    double alpha, beta;
    const void* A;
    long long lda, batch_a;
    const void* B;
    long long ldb, batch_b;
    void* C;
    long long ldc, batch_c;
    const void* bias;  // null without one
    int complete;
    int threads;
    Run run;
};

#endif
