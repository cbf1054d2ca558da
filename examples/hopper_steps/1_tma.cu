// Step 1: TMA and an mbarrier. The threads multiply as in kernel 03; only the way of the tiles into
// shared memory is new.
//
// One thread names a box of a matrix; the hardware computes every address, copies, and puts zeros
// where the matrix has ended. The copy is asynchronous: an mbarrier in shared memory counts the
// bytes that have arrived, and its phase ends when all are there. The next use of the barrier is
// its next phase, so threads wait for the phases 0, 1, 0, 1, ...: its parity.

#include "tile.cuh"

// The 16 bytes c of row r are stored where those of c ^ r % 8 would be (128-byte swizzle): eight
// rows of one column then lie in different banks.
__device__ __forceinline__ float element(const unsigned char* tile, int row, int x) {
    const int chunk = (x / 8) ^ (row % 8);
    return widen(*reinterpret_cast<const BF16*>(tile + row * ROW + chunk * 16 + x % 8 * 2));
}

extern "C" __global__ void __launch_bounds__(256)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* C,
            int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    unsigned char* const tile = aligned(shared);
    const unsigned full = address_of_shared(tile + STAGE_BYTES);
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);  // one thread arrives; the bytes count by themselves
        fence_mbarrier_init();
    }
    __syncthreads();
    float sum[8][8] = {};
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        if (threadIdx.x == 0) fetch(address_of_shared(tile), full, &a, &b, i0, j0, k0);
        mbarrier_wait(full, k0 / DEPTH % 2);
        for (int p = 0; p < DEPTH; p++) {
            float left[8], right[8];
            for (int u = 0; u < 8; u++) left[u] = element(tile, y + 16 * u, p);
            for (int v = 0; v < 8; v++) right[v] = element(tile + TILE_BYTES, x + 16 * v, p);
            for (int u = 0; u < 8; u++)
                for (int v = 0; v < 8; v++) sum[u][v] += left[u] * right[v];
        }
        __syncthreads();  // nobody needs the tiles any more
    }
    for (int u = 0; u < 8; u++)
        for (int v = 0; v < 8; v++) {
            const int i = i0 + y + 16 * u, j = j0 + x + 16 * v;
            if (i < m && j < n) C[i * static_cast<long long>(n) + j] = sum[u][v];
        }
}
