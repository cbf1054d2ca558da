// 17 wgmma tf32 in place: float32 rounded to tf32; the larger operand is read where it is.
//
// Kernel 10 copies an operand whose rows do not start at multiples of 16 bytes, or that does not
// lie as it wants it: a launch before the product reads and writes all of it. Of a product of few
// rows or few columns that takes longer than the product. Here only the smaller operand is copied,
// and only if it must be. Of the larger one, IN_PLACE, A or B, four tensor maps describe the rows
// where they are (common/row_classes.cuh): map c has rows c, c + 4, c + 8 ..., a class of rows.
//
// wgmma multiplies 64 rows of a left operand by up to 256 columns of a right one:
//
// - The left one is the operand in place. In shared memory element x of a row lies up to three
//   elements further on than it would if the row were aligned. wgmma could not read that from
//   there, but it takes its left operand from registers, too, and a lane reads these one by one.
// - The right one is the other operand, K-major, rows aligned: repacked before if it is not.
// - If B is in place, the result is C^T: its rows are columns of C. It is transposed when it is
//   stored.
//
// Four warps load, each a class of rows. In shared memory the left tile lies class by class, a line
// for each row of a class:
//
// - K-major: row 4 i + c of the tile is line i of class c, as long as KB + 4 elements. A warp of a
//   warpgroup takes 16 rows of one class for its 16 rows of wgmma. Lines that are 4 words further
//   apart than a multiple of 32 words keep the lanes in different banks.
// - MN-major: k = 4 i + c is line i of class c, in boxes of 32 columns: one box more than an
//   aligned tile would have. Four lanes read k, k + 1, k + 2 and k + 3 at a time, from four
//   classes. Each class begins 128 bytes further on than it need be, so that TMA's swizzle puts
//   these into different banks. The eight lanes of one k read columns 0 to 3 and 16 to 19, and the
//   shift: two chunks of 16 bytes that are four apart, so again in different banks.
//
// C goes through shared memory, from where warps store 32 or 64 columns of a row at a time. Only
// then come alpha, beta and the epilogue: C is read in the same way. There are no clusters and no
// slices.

#ifndef IN_PLACE
#define IN_PLACE 1  // the operand that is read where it is: 0 A, 1 B
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T; only in place
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T; else only in place
#endif
#ifndef REAL
#define REAL float  // element type of A and B
#endif
#ifndef OUT
#define OUT float  // element type of C
#endif
#ifndef SUM
#define SUM float  // type of the sums
#endif
#ifndef MB
#define MB 64  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 32  // depth of a tile
#endif
#ifndef TA
#define TA 64  // rows of C that one warpgroup computes
#endif
#ifndef TB
#define TB 64  // columns of C that one warpgroup computes
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef SPLIT
#define SPLIT 1  // parts that k is split into
#endif
#define CLUSTER 1

#include "common/combine.cuh"
#include "common/hopper.cuh"
#include "common/repack.cuh"
#include "common/row_classes.cuh"
#include "common/split_k_schedule.cuh"

constexpr int LINE_BYTES = 128, IN_LINE = 32;  // a row of a swizzled box, and its elements
constexpr bool TURNED = IN_PLACE == 1;  // the result of wgmma is C^T
constexpr bool K_MAJOR = TURNED ? TRANS_B : !TRANS_A;  // the left operand
// Rows of the left and columns of the right operand: of a block, and of a warpgroup.
constexpr int LEFT = TURNED ? NB : MB, RIGHT = TURNED ? MB : NB;
constexpr int OWN_LEFT = TURNED ? TB : TA, OWN_RIGHT = TURNED ? TA : TB;
constexpr int PIECES = OWN_LEFT / 64, RUNS = OWN_RIGHT / 32;
constexpr int PARTS = KB / IN_LINE;  // of a step, 32 deep

constexpr int WARPGROUPS_N = NB / TB, CONSUMERS = MB / TA * WARPGROUPS_N;  // one more loads
constexpr int THREADS = 128 * (CONSUMERS + 1), PRODUCERS = CLASSES;        // warps that load
// A class of the left tile. K-major: lines of KB + 4 elements, one for each row. MN-major: lines of
// 32 columns, KB / CLASSES for each 32 columns of the tile and as many more, and an empty one.
constexpr int EACH = KB / CLASSES, LINES = (LEFT / IN_LINE + 1) * EACH + 1;
constexpr int LONG = K_MAJOR ? (KB + 4) * 4 : LINE_BYTES;  // bytes of a line
constexpr int CLASS_BYTES = (K_MAJOR ? LEFT / CLASSES : LINES) * LONG;
constexpr int LOADED = CLASS_BYTES - (K_MAJOR ? 0 : LINE_BYTES);  // of these, by TMA
constexpr int RIGHT_BYTES = RIGHT * KB * 4;
constexpr int LEFT_BYTES = (CLASSES * CLASS_BYTES + 1023) / 1024 * 1024;
constexpr int STAGE_BYTES = RIGHT_BYTES + LEFT_BYTES;

// A warp stores 16 rows of 32 columns at a time, of C^T 8 rows of 64. In shared memory rows are
// further apart than they are long: lanes that write rows one below the other meet different banks.
constexpr int HIGH = TURNED ? 8 : 16, WIDE = TURNED ? 64 : 32, PITCH = TURNED ? 272 : 160;
constexpr int STAGED_BYTES = 4 * HIGH * PITCH;  // of a warpgroup

#include "common/warpgroups.cuh"

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 32 == 0 && TB % 32 == 0,
              "warpgroups tile the block evenly: TA divides MB, TB divides NB, 32 divides both");
static_assert(OWN_LEFT % 64 == 0,
              "wgmma has 64 rows on its left: 64 divides TA, or TB where B is in place");
static_assert(MB <= 256 && NB <= 256, "MB and NB are at most 256");
static_assert(KB == 32 || KB == 64 || KB == 128,
              "a step has one, two or four parts of 32: KB is 32, 64 or 128");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(CONSUMERS <= 4 && TA * TB / 128 + OWN_LEFT / 2 <= CONSUMER_REGISTERS - 40,
              "TA TB / 128 + rows by registers / 2 <= 192 (3, 4 warpgroups 120, 64)");

// The position in the ring of stages: the stage, and the parity of its barriers' phase.
struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

struct Stages {
    unsigned base, full, empty;
};

// One thread of a warp that loads: class c of all left tiles. That of the first warp loads the
// right tiles, too.
__device__ __forceinline__ void produce(const Product& p, const Stages& stages, const Maps& maps,
                                        unsigned c) {
    const TensorMap* const own = (TURNED ? maps.b : maps.a) + c;
    const TensorMap* const other = TURNED ? maps.a : maps.b;
    if (p.steps > 0) prefetch_tensormap(own), prefetch_tensormap(other);
    Ring ring{0, 1};  // all stages are empty
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit = p[id];
        const unsigned y = TURNED ? unit.j0 : unit.i0, x = TURNED ? unit.i0 : unit.j0;
        for (unsigned step = 0; step < unit.steps; step++, ring.advance()) {
            const unsigned right = stages.base + ring.stage * STAGE_BYTES;
            const unsigned left = right + RIGHT_BYTES + c * CLASS_BYTES;
            const unsigned full = stages.full + 8 * ring.stage, k0 = (unit.first + step) * KB;
            mbarrier_wait(stages.empty + 8 * ring.stage, ring.parity);
            mbarrier_expect_tx(full, LOADED + (c == 0 ? RIGHT_BYTES : 0));
            if constexpr (K_MAJOR) {
                tma_load(left, own, full, k0, y / CLASSES, 0);
            } else {
#pragma unroll
                for (int i = 0; i <= LEFT / IN_LINE; i++)
                    tma_load(left + i * EACH * LINE_BYTES, own, full, y + i * IN_LINE, k0 / CLASSES,
                             0);
            }
            if (c > 0) continue;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                tma_load(right + part * RIGHT * LINE_BYTES, other, full, k0 + part * IN_LINE, x, 0);
        }
    }
}

// The place of a thread: its warpgroup's share of the left and of the right operand, its warp in
// that, and its lane, 4 g + t.
struct Place {
    unsigned group, left, right, warp, g, t;
    __device__ __forceinline__ explicit Place(unsigned warp)
        : group(warp / 4),
          left(TURNED ? group % WARPGROUPS_N : group / WARPGROUPS_N),
          right(TURNED ? group / WARPGROUPS_N : group % WARPGROUPS_N),
          warp(warp % 4),
          g(threadIdx.x % 32 / 4),
          t(threadIdx.x % 4) {}
    // The row of the block's left tile that wgmma has as row 16 warp + 8 h + g of a piece of 64.
    __device__ __forceinline__ unsigned left_row(unsigned piece, unsigned h, unsigned g) const {
        const unsigned first = (left * PIECES + piece) * 64;
        return first + (K_MAJOR ? (h * 8 + g) * CLASSES + warp
                                : h * 32 + g / 4 * 16 + warp * 4 + g % 4);
    }
};

// A K-major tile for wgmma (PTX ISA 9.0, "Matrix Descriptor"): 8 rows to a swizzle.
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned address) {
    return (address & 0x3FFFFu) >> 4 | (8ull * LINE_BYTES >> 4) << 32 | 1ull << 62;
}

// Numbers of a part of the left operand: register 2 y + h is that of row 16 warp + 8 h + g, depth
// 8 x + 4 y + t.
using Fragments = unsigned[IN_LINE / 8][PIECES][4];
using Sums = float[PIECES][OWN_RIGHT / 2];

// One warpgroup that multiplies: where its tiles are, and its place in the ring.
struct Consumer {
    unsigned char* shared;  // the stages
    Stages stages;
    Place at;
    unsigned shifts;
    Ring ring;

    // K-major: a warp's rows are lines of its own class. MN-major: depth 4 i + t is line i of class
    // t, and a lane's columns are in the same chunk of every 32.
    __device__ __forceinline__ void read_fragments(Fragments& to, int part) const {
        const unsigned char* const tile = shared + ring.stage * STAGE_BYTES + RIGHT_BYTES;
        if constexpr (K_MAJOR) {
            const unsigned line = at.left * PIECES * 16 + at.g;
            const unsigned char* const first = tile + at.warp * CLASS_BYTES + line * LONG +
                                               (at.t + shift_of(shifts, at.warp)) * 4;
#pragma unroll
            for (int i = 0; i < IN_LINE / 4; i++)
#pragma unroll
                for (int u = 0; u < PIECES; u++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        to[i / 2][u][i % 2 * 2 + h] = *reinterpret_cast<const unsigned*>(
                            first + (u * 16 + h * 8) * LONG + (part * IN_LINE + i * 4) * 4);
        } else {
            const unsigned row = at.left_row(0, 0, at.g) + shift_of(shifts, at.t);
            const unsigned lines = at.t * CLASS_BYTES + row / 32 * EACH * LINE_BYTES;
#pragma unroll
            for (int i = 0; i < IN_LINE / CLASSES; i++) {
                unsigned first = lines + ((row % 32 / 4 ^ (at.t + i % 4) % 8) << 4) + row % 4 * 4;
                if (i >= 4) first ^= 64;  // as at.t + i does, in fewer registers
#pragma unroll
                for (int u = 0; u < PIECES; u++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        to[i / 2][u][i % 2 * 2 + h] = *reinterpret_cast<const unsigned*>(
                            tile + first + ((u * 2 + h) * EACH + part * 8 + i) * LINE_BYTES);
            }
        }
    }
    // A part of a step, `first` or not of a unit. Fragments must not change before it has ended.
    __device__ __forceinline__ void multiply_part(Sums& sum, int part, bool first,
                                                  Fragments& fragments) {
        const unsigned long long right =
            tile_descriptor(stages.base + ring.stage * STAGE_BYTES +
                            (part * RIGHT + at.right * OWN_RIGHT) * LINE_BYTES);
        if (part == 0) mbarrier_wait(stages.full + 8 * ring.stage, ring.parity);
        read_fragments(fragments, part);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < IN_LINE / 8; x++)
#pragma unroll
            for (int u = 0; u < PIECES; u++)
                wgmma_tf32(sum[u], fragments[x][u], right + x * 2, true);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the part before has ended: its stage may be filled again
        if (part == 0 && !first) release();
        if (part == PARTS - 1) ring.advance();
    }
    // The stage before the ring's may be filled again.
    __device__ __forceinline__ void release() const {
        const unsigned before = (ring.stage == 0 ? STAGES : ring.stage) - 1;
        if (threadIdx.x % 128 == 0) mbarrier_arrive(stages.empty + 8 * before);
    }
    // sum = op(A) op(B) of a unit of so many steps. All sums begin as zeros: then the compiler need
    // not keep those of the unit before while it stores them.
    __device__ __forceinline__ void multiply(Sums& sum, unsigned steps) {
#pragma unroll
        for (int e = 0; e < PIECES * OWN_RIGHT / 2; e++)
            sum[e / (OWN_RIGHT / 2)][e % (OWN_RIGHT / 2)] = 0.0f;
        Fragments even, odd;  // one is multiplied while the other is read
        if constexpr (PARTS == 1) {
            unsigned x = 0;
            for (; x + 1 < steps; x += 2) {
                multiply_part(sum, 0, x == 0, even);
                multiply_part(sum, 0, false, odd);
            }
            wgmma_wait_group<0>();  // else ptxas serializes wgmma for want of registers
            if (x < steps) multiply_part(sum, 0, x == 0, even);
        } else {
            for (unsigned x = 0; x < steps; x++)
#pragma unroll
                for (int part = 0; part < PARTS; part += 2) {
                    multiply_part(sum, part, x == 0, even);
                    multiply_part(sum, part + 1, false, odd);
                }
        }
        wgmma_wait_group<0>();
        if (steps > 0) release();
    }
};

// The sum of column 8 j + 2 t + e of a run, for lane 4 g + t.
__device__ __forceinline__ constexpr int element(int run, int h, int j, int e) {
    return run * 16 + j * 4 + h * 2 + e;
}

// Numbers side by side that a lane stores at a time.
template <int WIDTH>
struct alignas(4 * WIDTH) Columns {
    float x[WIDTH];
};

// C <- alpha sum + beta C of a warpgroup, or a part of the sums as it is.
struct Output {
    float* C;
    long long ld;
    unsigned m, n;
    float alpha, beta;
    bool aligned;  // rows of C start at multiples of 16 bytes
    EPILOGUE_MEMBER

    // Rows before end_m are stored.
    __device__ __forceinline__ void store(const Sums& sum, const Unit& unit, const Place& at,
                                          unsigned end_m, unsigned char* staged) const {
        const bool whole = aligned && !partly_stored(unit.i0, unit.j0, MB, NB);
        unsigned char* const own = staged + at.warp * (HIGH * PITCH);
#pragma unroll
        for (int u = 0; u < PIECES; u++)
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                const unsigned first = at.right * OWN_RIGHT + run * 32;
                const unsigned i0 = unit.i0 + (TURNED ? first : 0);
                const unsigned j0 = unit.j0 + (TURNED ? (at.left * PIECES + u) * 64 : first);
                if (i0 >= m || j0 >= n) continue;
                synchronize(at);
                if constexpr (TURNED)
                    stage_rows(sum[u], run, at, staged);
                else
                    stage_columns(sum[u], run, at, own);
                synchronize(at);
                if (whole)
                    copy<4>(own, i0, j0, u, at, end_m);
                else
                    copy<1>(own, i0, j0, u, at, end_m);
            }
    }
    // Those who store a piece of C together.
    static __device__ __forceinline__ void synchronize(const Place& at) {
        if (TURNED)
            warpgroup_sync(at.group + 1);
        else
            __syncwarp();
    }
    // A run of 32 columns of the warp's 16 rows to shared memory.
    static __device__ __forceinline__ void stage_columns(const float (&sum)[OWN_RIGHT / 2], int run,
                                                         const Place& at, unsigned char* to) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                *reinterpret_cast<float2*>(to + (h * 8 + at.g) * PITCH + (j * 8 + at.t * 2) * 4) = {
                    sum[element(run, h, j, 0)], sum[element(run, h, j, 1)]};
    }
    // A run of 32 rows of the warpgroup's 64 columns.
    static __device__ __forceinline__ void stage_rows(const float (&sum)[OWN_RIGHT / 2], int run,
                                                      const Place& at, unsigned char* to) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int x = 0; x < 8; x++)
                *reinterpret_cast<float*>(to + (x / 2 * 8 + at.t * 2 + x % 2) * PITCH +
                                          at.left_row(0, h, at.g) % 64 * 4) =
                    sum[element(run, h, x / 2, x % 2)];
    }
    // Where row y of a warp in shared memory belongs, in C from i0 on.
    static __device__ __forceinline__ unsigned row_of(unsigned y, int u, const Place& at) {
        return TURNED ? at.warp * 8 + y : at.left_row(u, y / 8, y % 8);
    }
    // The warp's rows from shared memory to C, WIDTH columns for a lane at a time.
    template <int WIDTH>
    __device__ __forceinline__ void copy(const unsigned char* staged, unsigned i0, unsigned j0,
                                         int u, const Place& at, unsigned end_m) const {
        constexpr unsigned IN_ROW = WIDE / WIDTH, COUNT = HIGH * IN_ROW / 32;
        constexpr unsigned BATCH = COUNT < 8 || FILL != 0 ? 4 : 8;  // read before one is stored
#pragma unroll 1
        for (unsigned e = threadIdx.x % 32; e < COUNT * 32; e += BATCH * 32) {
            Columns<WIDTH> x[BATCH];
#pragma unroll
            for (unsigned b = 0; b < BATCH; b++) {
                const unsigned y = (e + b * 32) / IN_ROW, from = (e + b * 32) % IN_ROW * WIDTH;
                const unsigned row = i0 + row_of(y, u, at), column = j0 + from;
                x[b] = *reinterpret_cast<const Columns<WIDTH>*>(staged + y * PITCH + from * 4);
                if (SPLIT == 1 && row < end_m && column < n) finish(x[b], row, column);
            }
#pragma unroll
            for (unsigned b = 0; b < BATCH; b++) {
                const unsigned y = (e + b * 32) / IN_ROW, from = (e + b * 32) % IN_ROW * WIDTH;
                const unsigned row = i0 + row_of(y, u, at), column = j0 + from;
                if (row < end_m && column < n && (WIDTH > 1 || is_stored(row, column)))
                    *reinterpret_cast<Columns<WIDTH>*>(C + row * ld + column) = x[b];
            }
        }
    }
    // Sums as they are stored.
    template <int WIDTH>
    __device__ __forceinline__ void finish(Columns<WIDTH>& sums, unsigned row,
                                           unsigned column) const {
        Columns<WIDTH> before = {};
        if (beta != 0.0f) before = *reinterpret_cast<const Columns<WIDTH>*>(C + row * ld + column);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            float x = alpha * sums.x[e];
            if (beta != 0.0f) x += beta * before.x[e];
            sums.x[e] = FINISHED(x, row, column + e);
        }
    }
};

// A warpgroup that multiplies: all its units. The first time round nothing is multiplied or stored:
// the instructions come from device memory while the first tiles do.
__device__ __forceinline__ void consume(const Product& p, Output out, Consumer consumer,
                                        unsigned char* staged, float* parts) {
    if (SPLIT > 1) out.ld = (out.n + 3ll) / 4 * 4, out.aligned = true;
    unsigned warm_up = 1;
    make_opaque(warm_up);  // else the code would be there twice
    for (unsigned id = blockIdx.x; id < p.units();) {
        const Unit unit = p[id];
        Sums sum;
        consumer.multiply(sum, warm_up ? 0 : unit.steps);
        if (SPLIT > 1) out.C = parts + 1ll * unit.part * out.m * out.ld;
        out.store(sum, unit, consumer.at, warm_up ? 0 : out.m, staged);
        id += warm_up ? 0 : gridDim.x;
        warm_up = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int aligned_c, float* C, long long ldc, long long batch_c,
         float* parts, unsigned shifts EPILOGUE_PARAMETER) {
    extern __shared__ unsigned char shared[];
    unsigned char* const aligned = shared + (-address_of_shared(shared) & 1023);
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES;
    const unsigned full = address_of_shared(staging + CONSUMERS * STAGED_BYTES);
    const Product p{1, (k + KB - 1u) / KB, (m + MB - 1u) / MB, (n + NB - 1u) / NB};
    const Stages stages{address_of_shared(aligned), full, full + 8 * STAGES};
    // Uniform in each warp, and the compiler is told so: descriptors and what TMA is asked for then
    // stay in uniform registers.
    const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(stages.full + 8 * s, PRODUCERS);
            mbarrier_init(stages.empty + 8 * s, CONSUMERS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % 32 == 0) {
            griddepcontrol_wait();
            produce(p, stages, maps, warp % 4);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(p,
                {C, ldc, unsigned(m), unsigned(n), alpha, beta, aligned_c != 0 EPILOGUE_ARGUMENT},
                {aligned, stages, Place(warp), shifts, {}}, staging + group * STAGED_BYTES, parts);
    }
}
