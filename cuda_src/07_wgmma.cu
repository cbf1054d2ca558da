// 07 wgmma: Hopper's own way. One thread loads, warpgroups multiply, no other thread does work.
// examples/hopper_steps comes here in five steps, each a short kernel (docs/explanation/hopper.md).
//
// 16-bit elements in, sums in float32, 16-bit elements or float32 out. What this kernel adds:
//
//     producer    | fetch 0 | fetch 1 | fetch 2 | wait: 0 empty? | fetch 4 | ...
//     consumers   |  wait: 0 full? | wgmma 0 | wgmma 1 | ...          (ring of STAGES tiles)
//
// - Tiles come by TMA: a thread names a box of a matrix, the hardware copies it, puts zeros where
//   the matrix has ended and swizzles it so that the tensor cores meet no bank conflict. No index
//   is computed or checked anywhere; every size runs the same source.
// - Two barriers for each stage, "full" and "empty", instead of one for the block: warpgroups drift
//   apart, and while one waits or stores the tensor cores work for the other.
// - wgmma multiplies 64 x TB x 16 with one instruction, straight from shared memory. The warpgroup
//   that fetches gives its registers to those that hold the sums.
// - Blocks of a cluster that are one above the other share B: each of two fetches half, each of
//   four a quarter (where B has no quarters, three a third or two a half), and sends it to all.
//   Those that are side by side share A in the same way. 128 x 256 alone asks L2 for 48 bytes a
//   clock and multiprocessor, of some 46 that it has (DeepGEMM's figures); two that share B for 32.
//   A barrier of the cluster takes 0.65 us: no block waits for the other before it ends, for none
//   arrives at a barrier of one that may have ended.
// - Blocks are persistent and take tile after tile, so that the next tile comes while this one is
//   stored, through shared memory and by TMA again. With little k storing is all there is to do:
//   SLOTS pieces of a warpgroup's tile are stored at a time (8192 x 8192 x 128: 47 us, not
//   58).
// - Deep products of few tiles: SPLIT parts of k, which `combine` adds up.
// - Instructions come from device memory too: every warpgroup warms up the end of a tile, with
//   nothing to store, while the first elements come. Blocks of small tiles ask for these before all
//   else, and have them before a warm-up would end (256: 4.9 us, not 5.2).
// - A warpgroup that has all columns of a tile may have any multiple of 16 above 64: 112 tiles of
//   64 x 144 are 1000 x 1000 in one wave of clusters of four, for which an H100 has room on 120 of
//   its 132 multiprocessors.
// - Small products: a warp stores its own rows of small tiles (no barrier, fence or map: 0.4 us).
// - A tile may have 192 rows, of three warpgroups: 22 x 24 of 192 x 176 are 4097 x 4097 in four
//   whole waves of 132.
// - Skinny ones wait for memory alone: a narrow tile takes only its 16 or 32 rows or columns of
//   shared memory, which holds twice as many stages (16 x 8192 x 8192: 43 us, not 48).
//
// Boxes have rows of 128 bytes, a swizzle's: 64 elements. Any layout is a pile of such boxes, and
// wgmma reads both kinds. Rows must start at multiples of 16 bytes: `repack` copies matrices whose
// rows do not. C may start anywhere: `boxed` says whether TMA, or 16 bytes at a time, can store it.
//
// What did not help: arriving at the other block's barrier with `.release.cluster` (0.68 of the
// speed: a fence of the whole GPU each time); first steps of large tiles fetched before the block
// is ready (0.98 at 4096); two blocks on a multiprocessor; C marked to leave L2 first; asking L2
// for all of a product of one wave in advance, each block for its share (0.83 to 1.01).

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
#define CLUSTER 1  // blocks of a cluster along m, which share a tile of B: 1, 2 or 4
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1  // blocks of a cluster along n, which share a tile of A: 1, 2 or 4
#endif
#ifndef SPLIT
#define SPLIT 1  // parts that k is split into
#endif
#ifndef SLOTS
#define SLOTS 1  // pieces of C that each warpgroup stores at a time
#endif

#include "common/hopper.cuh"
#include "common/split_k_schedule.cuh"

// Warpgroups that multiply, side by side along n and in all; one more loads.
constexpr int WARPGROUPS_N = NB < 64 ? 1 : NB / TB,
              CONSUMERS = (MB < 64 ? 1 : MB / TA) * WARPGROUPS_N;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int BOX = KB < 64 ? KB : 64, K_BOXES = KB / BOX;
// Columns of B in a stage. Where rows of B lie along n, boxes are 64 columns wide: a wide tile is
// rounded up.
constexpr int COLUMNS_B = TRANS_B || NB < 64 ? NB : (NB + 63) / 64 * 64;
constexpr int A_BYTES = MB * KB * sizeof(REAL);
constexpr int STAGE_BYTES = A_BYTES + COLUMNS_B * KB * sizeof(REAL);
// A block of 16 or 32 rows or columns multiplies 64; the rest is whatever follows in memory.
constexpr int PADDING_BYTES = NB < 64 ? (64 - NB) * 128 : 0;
constexpr int ROWS = TA / 64;            // pieces of 64 rows
constexpr int PIECE = 64 * 128;          // bytes of 64 rows of 128
constexpr int LINE = 128 / sizeof(OUT);  // columns of C in 128 bytes
// Columns of C that are staged at a time.
constexpr int PIECE_COLUMNS = TB % 128 == 0 && sizeof(OUT) == 2 ? 128 : 64;
constexpr int STAGED_BYTES = SPLIT > 1 ? 0 : PIECE_COLUMNS / LINE * PIECE;  // in one slot
// Skinny and deep products wait for memory alone, and few blocks read the same of it.
constexpr bool STREAMED = MB < 64 || NB < 64 || SPLIT > 1;
// Small tiles: each warp stores its own rows, and the first steps are loaded before all else.
constexpr bool WARPS_STORE = MB * NB <= 64 * 144;
constexpr bool EARLY_LOADS = WARPS_STORE && CLUSTER_BLOCKS == 1 && TB <= 128;

#include "common/warpgroups.cuh"

static_assert((MB % TA == 0 || (MB == 16 || MB == 32) && TA == 64) && TA % 64 == 0,
              "warpgroups share the rows: 64 divides TA, TA MB; or TA is 64, MB 16 or 32");
static_assert((NB % TB == 0 || (NB == 16 || NB == 32) && TB == 64) && TB % 64 == 0 ||
                  NB == TB && NB > 64 && NB % 16 == 0,
              "64 divides TB, TB NB; TB is 64, NB 16 or 32; or TB is NB > 64, and 16 divides it");
static_assert(KB % 64 == 0 || KB == 32, "a tile is a pile of boxes: 64 divides KB, or KB is 32");
static_assert(MB <= 256 && NB <= 256, "a box has at most 256 rows: MB and NB <= 256");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(CLUSTER == 1 || (CLUSTER == 2 || CLUSTER == 4) && NB >= 64,
              "blocks share B, boxes or slices: CLUSTER is 1, or 2 or 4 and NB at least 64");
static_assert(CLUSTER_N == 1 ||
                  (CLUSTER_N == 2 || CLUSTER_N == 4) && CLUSTER_BLOCKS <= 8 && MB >= 64,
              "at most 8 blocks share A, too: CLUSTER_N is 1, or 2 or 4 and MB at least 64");
static_assert(CONSUMERS <= 4 && TA * TB / 128 + 40 <= CONSUMER_REGISTERS,
              "TA * TB / 128 sums fit: at most 192 for 1 or 2 warpgroups, 120 for 3, 64 for 4");
static_assert(CONSUMERS != 3 || TB <= 192,
              "three warpgroups begin with 128 registers of a thread, too few for TB above 192");

#if CLUSTER * CLUSTER_N > 1
#define CLUSTERED __cluster_dims__(CLUSTER * CLUSTER_N, 1, 1)
#else
#define CLUSTERED
#endif

#include "common/wgmma_tile.cuh"
#if NB > 64 && NB % 64
#include "common/wgmma_widths.cuh"
#endif
#include "common/combine.cuh"
#include "common/repack.cuh"

struct Maps {
    TensorMap a, b, c;
};

// The blocks of this one's column of the cluster, which share B, and of its row, which share A: a
// bit for each by its number in the cluster.
__device__ __forceinline__ unsigned short blocks_of_column() {
    constexpr unsigned FIRST = (1 << CLUSTER) - 1;
    return FIRST << column_in_cluster() * CLUSTER;
}
__device__ __forceinline__ unsigned short blocks_of_row() {
    constexpr unsigned FIRST = ((1 << CLUSTER_BLOCKS) - 1) / ((1 << CLUSTER) - 1);
    return FIRST << row_in_cluster();
}
// Whether a block of the cluster loads for this one: it is in the same row or column.
__device__ __forceinline__ bool loads_for_this(unsigned block) {
    return CLUSTER_N == 1 || block % CLUSTER == row_in_cluster() ||
           block / CLUSTER == column_in_cluster();
}

// The thread that loads: where the ring of stages is, and how it fills it. In a cluster several
// fill a stage, each when all blocks to which it sends have released it. Bytes may come before this
// block's own expect_tx, but count in its phase: that cannot end without it, and nobody sends for
// it before the last phase has ended here, for only then is the stage released.
struct Producer {
    unsigned base, full, empty;
    Operand a, b;

    __device__ __forceinline__ void load_stage(unsigned stage, const Unit& unit,
                                               unsigned step) const {
        const unsigned tile = base + stage * STAGE_BYTES, filled = full + 8 * stage;
        const unsigned k0 = (unit.first + step) * KB;
        mbarrier_expect_tx(filled, STAGE_BYTES);
        fetch<!TRANS_A, CLUSTER_N, MB>(tile, a, filled, unit.i0, k0, unit.matrix,
                                       column_in_cluster(), blocks_of_row());
        fetch<TRANS_B, CLUSTER, COLUMNS_B>(tile + A_BYTES, b, filled, unit.j0, k0, unit.matrix,
                                           row_in_cluster(), blocks_of_column());
    }
    // Loads the first steps, one for each stage, all empty. Returns how many: `produce` goes on.
    __device__ __forceinline__ unsigned begin(const Product& p) const {
        const Unit unit = p[blockIdx.x];
        const unsigned count = unit.steps < STAGES ? unit.steps : STAGES;
#pragma unroll 1
        for (unsigned step = 0; step < count; step++) load_stage(step, unit, step);
        return count;
    }
    __device__ __forceinline__ void produce(const Product& p, unsigned first_loads) const {
        Ring ring{first_loads % STAGES, first_loads < STAGES};
        for (unsigned id = blockIdx.x / CLUSTER_BLOCKS; id < p.units();
             id += gridDim.x / CLUSTER_BLOCKS) {
            const Unit unit = p[id];
            for (unsigned step = first_loads; step < unit.steps; step++, ring.advance()) {
                mbarrier_wait(empty + 8 * ring.stage, ring.parity);
                load_stage(ring.stage, unit, step);
            }
            first_loads = 0;
        }
    }
};

// sum = op(A) op(B) of one unit of the warpgroup. `left` counts the steps that the block has left.
// In a cluster a stage is released only if a later step fills it, for then a producer waits for the
// release; else the block of that producer may have ended.
__device__ __forceinline__ void multiply(float (&sum)[ROWS][TB / 2], unsigned steps, Ring& ring,
                                         unsigned& left, unsigned tile_a, unsigned tile_b,
                                         unsigned full, unsigned empty) {
    constexpr int WIDE_A = MB < 64 ? MB : 64, WIDE_B = NB < 64 ? NB : 64;
    constexpr int STEP_A = TRANS_A ? 32 * WIDE_A : 32, STEP_B = TRANS_B ? 32 : 32 * WIDE_B;
    const unsigned thread = threadIdx.x % 128;
    unsigned used = STAGES;
    if (steps == 0) {
#pragma unroll
        for (int e = 0; e < ROWS * TB / 2; e++) sum[e / (TB / 2)][e % (TB / 2)] = 0.0f;
    }
    for (unsigned step = 0; step < steps; step++, ring.advance()) {
        const unsigned at = ring.stage * STAGE_BYTES, at_a = tile_a + at, at_b = tile_b + at;
        const unsigned long long a =
            TRANS_A ? mn_major_descriptor<WIDE_A, BOX>(at_a) : k_major_descriptor<BOX>(at_a);
        const unsigned long long b =
            TRANS_B ? k_major_descriptor<BOX>(at_b) : mn_major_descriptor<WIDE_B, BOX>(at_b);
        mbarrier_wait(full + 8 * ring.stage, ring.parity);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < KB / 16; x++)
#pragma unroll
            for (int u = 0; u < ROWS; u++)
                wgmma<!TRANS_A, TRANS_B>(
                    REAL{}, sum[u], a + (x / 4 * MB * 128 + u * 128 * BOX + x % 4 * STEP_A) / 16,
                    b + (x / 4 * COLUMNS_B * 128 + x % 4 * STEP_B) / 16, step > 0 || x > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the step before has ended: its stage may be filled again
        if (used < STAGES && thread < CLUSTER_BLOCKS && loads_for_this(thread) &&
            (CLUSTER_BLOCKS == 1 || left >= STAGES))
            mbarrier_arrive(empty + 8 * used, thread);
        used = ring.stage;
        if (CLUSTER_BLOCKS > 1) left--;
    }
    wgmma_wait_group<0>();
    if (used < STAGES && thread < CLUSTER_BLOCKS && loads_for_this(thread) &&
        (CLUSTER_BLOCKS == 1 || left >= STAGES))
        mbarrier_arrive(empty + 8 * used, thread);
}

#include "common/wgmma_store.cuh"

// A warpgroup that multiplies: all its units.
__device__ __forceinline__ void consume(const Product& p, const Output& result,
                                        const Producer& producer, unsigned char* staging,
                                        unsigned group) {
    const unsigned tile_a = producer.base + group / WARPGROUPS_N * TA * 2 * BOX;
    const unsigned tile_b = producer.base + A_BYTES + group % WARPGROUPS_N * TB * 2 * BOX;
    Ring ring;
    unsigned slot = 0, warm_up = !EARLY_LOADS, left = CLUSTER_BLOCKS > 1 ? p.steps_of_block() : 0;
    if (!EARLY_LOADS) make_opaque(warm_up);  // else the code would be there twice
    for (unsigned id = blockIdx.x / CLUSTER_BLOCKS; id < p.units();) {
        const Unit unit = p[id];
        float sum[ROWS][TB / 2];
        multiply(sum, warm_up ? 0 : unit.steps, ring, left, tile_a, tile_b, producer.full,
                 producer.empty);
        store_tile(sum, result, unit, staging, slot, group, warm_up);
        id += warm_up ? 0 : gridDim.x / CLUSTER_BLOCKS;
        warm_up = 0;
    }
    if (threadIdx.x % 128 == 0) bulk_wait_group_read();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CLUSTERED
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int boxed, OUT* C, long long ldc, long long batch_c,
         float* parts EPILOGUE_PARAMETER) {
    extern __shared__ unsigned char shared[];
    unsigned char* const aligned = shared + (-address_of_shared(shared) & 1023);
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES + PADDING_BYTES;
    const unsigned full = address_of_shared(staging + CONSUMERS * SLOTS * STAGED_BYTES);
    const Product p{unsigned(batch), (k + KB - 1u) / KB, (m + TILE_M - 1u) / TILE_M,
                    (n + TILE_N - 1u) / TILE_N};
    const bool stream_a = p.tiles_n <= 4 && (batched_a || batch == 1);
    const bool stream_b = p.tiles_m <= 4 && (batched_b || batch == 1);
    const Producer producer{address_of_shared(aligned),
                            full,
                            full + 8 * STAGES,
                            {&maps.a, unsigned(batched_a), l2_policy(stream_a)},
                            {&maps.b, unsigned(batched_b), l2_policy(stream_b)}};
    // Uniform in each warp, and the compiler is told so: descriptors then stay in uniform
    // registers.
    const unsigned group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    unsigned first_loads = 0;
    if (threadIdx.x == (EARLY_LOADS ? 128 * CONSUMERS : 0)) {
        if (k > 0) prefetch_tensormap(&maps.a), prefetch_tensormap(&maps.b);
        if (boxed && SPLIT == 1 && !WARPS_STORE) prefetch_tensormap(&maps.c);
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(producer.full + 8 * s, 1);
            mbarrier_init(producer.empty + 8 * s, CONSUMERS * (CLUSTER + CLUSTER_N - 1));
        }
        fence_mbarrier_init();
        if (EARLY_LOADS) griddepcontrol_wait(), first_loads = producer.begin(p);
    }
    if (CLUSTER_BLOCKS > 1)
        cluster_arrive(), cluster_wait();
    else
        __syncthreads();
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0) griddepcontrol_wait(), producer.produce(p, first_loads);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(p,
                {&maps.c, C, parts, ldc, batch_c, unsigned(m), unsigned(n), unsigned(batch), 0, 0,
                 alpha, beta, boxed != 0 EPILOGUE_ARGUMENT},
                producer, staging + group * SLOTS * STAGED_BYTES, group);
    }
}
