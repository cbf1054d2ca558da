// 16 ping pong: two warpgroups take turns, and the store of one hides behind the products of the
// other.
//
// 16-bit elements in, sums in float32, 16-bit elements or float32 out. The tiles come as in kernel
// 07, by TMA through a ring of stages. There both warpgroups share one tile and reach its store at
// about the same time: the tensor cores are mostly idle then, only the next tile's loads go on.
// Here each has a tile of its own:
//
//     warpgroup 0 | multiply tile 0 | store tile 0    | multiply tile 2 | store tile 2 | ...
//     warpgroup 1 |      wait       | multiply tile 1 | store tile 1    | multiply tile 3 | ...
//     producer    | fetch the steps of tile 0, of tile 1, of tile 2, ...
//
// - A warpgroup has its turn at the tensor cores until it has issued its last wgmma, then it
//   signals the other's barrier. So stages are consumed in the order of the tiles, each by one
//   warpgroup, and a single arrival marks a stage empty.
// - A tile may be any multiple of 16 columns wide. 4096 x 2112 is 384 tiles of 128 x 176, 2.9 waves
//   of 132 blocks; of 128 x 192 it is 352, 2.7 waves. Both take as long as 3, and the narrower tile
//   takes less.
// - C leaves in pieces of 128 bytes a row. The last piece of a tile whose width is no multiple of
//   that begins earlier and stores some columns twice, with the same numbers.
// - Blocks in a cluster of two, one above the other, share B: each fetches half of its rows, or
//   half of its depth where rows of B lie along n, and sends it to both.
//
// Measured in bf16 on one H200, kernel 07 and this: it pays where storing takes a good part of the
// time (8192 x 8192 x 256: 68 and 60 us; 4096 x 32768 x 512: 236 and 200; in another run cuBLASLt's
// best algorithm 177 where this takes 189), where a width fits n (4096 x 2112 x 7168: 172 and
// 160), and where the clock is the limit (8192: 1.65 and 1.58 ms). Up to k = 128, where storing is
// all there is to do, kernel 07 is quicker (8192 x 8192 x 64: 40 and 43 us).

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
#define MB 128  // rows of a tile of C: 64 or 128
#endif
#ifndef NB
#define NB 176  // columns of a tile of C: a multiple of 16
#endif
#ifndef KB
#define KB 64  // depth of a tile
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef CLUSTER
#define CLUSTER 2  // blocks that share a tile of B: 1 or 2
#endif
#ifndef SLOTS
#define SLOTS 1  // pieces of C that each warpgroup stores at a time
#endif
#define SPLIT 1
#define TA MB
#define TB NB

#include "common/hopper.cuh"
#include "common/split_k_schedule.cuh"

constexpr int CONSUMERS = 2, WARPGROUPS_N = 1;  // warpgroups that multiply; one more loads
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int BOX = KB, K_BOXES = 1;
// Columns of B that a stage has: boxes whose rows lie along n are 64 columns wide.
constexpr int COLUMNS_B = TRANS_B ? NB : (NB + 63) / 64 * 64;
constexpr int A_BYTES = MB * KB * sizeof(REAL);
constexpr int STAGE_BYTES = A_BYTES + COLUMNS_B * KB * sizeof(REAL);
constexpr int ROWS = MB / 64;            // pieces of 64 rows
constexpr int PIECE = 64 * 128;          // bytes of 64 rows of 128
constexpr int LINE = 128 / sizeof(OUT);  // columns of C in 128 bytes
constexpr int PIECE_COLUMNS = LINE, STAGED_BYTES = PIECE;
constexpr bool STREAMED = false, WARPS_STORE = false;

#include "common/warpgroups.cuh"

static_assert(MB == 64 || MB == 128, "a warpgroup has 64 or 128 rows: MB is 64 or 128");
static_assert(NB % 16 == 0 && NB >= 64 && NB <= 256,
              "a tile has 64 to 256 columns, a multiple of 16: NB");
static_assert(KB == 64, "a step is as deep as a box: KB is 64");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(CLUSTER == 1 || CLUSTER == 2, "blocks share B in pairs: CLUSTER is 1 or 2");
static_assert(MB * NB / 128 + 40 <= CONSUMER_REGISTERS, "at most 192 sums: MB * NB / 128");

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

#include "common/wgmma_tile.cuh"
#include "common/wgmma_widths.cuh"
#include "common/repack.cuh"

struct Maps {
    TensorMap a, b, c;
};

// Where the stages and their barriers are, and those of the turns: one for each warpgroup.
struct Stages {
    unsigned base, full, empty, turns;
};

// The place in the ring of stages after so many steps.
__device__ __forceinline__ Ring ring_at(unsigned steps) {
    return {steps % STAGES, steps / STAGES & 1};
}

// A block's share of a stage of B: rows along k are split by columns, rows along n by their depth.
// SHARED: for all blocks of the cluster; else for this one.
template <bool SHARED>
__device__ __forceinline__ void fetch_b(unsigned share, unsigned tile, const Operand& from,
                                        unsigned full, const Unit& unit, unsigned k0) {
    constexpr int SHARE = (TRANS_B ? NB : KB) / CLUSTER;
    constexpr unsigned short BLOCKS = (1 << CLUSTER) - 1;
    const unsigned first = share * SHARE, z = unit.matrix * from.stride;
#pragma unroll
    for (int j = 0; j < (TRANS_B ? 1 : COLUMNS_B); j += 64) {
        const unsigned target = tile + A_BYTES + j * 128 + first * 128;
        const unsigned x = TRANS_B ? k0 : unit.j0 + j, y = TRANS_B ? unit.j0 + first : k0 + first;
        if constexpr (SHARED)
            tma_load(target, from.map, full, x, y, z, BLOCKS);
        else
            tma_load(target, from.map, full, x, y, z);
    }
}

// The thread that loads: the steps of all tiles of the block, one after the other. The steps that
// first fill the stages it loads without multicast: the other block may not have begun.
__device__ __forceinline__ void produce(const Product& p, const Stages& stages, const Operand& a,
                                        const Operand& b) {
    Ring ring{0, 1};  // all stages are empty
    unsigned alone = CLUSTER > 1 ? STAGES : 0;  // steps that are still loaded without multicast
    const unsigned rank = CLUSTER > 1 ? block_in_cluster() : 0;
    for (unsigned id = blockIdx.x / CLUSTER; id < p.units(); id += gridDim.x / CLUSTER) {
        const Unit unit = p[id];
        for (unsigned step = 0; step < unit.steps; step++, ring.advance()) {
            const unsigned tile = stages.base + ring.stage * STAGE_BYTES;
            const unsigned full = stages.full + 8 * ring.stage;
            mbarrier_wait(stages.empty + 8 * ring.stage, ring.parity);
            mbarrier_expect_tx(full, STAGE_BYTES);
            fetch<!TRANS_A, 1, MB>(tile, a, full, unit.i0, step * KB, unit.matrix);
            if (CLUSTER > 1 && alone == 0) {
                fetch_b<true>(rank, tile, b, full, unit, step * KB);
                continue;
            }
            fetch_b<false>(0, tile, b, full, unit, step * KB);
            if (CLUSTER == 1) continue;
            fetch_b<false>(1, tile, b, full, unit, step * KB);
            if (--alone == 0) cluster_wait();
        }
    }
}

// sum = op(A) op(B) of one tile, whose first step is in the stage of `ring`, when it is the
// warpgroup's turn. The stages of the tile's first `reused` steps (none if negative) are filled
// again. In a cluster only these are released: no producer waits for another release, so its block
// may have ended.
__device__ __forceinline__ void multiply(float (&sum)[ROWS][NB / 2], unsigned steps, Ring ring,
                                         int reused, const Stages& stages, unsigned group,
                                         unsigned turn) {
    constexpr int STEP_A = TRANS_A ? 2048 : 32, STEP_B = TRANS_B ? 32 : 2048;
    const unsigned thread = threadIdx.x % 128;
    unsigned used = STAGES;
    if (steps > 0) mbarrier_wait(stages.turns + 8 * group, turn);
    make_opaque(steps);  // else both branches become one, and ptxas serializes wgmma
    if (steps == 0) {
#pragma unroll
        for (int e = 0; e < ROWS * NB / 2; e++) sum[e / (NB / 2)][e % (NB / 2)] = 0.0f;
    }
    for (unsigned step = 0; step < steps; step++, ring.advance()) {
        const unsigned at_a = stages.base + ring.stage * STAGE_BYTES, at_b = at_a + A_BYTES;
        const unsigned long long a =
            TRANS_A ? mn_major_descriptor<64, KB>(at_a) : k_major_descriptor<64>(at_a);
        const unsigned long long b =
            TRANS_B ? k_major_descriptor<64>(at_b) : mn_major_descriptor<64, KB>(at_b);
        mbarrier_wait(stages.full + 8 * ring.stage, ring.parity);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < KB / 16; x++)
#pragma unroll
            for (int u = 0; u < ROWS; u++)
                wgmma<!TRANS_A, TRANS_B>(REAL{}, sum[u], a + (u * 128 * 64 + x * STEP_A) / 16,
                                         b + x * STEP_B / 16, step > 0 || x > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the step before has ended: its stage may be filled again
        if (used < STAGES && thread < CLUSTER && (CLUSTER == 1 || int(step) <= reused))
            mbarrier_arrive(stages.empty + 8 * used, thread);
        used = ring.stage;
    }
    // All stages of this tile are full: the other warpgroup may wait for the next one.
    if (steps > 0 && thread == 0) mbarrier_arrive(stages.turns + 8 * (1 - group));
    wgmma_wait_group<0>();
    if (used < STAGES && thread < CLUSTER && (CLUSTER == 1 || int(steps) <= reused))
        mbarrier_arrive(stages.empty + 8 * used, thread);
}

// C <- alpha sum + beta C of one tile. In a warm-up, which only loads the instructions, nothing is
// stored.
__device__ __forceinline__ void store_tile(float (&sum)[ROWS][NB / 2], Output out, const Unit& unit,
                                           unsigned char* staging, unsigned& slot, unsigned group,
                                           bool warm_up) {
    const bool elected = threadIdx.x % 128 == 0;
    out.end_m = warm_up ? 0 : out.m;
    out.end_n = out.n;
    out.C += unit.matrix * out.step;
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        const unsigned i = unit.i0 + u * 64;
        out.scale(sum[u], i, unit.j0);
#if EPILOGUE
        out.finish(sum[u], i, unit.j0);
#endif
#pragma unroll
        for (int h = 0; h < NB; h += LINE) {
            const int first = h + LINE <= NB ? h : NB - LINE;
            const unsigned j = unit.j0 + first;
            if (!any_stored(i, j, 64, LINE)) continue;
            const bool cut = partly_stored(i, j, 64, LINE);
            unsigned char* const piece = staging + slot * PIECE;
            const unsigned staged = address_of_shared(piece);
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
            if (elected) bulk_wait_group_read<SLOTS - 1>();
            warpgroup_sync(group + 1);
            out.stage(staged, sum[u] + first / 2);
            if (!out.boxed || cut) {
                __syncwarp();
                out.copy(piece, i, j, cut);
                if (cut && elected) bulk_commit_group();  // empty, but it counts as this slot's
                continue;
            }
            fence_proxy_async();
            warpgroup_sync(group + 1);
            if (!elected || warm_up) continue;
            tma_store(out.map, staged, j, i, unit.matrix);
            bulk_commit_group();
        }
    }
}

// A warpgroup that multiplies: every other tile of the block.
__device__ __forceinline__ void consume(const Product& p, const Output& result,
                                        const Stages& stages, unsigned char* staging,
                                        unsigned group) {
    const unsigned stride = gridDim.x / CLUSTER;
    const unsigned all = CLUSTER > 1 ? p.steps_of_block() - STAGES : 0;
    unsigned done = group * p.steps, turn = 1 - group;  // warpgroup 0 need not wait for its first
    unsigned slot = 0, warm_up = 1;
    make_opaque(warm_up);  // else the code would be there twice
    for (unsigned id = blockIdx.x / CLUSTER + group * stride; id < p.units();) {
        const Unit unit = p[id];
        float sum[ROWS][NB / 2];
        multiply(sum, warm_up ? 0 : p.steps, ring_at(done), all - done, stages, group, turn);
        store_tile(sum, result, unit, staging, slot, group, warm_up);
        if (!warm_up) id += 2 * stride, done += 2 * p.steps, turn ^= 1;
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
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES;
    const unsigned barriers = address_of_shared(staging + CONSUMERS * SLOTS * PIECE);
    const Product p{unsigned(batch), (k + KB - 1u) / KB, (m + TILE_M - 1u) / TILE_M,
                    (n + NB - 1u) / NB};
    const Stages stages{address_of_shared(aligned), barriers, barriers + 8 * STAGES,
                        barriers + 16 * STAGES};
    // Uniform in each warp, and the compiler is told so: descriptors then stay in uniform
    // registers.
    const unsigned group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        if (k > 0) prefetch_tensormap(&maps.a), prefetch_tensormap(&maps.b);
        if (boxed) prefetch_tensormap(&maps.c);
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(stages.full + 8 * s, 1);
            mbarrier_init(stages.empty + 8 * s, CLUSTER);
        }
        for (int g = 0; g < CONSUMERS; g++) mbarrier_init(stages.turns + 8 * g, 1);
        fence_mbarrier_init();
    }
    if (CLUSTER > 1) cluster_arrive();
    __syncthreads();
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0) {
            griddepcontrol_wait();
            produce(p, stages, {&maps.a, unsigned(batched_a), l2_policy(false)},
                    {&maps.b, unsigned(batched_b), l2_policy(false)});
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        if (CLUSTER > 1) cluster_wait();
        consume(p,
                {&maps.c, C, parts, ldc, batch_c, unsigned(m), unsigned(n), unsigned(batch), 0, 0,
                 alpha, beta, boxed != 0 EPILOGUE_ARGUMENT},
                stages, staging + group * SLOTS * PIECE, group);
    }
}
