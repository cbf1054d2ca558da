// Grouped products: the matrices of a whole list, each of its own size and layout, in one launch.
//
// A small product has too few tiles to fill a GPU, and a launch for each costs more than the
// product. Here the blocks of one launch are the tiles of all products of a list, one after the
// other:
//
//     product            0     1        2                3
//     tiles            | 2 | 1 |   4       |   3     |
//     block number       0 1  2  3  4  5  6  7  8  9        first = 0, 2, 3, 7
//
// A block finds its product by a binary search for its number among the products' first blocks.
// All threads of a block read the same words there, which are arguments of the launch and so in
// constant memory: no copy to the device, nothing to allocate or to free. A launch may have 4 KiB
// of arguments on every GPU, which is MOST products; longer lists are several launches.
//
// The rest is kernel 04: MB x NB elements of C in a block, TA x TB in a thread, A transposed in
// shared memory. Two things differ. Layouts are looked up, since the products of one launch may
// differ in theirs; all threads of a block take the same branch. And every tile is guarded.

#include "common/tile.cuh"

#ifndef MB
#define MB 64  // rows of C that one block computes
#endif
#ifndef NB
#define NB 64  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // columns of A and rows of B in shared memory at a time
#endif
#ifndef TA
#define TA 4  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 4  // columns of C that one thread computes
#endif
#ifndef MOST
#define MOST 60  // products of a launch
#endif

static_assert(GUARDED, "tiles stick out of products of any size");
static_assert(MB % TA == 0 && NB % TB == 0,
              "threads tile the block evenly: TA divides MB and TB divides NB");
static_assert(MB / TA * (NB / TB) % 32 == 0, "a block is made of whole warps");

constexpr int THREADS = MB / TA * (NB / TB);

// The products C[i] = alpha op(A[i]) op(B[i]), i < count. Product i has the blocks from first[i]
// on; bit 0 of layout[i] says that A[i] is stored transposed, bit 1 that B[i] is.
struct Group {
    const REAL* a[MOST];
    const REAL* b[MOST];
    REAL* c[MOST];
    long long lda[MOST], ldb[MOST], ldc[MOST];
    unsigned m[MOST], n[MOST], k[MOST], first[MOST];
    unsigned char layout[MOST];
    unsigned count;
    REAL alpha;
};
static_assert(sizeof(Group) <= 4096, "the arguments of a launch on every GPU");

// The product that a block belongs to: the last one that begins at the block or before it.
__device__ __forceinline__ unsigned product_of(const Group& group, unsigned block) {
    unsigned low = 0, high = group.count;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (group.first[middle] <= block ? low : high) = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped(const __grid_constant__ Group group) {
    alignas(16) __shared__ REAL As[KB][MB], Bs[KB][NB];
    const unsigned thread = threadIdx.y * (NB / TB) + threadIdx.x;
    const unsigned y = threadIdx.y * TA, x = threadIdx.x * TB;  // the thread's corner of the tile
    const unsigned number = product_of(group, blockIdx.x);
    const unsigned m = group.m[number], n = group.n[number], k = group.k[number];
    const unsigned tile = blockIdx.x - group.first[number], across = (n - 1) / NB + 1;
    const unsigned i0 = tile / across * MB, j0 = tile % across * NB;
    const bool trans_a = group.layout[number] & 1, trans_b = group.layout[number] & 2;
    const long long lda = group.lda[number], ldb = group.ldb[number], ldc = group.ldc[number];
    const REAL* A = group.a[number] + offset(trans_a, i0, 0, lda);
    const REAL* B = group.b[number] + offset(trans_b, 0, j0, ldb);

    REAL sum[TA][TB] = {};
    for (unsigned p0 = 0; p0 < k; p0 += KB) {
        const REAL *a = A + offset(trans_a, 0, p0, lda), *b = B + offset(trans_b, p0, 0, ldb);
        if (trans_a)
            load_tile<THREADS, false>(As, a, lda, k - p0, m - i0, thread);
        else
            load_tile<THREADS, true>(As, a, lda, k - p0, m - i0, thread);
        if (trans_b)
            load_tile<THREADS, true>(Bs, b, ldb, k - p0, n - j0, thread);
        else
            load_tile<THREADS, false>(Bs, b, ldb, k - p0, n - j0, thread);
        __syncthreads();
#pragma unroll
        for (int p = 0; p < KB; p++) {
            REAL of_a[TA], of_b[TB];
#pragma unroll
            for (int i = 0; i < TA; i++) of_a[i] = As[p][y + i];
#pragma unroll
            for (int j = 0; j < TB; j++) of_b[j] = Bs[p][x + j];
#pragma unroll
            for (int i = 0; i < TA; i++)
#pragma unroll
                for (int j = 0; j < TB; j++) sum[i][j] += of_a[i] * of_b[j];
        }
        __syncthreads();
    }
    REAL* c = group.c[number] + offset(false, i0 + y, j0 + x, ldc);
#pragma unroll
    for (int i = 0; i < TA; i++)
#pragma unroll
        for (int j = 0; j < TB; j++)
            if (i0 + y + i < m && j0 + x + j < n)
                store(c + i * ldc + j, group.alpha, sum[i][j], REAL(0));
}
