// Reordered loops: the sequential product that everything else is measured against.
//
// C <- alpha op(A) op(B) + beta C by the definition is three loops: i over rows of C, j over its
// columns, p over k. The textbook nests them i-j-p, a dot product per element, and its inner loop
// walks down a column of B: one cache line per element used. Nested i-p-j the inner loop takes
// one element of A and adds a multiple of a *row* of B to a *row* of C, so that every line that is
// fetched is used up:
//
//     for i            C[i, j0:j1]  +=  A[i, p] * B[p, j0:j1]      (the inner loop runs along j)
//       for p              ----            x         ----
//         for j
//
// Rows of large matrices do not stay in the cache until they are needed again, so the same three
// loops run once more around them in steps of MB, NB, KB: the KB x NB block of B (64 x 256 floats:
// 64 KiB) is used MB times before it leaves, and KB terms are added to a piece of C of NB elements
// (1 KiB) while it sits in the first-level cache.
//
// What it costs: every multiply-add loads an element of B, loads one of C and stores it again: on
// Zen 4 one multiply-add per clock at best (6 GFLOP/s, float or double). Registers hold nothing for
// longer than one step; that is what the register tile of blocked.cpp is for. The compiler is told
// not to make vectors of the inner loop: this kernel is the plain sequential code, so that what
// vectors bring can be read off (without the pragma g++ 12 makes them: 29 GFLOP/s float, 16 double
// at 1024 on Zen 4). One thread.
//
// Compile: g++ -O3 -march=native -std=c++17 -shared -fPIC
// Never with -ffast-math: NaN and Inf must come through.
#pragma GCC optimize("no-tree-vectorize")
#include "call.hpp"
#include "half.hpp"

#ifndef REAL
#define REAL float  // element type of A, B and C: float or double
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored k x m
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored n x k
#endif
#ifndef MB
#define MB 64  // rows of C for which one block of B is used
#endif
#ifndef NB
#define NB 256  // columns of the block of B, and the length of the inner loop
#endif
#ifndef KB
#define KB 64  // rows of the block of B
#endif

static_assert(sizeof(REAL) == 4 || sizeof(REAL) == 8, "REAL is float or double");
static_assert(MB >= 1 && NB >= 1 && KB >= 1, "tiles have at least one row and column");

#define OUT REAL
using Index = long long;  // offsets: m * lda passes 2^31 long before memory ends
using Sum = REAL;

#include "epilogue.hpp"

static Index least(Index a, Index b) { return a < b ? a : b; }

static void scale(Index m, Index n, REAL beta, REAL* C, Index ldc) {
    for (Index i = 0; i < m; i++)
        for (Index j = 0; j < n; j++)  // beta = 0 writes without reading: C may hold NaN
            C[i * ldc + j] = beta == 0 ? REAL(0) : beta * C[i * ldc + j];
}

static void product(Index m, Index n, Index k, REAL alpha, const REAL* A, Index lda, const REAL* B,
                    Index ldb, REAL* C, Index ldc) {
    for (Index i0 = 0; i0 < m; i0 += MB)
        for (Index p0 = 0; p0 < k; p0 += KB)
            for (Index j0 = 0; j0 < n; j0 += NB)
                for (Index i = i0; i < least(i0 + MB, m); i++)
                    for (Index p = p0; p < least(p0 + KB, k); p++) {
                        const REAL a = alpha * (TRANS_A ? A[p * lda + i] : A[i * lda + p]);
                        for (Index j = j0; j < least(j0 + NB, n); j++)
                            C[i * ldc + j] += a * (TRANS_B ? B[j * ldb + p] : B[p * ldb + j]);
                    }
}

extern "C" int gemm(const Call* given) {
    const Call& call = *given;
    const Index m = call.m, n = call.n;
    const REAL alpha = REAL(call.alpha), beta = REAL(call.beta);
    for (Index s = 0; s < call.batch; s++) {
        REAL* C = (REAL*)call.C + s * call.batch_c;
        if (beta != 1) scale(m, n, beta, C, call.ldc);
        if (alpha != 0)
            product(m, n, call.k, alpha, (const REAL*)call.A + s * call.batch_a, call.lda,
                    (const REAL*)call.B + s * call.batch_b, call.ldb, C, call.ldc);
        Epilogue(call).finish(C, call.ldc, 0, m, 0, n);
    }
    return 0;
}
