// 15 symmetric tile: C = A^T A as a project of 2011 computed it in double precision on a Tesla
// C2075, for comparison with what kernels 06 and 09 do today. Ordinary products run, too; nothing
// selects it by itself.
//
// Kernel 04 with three changes. First, the next tiles are fetched from global memory into registers
// while the current ones are used, so that a step waits for memory only if its arithmetic is
// shorter:
//
//     registers   . fetch 1 .  fetch 2  .  fetch 3  .          one barrier before tiles are used,
//     shared      put 0     put 1       put 2       put 3      one before the next are put there
//     arithmetic        use 0       use 1       use 2
//
// Second, rows of both tiles are PAD elements longer than the tile. If A is stored by rows, threads
// fetch along k and store MB + PAD elements apart: if that is a multiple of 16 doubles (32 floats),
// all these stores are to one bank. 48 without padding is, and so is 48 + 16; 48 + 1 is not. PAD is
// found by experiment (`python -m pymm.bench --suite o3-pads`).
// Third, of a symmetric C, blocks that lie entirely in the unused triangle return at once, and with
// BOTH the others also store the transposed tile, so that nothing mirrors C afterwards.
// The default is the project's: tiles of 48 x 48, 16 x 16 threads with 3 x 3 elements each.
// Cost of a thread, for each of its TA TB elements: 2k operations, k / MB + k / NB + 1 accesses to
// global memory (one more for the mirror image), k / TA + k / TB to shared memory; and registers:
// its share of the next tiles, KB (MB + NB) / threads elements.

#include "common/tile.cuh"

#ifndef MB
#define MB 48  // rows of C that one block computes
#endif
#ifndef NB
#define NB 48  // columns of C that one block computes
#endif
#ifndef KB
#define KB 48  // columns of A and rows of B in shared memory at a time
#endif
#ifndef TA
#define TA 3  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 3  // columns of C that one thread computes
#endif
#ifndef PAD
#define PAD 1  // elements that a row in shared memory is longer than the tile
#endif
#ifndef BOTH
#define BOTH 0  // 1: what is kept of a half goes to the other half, too
#endif

#include "common/schedule.cuh"

static_assert(MB % TA == 0 && NB % TB == 0,
              "threads tile the block evenly: TA divides MB and TB divides NB");
static_assert(MB / TA * (NB / TB) % 32 == 0, "a block is made of whole warps");

constexpr int THREADS = MB / TA * (NB / TB);

// A thread's share of a tile of KB x EXTENT elements, on its way from global memory to shared. The
// threads walk along k if the matrix is stored so, else along the other axis.
template <bool ALONG_K, int EXTENT>
struct Share {
    static constexpr int COUNT = (KB * EXTENT + THREADS - 1) / THREADS;
    REAL elements[COUNT];

    static __device__ __forceinline__ unsigned depth(unsigned e) {
        return ALONG_K ? e % KB : e / EXTENT;
    }
    static __device__ __forceinline__ unsigned place(unsigned e) {
        return ALONG_K ? e / KB : e % EXTENT;
    }
    // From X on; zeros for what lies beyond `extent` and `deep`, the elements that are left.
    __device__ __forceinline__ void fetch(const REAL* X, long long ld, unsigned extent,
                                          unsigned deep, unsigned thread) {
#pragma unroll
        for (int s = 0; s < COUNT; s++) {
            const unsigned e = thread + s * THREADS, p = depth(e), i = place(e);
            const bool inside = !GUARDED || (i < extent && p < deep);
            const bool mine = KB * EXTENT % THREADS == 0 || e < KB * EXTENT;
            elements[s] = mine && inside ? X[ALONG_K ? i * ld + p : p * ld + i] : REAL(0);
        }
    }
    __device__ __forceinline__ void put(REAL (&tile)[KB][EXTENT + PAD], unsigned thread) const {
#pragma unroll
        for (int s = 0; s < COUNT; s++) {
            const unsigned e = thread + s * THREADS;
            if (KB * EXTENT % THREADS == 0 || e < KB * EXTENT)
                tile[depth(e)][place(e)] = elements[s];
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c EPILOGUE_PARAMETER) {
    __shared__ REAL As[KB][MB + PAD], Bs[KB][NB + PAD];
    const unsigned thread = threadIdx.y * (NB / TB) + threadIdx.x;
    const unsigned y = threadIdx.y * TA, x = threadIdx.x * TB;  // the thread's corner of the tile
    const unsigned j0 = blockIdx.x * NB;
    A += blockIdx.z * batch_a;
    B += blockIdx.z * batch_b;
    C += blockIdx.z * batch_c;

    for (unsigned i0 = blockIdx.y * MB; i0 < m; i0 += gridDim.y * MB) {
        if (!any_stored(i0, j0, MB, NB)) continue;
        REAL sum[TA][TB] = {};
        Share<!TRANS_A, MB> a_next;
        Share<TRANS_B, NB> b_next;
        if (k > 0) {
            a_next.fetch(A + offset(TRANS_A, i0, 0, lda), lda, m - i0, k, thread);
            b_next.fetch(B + offset(TRANS_B, 0, j0, ldb), ldb, n - j0, k, thread);
        }
        for (unsigned p0 = 0; p0 < k; p0 += KB) {
            a_next.put(As, thread);
            b_next.put(Bs, thread);
            __syncthreads();
            if (const unsigned next = p0 + KB; next < k) {
                a_next.fetch(A + offset(TRANS_A, i0, next, lda), lda, m - i0, k - next, thread);
                b_next.fetch(B + offset(TRANS_B, next, j0, ldb), ldb, n - j0, k - next, thread);
            }
#pragma unroll
            for (int p = 0; p < KB; p++) {
                REAL a[TA], b[TB];
#pragma unroll
                for (int i = 0; i < TA; i++) a[i] = As[p][y + i];
#pragma unroll
                for (int j = 0; j < TB; j++) b[j] = Bs[p][x + j];
#pragma unroll
                for (int i = 0; i < TA; i++)
#pragma unroll
                    for (int j = 0; j < TB; j++) sum[i][j] += a[i] * b[j];
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < TA; i++)
#pragma unroll
            for (int j = 0; j < TB; j++) {
                const unsigned row = i0 + y + i, column = j0 + x + j;
                if ((GUARDED && (row >= m || column >= n)) || !is_stored(row, column)) continue;
                REAL* const c = C + offset(false, row, column, ldc);
                store(c, alpha, sum[i][j], beta EPILOGUE_AT(row, column));
                if (BOTH && row != column) C[offset(false, column, row, ldc)] = *c;
            }
    }
}
