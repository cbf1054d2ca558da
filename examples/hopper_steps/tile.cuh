// What all steps share: C = A B^T, with A of m x k and B of n x k bfloat16 elements and C of m x n
// floats, all row-major, in tiles of 128 x 128 x 64.

#include "common/hopper.cuh"

constexpr int TILE = 128, DEPTH = 64;    // rows and columns of a tile of C; columns of A and B
constexpr int ROW = DEPTH * 2;           // bytes of a row of a tile of A or B
constexpr int TILE_BYTES = TILE * ROW;   // of A, and as many of B
constexpr int STAGE_BYTES = 2 * TILE_BYTES;

// Shared memory from the next multiple of 1024 bytes on: the swizzle repeats after so many.
__device__ __forceinline__ unsigned char* aligned(unsigned char* shared) {
    return shared + (-address_of_shared(shared) & 1023);
}

// One thread asks for the tiles of A and B at depth k0; `full` counts their bytes as they arrive.
// What lies outside a matrix arrives as zeros.
__device__ __forceinline__ void fetch(unsigned stage, unsigned full, const TensorMap* a,
                                      const TensorMap* b, int i0, int j0, int k0) {
    mbarrier_expect_tx(full, STAGE_BYTES);
    tma_load(stage, a, full, k0, i0, 0);
    tma_load(stage + TILE_BYTES, b, full, k0, j0, 0);
}

// One warpgroup: the 64 x 128 products of its rows of the tile at `a` and the tile at `b`. wgmma is
// asynchronous; the caller waits for it.
__device__ __forceinline__ void multiply(float (&sum)[64], unsigned a, unsigned b, bool add) {
    wgmma_fence();
    for (int x = 0; x < DEPTH / 16; x++)  // 16 columns, 32 bytes: 2 in a descriptor
        wgmma<true, true>(BF16{}, sum, k_major_descriptor<64>(a) + 2 * x,
                          k_major_descriptor<64>(b) + 2 * x, add || x > 0);
    wgmma_commit_group();
}

// A warpgroup's 64 x 128 sums to C, each where wgmma left it.
__device__ __forceinline__ void store(const float (&sum)[64], float* C, int m, int n, int i0,
                                      int j0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int e = 0; e < 64; e++) {
        const int i = i0 + warp * 16 + lane / 4 + e / 2 % 2 * 8;
        const int j = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (i < m && j < n) C[i * static_cast<long long>(n) + j] = sum[e];
    }
}
