// 10 wgmma_tf32: float32 rounded to tf32, on Hopper's tensor cores.
//
// tf32 is float32 whose fraction has 10 bits instead of 23. What this kernel adds to kernel 07:
//
// - wgmma reads 16-bit tiles that are MN-major or K-major, but tf32 tiles only if they are K-major.
//   A is K-major if it is stored by rows, B is not. So B goes through registers, from which wgmma
//   can take its first operand: the product is C^T = B^T A^T, 64 columns of C by TA rows. If A is
//   MN-major and B K-major, the two swap roles. If both are MN-major, the smaller one is copied
//   before, or A's tiles are transposed in shared memory (Consumer::transpose_a).
// - A thread reads from shared memory what it holds of B, and while the tensor cores multiply that
//   it reads the next step's. Which lane holds which column of C is free: so that the banks of 32
//   lanes differ, they take columns that are 4 and 16 apart (Place::column).
// - C is transposed while it is stored, through shared memory, where that costs nothing.
// - k may be split into SPLIT parts, each a unit of work of its own, which `combine` adds up, and
//   the steps of a unit among SLICES of warpgroups: one transposes tiles while the other
//   multiplies.
// - Blocks of a cluster, side by side, share A. This helps products that wait for L2 (H100, 4780 x
//   408 x 6244: 160 us without clusters, 138 in clusters of two, 116 of four), others little.
//
// TMA rounds what is not copied before (maps of the type TFLOAT32), to nearest: values above
// 2^128 - 2^116 become infinite.
//
// What did not help: 128 rows and columns a warpgroup (0.88), warpgroups that store in turns (0.84
// to 1.02), slices where nothing is transposed (0.95 to 1.01), C that leaves L2 first (0.88 to
// 1.01).

#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T; only with TRANS_B
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T
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
#define MB 256  // rows of C that one block computes; columns where both are transposed
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes; then rows
#endif
#ifndef KB
#define KB 32  // depth of a tile
#endif
#ifndef TA
#define TA 256  // rows of C that one warpgroup computes
#endif
#ifndef TB
#define TB 64  // columns of C that one warpgroup computes
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks side by side that share a tile of A: 1, 2 or 4
#endif
#ifndef SPLIT
#define SPLIT 1  // parts of k
#endif
#ifndef SLICES
#define SLICES 1  // warpgroups that share a tile of C and take turns along k
#endif
#ifndef SLOTS
#define SLOTS 2  // pieces of C that a warpgroup stores at a time
#endif
#ifndef TERMS
#define TERMS 1  // terms of an element
#endif

#include "common/tf32_wgmma.cuh"

constexpr int ROOM = (CONSUMERS <= 2 ? 160 : CONSUMER_REGISTERS - 40) - (TRANSPOSES_A ? 32
                                                                         : SLICES > 1 ? 16
                                                                                      : 0);
static_assert(CONSUMERS <= 4 && TA * TB / 128 + KB * TB / 64 <= ROOM,
              "TA TB / 128 + KB TB / 64 <= 160 (3, 4 warpgroups 120, 64; sliced -16, turned -32)");

using Fragments = unsigned[KB / 8][PIECES][4];

// One step, both operands from shared memory.
__device__ __forceinline__ void direct(Consumer& here, Sums& sum, bool add) {
    here.wait_for_stage();
    const unsigned long long a = here.rows(0), b = here.columns(0);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < KB / 8; x++)
#pragma unroll
        for (int u = 0; u < PIECES; u++)
            wgmma_tf32(sum[u], b + deeper(x, NB) + u * 64 * ROW / 16, a + deeper(x, MB),
                       SLICES > 1 || add || x > 0);
    here.next(add);
}

// One step, columns of B by way of registers.
__device__ __forceinline__ void via_registers(Consumer& here, Sums& sum, bool add,
                                              Fragments& columns) {
    here.wait_for_stage();
    if constexpr (TRANSPOSES_A) here.transpose_a();
#pragma unroll
    for (int x = 0; x < KB / 8; x++)
#pragma unroll
        for (int u = 0; u < PIECES; u++)
#pragma unroll
            for (int e = 0; e < 4; e++) columns[x][u][e] = here.number(x, u, e);
    const unsigned long long a = here.rows(0);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < KB / 8; x++)
#pragma unroll
        for (int u = 0; u < PIECES; u++)
            wgmma_tf32(sum[u], columns[x][u], a + deeper(x, MB), SLICES > 1 || add || x > 0);
    here.next(add);
}

// sum = op(A) op(B) of a unit, or this slice's share of it.
__device__ __forceinline__ void multiply(Consumer& here, Sums& sum, const Unit& unit) {
    const unsigned first = unit.part + here.at.slice * SPLIT;
    if (SLICES > 1 || (SPLIT == 1 ? unit.steps == 0 : first >= unit.steps)) {
#pragma unroll
        for (int e = 0; e < PIECES * TA / 2; e++) sum[e / (TA / 2)][e % (TA / 2)] = 0.0f;
    }
    unsigned step = first;
    if constexpr (!BOTH_K_MAJOR) {
        Fragments even, odd;  // the tensor cores read one while the other is written
        for (; step + SLICES * SPLIT < unit.steps; step += 2 * SLICES * SPLIT) {
            via_registers(here, sum, step > first, even);
            via_registers(here, sum, true, odd);
        }
        wgmma_wait_group<0>();
        if (step < unit.steps) via_registers(here, sum, step > first, even);
    } else {
        for (; step < unit.steps; step += SLICES * SPLIT) direct(here, sum, step > first);
    }
    wgmma_wait_group<0>();
    if (first < unit.steps) here.release();
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
