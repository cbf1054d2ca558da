// 18 tma_f32 in place: kernel 08 with operands as they are stored, without a copy before.
//
// Kernel 08 multiplies MN-major tiles whose rows start at multiples of 16 bytes. Other operands it
// repacks first: a launch that reads and writes them, 300 MB for 7338 x 117 x 5166, and at least
// 2.3 us for the smallest. Here each operand is read where it is, whatever its layout and wherever
// its rows start, and brought into stages in one of three ways (WAY_A, WAY_B):
//
//     warp 3      | fetch raw tile 2 | fetch raw tile 3 | ...       one thread, by TMA
//     warps 0-2   | move raw tile 1, ask for elements of step 1 | ...
//     the others  | multiply-adds of stage 0 | ...                  as in kernel 08
//
// - Boxes: an MN-major operand with aligned rows comes as in kernel 08.
// - Elements: of one whose rows start anywhere a warp asks for 32 neighbours at a time (cp.async, 4
//   bytes for each lane). They go straight into the stage, whose barrier counts them.
// - Classes: a K-major operand comes in raw tiles. TMA reads pieces of 16 bytes that start at
//   multiples of 16. A row that starts elsewhere begins up to three elements behind such a place,
//   and so it does in a raw tile, whose rows have four elements more than the tile needs. The tile
//   comes class by class of rows: all rows of a class begin equally far behind
//   (common/row_classes.cuh). Warps transpose it: a lane takes one row, reads 16 bytes of it,
//   aligned, and writes each element to the row of the stage that is its k; 32 lanes write 32
//   neighbours. Elements outside of the tile are left out. So nothing is put together from two
//   reads.
//
// A tile of 128 x 128 x 16 takes 8,192 multiply-adds of warps, and for each operand about 100 reads
// and writes of warps that transpose, or 64 requests for elements.

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

// How the operands come: 0 by boxes, 1 by classes of rows, 2 by elements.
#ifndef WAY_A
#define WAY_A 1
#endif
#ifndef WAY_B
#define WAY_B 2
#endif

#include "common/hopper.cuh"
#include "common/copies_arrive.cuh"
#include "common/repack.cuh"
#include "common/row_classes.cuh"

constexpr int PRODUCER_REGISTERS = 32;

#include "common/tma_f32_ring.cuh"

static_assert((WAY_A == BY_CLASSES) == !TRANS_A && (WAY_B == BY_CLASSES) == TRANS_B,
              "an operand comes by classes of rows if it is K-major");
static_assert(KB == 16 || KB == 32,
              "8 rows of a K-major raw tile lie in different banks: KB is 16 or 32");

constexpr bool ANY_BOXES = WAY_A == BY_BOXES || WAY_B == BY_BOXES;
constexpr bool ANY_CLASSES = WAY_A == BY_CLASSES || WAY_B == BY_CLASSES;
constexpr bool ANY_ELEMENTS = WAY_A == BY_ELEMENTS || WAY_B == BY_ELEMENTS;
constexpr int BOX_BYTES = (WAY_A == BY_BOXES ? A_BYTES : 0) +
                          (WAY_B == BY_BOXES ? STAGE_BYTES - A_BYTES : 0);  // of a stage
// Warps that move raw tiles and ask for elements; if TMA brings anything, one more loads.
constexpr int MOVERS = ANY_BOXES || ANY_CLASSES ? 3 : 4;

// Raw tiles: the lines of each class in turn, each of KB elements and four more; A's before B's.
constexpr int RAW_STAGES = 2, LINE = (KB + 4) * 4;
template <int EXTENT>
constexpr int CLASS_BYTES = (EXTENT / CLASSES * LINE + 127) / 128 * 128;
constexpr int RAW_A = WAY_A == BY_CLASSES ? CLASSES * CLASS_BYTES<MB> : 0;
constexpr int RAW_BYTES = RAW_A + (WAY_B == BY_CLASSES ? CLASSES * CLASS_BYTES<NB> : 0);
constexpr int LOADED_RAW =
    ((WAY_A == BY_CLASSES ? MB : 0) + (WAY_B == BY_CLASSES ? NB : 0)) * LINE;
constexpr int OUT_BYTES = STORE == 2 ? MB * NB * 4 : STORE == 3 ? MB * NB / TA * 4 : 0;
constexpr int RAW_AT = (RING_BYTES + SCRATCH_BYTES + OUT_BYTES + 127) / 128 * 128;
constexpr int RAW_BARRIERS_AT = RAW_AT + RAW_STAGES * RAW_BYTES;  // "full" of all, then "empty"

// Where the ring of raw stages stands.
struct RawRing {
    unsigned stage = 0, parity;
    __device__ __forceinline__ unsigned tile(unsigned base) const {
        return base + RAW_AT + stage * RAW_BYTES;
    }
    __device__ __forceinline__ unsigned full(unsigned base) const {
        return base + RAW_BARRIERS_AT + 8 * stage;
    }
    __device__ __forceinline__ unsigned empty(unsigned base) const {
        return full(base) + 8 * RAW_STAGES;
    }
    __device__ __forceinline__ void advance() {
        if (++stage == RAW_STAGES) stage = 0, parity ^= 1;
    }
};

__device__ __forceinline__ void prepare_loading(const Maps& maps, unsigned base, bool loads) {
    const unsigned first = base + RAW_BARRIERS_AT;
    for (int s = 0; ANY_CLASSES && s < RAW_STAGES; s++) {
        mbarrier_init(first + 8 * s, 1);
        mbarrier_init(first + 8 * (RAW_STAGES + s), MOVERS);
    }
    if (!loads) return;
    for (const TensorMap& map : maps.a)
        if (WAY_A != BY_ELEMENTS) prefetch_tensormap(&map);
    for (const TensorMap& map : maps.b)
        if (WAY_B != BY_ELEMENTS) prefetch_tensormap(&map);
}

// A raw tile of EXTENT rows of an operand, from `first` on.
template <int EXTENT>
__device__ __forceinline__ void load_raw(unsigned tile, const TensorMap* classes, unsigned full,
                                         unsigned first, unsigned k0) {
#pragma unroll
    for (int of = 0; of < CLASSES; of++)
        tma_load(tile + of * CLASS_BYTES<EXTENT>, classes + of, full, k0, first / CLASSES, 0);
}

// The thread that loads: all tiles of the block that TMA brings.
__device__ __forceinline__ void load_tiles(const Maps& maps, const Product& p, unsigned base) {
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    RawRing raw{0, 1};
    griddepcontrol_wait();
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit(p, id);
#pragma unroll 1
        for (unsigned step = unit.begin; step < unit.end; step++) {
            const unsigned k0 = step * KB;
            if (ANY_CLASSES) {
                const unsigned full = raw.full(base), tile = raw.tile(base);
                mbarrier_wait(raw.empty(base), raw.parity);
                mbarrier_expect_tx(full, LOADED_RAW);
                if (WAY_A == BY_CLASSES) load_raw<MB>(tile, maps.a, full, unit.i0, k0);
                if (WAY_B == BY_CLASSES) load_raw<NB>(tile + RAW_A, maps.b, full, unit.j0, k0);
                raw.advance();
            }
            if (ANY_BOXES) {
                mbarrier_wait(ring.empty(), ring.parity);
                mbarrier_expect_tx(ring.full, BOX_BYTES);
                if (WAY_A == BY_BOXES) tma_load(ring.tile, maps.a, ring.full, unit.i0, k0, 0);
                if (WAY_B == BY_BOXES)
                    tma_load(ring.tile + A_BYTES, maps.b, ring.full, unit.j0, k0, 0);
                ring.advance(base);
            }
        }
    }
}

// Of a raw tile lines 8 group .. 8 group + 7 of all classes to columns of a stage's rows. Eight
// lanes that read at a time have lines of one class.
template <int EXTENT>
__device__ __forceinline__ void transpose(unsigned raw, unsigned tile, unsigned group,
                                          unsigned shifts) {
    constexpr int VECTORS = KB / 4 + 1, AHEAD = 3;  // of a line; read before the first is written
    constexpr int LINES = EXTENT / CLASSES;
    const unsigned of = threadIdx.x % 32 / 8, line = group * 8 + threadIdx.x % 8;
    if (LINES % 8 != 0 && line >= LINES) return;
    const unsigned shift = shift_of(shifts, of);
    const unsigned from = raw + of * CLASS_BYTES<EXTENT> + line * LINE;
    unsigned to = tile + (line * CLASSES + of) * 4 - shift * (EXTENT * 4);
    make_opaque(to);  // one register for all rows of the stage
#pragma unroll
    for (int first = 0; first < VECTORS; first += AHEAD) {
        float4 v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (first + j < VECTORS)
                v[j] = *static_cast<const float4*>(
                    __cvta_shared_to_generic(from + (first + j) * 16));
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const float x[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (first + j) * 4 + i;  // element at - shift of the row
                if (at >= KB ? at - KB < shift : at >= 3 || at >= shift)
                    *static_cast<float*>(__cvta_shared_to_generic(to + at * (EXTENT * 4))) = x[i];
            }
        }
    }
}

// A warp's share of a raw tile: every MOVERS-th 32 rows.
template <int EXTENT>
__device__ __forceinline__ void transpose_all(unsigned raw, unsigned tile, unsigned warp,
                                              unsigned shifts) {
#pragma unroll 1
    for (unsigned group = warp; group < (EXTENT + 31) / 32; group += MOVERS)
        transpose<EXTENT>(raw, tile, group, shifts);
}

// An operand that is read through a pointer: its rows, `ld` apart, as long as C has rows or
// columns.
struct Elements {
    const float* X;
    long long ld;
    unsigned length, k;

    // Asks for what a warp has of EXTENT elements of each of KB rows: every MOVERS-th row. Outside
    // of the operand there are zeros.
    template <int EXTENT>
    __device__ __forceinline__ void ask(AsyncCopies& copies, unsigned tile, unsigned first,
                                        unsigned k0, unsigned warp) const {
        constexpr int WORDS = (EXTENT + 31) / 32;  // of a lane
        const unsigned lane = threadIdx.x % 32, left = length - first;
        const float* from = X + (k0 + warp) * ld + first + lane;
        auto* to = static_cast<float*>(__cvta_shared_to_generic(tile)) + warp * EXTENT + lane;
#pragma unroll 1
        for (unsigned row = warp; row < KB; row += MOVERS) {
            const bool inside = k0 + row < k;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                if (i * 32 + 32 <= EXTENT || i * 32 + lane < EXTENT)
                    copies.copy<4>(to + i * 32, from + i * 32, inside && i * 32 + lane < left);
            from += MOVERS * ld;
            to += MOVERS * EXTENT;
        }
    }
};

// A warp that moves: its share of all raw tiles of the block, and of all elements.
__device__ __forceinline__ void move_tiles(const Elements& a, const Elements& b, const Product& p,
                                           unsigned base, unsigned warp, unsigned shifts) {
    constexpr int BITS_OF_A = WAY_A == BY_CLASSES ? 4 * CLASSES : 0;
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    RawRing raw{0, 0};
    AsyncCopies copies;
    if (ANY_ELEMENTS) griddepcontrol_wait();
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit(p, id);
#pragma unroll 1
        for (unsigned step = unit.begin; step < unit.end; step++) {
            mbarrier_wait(ring.empty(), ring.parity);
            if (WAY_A == BY_ELEMENTS) a.ask<MB>(copies, ring.tile, unit.i0, step * KB, warp);
            if (WAY_B == BY_ELEMENTS)
                b.ask<NB>(copies, ring.tile + A_BYTES, unit.j0, step * KB, warp);
            if (ANY_ELEMENTS) arrive_after(copies, ring.full);
            if (ANY_CLASSES) {
                const unsigned from = raw.tile(base);
                mbarrier_wait(raw.full(base), raw.parity);
                if constexpr (WAY_A == BY_CLASSES)
                    transpose_all<MB>(from, ring.tile, warp, shifts);
                if constexpr (WAY_B == BY_CLASSES)
                    transpose_all<NB>(from + RAW_A, ring.tile + A_BYTES, MOVERS - 1 - warp,
                                      shifts >> BITS_OF_A);
                __syncwarp();
                if (threadIdx.x % 32 == 0)
                    mbarrier_arrive(ring.full), mbarrier_arrive(raw.empty(base));
                raw.advance();
            }
            ring.advance(base);
        }
    }
}

__device__ __forceinline__ void produce(const Maps& maps, const Elements& a, const Elements& b,
                                        const Product& p, unsigned base, unsigned warp,
                                        unsigned shifts) {
    if (warp < MOVERS) {
        if (ANY_CLASSES || ANY_ELEMENTS) move_tiles(a, b, p, base, warp, shifts);
    } else if (threadIdx.x % 32 == 0) {
        load_tiles(maps, p, base);
    }
}

// Of each warp that has moved a raw tile, of each thread that has asked for elements, and TMA's.
#define FULL_ARRIVALS ((ANY_CLASSES + 32 * ANY_ELEMENTS) * MOVERS + ANY_BOXES)
#define LOADING_PARAMETERS \
    , unsigned shifts, const float *A, long long lda, const float *B, long long ldb
#define PREPARE_LOADING prepare_loading(maps, base, k > 0)
#define LOAD \
    produce(maps, {A, lda, unsigned(m), unsigned(k)}, {B, ldb, unsigned(n), unsigned(k)}, p, base, \
            warp - WARPS, shifts)

#include "common/tma_f32.cuh"
