// 08 tma_f32: plain multiply-adds, loaded by Hopper's tensor memory accelerator.
//
// Kernel 05 waits: its warps meet at a barrier after every tile, and every thread computes where to
// fetch what. Here four warps do nothing but fetch, and no warp waits for another:
//
//     one thread  | wait: 1 empty? fetch 4  |  wait: 2 empty? fetch 5  | ...
//     every warp  | wait: 2 full? | multiply-adds of tile 2 | 2 is empty | wait: 3 full? | ...
//
// - Tiles come by TMA: no thread computes an address, checks an index or carries a number into
//   shared memory. Beyond the end of a matrix there are zeros, so that every size runs this source.
// - Both tiles are MN-major, so that fragments are read 16 bytes at a time from different banks.
//   Operands that are stored K-major are transposed before (common/repack.cuh: 1.8 % at 4096).
// - Barriers "full" and "empty" for each stage: warps drift apart, and while one waits for its
//   fragments another multiplies. Those that fetch give their registers to those that multiply.
// - The main loop is a pass of ROWS rows, not a whole tile: 17 KB of instructions for 16 x 8. With
//   35 KB the multiprocessor waits for instructions, with 69 KB it is 12 % slower.
// - SLICES of a tile, for small products: warps that share a tile of C take different rows of k.
// - SPLIT, for tiles that are too few for a last wave of all blocks.
// - STORE 2: sums go to shared memory and from there by TMA, while their warps multiply the next
//   tile. For products of little k, which wait for C to be written: k = 32 123 -> 105 us.
//
// What limits it is the register file. It has two banks, of even and of odd registers, and each
// gives one number for a multiply-add in a clock: loops of nothing else ran at 97 % of peak where
// each read one number, at 66 % where half of them read two from one bank; the operand cache holds
// a number only for the next instruction. So sums and the elements that change with each
// instruction must sit in different banks, and the number that stays must change seldom. STRIDE is
// all that the source can do for that: of 1024 multiply-adds in 1098 instructions 4 to 6 %
// conflict.

#ifndef MB
#define MB 256  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // depth of a tile
#endif
#ifndef ROWS
#define ROWS 8  // rows of a tile that one pass of the main loop multiplies
#endif
#ifndef EARLY
#define EARLY 1  // rows whose fragments are read ahead
#endif
#ifndef STRIDE
#define STRIDE 2  // the multiply-adds go through every STRIDE-th number of a fragment first
#endif
#ifndef TA
#define TA 16  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 8  // columns of C that one thread computes
#endif
#ifndef SLICES
#define SLICES 1  // warps that share a thread tile's place, each with its own rows of every tile
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 1  // persistent blocks on a multiprocessor: bounds the registers of a thread
#endif
#ifndef SPLIT
#define SPLIT 1  // parts of k, for tiles that do not make up a whole wave of all blocks
#endif
#ifndef STORE
// 2: C is stored by TMA, from shared memory that is kept for it. 3: rows of C that start anywhere
// are stored by way of shared memory, one after the other.
#define STORE 1
#endif

#include "common/hopper.cuh"
#include "common/repack.cuh"
#include "common/last_wave_schedule.cuh"
#include "common/combine.cuh"

constexpr int VECTOR = 4;                              // floats that are read and stored at a time
constexpr int LANES = 4, LANES_N = 8;                  // threads of a warp along m and along n
constexpr int HIGH = TA * LANES, WIDE = TB * LANES_N;  // of a warp's tile of C
constexpr int WARPS_N = NB / (TB * LANES_N), WARPS_MN = MB / (TA * LANES) * WARPS_N;
constexpr int WARPS = WARPS_MN * SLICES, SLICE_ROWS = KB / SLICES;  // rows of a tile for one warp
constexpr int THREADS = 32 * WARPS + 128;
// Registers of a thread: of those that fetch, and of those that multiply. All together they must
// not pass what the blocks are launched with, or they wait for ever.
constexpr int LAUNCHED = 65536 / (BLOCKS * THREADS) / 8 * 8, PRODUCER_REGISTERS = 24;
constexpr int ROOM =
    ((WARPS + 4) * (LAUNCHED < 255 ? LAUNCHED : 248) - 4 * PRODUCER_REGISTERS) / WARPS / 8 * 8;
constexpr int CONSUMER_REGISTERS = ROOM < 255 ? ROOM : 248;
constexpr int A_BYTES = KB * MB * 4, STAGE_BYTES = A_BYTES + KB * NB * 4;
constexpr int RING_BYTES = (STAGES * (STAGE_BYTES + 16) + 127) / 128 * 128;  // and its barriers
constexpr int SCRATCH_BYTES = (SLICES - 1) * MB * NB * 4;  // sums of all slices but the first
static_assert(MB % (TA * LANES) == 0 && NB % (TB * LANES_N) == 0,
              "warps of 4 x 8 threads tile the block evenly: 4 TA divides MB and 8 TB divides NB");
static_assert(TA % VECTOR == 0 && TB % VECTOR == 0, "fragments are made of 16-byte vectors");
static_assert(MB <= 256 && NB <= 256 && KB <= 256, "a tile is one box: MB, NB, KB <= 256");
static_assert((EARLY == 1 || EARLY == 2) && ROWS % (2 * EARLY) == 0 && KB % (ROWS * SLICES) == 0,
              "passes are whole: EARLY is 1 or 2, 2 EARLY divides ROWS, ROWS * SLICES divides KB");
static_assert(STRIDE == 1 || STRIDE == 2 || STRIDE == 4, "STRIDE is 1, 2 or 4");
static_assert(STORE == 1 || STORE == 3 || (STORE == 2 && TB * LANES_N <= 256),
              "C is stored from registers (STORE 1), by TMA (2: 256 columns at most), by rows (3)");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(WARPS % 4 == 0, "registers change hands between warpgroups: 4 warps or a multiple");
static_assert(TA * TB + (EARLY + 1) * (TA + TB) + (SLICES > 1 ? 32 : 16) <= CONSUMER_REGISTERS,
              "sums, fragments and 16 more, 32 with SLICES, fit in the registers of a thread");

#include "common/simt_epilogue.cuh"
#include "common/outer_product.cuh"

struct Maps {
    TensorMap a, b, c;
};
// Where the ring stands: the stage's first byte, its barrier "full", the parity of its phase; the
// barrier "empty" of the stage before, as long as a warp has not given that back.
struct Ring {
    unsigned tile, full, parity, to_release = 0;
    __device__ __forceinline__ unsigned empty() const { return full + 8 * STAGES; }
    __device__ __forceinline__ void advance(unsigned base) {
        tile += STAGE_BYTES;
        full += 8;
        if (tile != base + STAGES * STAGE_BYTES) return;
        tile -= STAGES * STAGE_BYTES;
        full -= 8 * STAGES;
        parity ^= 1;
    }
    __device__ __forceinline__ void release_stage() {
        if (to_release == 0) return;
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(to_release);
        to_release = 0;
    }
};

// Fetches what the block's units need.
__device__ __forceinline__ void produce(const Maps& maps, const Product& p, unsigned base,
                                        int batched_a, int batched_b) {
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    griddepcontrol_wait();
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit(p, id);
        for (unsigned step = unit.begin; step < unit.end; step++, ring.advance(base)) {
            mbarrier_wait(ring.empty(), ring.parity);
            mbarrier_expect_tx(ring.full, STAGE_BYTES);
            tma_load(ring.tile, &maps.a, ring.full, unit.i0, step * KB, unit.matrix * batched_a);
            tma_load(ring.tile + A_BYTES, &maps.b, ring.full, unit.j0, step * KB,
                     unit.matrix * batched_b);
        }
    }
}

// The T elements of one lane from a row of a tile: vectors, SPAN vectors apart.
template <int T, int SPAN>
__device__ __forceinline__ void read_fragment(float (&fragment)[T], unsigned row) {
#pragma unroll
    for (int i = 0; i < T; i += VECTOR) {
        const float4 v = *static_cast<const float4*>(__cvta_shared_to_generic(row + i * SPAN * 4));
        fragment[i] = v.x, fragment[i + 1] = v.y, fragment[i + 2] = v.z, fragment[i + 3] = v.w;
    }
}

// sum = op(A) op(B) of one unit. A pass multiplies ROWS rows of a tile and reads EARLY rows ahead:
// the first of the next tile before the last of this one are multiplied.
//
// A stage is released in the next pass, be it of the next unit. Reads from shared memory may
// still be under way when an instruction behind them arrives at a barrier, and a new tile then
// overwrites what they read (seen on an H200: wrong rows in 4 of 457 trials). They have ended when
// what they read has been multiplied, and that ends up anywhere within its own pass.
__device__ __forceinline__ void multiply(float (&sum)[TA][TB], unsigned steps, Ring& ring,
                                         unsigned base, unsigned from_a, unsigned from_b) {
    float a[2 * EARLY][TA], b[2 * EARLY][TB];
    unsigned row_a, row_b, passes = SLICE_ROWS / ROWS;
    const auto enter = [&] {
        row_a = ring.tile + from_a;
        row_b = ring.tile + from_b;
        mbarrier_wait(ring.full, ring.parity);
    };
    const auto read = [&](int to, int row) {
        read_fragment<TA, LANES>(a[to % (2 * EARLY)], row_a + row * MB * 4);
        read_fragment<TB, LANES_N>(b[to % (2 * EARLY)], row_b + row * NB * 4);
    };
    enter();
#pragma unroll
    for (int q = 0; q < EARLY; q++) read(q, q);
#pragma unroll 1
    while (true) {
        ring.release_stage();
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            if (q == ROWS - EARLY) {
                row_a += ROWS * MB * 4;
                row_b += ROWS * NB * 4;
                if (SLICE_ROWS == ROWS || --passes == 0) {  // its part of this tile is in registers
                    passes = SLICE_ROWS / ROWS;
                    ring.to_release = ring.empty();
                    ring.advance(base);
                    if (--steps == 0) {
#pragma unroll
                        for (int r = q; r < ROWS; r++)
                            add_outer_product(sum, a[r % (2 * EARLY)], b[r % (2 * EARLY)]);
                        return;
                    }
                    enter();
                }
            }
            read(q + EARLY, (q + EARLY) % ROWS);
            add_outer_product(sum, a[q % (2 * EARLY)], b[q % (2 * EARLY)]);
        }
    }
}

// The sums of all slices to the first one, in fixed order. `scratch` is the lane's own.
__device__ __forceinline__ void add_slices(float (&sum)[TA][TB], unsigned slice, float4* scratch) {
    constexpr int VECTORS = TA * TB / VECTOR, SQUARE_PITCH = WARPS_MN * 32;
    named_barrier_sync<WARPS * 32>(1);  // what was there before has been read
    if (slice > 0) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const float* const s = &sum[v * VECTOR / TB][v * VECTOR % TB];
            scratch[((slice - 1) * VECTORS + v) * SQUARE_PITCH] = {s[0], s[1], s[2], s[3]};
        }
    }
    named_barrier_sync<WARPS * 32>(1);
    if (slice > 0) return;
#pragma unroll
    for (int other = 0; other < SLICES - 1; other++)
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float* const s = &sum[v * VECTOR / TB][v * VECTOR % TB];
            const float4 more = scratch[(other * VECTORS + v) * SQUARE_PITCH];
            s[0] += more.x, s[1] += more.y, s[2] += more.z, s[3] += more.w;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int boxed, float* C, long long ldc, long long batch_c,
         float* parts EPILOGUE_PARAMETER) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned base = address_of_shared(shared);
    make_opaque(base);  // kept, not computed anew in every step
    if (threadIdx.x == 0) {
        const unsigned full = base + STAGES * STAGE_BYTES;
        if (k > 0) prefetch_tensormap(&maps.a), prefetch_tensormap(&maps.b);
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(full + 8 * (STAGES + s), WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    const Product p{unsigned(batch), (k + KB - 1u) / KB, (m + MB - 1u) / MB, (n + NB - 1u) / NB};
#if SPLIT > 1
    if (threadIdx.x == 0 && p.whole(gridDim.x) > 0) rounds_of = gridDim.x;
#endif
    const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp >= WARPS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == WARPS * 32) produce(maps, p, base, batched_a, batched_b);
        return;
    }
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    // Offsets of the lane's first vectors: its slice, its warp's tile, its place in the warp.
    const unsigned slice = warp / WARPS_MN, tile = warp % WARPS_MN;
    const unsigned y = tile / WARPS_N * (TA * LANES) + lane / LANES_N * VECTOR;
    const unsigned x = tile % WARPS_N * (TB * LANES_N) + lane % LANES_N * VECTOR;
    const unsigned from_a = (slice * SLICE_ROWS * MB + y) * 4;
    const unsigned from_b = A_BYTES + (slice * SLICE_ROWS * NB + x) * 4;
    float4* const scratch =
        reinterpret_cast<float4*>(shared + RING_BYTES) + threadIdx.x % (WARPS_MN * 32);
    Ring ring{base, base + STAGES * STAGE_BYTES, 0};
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        float sum[TA][TB] = {};
        unsigned steps = Unit(p, id).steps();
        make_opaque(steps);
        if (steps > 0) multiply(sum, steps, ring, base, from_a, from_b);
        if (SLICES > 1) {
            add_slices(sum, slice, scratch);
            if (slice > 0) continue;
        }
        make_opaque(id);
        const Unit unit(p, id);  // computed anew: kept, it would take registers from the loop
#if STORE == 2
        const unsigned row = unit.i0 + tile / WARPS_N * HIGH;
        const unsigned column = unit.j0 + tile % WARPS_N * WIDE;
        if (boxed && beta == 0.0f && !unit.is_split && !partly_stored(row, column, HIGH, WIDE)) {
            const unsigned slot = base + RING_BYTES + SCRATCH_BYTES + tile * (HIGH * WIDE * 4);
            if (any_stored(row, column, HIGH, WIDE))
                store_warp(sum, &maps.c, slot, row, column, unit.matrix, alpha EPILOGUE_ARGUMENT);
            continue;
        }
#endif
#if STORE == 3
        if (!unit.is_split) {
            Output{C + unit.matrix * batch_c, ldc, unsigned(m), unsigned(n), alpha,
                   beta EPILOGUE_POINTER}
                .store_rows(sum, base + RING_BYTES + SCRATCH_BYTES + tile * (LANES * WIDE * 4),
                            unit.i0 + tile / WARPS_N * HIGH, unit.j0 + tile % WARPS_N * WIDE);
            continue;
        }
#endif
        if (unit.is_split) {
            const unsigned pitch = (n + 3) / 4 * 4;
            const long long before = (1ll * unit.part * batch + unit.matrix) * m;
            Output{parts + before * pitch, pitch, unsigned(m), pitch, 1.0f, 0.0f}.store(
                sum, unit.i0 + y, unit.j0 + x);
        } else {
            Output{C + unit.matrix * batch_c, ldc, unsigned(m), unsigned(n), alpha,
                   beta EPILOGUE_POINTER}
                .store(sum, unit.i0 + y, unit.j0 + x);
        }
    }
#if STORE == 2
    if (lane == 0) bulk_wait_group();  // what they read must not go before they have
#endif
}
