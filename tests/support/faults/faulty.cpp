// The definition as three loops, and one of several ways to be broken: what a tuner has to survive.
//
// FAULT 1 is right, so that something is left to win. tests/support/faulty_kernels.py says what
// is expected of the others.
#include <csignal>
#include <cstdlib>
#include <unistd.h>

#if FAULT == 7
#error this configuration does not compile
#endif

#include "call.hpp"

extern "C" int gemm(const Call* call) {
    const int m = call->m, n = call->n, k = call->k;
    const long long lda = call->lda, ldb = call->ldb, ldc = call->ldc;
    const REAL alpha = call->alpha, beta = call->beta;
    const REAL *A = (const REAL*)call->A, *B = (const REAL*)call->B;
    REAL* C = (REAL*)call->C;
    if (call->batch != 1) return 1;
    for (long long i = 0; i < m; i++)
        for (long long j = 0; j < n; j++) {
            REAL sum = 0;
            for (long long p = 0; p < k; p++)
                sum += (TRANS_A ? A[p * lda + i] : A[i * lda + p]) *
                       (TRANS_B ? B[j * ldb + p] : B[p * ldb + j]);
            REAL* c = C + i * ldc + j;
            *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
        }
    if (FAULT == 2) C[(m - 1) * ldc + n - 1] += 1;  // one wrong element
    if (FAULT == 3) *(volatile REAL*)16 = 1;        // an address that nobody has
    if (FAULT == 4) {
        volatile int running = 1;
        while (running) {}
    }
    if (FAULT == 5) C[m * ldc + 8] = 1;     // just behind the matrix
    if (FAULT == 6) C[-9] = 1;              // just before it
    if (FAULT == 8) kill(getpid(), SIGKILL);  // as the kernel does when memory runs out
    if (FAULT == 9)                         // takes all the memory that it can get
        while (malloc(1 << 30)) {}
    if (FAULT == 9) abort();
    if (FAULT == 10) return 1;     // found no memory and says so
    if (FAULT == 11) C[m * ldc + 8] += 1;  // behind the matrix, where a NaN would stay a NaN
    if (FAULT == 12) const_cast<REAL*>(A)[0] += 1;             // right, but not the next product
    if (FAULT == 13) const_cast<REAL*>(B)[k * ldb - 1] += 1;   // the same: B's last row
    if (FAULT == 14) C[(m + 200) * ldc] = 1;                   // a high tile behind the matrix
    static int launches = 0;
    if (FAULT == 15 && ++launches > 4) C[0] += 1;              // right when it is looked at first
    return 0;
}
