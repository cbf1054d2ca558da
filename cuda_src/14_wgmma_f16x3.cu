// 14 wgmma_f16x3: products of float32 from 16-bit elements, as exact as float32's where elements
// are of one size within 64 of k.
//
// A float32 x is a power of two times high + low, both float16: 11 bits, and 11 of the 13 that are
// left. Of the four products of a = ah + al and b = bh + bl three count, as in kernel 13, and the
// tensor cores make them at twice the speed of tf32. What this kernel adds:
//
// - float16 has few exponents. So each 64 elements of a row of op(A), or of a column of op(B), come
//   with a power of two (common/block_scaling_repack.cuh): a number keeps its 22 bits if it is not
//   2^17 times smaller than the largest of its 64, and of a smaller one is lost 2^-39 of that. Of
//   64 columns that are alike the power is one, and takes at most 2^8 of either.
// - The sums of the tensor cores are truncated, not rounded, and must be added to float32 sums in
//   registers after few steps (kernel 13). After 64 of k they are, times both powers: where these
//   are one for 64 columns a multiply-add takes them along (common/block_scaling.cuh). A
//   multiplication for each sum besides costs 5 % at 2048 and 4096. Where the product of both
//   powers is no number of float32 they are applied one after the other.
// - High and low terms are stages of their own: those of the low ones are released when two of
//   the products have been made, all before the sums are added. The powers come by TMA, too, into a
//   ring that is one longer, for they are needed until then.
//
// What did not help: clusters of two blocks that share B (0.83 to 1.01); two sets of a step's sums,
// so that the tensor cores need not wait for the additions (0.93 to 0.98, 128 x 128); warpgroups
// that take turns at the tensor cores (0.90 to 1.02).
//
// C is NaN and infinite where it is in float32, but for an infinite number times one that is
// rounded to zero, less than 2^-31 of the largest of its 64: NaN.

#ifndef REAL
#define REAL F16  // element type of the terms; A comes as m x k, B as n x k
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
#define KB 64  // depth of a tile: elements with one power of two
#endif
#ifndef TA
#define TA 64  // rows of C that one warpgroup computes
#endif
#ifndef TB
#define TB 128  // columns of C that one warpgroup computes
#endif
#ifndef STAGES
#define STAGES 6  // tiles of high or of low terms in shared memory
#endif
#ifndef SPLIT
#define SPLIT 1  // parts that k is split into
#endif
#ifndef SLOTS
#define SLOTS 1  // pieces of C that each warpgroup stores at a time
#endif

#define CLUSTER \
    1  // blocks that common/split_k_schedule.cuh and common/wgmma_tile.cuh have share a tile of B

#include "common/hopper.cuh"
#include "common/split_k_schedule.cuh"

constexpr int WARPGROUPS_N = NB / TB, CONSUMERS = MB / TA * WARPGROUPS_N;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int BOX = 64, K_BOXES = KB / BOX;
constexpr int A_BYTES = MB * KB * 2, STAGE_BYTES = A_BYTES + NB * KB * 2;
constexpr int POWERS_BYTES = (MB + NB) * 4;
constexpr int POWERS = (STAGES + 1) / 2 + 1;    // places of powers: one more than of both terms
constexpr int ROWS = TA / 64;                   // pieces of 64 rows
constexpr int PIECE = 64 * 128;                 // bytes of 64 rows of 128
constexpr int LINE = 32, PIECE_COLUMNS = LINE;  // columns of C in 128 bytes, and in a piece
constexpr int STAGED_BYTES = SPLIT > 1 ? 0 : PIECE;  // in one slot
constexpr bool STREAMED = false, WARPS_STORE = false;
// Half of a last step of at most 32 is left out, but of a symmetric C: 128 x 192 would spill.
constexpr bool SHORT_ENDS = FILL == 0;

#include "common/warpgroups.cuh"

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 64 == 0 && TB % 64 == 0 && TB <= 256,
              "warpgroups tile the block evenly: TA divides MB, TB divides NB, 64 both");
static_assert(KB == 64, "a tile is as deep as its powers of two: KB is 64");
static_assert(MB <= 256 && NB <= 256, "a box has at most 256 rows: MB and NB <= 256");
static_assert(STAGES >= 4, "tiles are fetched while others are used: STAGES >= 4");
static_assert(CONSUMERS <= 4 && TA * TB / 64 + 40 <= CONSUMER_REGISTERS,
              "TA TB / 64 registers for sums: at most 192 (1, 2 warpgroups), 120 (3), 64 (4)");

#include "common/wgmma_tile.cuh"
#include "common/combine.cuh"
#include "common/block_scaling.cuh"
#include "common/block_scaling_repack.cuh"

struct Maps {
    TensorMap a, b, c;
};
struct Powers {
    TensorMap a, b;
};

// The thread that loads: where the ring of stages and its barriers are, and what it loads.
struct Producer {
    const Maps& maps;
    const Powers& both;
    unsigned batched_a, batched_b;
    unsigned tiles, powers, full, empty;

    // Loads a term of a step (1 low, 0 high) into a stage; with the low one comes its powers.
    __device__ __forceinline__ void load(const Unit& unit, unsigned step, int term, unsigned stage,
                                         unsigned place) const {
        const unsigned a = unit.matrix * batched_a, b = unit.matrix * batched_b;
        const unsigned tile = tiles + stage * STAGE_BYTES, filled = full + 8 * stage;
        mbarrier_expect_tx(filled, STAGE_BYTES + term * POWERS_BYTES);
        if (term == 1) {
            const unsigned power = powers + place * POWERS_BYTES;
            tma_load(power, &both.a, filled, unit.i0, step, a);
            tma_load(power + MB * 4, &both.b, filled, unit.j0, step, b);
        }
        tma_load(tile, &maps.a, filled, step * KB, unit.i0, 2 * a + term);
        tma_load(tile + A_BYTES, &maps.b, filled, step * KB, unit.j0, 2 * b + term);
    }
#if GATE
    // Loads the first one or two steps while the verdict is on its way; returns how many. There is
    // a unit for each block.
    __device__ __forceinline__ unsigned begin(const Product& p) const {
        const Unit unit = p[blockIdx.x];
        const unsigned count = min(unit.steps, 2);
#pragma unroll 1
        for (unsigned stage = 0; stage < 2 * count; stage++)
            load(unit, unit.first + stage / 2, 1 - stage % 2, stage, stage / 2);
        return count;
    }
    // Waits for the first steps of a product that is not computed: a block must not end while
    // copies into it are under way.
    __device__ __forceinline__ void abandon(unsigned first_steps) const {
#pragma unroll 1
        for (unsigned stage = 0; stage < 2 * first_steps; stage++)
            mbarrier_wait(full + 8 * stage, 0);
    }
#endif
    __device__ __forceinline__ void produce(const Product& p, unsigned first_steps = 0) const {
        // The stages that `begin` filled count as those of the first round.
        Ring ring{2 * first_steps % STAGES, 2 * first_steps < STAGES};
        unsigned place = first_steps, step = first_steps;
        for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x, step = 0) {
            const Unit unit = p[id];
#pragma unroll 1
            for (; step < unit.steps; step++) {
#pragma unroll 1
                for (int term = 1; term >= 0; term--, ring.advance()) {
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity);
                    load(unit, unit.first + step, term, ring.stage, place);
                }
                place = place + 1 == POWERS ? 0 : place + 1;
            }
        }
    }
};

// A warpgroup that multiplies.
struct Consumer {
    unsigned tiles[2], full, empty;  // its rows of A, its columns of B
    const float* powers;             // of its first row, in the first place
    unsigned columns;                // from there to those of its first column
    unsigned place = 0;
    Ring ring = {};

    // step_sum += the product of the terms in two stages, of the first DEPTH of k.
    template <int DEPTH>
    __device__ __forceinline__ void multiply(Sums& step_sum, unsigned stage_a, unsigned stage_b,
                                             bool add) const {
        const unsigned long long a = k_major_descriptor<BOX>(tiles[0] + stage_a * STAGE_BYTES);
        const unsigned long long b = k_major_descriptor<BOX>(tiles[1] + stage_b * STAGE_BYTES);
#pragma unroll
        for (int x = 0; x < DEPTH / 16; x++)
#pragma unroll
            for (int u = 0; u < ROWS; u++)
                wgmma<true, true>(F16{}, step_sum[u], a + (u * PIECE + x * 32) / 16,
                                  b + x * 32 / 16, add || x > 0);
    }
    __device__ __forceinline__ void release(unsigned stage) const {
        if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + 8 * stage);
    }
    // step_sum = sums of the first DEPTH of k of the next step, without the powers.
    template <int DEPTH>
    __device__ __forceinline__ void multiply(Sums& step_sum) {
        const unsigned low = ring.stage;
        mbarrier_wait(full + 8 * low, ring.parity);
        ring.advance();
        mbarrier_wait(full + 8 * ring.stage, ring.parity);
        wgmma_fence();
        multiply<DEPTH>(step_sum, low, ring.stage, false);
        multiply<DEPTH>(step_sum, ring.stage, low, true);
        wgmma_commit_group();
        multiply<DEPTH>(step_sum, ring.stage, ring.stage, true);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        release(low);
        wgmma_wait_group<0>();
        release(ring.stage);
        ring.advance();
    }
    // sum += step_sum times the powers of this step.
    __device__ __forceinline__ void add(Sums& sum, Sums& step_sum) {
        const float* const here = powers + place * (POWERS_BYTES / 4);
        add_scaled(sum, step_sum, here, here + columns);
        place = place + 1 == POWERS ? 0 : place + 1;
    }
    // sum = op(A) op(B) of `steps` steps; of the last one only the first half if `short_end`.
    __device__ __forceinline__ void multiply(Sums& sum, unsigned steps, bool short_end) {
#pragma unroll
        for (int e = 0; e < ROWS * TB / 2; e++) sum[e / (TB / 2)][e % (TB / 2)] = 0.0f;
        for (; steps > 0; steps--) {
            Sums step_sum;
            if (steps == 1 && short_end)
                multiply<KB / 2>(step_sum);
            else
                multiply<KB>(step_sum);
            add(sum, step_sum);
        }
    }
};

#include "common/wgmma_store.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int boxed, OUT* C, long long ldc, long long batch_c,
         float* parts, const __grid_constant__ Powers both EPILOGUE_PARAMETER GATE_PARAMETER) {
    extern __shared__ unsigned char shared[];
    unsigned char* const aligned = shared + (-address_of_shared(shared) & 1023);
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES;
    unsigned char* const powers = staging + CONSUMERS * SLOTS * STAGED_BYTES;
    unsigned char* const barriers = powers + POWERS * POWERS_BYTES;
    const unsigned full = address_of_shared(barriers);
    const Product p{unsigned(batch), (k + KB - 1u) / KB, (m + TILE_M - 1u) / TILE_M,
                    (n + NB - 1u) / NB};
    const Producer producer{maps,
                            both,
                            unsigned(batched_a),
                            unsigned(batched_b),
                            address_of_shared(aligned),
                            address_of_shared(powers),
                            full,
                            full + 8 * STAGES};
#if GATE
    // The thread that loads finds out whether the product is computed here, and tells the others.
    const unsigned decided = full + 16 * STAGES;
    bool& closed = *reinterpret_cast<bool*>(barriers + 16 * STAGES + 8);
#endif
    if (threadIdx.x == 0) {
        if (k > 0) {
            prefetch_tensormap(&maps.a);
            prefetch_tensormap(&maps.b);
        }
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(producer.full + 8 * s, 1);
            mbarrier_init(producer.empty + 8 * s, CONSUMERS);
        }
#if GATE
        mbarrier_init(decided, 1);
#endif
        fence_mbarrier_init();
    }
    __syncthreads();
    // Uniform in each warp, and the compiler is told so: descriptors then stay in uniform
    // registers.
    const unsigned group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0) {
            griddepcontrol_wait();
#if GATE
            const uint4 noted = gate.noted();
            const unsigned first_steps = producer.begin(p);
            const bool refused = closed = gate.refuses(noted);
            griddepcontrol_launch_dependents();
            mbarrier_arrive(decided);
            refused ? producer.abandon(first_steps) : producer.produce(p, first_steps);
#else
            producer.produce(p);
#endif
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const Output out{&maps.c,         C, parts, ldc,   batch_c, unsigned(m), unsigned(n),
                         unsigned(batch), 0, 0,     alpha, beta,    boxed != 0 EPILOGUE_ARGUMENT};
        const unsigned down = group / WARPGROUPS_N * TA, right = group % WARPGROUPS_N * TB;
        Consumer consumer{{producer.tiles + down * 128, producer.tiles + A_BYTES + right * 128},
                          producer.full,
                          producer.empty,
                          reinterpret_cast<const float*>(powers) + down,
                          MB - down + right};
        unsigned slot = 0, warm_up = 1;
        make_opaque(warm_up);  // else the code would be there twice
        for (unsigned id = blockIdx.x; id < p.units();) {
            const Unit unit = p[id];
            Sums sum;
            const bool at_end = SHORT_ENDS && unit.first + unit.steps == p.steps;
            const bool short_end = at_end && (k - 1u) % KB < KB / 2;
            consumer.multiply(sum, warm_up ? 0 : unit.steps, short_end);
            store_tile(sum, out, unit, staging + group * SLOTS * STAGED_BYTES, slot, group,
                       warm_up);
#if GATE
            if (warm_up) {
                mbarrier_wait(decided, 0);
                if (closed) break;
            }
#endif
            id += warm_up ? 0 : gridDim.x;
            warm_up = 0;
        }
        if (threadIdx.x % 128 == 0) bulk_wait_group_read();
    }
}
