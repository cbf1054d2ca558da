// 09 tma_f64: kernel 06 loaded by TMA. One thread fetches, warps multiply, blocks are persistent.
//
// The tiles of kernel 06 come by the tensor memory accelerator into a ring, as in kernel 07. What
// this kernel adds:
//
// - No thread that multiplies computes an address in device memory, checks an index or waits for
//   the whole block: a warp waits for a tile ("full"), reads it, and says so ("empty").
// - Blocks go from tile to tile without draining the ring: the next tile comes while this one is
//   stored, and with two or three blocks on a multiprocessor one multiplies while another stores.
//   Rank-k updates need that: at k = 32 storing takes longer than multiplying.
// - TMA cannot pad. Its swizzle keeps lanes out of each other's banks if the rows of a fragment are
//   taken in the right order (common/f64_swizzled_tile.cuh), for all four layouts; C is stored in
//   that order, whole sectors at a time (common/f64_epilogue.cuh). Rows of C that start anywhere go
//   by way of shared memory, one after the other (STORE 2, common/row_buffer.cuh).
// - TK < KB: several warps share a tile of C, each with its part of every step, and add up at the
//   end: for small tiles. Each part has a barrier of its own, so that its warps wait for no other
//   part (512: 11.3 us instead of 11.5).
// - A warp whose tile lies outside the matrix only passes the ring on.
//
// No registers are left: sums and fragments of 64 x 32 take 224 of the 240 that a thread can have.

#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T
#endif
#ifndef REAL
#define REAL double
#endif
#ifndef MB
#define MB 128  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // depth of a tile
#endif
#ifndef TA
#define TA 64  // rows of C that one warp computes
#endif
#ifndef TB
#define TB 32  // columns of C that one warp computes
#endif
#ifndef TK
#define TK 16  // depth of a tile that one warp takes
#endif
#ifndef KI
#define KI 8  // depth of one mma: 4, 8 or 16
#endif
#ifndef DEPTHS
#define DEPTHS 2  // of fragments: with 2 some are read while others are multiplied
#endif
#ifndef STAGES
#define STAGES 6  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 1  // blocks that one multiprocessor is to hold
#endif
#ifndef BOTH
#define BOTH 0  // 1: what is kept of a half goes to the other half, too
#endif
#ifndef SPLIT
#define SPLIT 1  // blocks for each tile of the last wave, at most; 1: as many as there are tiles
#endif

#ifndef STORE
#define STORE 1  // 2: rows of C that start anywhere are stored by way of shared memory
#endif

#include "common/hopper.cuh"
#include "common/ptx.cuh"
#include "common/repack.cuh"
#include "common/stream_k.cuh"
#include "common/f64_swizzled_tile.cuh"
#include "common/f64_epilogue.cuh"

constexpr int WARPS_N = NB / TB, WARPS_MN = MB / TA * WARPS_N, PARTS = KB / TK;
constexpr int WARPS = WARPS_MN * PARTS;
constexpr int GROUPS = WARPS / 4, THREADS = 128 * (GROUPS + 1);
constexpr int PIECES = KB / DEEP, SLOTS = STAGES * PIECES;  // of a step; of the ring
constexpr int A_BYTES = TileA::BYTES, SLOT_BYTES = A_BYTES + TileB::BYTES;
constexpr int TILE_BYTES = TA * TB * 8, SHARED_BYTES = PARTS / 2 * MB * NB * 8;
// Registers of a thread. Where sums, fragments and the rest are more than the block is launched
// with, the warpgroup that fetches keeps PRODUCER_REGISTERS and leaves the others to those that
// multiply.
constexpr int NUMBERS = 2 * (TA * TB / 32 + (TA + TB) * KI * DEPTHS / 32);
constexpr int EACH = 65536 / BLOCKS / THREADS / 8 * 8, LAUNCHED = EACH < 248 ? EACH : 248;
constexpr int left_by(int few) { return ((GROUPS + 1) * LAUNCHED - few) / GROUPS / 8 * 8; }
constexpr int REST = BOTH ? 72 : 48;
constexpr bool KEEPS_UNIT = SPLIT == 1 && FILL == 0 && NUMBERS + 64 <= LAUNCHED;
constexpr bool MOVES_REGISTERS = NUMBERS + REST > LAUNCHED,
               FEW_REGISTERS = NUMBERS + 40 > left_by(40);
constexpr int PRODUCER_REGISTERS = FEW_REGISTERS ? 24 : 40,
              CONSUMER_REGISTERS =
                  left_by(PRODUCER_REGISTERS) < 248 ? left_by(PRODUCER_REGISTERS) : 248;

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 16 == 0 && TB % 8 == 0 &&
                  (TB % 16 == 0 || TB == NB) && WARPS % 4 == 0,
              "a multiple of 4 warps tile the block in pieces of 16 x 16, of 16 x 8 if TB is NB");
static_assert((TK == 8 || TK % 16 == 0) && KB % 16 == 0 && KB % TK == 0 && TK % (DEPTHS * KI) == 0,
              "KI is 4, 8 or 16; TK is 8 or a multiple of 16 and of DEPTHS * KI; TK, 16 divide KB");
static_assert(DEPTHS == 1 || DEPTHS == 2, "DEPTHS is 1 or 2");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(MB <= 256 && NB <= 256 && KB <= 256,
              "a box has at most 256 lines: MB, NB, KB <= 256");

struct Maps {
    TensorMap a, b, c;
};

// The ring of pieces of tiles: its address, and how far a warp has read.
struct Ring {
    unsigned tiles, full, empty;  // `full` and `empty`: barriers, one for each slot
    unsigned slot = 0, parity = 0;

    __device__ __forceinline__ unsigned offset() const { return slot * SLOT_BYTES; }
    __device__ __forceinline__ void wait_full() const { mbarrier_wait(full + 8 * slot, parity); }
    __device__ __forceinline__ void wait_empty() const {
        mbarrier_wait(empty + 8 * slot, parity ^ 1);
    }
    template <int BY>  // slots; divides SLOTS
    __device__ __forceinline__ void advance() {
        slot += BY;
        if (slot >= SLOTS) slot -= SLOTS, parity ^= 1;
    }
};

__device__ __forceinline__ void produce(const Maps& maps, const Product& product, Ring ring,
                                        int batched_a, int batched_b) {
    griddepcontrol_wait();
    for (unsigned id = blockIdx.x; id < product.units(); id += gridDim.x) {
        const Unit unit = product.unit(id);
#pragma unroll 1
        for (unsigned p = unit.begin * PIECES; p < unit.end * PIECES; p++, ring.advance<1>()) {
            const unsigned tile = ring.tiles + ring.offset(), full = ring.full + 8 * ring.slot;
            ring.wait_empty();
            mbarrier_expect_tx(full, SLOT_BYTES);
            TileA::fetch(tile, &maps.a, full, unit.i0, p * DEEP, unit.matrix * batched_a);
            TileB::fetch(tile + A_BYTES, &maps.b, full, unit.j0, p * DEEP, unit.matrix * batched_b);
        }
    }
}

// The sums of warps that share a tile go to the first of them, half of them to the other half and
// so on: true for that one.
__device__ __forceinline__ bool add_parts(Sums& sum, unsigned scratch, unsigned thread) {
    const unsigned part = thread / 32 / WARPS_MN, tile = thread / 32 % WARPS_MN;
    scratch += tile * TILE_BYTES + thread % 32 * 16;
#pragma unroll
    for (int left = PARTS; left > 1; left = (left + 1) / 2) {
        const unsigned half = (left + 1) / 2;
        named_barrier_sync<WARPS * 32>(1);  // what was there before has been read
        if (part >= half && part < left) {
#pragma unroll
            for (int s = 0; s < ROWS * COLUMNS * 2; s++)
                store_shared(scratch + (part - half) * WARPS_MN * TILE_BYTES + s * 512,
                             double2{sum[s / 2][s % 2 * 2], sum[s / 2][s % 2 * 2 + 1]});
        }
        named_barrier_sync<WARPS * 32>(1);
        if (part + half >= left) continue;
#pragma unroll
        for (int s = 0; s < ROWS * COLUMNS * 2; s++) {
            const double2 x = load_shared_2(scratch + part * WARPS_MN * TILE_BYTES + s * 512);
            sum[s / 2][s % 2 * 2] += x.x, sum[s / 2][s % 2 * 2 + 1] += x.y;
        }
    }
    return part == 0;
}

// One arrival for each warp.
__device__ __forceinline__ void release_stage(unsigned empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
}

__device__ __forceinline__ void multiply(Sums& sum, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) mma<KI>(sum[i * COLUMNS + j], f.a[i], f.b[j]);
}

// sum += op(A) op(B) of the warp's part of the next `steps` tiles.
//
// A slot is released in the next pass of the loop. Reads from shared memory may still be under
// way when an instruction behind them arrives at a barrier, but not when the mma have been issued
// that multiply what was read; and those end up anywhere within their own pass.
__device__ __forceinline__ void multiply(Sums& sum, Ring& ring, unsigned steps,
                                         const FragmentBases& from) {
    unsigned to_release = 0, here = ring.offset();
    Fragments now, next;
    if (DEPTHS == 2 && steps > 0) {
        ring.wait_full();
        now.read(from, here, 0);
    }
#pragma unroll 1
    for (; steps > 0; steps--) {
        if (to_release != 0) release_stage(to_release);
        to_release = ring.empty + 8 * ring.slot;
        if (DEPTHS == 1) {
            ring.wait_full();
            here = ring.offset();
            ring.advance<PIECES>();
        }
#pragma unroll
        for (int d = 0; d < TK; d += DEPTHS * KI) {
            if (DEPTHS == 1) {
                now.read(from, here, d);
                multiply(sum, now);
                continue;
            }
            next.read(from, here, d + KI);
            multiply(sum, now);
            if (d + 2 * KI == TK) {
                ring.advance<PIECES>();
                if (steps > 1) {  // else the beginning of this tile is read again, for nothing
                    here = ring.offset();
                    ring.wait_full();
                }
            }
            now.read(from, here, (d + 2 * KI) % TK);
            multiply(sum, next);
        }
    }
    if (to_release != 0) release_stage(to_release);
}

__device__ __forceinline__ void consume(const Product& product, const Output& result, Ring ring,
                                        unsigned scratch, unsigned warp) {
    const unsigned lane = threadIdx.x % 32, tile = warp % WARPS_MN;
    const unsigned y = tile / WARPS_N * TA, x = tile % WARPS_N * TB;
    const unsigned part = warp / WARPS_MN * TK, deep = part % DEEP;
    ring.slot = part / DEEP;
    const unsigned tile_b = ring.tiles + A_BYTES;
    FragmentBases from{ring.tiles + TileA::begin(y, deep, lane),
                       tile_b + TileB::begin(x, deep, lane),
                       tile_b + TileB::begin_last(deep, lane)};
    make_opaque(from.a), make_opaque(from.b);  // kept, not computed anew in each step
    if (LAST < COLUMNS) make_opaque(from.last);

#pragma unroll 1
    for (unsigned id = blockIdx.x; id < product.units(); id += gridDim.x) {
        Unit unit = product.unit(id);
        unsigned steps = unit.end - unit.begin;
        if (unit.shared && steps == 0) continue;
        Sums sum = {};
        if (result.has(unit.i0 + y, unit.j0 + x)) {
            multiply(sum, ring, steps, from);
        } else {
#pragma unroll 1
            for (; steps > 0; steps--, ring.advance<PIECES>()) {
                ring.wait_full();
                release_stage(ring.empty + 8 * ring.slot);
            }
        }
        // Where the sums go is computed anew: kept, it would take registers from the loop. Where
        // there are plenty that costs 0.2 us of 11 (512).
        const unsigned thread = read_thread_index();
        if (!KEEPS_UNIT) make_opaque(id), unit = product.unit(id);
        if (!add_parts(sum, scratch, thread)) continue;
        const unsigned w = thread / 32 % WARPS_MN;
        const unsigned i0 = unit.i0 + w / WARPS_N * TA, j0 = unit.j0 + w % WARPS_N * TB;
        if (!result.has(i0, j0)) continue;
        if (unit.shared)
            result.store_part(sum, unit.slot, i0 - unit.i0, j0 - unit.j0, thread % 32);
        else if (STORE == 2 && !BOTH)
            result.store_rows(sum, i0, j0, unit.matrix, thread % 32,
                              scratch + SHARED_BYTES + 16 * SLOTS + w * 8 * Rows::ELEMENTS);
        else
            result.store(sum, i0, j0, unit.matrix, thread % 32);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, double alpha,
         double beta, int batched_a, int batched_b, int boxed, double* C, long long ldc,
         long long batch_c, double* parts EPILOGUE_PARAMETER) {
    extern __shared__ __align__(1024) unsigned char shared[];  // swizzles count from there
    const unsigned tiles = address_of_shared(shared), scratch = tiles + SLOTS * SLOT_BYTES;
    const unsigned full = scratch + SHARED_BYTES, empty = full + 8 * SLOTS;
    const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the same for all, and said so
    if (threadIdx.x == 0) {
        if (k > 0) prefetch_tensormap(&maps.a), prefetch_tensormap(&maps.b);
        for (int s = 0; s < SLOTS; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, WARPS / PIECES);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    const Product product = product_of(m, n, k, batch);
#if SPLIT > 1
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *reinterpret_cast<LaunchShape*>(parts) = {gridDim.x, product.steps};
#endif
    const Ring ring{tiles, full, empty};
    if (warp >= WARPS) {
        if (MOVES_REGISTERS) setmaxnreg_dec<PRODUCER_REGISTERS>();
        // What both roles use must fit in PRODUCER_REGISTERS registers: with room elsewhere,
        // computed twice.
        if (!FEW_REGISTERS) make_opaque(m), make_opaque(n), make_opaque(k);
        if (threadIdx.x == WARPS * 32)
            produce(maps, product_of(m, n, k, batch), ring, batched_a, batched_b);
    } else {
        if (MOVES_REGISTERS) setmaxnreg_inc<CONSUMER_REGISTERS>();
        const unsigned rows = m, columns = n;
        if (FILL != 0)
            make_opaque(m), make_opaque(n), make_opaque(k);  // before this there are few registers
        consume(FILL == 0 ? product : product_of(m, n, k, batch),
                {C, parts, ldc, batch_c, rows, columns, alpha, beta,
                 boxed != 0 EPILOGUE_ARGUMENT},
                ring, scratch, warp);
    }
}
