// C^T = B^T A^T by wgmma on tf32: how float32 tiles are loaded, and C transposed and stored.
//
// The 64 rows of a wgmma are columns of C, its up to 256 columns are rows of C. A is K-major;
// where B does not, it goes through registers. Where both are transposed the roles are swapped:
// SWAPPED, A and B, rows and columns of C swap roles, and C is not transposed. Where neither
// is K-major the warpgroups transpose A's tiles in shared memory: TRANSPOSES_A.
//
// The kernel defines MB, NB, KB, TA, TB, STAGES, SLOTS, CLUSTER, SPLIT, how many SLICES of
// warpgroups take turns along k, and how many TERMS stand for a number: so many matrices for one in
// the maps of A and B.

#define TILE_N (NB * CLUSTER)  // what a cluster computes

#include "common/combine.cuh"
#include "common/hopper.cuh"
#include "common/repack.cuh"
#include "common/schedule.cuh"

constexpr bool SWAPPED = TRANS_A && TRANS_B;        // A goes through registers
constexpr bool BOTH_K_MAJOR = TRANS_B && !TRANS_A;  // nothing does
constexpr bool TRANSPOSES_A = TRANS_A && !TRANS_B;
constexpr int WARPGROUPS_N = NB / TB, WARPGROUPS = MB / TA * WARPGROUPS_N;  // warpgroups of a slice
constexpr int CONSUMERS = WARPGROUPS * SLICES, THREADS = 128 * (CONSUMERS + 1);
constexpr int BOX = 32, ROW = BOX * 4, K_BOXES = KB / BOX;   // elements and bytes of a row of a box
constexpr int A_BYTES = MB * KB * 4, B_BYTES = NB * KB * 4;  // of one term
constexpr int STAGE_BYTES = TERMS * (A_BYTES + B_BYTES);
constexpr int PIECES = TB / 64;                             // pieces of 64 columns
constexpr int PIECE_ROWS = TA % 32 == 0 ? 32 : 16;          // rows of a piece of C that is stored
constexpr int SLOT_BYTES = 32 * 2 * ROW;                    // of a piece
constexpr int EXCHANGE_BYTES = (SLICES - 1) * MB * NB * 4;  // sums that slices exchange
constexpr bool GREEDY = TERMS * TA * TB > 128 * 128 && CONSUMERS <= 2;
// Registers as in common/warpgroups.cuh, but for the largest tiles.
constexpr int PRODUCER_REGISTERS = GREEDY ? 24 : CONSUMERS <= 2 ? 40 : CONSUMERS == 3 ? 32 : 64;
constexpr int CONSUMER_REGISTERS = GREEDY ? 240 : CONSUMERS <= 2 ? 232 : CONSUMERS == 3 ? 160 : 104;

static_assert(MB % TA == 0 && NB % TB == 0 && TB % 64 == 0,
              "warpgroups tile the block evenly: TA divides MB, TB divides NB, 64 divides TB");
static_assert(TA == 16 || TA % 32 == 0 && TA <= 256,
              "wgmma makes TA rows: 16, 32, 64, 96, 128, 160, 192, 224 or 256");
static_assert(MB <= 256 && NB <= 256 && KB % 32 == 0 && KB <= 256,
              "boxes have at most 256 rows and 32 columns: MB, NB, KB <= 256, 32 divides KB");
// A stage is one slice's own: a slice may be so far ahead of another that it would take the end of
// the phase before last for that of the last. It gives a stage back when it has used the next.
static_assert(STAGES >= 2 * SLICES && STAGES % SLICES == 0,
              "a tile is fetched while another is used: STAGES is 2 SLICES or a higher multiple");
static_assert((CLUSTER == 1 || CLUSTER == 2 || CLUSTER == 4) && MB % (8 * CLUSTER) == 0,
              "blocks share the boxes of A: CLUSTER is 1, 2 or 4, 8 CLUSTER divides MB");

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

struct Maps {
    TensorMap a, b, c;
};
// What is K-major is called A from here on, C has m rows.
struct Product {
    const TensorMap *a, *b;
    int m, n, k, batch, batched_a, batched_b;
};
// A part of k of a tile of C: of all `steps` each SPLITth from `part` on. Blocks that work on one
// tile at a time read lines of memory side by side.
struct Unit {
    unsigned row, column, matrix, part, steps;
    // How many steps those are.
    __device__ __forceinline__ unsigned own() const { return (steps - part + SPLIT - 1) / SPLIT; }
};
struct Ring {
    unsigned stage = 0, parity = 0;
    template <int STEPS = 1>
    __device__ __forceinline__ void advance() {
        stage += STEPS;
        if (stage >= STAGES) stage -= STAGES, parity ^= 1;
    }
    __device__ __forceinline__ void skip(unsigned steps) {
        const unsigned to = stage + steps;
        stage = to % STAGES, parity ^= to / STAGES & 1;
    }
};
using Sums = float[PIECES][TA / 2];

// Runs `use` of every unit that falls to this cluster. Both roles count tiles on their own: what
// they shared would be kept in registers that the sums need.
template <class Use>
__device__ __forceinline__ void for_each_unit(const Product& p, Use use) {
    const unsigned tiles_m = (p.m + MB - 1u) / MB, steps = (p.k + KB - 1u) / KB;
    const unsigned tiles_n = (p.n + TILE_N - 1u) / TILE_N;
    const unsigned tiles = tiles_in(tiles_m, tiles_n), units = tiles * SPLIT * p.batch;
    for (unsigned u = blockIdx.x / CLUSTER; u < units; u += gridDim.x / CLUSTER) {
        unsigned tile_m, tile_n;
        tile_of(u % tiles, tiles_m, tiles_n, tile_m, tile_n);
        const unsigned part = u / tiles % SPLIT,
                       cluster_rank = CLUSTER > 1 ? block_in_cluster() : 0;
        use(Unit{tile_m * MB, (tile_n * CLUSTER + cluster_rank) * NB, u / tiles / SPLIT, part,
                 steps});
    }
}

// Steps of all units of this block.
__device__ __forceinline__ unsigned steps_of_block(const Product& p) {
    const unsigned tiles_m = (p.m + MB - 1u) / MB, tiles_n = (p.n + TILE_N - 1u) / TILE_N;
    const unsigned tiles = tiles_in(tiles_m, tiles_n), units = tiles * SPLIT * p.batch;
    const unsigned first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    Unit unit{0, 0, 0, 0, (p.k + KB - 1u) / KB};
    if (SPLIT == 1) return (units - first + stride - 1) / stride * unit.steps;
    unsigned sum = 0;
    for (unsigned u = first; u < units; u += stride) {
        unit.part = u / tiles % SPLIT;
        sum += unit.own();
    }
    return sum;
}

#include "common/tf32_wgmma_load.cuh"

// A tile that is K-major, for wgmma (PTX ISA 9.0, "Matrix Descriptor"): 8 rows to a swizzle.
__device__ __forceinline__ unsigned long long tf32_descriptor(unsigned address) {
    return (address & 0x3FFFFu) >> 4 | (8ull * ROW >> 4) << 32 | 1ull << 62;
}
// What is added to a descriptor for the elements from 8 x on along k, of a tile of `rows` rows.
__device__ __forceinline__ constexpr unsigned deeper(int x, int rows) {
    return (x / (BOX / 8) * rows * ROW + x % (BOX / 8) * 32) / 16;
}

// The place of a thread and its warpgroup in tiles.
struct Position {
    unsigned group, slice, warpgroup, down, right, warp, g, t;
    __device__ __forceinline__ explicit Position(unsigned group)
        : group(group),
          slice(SLICES == 1 ? 0 : group / WARPGROUPS),
          warpgroup(group - slice * WARPGROUPS),
          down(warpgroup / WARPGROUPS_N),
          right(warpgroup % WARPGROUPS_N),
          warp(threadIdx.x % 128 / 32),
          g(threadIdx.x % 32 / 4),
          t(threadIdx.x % 4) {}
    // The column of C, in a piece of 64, that row 16 warp + g + 8 h of wgmma stands for. Where B
    // is MN-major, eight lanes g take four columns each of two chunks that are four apart: with
    // those of the four rows t these are in different banks. SWAPPED, these are rows of C that is
    // stored: those of odd g are in the other half of 8 rows, so that banks differ there, too.
    __device__ __forceinline__ unsigned column(unsigned h) const {
        return BOTH_K_MAJOR
                   ? warp * 16 + g + h * 8
                   : warp / 2 * 32 + warp % 2 * 8 + (h + SWAPPED * g) % 2 * 4 + g / 4 * 16 + g % 4;
    }
    // Bytes from the start of B's tile, which is MN-major, to the number of depth 8 x + 4 y + t
    // and column(h) of piece u.
    __device__ __forceinline__ unsigned offset(unsigned x, unsigned y, unsigned u,
                                               unsigned h) const {
        const unsigned c = right * TB + u * 64 + column(h), depth = 4 * y + t;
        return c / 32 * (KB * ROW) + (x * 8 + depth) * ROW + ((c % 32 / 4 ^ depth) << 4) +
               c % 4 * 4;
    }
};

// One warpgroup: its tiles, its place in the ring.
struct Consumer {
    const unsigned char* shared;
    unsigned base, full, empty;
    Position at;
    Ring ring;
    // How many of the block's steps remain, the slice's present one included. In a cluster a stage
    // is released only if a later step fills it, for then a producer waits for the release; else
    // the block of that producer may have ended.
    unsigned left = 0;

    __device__ __forceinline__ void wait_for_stage() const {
        mbarrier_wait(full + 8 * ring.stage, ring.parity);
    }
    // The slice's stage before the ring's may be filled again.
    __device__ __forceinline__ void release() const {
        const unsigned before = (ring.stage < SLICES ? ring.stage + STAGES : ring.stage) - SLICES;
        if (threadIdx.x % 128 < CLUSTER && (CLUSTER == 1 || left + SLICES > STAGES))
            mbarrier_arrive(empty + 8 * before, threadIdx.x % 128);
    }
    __device__ __forceinline__ void advance() {
        ring.advance<SLICES>();
        if (CLUSTER > 1) left -= SLICES;
    }
    // The end of a step: now the one before, if any, has ended.
    __device__ __forceinline__ void next(bool before) {
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (before) release();
        advance();
    }
    // A's tile, which came MN-major, made K-major: each warp transposes squares of 32 where they
    // are. A lane reads a column and writes it as a row, both without conflicts of banks.
    __device__ __forceinline__ void transpose_a() const {
        const unsigned lane = threadIdx.x % 32;
        unsigned char* const tile = const_cast<unsigned char*>(shared) + ring.stage * STAGE_BYTES;
#pragma unroll 1
        for (int x = at.warpgroup * 4 + at.warp; x < MB / 32 * K_BOXES; x += WARPGROUPS * 4) {
            unsigned char* const square = tile + x * (32 * ROW);
            float column[32];
#pragma unroll
            for (int y = 0; y < 32; y++)
                column[y] = *reinterpret_cast<float*>(square + y * ROW + ((lane / 4 ^ y % 8) << 4) +
                                                      lane % 4 * 4);
            __syncwarp();
#pragma unroll
            for (int y = 0; y < 8; y++)
                *reinterpret_cast<float4*>(square + lane * ROW + ((y ^ lane % 8) << 4)) = {
                    column[4 * y], column[4 * y + 1], column[4 * y + 2], column[4 * y + 3]};
        }
        fence_proxy_async();
        named_barrier_sync<WARPGROUPS * 128>(1 + CONSUMERS + at.slice);
    }
    // Descriptors of the rows of A and the columns of B of this warpgroup.
    __device__ __forceinline__ unsigned long long rows(int term) const {
        return tf32_descriptor(base + ring.stage * STAGE_BYTES + term * A_BYTES +
                               at.down * TA * ROW);
    }
    __device__ __forceinline__ unsigned long long columns(int term) const {
        return tf32_descriptor(base + ring.stage * STAGE_BYTES + TERMS * A_BYTES + term * B_BYTES +
                               at.right * TB * ROW);
    }
    // A number of B's tile, row and column as register e of a fragment has them. TMA or the copy
    // before has rounded it.
    __device__ __forceinline__ unsigned number(int x, int u, int e) const {
        return *reinterpret_cast<const unsigned*>(shared + ring.stage * STAGE_BYTES +
                                                  TERMS * A_BYTES + at.offset(x, e / 2, u, e % 2));
    }
};

#include "common/tf32_wgmma_epilogue.cuh"

__device__ __forceinline__ Product product_of(const Maps& maps, int m, int n, int k, int batch,
                                              int batched_a, int batched_b) {
    if (SWAPPED) return {&maps.b, &maps.a, n, m, k, batch, batched_b, batched_a};
    return {&maps.a, &maps.b, m, n, k, batch, batched_a, batched_b};
}

// The kernel: `multiply(consumer, sum, unit)` makes the sums of a unit.
template <class Multiply>
__device__ __forceinline__ void run(const Product& p, const Output& result, long long batch_c,
                                    float* parts, Multiply multiply) {
    extern __shared__ unsigned char shared[];
    unsigned char* const aligned = shared + (-address_of_shared(shared) & 1023);
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES;
    unsigned char* const exchange = staging + WARPGROUPS * SLOTS * SLOT_BYTES;
    const unsigned full = address_of_shared(exchange + EXCHANGE_BYTES);
    const unsigned empty = full + 8 * STAGES, base = address_of_shared(aligned);
    // The same for a whole warp, and said so: descriptors then live in uniform registers.
    const unsigned group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        if (p.k > 0) prefetch_tensormap(p.a), prefetch_tensormap(p.b);
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, WARPGROUPS * CLUSTER);
        }
        fence_mbarrier_init();
    }
    const LoadExtents extents(p);
    if (extents.bytes() < STAGE_BYTES) extents.zero_rest(aligned);
    if (CLUSTER > 1) cluster_arrive();
    __syncthreads();
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0) griddepcontrol_wait(), produce(p, base, full, empty);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        if (CLUSTER > 1) cluster_wait();
        Consumer consumer{aligned, base, full, empty, Position(group), {}};
        unsigned left = CLUSTER > 1 ? steps_of_block(p) : 0;
        for_each_unit(p, [&](const Unit& unit) {
            Sums sum;
            const Ring begin = consumer.ring;
            if constexpr (SLICES > 1) consumer.ring.skip(consumer.at.slice);
            if (CLUSTER > 1) consumer.left = left - consumer.at.slice, left -= unit.own();
            multiply(consumer, sum, unit);
            if constexpr (SLICES > 1) {
                consumer.ring = begin;
                consumer.ring.skip(unit.own());
                add_slices(sum, exchange, consumer.at);
                if (consumer.at.slice > 0) return;
            }
            Output here = result;
            here.C += unit.matrix * batch_c;
            if constexpr (SPLIT > 1) {
                here.ld = (result.n + 3ll) / 4 * 4;
                here.C = parts + (1ll * unit.part * p.batch + unit.matrix) * result.m * here.ld;
                here.boxed = false;
            }
            here.store(sum, unit, staging + consumer.at.warpgroup * SLOTS * SLOT_BYTES,
                       consumer.at);
        });
        if (threadIdx.x % 128 == 0) bulk_wait_group_read();  // before shared memory is released
    }
}
