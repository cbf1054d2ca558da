// 18 tma_f32 in place: an operand of kernel 08 as it is stored, without a copy before.
//
// Kernel 08 multiplies MN-major tiles whose rows start at multiples of 16 bytes. Other operands it
// repacks first: a launch that reads and writes them, 300 MB for 7338 x 117 x 5166. Here the
// operand of which it would repack more is read where it is, whatever its layout and wherever its
// rows start; the other one comes as in kernel 08. Three of the four warps that bring tiles do more
// than wait:
//
//     warp 3      | fetch raw tile 2 | fetch raw tile 3 | ...   one thread, by TMA
//     warps 0-2   | move raw tile 1 into stage 1 | ...          of the operand in place
//     the others  | multiply-adds of stage 0 | ...              as in kernel 08
//
// - TMA reads pieces of 16 bytes that start at multiples of 16. A row that starts elsewhere begins
//   up to three elements behind such a place, and so it does in a raw tile, whose rows have four
//   elements more than the tile needs. The tile comes class by class of rows: all rows of a class
//   begin equally far behind (common/row_classes.cuh).
// - A K-major tile is transposed: a lane takes one row, reads 16 bytes of it, aligned, and writes
//   each element to the row of the stage that is its k; 32 lanes write 32 neighbours. Elements
//   outside of the tile are left out. So nothing is put together from two reads.
// - An MN-major tile is copied row by row, one word for each lane.
//
// A tile of 128 x 128 x 16 takes 8,192 multiply-adds of warps, and about 100 reads and writes of
// warps that transpose, or 130 of warps that copy.
//
// Long products with a short side are up to 1.2 times as fast as with the other kernels, most
// others are not faster (benchmarks/LOG.md, "The larger operand in place").

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
#include "common/row_classes.cuh"

constexpr int PRODUCER_REGISTERS = 32;

#include "common/tma_f32_ring.cuh"

static_assert(KB == 16 || KB == 32,
              "8 rows of a K-major raw tile lie in different banks: KB is 16 or 32");

// The operand in place: its rows or columns in a tile, its place in a stage. The other's place.
constexpr bool K_MAJOR = IN_PLACE == 0 ? !TRANS_A : TRANS_B;
constexpr int EXTENT = IN_PLACE == 0 ? MB : NB;
constexpr int AT = IN_PLACE == 0 ? 0 : A_BYTES, OTHER_AT = A_BYTES - AT;
constexpr int OTHER_BYTES = STAGE_BYTES - KB * EXTENT * 4;
constexpr int MOVERS = 3;  // warps that move raw tiles; one more loads

// A raw tile: the lines of each class in turn, each of WIDTH elements and four more. A line that
// would be longer than a box may be comes in HALVES, one box after the other.
constexpr int RAW_STAGES = 2, HALVES = !K_MAJOR && EXTENT + 4 > 256 ? 2 : 1;
constexpr int WIDTH = K_MAJOR ? KB : EXTENT / HALVES, LINES = (K_MAJOR ? EXTENT : KB) / CLASSES;
constexpr int LINE = (WIDTH + 4) * 4, BOX_BYTES = (LINES * LINE + 127) / 128 * 128;
constexpr int CLASS_BYTES = HALVES * BOX_BYTES, RAW_BYTES = CLASSES * CLASS_BYTES;
constexpr int LOADED_RAW = CLASSES * HALVES * LINES * LINE;
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
    for (int s = 0; s < RAW_STAGES; s++) {
        mbarrier_init(first + 8 * s, 1);
        mbarrier_init(first + 8 * (RAW_STAGES + s), MOVERS);
    }
    if (!loads) return;
    for (const TensorMap& map : maps.a) prefetch_tensormap(&map);
    for (const TensorMap& map : maps.b) prefetch_tensormap(&map);
}

// The thread that loads: all tiles of the block, of the operand in place and of the other.
__device__ __forceinline__ void load_tiles(const TensorMap* in_place, const TensorMap* other,
                                           const Product& p, unsigned base) {
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    RawRing raw{0, 1};
    griddepcontrol_wait();
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit(p, id);
        const unsigned mine = IN_PLACE == 0 ? unit.i0 : unit.j0;
        const unsigned others = IN_PLACE == 0 ? unit.j0 : unit.i0;
#pragma unroll 1
        for (unsigned step = unit.begin; step < unit.end; step++) {
            const unsigned k0 = step * KB, full = raw.full(base);
            const unsigned x = K_MAJOR ? k0 : mine, line = (K_MAJOR ? mine : k0) / CLASSES;
            mbarrier_wait(raw.empty(base), raw.parity);
            mbarrier_expect_tx(full, LOADED_RAW);
#pragma unroll
            for (int box = 0; box < CLASSES * HALVES; box++)
                tma_load(raw.tile(base) + box * BOX_BYTES, in_place + box / HALVES, full,
                         x + box % HALVES * WIDTH, line, 0);
            raw.advance();
            mbarrier_wait(ring.empty(), ring.parity);
            mbarrier_expect_tx(ring.full, OTHER_BYTES);
            tma_load(ring.tile + OTHER_AT, other, ring.full, others, k0, 0);
            ring.advance(base);
        }
    }
}

// Of a K-major raw tile lines 8 group .. 8 group + 7 of all classes to columns of a stage's rows.
// Eight lanes that read at a time have lines of one class.
__device__ __forceinline__ void transpose(unsigned raw, unsigned tile, unsigned group,
                                          unsigned shifts) {
    constexpr int VECTORS = KB / 4 + 1, AHEAD = 3;  // of a line; read before the first is written
    const unsigned of = threadIdx.x % 32 / 8, line = group * 8 + threadIdx.x % 8;
    if (LINES % 8 != 0 && line >= LINES) return;
    const unsigned shift = shift_of(shifts, of);
    const unsigned from = raw + of * CLASS_BYTES + line * LINE;
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

// Of an MN-major raw tile line `line` of all classes to four rows of a stage. Only lines of 256
// elements come in halves, so that 32 elements that a warp reads at a time are in one.
__device__ __forceinline__ void copy(unsigned raw, unsigned tile, unsigned line, unsigned shifts) {
    constexpr int WORDS = (EXTENT + 31) / 32, AHEAD = 2;  // of a lane; rows read at a time
    const unsigned lane = threadIdx.x % 32;
    const unsigned from = raw + line * LINE + lane * 4;
    const unsigned to = tile + (line * CLASSES * EXTENT + lane) * 4;
#pragma unroll
    for (int first = 0; first < CLASSES; first += AHEAD) {
        float x[AHEAD][WORDS];
#pragma unroll
        for (int r = 0; r < AHEAD; r++) {
            const unsigned of = first + r, row = from + of * CLASS_BYTES + shift_of(shifts, of) * 4;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                if (i * 32 + 32 <= EXTENT || i * 32 + lane < EXTENT)
                    x[r][i] = *static_cast<const float*>(__cvta_shared_to_generic(
                        row + i * 32 / WIDTH * BOX_BYTES + i * 32 % WIDTH * 4));
        }
#pragma unroll
        for (int r = 0; r < AHEAD; r++)
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                if (i * 32 + 32 <= EXTENT || i * 32 + lane < EXTENT)
                    *static_cast<float*>(__cvta_shared_to_generic(
                        to + ((first + r) * EXTENT + i * 32) * 4)) = x[r][i];
    }
}

// A warp that moves: its share of all raw tiles of the block.
__device__ __forceinline__ void move_tiles(const Product& p, unsigned base, unsigned warp,
                                           unsigned shifts) {
    constexpr unsigned PARTS = K_MAJOR ? (LINES + 7) / 8 : LINES;
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    RawRing raw{0, 0};
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        for (unsigned steps = Unit(p, id).steps(); steps > 0; steps--) {
            mbarrier_wait(raw.full(base), raw.parity);
            mbarrier_wait(ring.empty(), ring.parity);
            const unsigned from = raw.tile(base), to = ring.tile + AT;
#pragma unroll 1
            for (unsigned part = warp; part < PARTS; part += MOVERS) {
                if (K_MAJOR)
                    transpose(from, to, part, shifts);
                else
                    copy(from, to, part, shifts);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                mbarrier_arrive(ring.full), mbarrier_arrive(raw.empty(base));
            raw.advance();
            ring.advance(base);
        }
    }
}

__device__ __forceinline__ void produce(const TensorMap* in_place, const TensorMap* other,
                                        const Product& p, unsigned base, unsigned warp,
                                        unsigned shifts) {
    if (warp < MOVERS)
        move_tiles(p, base, warp, shifts);
    else if (threadIdx.x % 32 == 0)
        load_tiles(in_place, other, p, base);
}

#define FULL_ARRIVALS (MOVERS + 1)  // and TMA's
#define LOADING_PARAMETERS , unsigned shifts
#define PREPARE_LOADING prepare_loading(maps, base, k > 0)
#define LOAD \
    produce(IN_PLACE == 0 ? maps.a : maps.b, IN_PLACE == 0 ? maps.b : maps.a, p, base, \
            warp - WARPS, shifts)

#include "common/tma_f32.cuh"
