// 13 wgmma_tf32x3: products as exact as float32's on Hopper's tensor cores.
//
// A float32 x is high + low, both tf32: 11 bits, then 11 of the 13 that are left. Of the four
// products of a = ah + al and b = bh + bl three count, al bh + ah bl + ah bh: what is left out is
// 2^-22 of the result. What this kernel adds to kernel 10:
//
// - `repack` writes both terms of A and of B, along k, each a matrix of its own (TERMS 2). A stage
//   holds four tiles, and three products read them: a third less traffic for each multiplication.
// - The sums of the tensor cores are truncated, not rounded: their error grows with k, at 8192 to
//   5.7e-5 where float32's own is 1.6e-6 (relative, Frobenius norm). So each step's sums, 32 of k,
//   are added to float32 sums in registers: 3.2e-7. Meanwhile the tensor cores work for the other
//   warpgroup. The small products come first, while the sums are small.
//
// C is NaN and infinite where it is in float32 (common/repack.cuh, high_term).
//
// What did not help: warpgroups that take turns at the tensor cores (0.94 to 1.01, with 64 of k at
// a time 0.82); 192 x 128 with steps of 16 (0.97 at 8192); clusters (0.89 to 0.95).

#ifndef TRANS_A
#define TRANS_A 0  // A comes as m x k
#endif
#ifndef TRANS_B
#define TRANS_B 1  // B comes as n x k
#endif
#ifndef REAL
#define REAL float  // element type of A and B
#endif
#ifndef OUT
#define OUT float  // element type of C
#endif
#ifndef SUM
#define SUM float  // type of the sums
#endif
#ifndef MB
#define MB 128  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 32  // depth of a tile, and of what the tensor cores add up
#endif
#ifndef TA
#define TA 128  // rows of C that one warpgroup computes
#endif
#ifndef TB
#define TB 64  // columns of C that one warpgroup computes
#endif
#ifndef STAGES
#define STAGES 3  // tiles in shared memory
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks side by side that share tiles of A: 1, 2 or 4
#endif
#ifndef SPLIT
#define SPLIT 1  // parts of k
#endif
#ifndef TERMS
#define TERMS 2  // terms of an element
#endif

constexpr int SLICES = 1, SLOTS = 2;

#include "common/tf32_wgmma.cuh"

static_assert(CONSUMERS <= 4 && TA * TB / 64 + 40 <= CONSUMER_REGISTERS,
              "TA TB / 64 registers for sums: at most 192 (1, 2 warpgroups), 120 (3), 64 (4)");

__device__ __forceinline__ void product(Sums& sum, unsigned long long a, unsigned long long b,
                                        bool add) {
#pragma unroll
    for (int x = 0; x < KB / 8; x++)
#pragma unroll
        for (int u = 0; u < PIECES; u++)
            wgmma_tf32(sum[u], b + deeper(x, NB) + u * 64 * ROW / 16, a + deeper(x, MB),
                       add || x > 0);
}

// sum = op(A) op(B) of a unit.
__device__ __forceinline__ void multiply(Consumer& here, Sums& sum, const Unit& unit) {
    Sums step_sum;
#pragma unroll
    for (int e = 0; e < PIECES * TA / 2; e++) sum[e / (TA / 2)][e % (TA / 2)] = 0.0f;
    for (unsigned step = unit.part; step < unit.steps; step += SPLIT) {
        here.wait_for_stage();
        wgmma_fence();
        product(step_sum, here.rows(0), here.columns(1), false);
        product(step_sum, here.rows(1), here.columns(0), true);
        product(step_sum, here.rows(0), here.columns(0), true);
        wgmma_commit_group();
        here.advance();
        wgmma_wait_group<0>();
        here.release();
#pragma unroll
        for (int e = 0; e < PIECES * TA / 2; e++)
            sum[e / (TA / 2)][e % (TA / 2)] += step_sum[e / (TA / 2)][e % (TA / 2)];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CLUSTERED
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int boxed, float* C, long long ldc, long long batch_c,
         float* parts EPILOGUE_PARAMETER) {
    const Output result{&maps.c, C,    ldc,   unsigned(m),
                        unsigned(n), alpha, beta, boxed != 0 EPILOGUE_ARGUMENT};
    run(product_of(maps, m, n, k, batch, batched_a, batched_b), result, batch_c, parts,
        [](Consumer& here, Sums& sum, const Unit& unit) { multiply(here, sum, unit); });
}
