// 07 wgmma: Hopper's own way. One thread fetches, warpgroups multiply, nobody else does anything.
//
// 16-bit numbers in, sums in float32, 16-bit numbers out. What this rung adds:
//
//     producer    | fetch 0 | fetch 1 | fetch 2 | wait: 0 empty? | fetch 4 | ...
//     consumers   |  wait: 0 full? | wgmma 0 | wgmma 1 | ...          (ring of STAGES tiles)
//
// - Tiles come by TMA: a thread names a box of a matrix, the hardware copies it, puts zeros where
//   the matrix has ended and swizzles it so that the tensor cores meet no bank conflict. No index
//   is computed or checked anywhere; every size runs the same text.
// - Two barriers for each stage, "full" and "empty", instead of one for the block: warpgroups drift
//   apart, and while one waits or stores the tensor cores work for the other.
// - wgmma multiplies 64 x TB x 16 with one instruction, straight from shared memory. The warpgroup
//   that fetches gives its registers to those that hold the sums.
// - A cluster of two blocks, one above the other, shares B: each fetches half and sends it to both.
//   128 x 256 alone asks L2 for 48 bytes a clock and multiprocessor, of some 46 that it has
//   (DeepGEMM's figures); in a cluster for 32.
// - Blocks stay and take tile after tile, so that the next tile comes while this one is stored,
//   through shared memory and by TMA again.
//
// Boxes are 64 x 64: 64 numbers are the 128 bytes of a swizzle. Any layout is a pile of such boxes,
// and wgmma reads both kinds. Rows must start at multiples of 16 bytes: `repack` copies matrices
// whose rows do not. C may lie anywhere: `boxed` says whether TMA can store it.
//
// What did not help: arriving at the other block's barrier with `.release.cluster` (0.68 of the
// speed: a fence of the whole GPU each time).

#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T
#endif
#ifndef REAL
#define REAL BF16  // element type of A, B and C: F16 or BF16
#endif
#ifndef OUT
#define OUT REAL  // element type of C
#endif
#ifndef SUM
#define SUM float  // type of the sums
#endif
#ifndef MB
#define MB 128  // rows of C that one block computes
#endif
#ifndef NB
#define NB 256  // columns of C that one block computes
#endif
#ifndef KB
#define KB 64  // depth of a tile
#endif
#ifndef TA
#define TA 64  // rows of C that one warpgroup computes
#endif
#ifndef TB
#define TB 256  // columns of C that one warpgroup computes
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks that share a tile of B, 1 or 2
#endif

#include "common/hopper.cuh"
#include "common/schedule.cuh"

constexpr int ACROSS = NB / TB, CONSUMERS = MB / TA * ACROSS, THREADS = 128 * (CONSUMERS + 1);
constexpr int BOX = 64, BOX_BYTES = BOX * BOX * sizeof(REAL);
constexpr int BOXES_A = MB / BOX, BOXES_B = NB / BOX, DEEP = KB / BOX;
constexpr int A_BYTES = BOXES_A * DEEP * BOX_BYTES;
constexpr int STAGE_BYTES = A_BYTES + BOXES_B * DEEP * BOX_BYTES;
constexpr int ROWS = TA / 64;                          // pieces of 64 rows
constexpr int STAGED = TB % 128 == 0 ? 128 : 64;       // columns of C on their way out
constexpr int STAGED_BYTES = STAGED / BOX * BOX_BYTES;  // of one warpgroup
// Registers of a thread, few for those that fetch. All together they must not pass what the block
// is launched with, 65536 over THREADS in multiples of 8, or the block waits for ever.
constexpr int FEW = CONSUMERS <= 2 ? 40 : CONSUMERS == 3 ? 32 : 64;
constexpr int MANY = CONSUMERS <= 2 ? 232 : CONSUMERS == 3 ? 160 : 104;

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 64 == 0 && TB % 64 == 0 && TB <= 256,
              "warpgroups tile the block evenly: 64 divides TA, TA MB, 64 TB, TB NB; TB <= 256");
static_assert(KB % 64 == 0, "a tile is a pile of boxes of 64 x 64: 64 divides KB");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert((CLUSTER == 1 || CLUSTER == 2) && NB % (64 * CLUSTER) == 0,
              "one block or two share the boxes of B: CLUSTER is 1 or 2, 64 CLUSTER divides NB");
static_assert(CONSUMERS <= 4 && TA * TB / 128 + 40 <= MANY,
              "TA * TB / 128 sums fit: at most 192 for 1 or 2 warpgroups, 120 for 3, 64 for 4");

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

#include "common/boxed.cuh"
#include "common/combine.cuh"
#include "common/repack.cuh"

struct Maps {
    TensorMap a, b, c;
};
struct Product {
    unsigned batch, steps, tiles_m, tiles_n;  // tiles_m counts clusters
};

// Runs `use(rows, columns, matrix, stage, parity)` of every tile that falls to this cluster.
template <class Use>
__device__ __forceinline__ void each_tile(const Product& p, Use use) {
    const unsigned tiles = p.tiles_m * p.tiles_n;
    for (unsigned t = blockIdx.x / CLUSTER; t < tiles * p.batch; t += gridDim.x / CLUSTER) {
        unsigned tile_m, tile_n;
        tile_of(t % tiles, p.tiles_m, p.tiles_n, tile_m, tile_n);
        use((tile_m * CLUSTER + (CLUSTER > 1 ? block_in_cluster() : 0)) * MB, tile_n * NB,
            t / tiles);
    }
}

__device__ __forceinline__ void produce(const Maps& maps, const Product& p, unsigned base,
                                        unsigned full, unsigned empty, int stack_a, int stack_b) {
    const unsigned share = BOXES_B / CLUSTER, first = CLUSTER > 1 ? block_in_cluster() * share : 0;
    Ring ring{0, 1};
    each_tile(p, [&](unsigned i0, unsigned j0, unsigned matrix) {
        for (unsigned step = 0; step < p.steps; step++, ring.advance()) {
            const unsigned tile = base + ring.stage * STAGE_BYTES, filled = full + 8 * ring.stage;
            barrier_wait(empty + 8 * ring.stage, ring.parity);
            barrier_expect(filled, STAGE_BYTES);
            fetch<!TRANS_A, false, BOXES_A>(tile, &maps.a, filled, i0, step * KB, matrix * stack_a);
            fetch<TRANS_B, (CLUSTER > 1), BOXES_B>(tile + A_BYTES, &maps.b, filled, j0, step * KB,
                                                   matrix * stack_b, first, first + share);
        }
    });
}

// sum = op(A) op(B) of one tile of the warpgroup.
__device__ __forceinline__ void multiply(float (&sum)[ROWS][TB / 2], unsigned steps, Ring& ring,
                                         unsigned tile_a, unsigned tile_b, unsigned full,
                                         unsigned empty) {
    constexpr int STEP_A = TRANS_A ? 16 * 128 : 32, STEP_B = TRANS_B ? 32 : 16 * 128;
    const unsigned thread = threadIdx.x % 128;
    unsigned used = STAGES;
    for (unsigned step = 0; step < steps; step++, ring.advance()) {
        const unsigned long long a = describe(tile_a + ring.stage * STAGE_BYTES);
        const unsigned long long b = describe(tile_b + ring.stage * STAGE_BYTES);
        barrier_wait(full + 8 * ring.stage, ring.parity);
        wgmma_begin();
#pragma unroll
        for (int x = 0; x < KB / 16; x++)
#pragma unroll
            for (int u = 0; u < ROWS; u++)
                wgmma<!TRANS_A, TRANS_B>(
                    REAL{}, sum[u], a + ((x / 4 * BOXES_A + u) * BOX_BYTES + x % 4 * STEP_A) / 16,
                    b + (x / 4 * BOXES_B * BOX_BYTES + x % 4 * STEP_B) / 16, step > 0 || x > 0);
        wgmma_commit();
        wgmma_wait<1>();  // the step before has ended: its stage may be filled again
        if (used < STAGES && thread < CLUSTER) barrier_arrive(empty + 8 * used, thread);
        used = ring.stage;
    }
    wgmma_wait<0>();
    if (used < STAGES && thread < CLUSTER) barrier_arrive(empty + 8 * used, thread);
}


__device__ __forceinline__ void consume(const Product& p, const Result& result, unsigned base,
                                        unsigned char* staging, unsigned full, unsigned empty,
                                        unsigned group) {
    const unsigned down = group / ACROSS, right = group % ACROSS;
    const unsigned staged = address_of_shared(staging);
    const bool elected = threadIdx.x % 128 == 0;
    Ring ring;
    each_tile(p, [&](unsigned i0, unsigned j0, unsigned matrix) {
        i0 += down * TA;
        j0 += right * TB;
        float sum[ROWS][TB / 2];
        if (p.steps == 0) {
#pragma unroll
            for (int e = 0; e < ROWS * TB / 2; e++) sum[e / (TB / 2)][e % (TB / 2)] = 0.0f;
        }
        multiply(sum, p.steps, ring, base + down * ROWS * BOX_BYTES,
                 base + A_BYTES + right * (TB / BOX) * BOX_BYTES, full, empty);
        Result here = result;
        here.C += matrix * result.batch;
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            here.scale(sum[u], i0 + u * 64, j0);
#pragma unroll
            for (int h = 0; h < TB; h += STAGED) {
                if (elected) stores_have_read();
                warpgroup_sync(group + 1);
                here.stage(staged, sum[u] + h / 2);
                if (!result.boxed) {
                    __syncwarp();
                    here.copy(staging, i0 + u * 64, j0 + h);
                    continue;
                }
                written_for_copies();
                warpgroup_sync(group + 1);
                if (!elected) continue;
#pragma unroll
                for (int q = 0; q < STAGED / BOX; q++)
                    store_box(result.map, staged + q * BOX_BYTES, j0 + h + q * BOX, i0 + u * 64,
                              matrix);
                stores_commit();
            }
        }
    });
    if (elected) stores_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CLUSTERED
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int stack_a, int stack_b, int boxed, REAL* C, long long ldc, long long batch_c,
         float* parts) {
    extern __shared__ unsigned char shared[];
    unsigned char* const aligned = shared + (-address_of_shared(shared) & 1023);
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES;
    const unsigned full = address_of_shared(staging + CONSUMERS * STAGED_BYTES);
    const unsigned empty = full + 8 * STAGES, base = address_of_shared(aligned);
    // The same for a whole warp, and said so: descriptors then live in uniform registers.
    const unsigned group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        if (k > 0) prefetch(&maps.a), prefetch(&maps.b);
        for (int s = 0; s < STAGES; s++) {
            barrier_make(full + 8 * s, 1);
            barrier_make(empty + 8 * s, CONSUMERS * CLUSTER);
        }
        barriers_made();
    }
    CLUSTER > 1 ? cluster_sync() : __syncthreads();
    const Product p{unsigned(batch), (k + KB - 1u) / KB,
                    (m + CLUSTER * MB - 1u) / (CLUSTER * MB), (n + NB - 1u) / NB};
    if (group == CONSUMERS) {
        leave_registers<FEW>();
        if (threadIdx.x % 128 == 0) produce(maps, p, base, full, empty, stack_a, stack_b);
    } else {
        take_registers<MANY>();
        consume(p, {&maps.c, C, ldc, batch_c, unsigned(m), unsigned(n), alpha, beta, boxed != 0},
                base, staging + group * STAGED_BYTES, full, empty, group);
    }
    if (CLUSTER > 1) cluster_sync();  // no block leaves while the other may still reach into it
}
