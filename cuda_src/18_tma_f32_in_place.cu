// 19 tma_f32 in place: the operands of kernel 08 as they are stored, without a copy before.
//
// Kernel 08 multiplies MN-major tiles whose rows start at multiples of 16 bytes. Other operands it
// repacks first: a launch that reads and writes them, which by its model takes 18 of 143 us for 418
// x 1018 x 5653. Here the four warps that bring tiles do more than wait:
//
//     warp 3      | fetch raw tile 2 | fetch raw tile 3 | ...     one thread, by TMA
//     warps 0-2   | transpose raw tile 1 into stage 1 | ...       K-major operands
//     the others  | multiply-adds of stage 0 | ...                as in kernel 08
//
// - Rows that start anywhere: four tensor maps describe an operand, map c its rows c, c + 4, c + 8
//   ..., and a tile comes class by class (common/row_classes.cuh).
// - A K-major operand comes into a raw stage, RAW_STAGES of which there are. A lane takes one row,
//   reads 16 bytes of it, and writes them to four rows of the stage; 32 lanes write 32 neighbours.
//   Two rows are left free between one class and the next: lanes that read rows of different
//   classes then meet different banks.
// - An MN-major operand comes straight into the stage, its steps along k class by class. What is
//   transposed is written in the same order.
//
// A tile of 128 x 128 x 16 takes 8,192 multiply-adds of warps, and 160 reads and writes of warps
// that transpose.
//
// It was not timed on a GPU yet.

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
#include "common/row_classes.cuh"

constexpr int PRODUCER_REGISTERS = 32;

#include "common/tma_f32_ring.cuh"

static_assert(KB == 16 || KB == 32,
              "a K-major row of a tile is swizzled as a whole: KB is 16 or 32");

constexpr bool A_K_MAJOR = !TRANS_A, B_K_MAJOR = TRANS_B;
constexpr bool TRANSPOSES = A_K_MAJOR || B_K_MAJOR, DIRECT = !A_K_MAJOR || !B_K_MAJOR;
constexpr int TRANSPOSERS = 3;  // warps that transpose; one more loads

// Raw tiles: rows of KB elements, of each class in turn. A class takes a multiple of 8 rows and two
// more, at least as many as it has.
constexpr int RAW_STAGES = 2, RAW_ROW = KB * 4;
__device__ constexpr int class_rows(int extent) { return (extent / CLASSES + 5) / 8 * 8 + 2; }
constexpr int RAW_A_BYTES = A_K_MAJOR ? CLASSES * class_rows(MB) * RAW_ROW : 0;
constexpr int RAW_BYTES = RAW_A_BYTES + (B_K_MAJOR ? CLASSES * class_rows(NB) * RAW_ROW : 0);
constexpr int OUT_BYTES = STORE == 2 ? MB * NB * 4 : STORE == 3 ? MB * NB / TA * 4 : 0;
constexpr int RAW_AT = (RING_BYTES + SCRATCH_BYTES + OUT_BYTES + 127) / 128 * 128;
constexpr int RAW_BARRIERS_AT = RAW_AT + RAW_STAGES * RAW_BYTES;  // "full" of all, then "empty"
constexpr int LOADED_RAW = (A_K_MAJOR ? A_BYTES : 0) + (B_K_MAJOR ? STAGE_BYTES - A_BYTES : 0);

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

__device__ __forceinline__ void init_raw_barriers(unsigned base) {
    const unsigned first = base + RAW_BARRIERS_AT;
    for (int s = 0; TRANSPOSES && s < RAW_STAGES; s++) {
        mbarrier_init(first + 8 * s, 1);
        mbarrier_init(first + 8 * (RAW_STAGES + s), TRANSPOSERS);
    }
}

// Loads EXTENT rows or columns of an operand, class by class: K-major to a raw tile, else to a
// stage.
template <bool K_MAJOR, int EXTENT>
__device__ __forceinline__ void load_classes(const RowClasses& from, unsigned tile, unsigned full,
                                             unsigned outer, unsigned k0) {
    constexpr int BYTES = K_MAJOR ? class_rows(EXTENT) * RAW_ROW : KB / CLASSES * EXTENT * 4;
#pragma unroll
    for (int c = 0; c < CLASSES; c++)
        from.load_box(tile + c * BYTES, c, full, K_MAJOR ? k0 : outer, K_MAJOR ? outer : k0);
}

// The thread that loads: all tiles of the block.
__device__ __forceinline__ void load_tiles(const RowClasses& a, const RowClasses& b,
                                           const Product& p, unsigned base) {
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    RawRing raw{0, 1};
    griddepcontrol_wait();
    for (unsigned c = 0; c < CLASSES && p.steps > 0; c++)
        prefetch_tensormap(a.maps + c), prefetch_tensormap(b.maps + c);
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit(p, id);
        for (unsigned step = unit.begin; step < unit.end; step++) {
            if (TRANSPOSES) {
                mbarrier_wait(raw.empty(base), raw.parity);
                mbarrier_expect_tx(raw.full(base), LOADED_RAW);
            }
            const unsigned at = raw.tile(base), full = raw.full(base);
            if (A_K_MAJOR)
                load_classes<true, MB>(a, at, full, unit.i0, step * KB);
            if (B_K_MAJOR)
                load_classes<true, NB>(b, at + RAW_A_BYTES, full, unit.j0, step * KB);
            if (DIRECT) {
                mbarrier_wait(ring.empty(), ring.parity);
                mbarrier_expect_tx(ring.full, STAGE_BYTES - LOADED_RAW);
            }
            if (!A_K_MAJOR) load_classes<false, MB>(a, ring.tile, ring.full, unit.i0, step * KB);
            if (!B_K_MAJOR)
                load_classes<false, NB>(b, ring.tile + A_BYTES, ring.full, unit.j0, step * KB);
            raw.advance();
            ring.advance(base);
        }
    }
}

// Rows 32 group .. 32 group + 31 of a raw tile of EXTENT rows to columns of a stage's rows.
template <int EXTENT>
__device__ __forceinline__ void transpose(unsigned raw, unsigned tile, unsigned group) {
    const unsigned row = group * 32 + threadIdx.x % 32;
    if (EXTENT % 32 != 0 && row >= EXTENT) return;
    const unsigned from = raw + (row % CLASSES * class_rows(EXTENT) + row / CLASSES) * RAW_ROW;
    const unsigned swizzle = from >> 7 & (RAW_ROW / 16 - 1);
#pragma unroll 2
    for (unsigned j = 0; j < KB / 4; j++) {
        const float4 v =
            *static_cast<const float4*>(__cvta_shared_to_generic(from + ((j ^ swizzle) << 4)));
        const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const unsigned to = DIRECT ? KB / CLASSES * i + j : 4 * j + i;
            *static_cast<float*>(__cvta_shared_to_generic(tile + (to * EXTENT + row) * 4)) = x[i];
        }
    }
}

// A warp that transposes: its share of the rows of all tiles of the block.
__device__ __forceinline__ void transpose_tiles(const Product& p, unsigned base, unsigned warp) {
    constexpr int GROUPS_A = A_K_MAJOR ? (MB + 31) / 32 : 0;  // of 32 rows
    constexpr int GROUPS = GROUPS_A + (B_K_MAJOR ? (NB + 31) / 32 : 0);
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    RawRing raw{0, 0};
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        for (unsigned steps = Unit(p, id).steps(); steps > 0; steps--) {
            mbarrier_wait(raw.full(base), raw.parity);
            mbarrier_wait(ring.empty(), ring.parity);
            for (int group = warp; group < GROUPS; group += TRANSPOSERS) {
                if (group < GROUPS_A)
                    transpose<MB>(raw.tile(base), ring.tile, group);
                else
                    transpose<NB>(raw.tile(base) + RAW_A_BYTES, ring.tile + A_BYTES,
                                  group - GROUPS_A);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                mbarrier_arrive(ring.full), mbarrier_arrive(raw.empty(base));
            raw.advance();
            ring.advance(base);
        }
    }
}

__device__ __forceinline__ void produce(const RowClasses& a, const RowClasses& b, const Product& p,
                                        unsigned base, unsigned warp) {
    if (warp == TRANSPOSERS) {
        if (threadIdx.x % 32 == 0) load_tiles(a, b, p, base);
    } else if (TRANSPOSES) {
        transpose_tiles(p, base, warp);
    }
}

#define FULL_ARRIVALS ((TRANSPOSES ? TRANSPOSERS : 0) + DIRECT)
#define LOADING_PARAMETERS , unsigned shifts_a, unsigned shifts_b
#define PREPARE_LOADING init_raw_barriers(base)
#define LOAD produce({maps.a, shifts_a}, {maps.b, shifts_b}, p, base, warp - WARPS)

#include "common/tma_f32.cuh"
