// 17 wgmma in place: rows that start anywhere, without a copy of A or B.
//
// 16-bit elements in, sums in float32, 16-bit elements or float32 out, as in kernel 07. That copies
// operands whose rows do not start at multiples of 16 bytes: a launch of 2.3 us before the product,
// which reads and writes all of them. Here eight tensor maps describe an operand: map c has its
// rows c, c + 8, c + 16 ..., a class of rows (common/row_classes.cuh). TMA loads the tiles from
// where they are, one class after the other. Of a K-major A:
//
//     row of op(A)   0  1  2  3  4  5  6  7  8  9 ...        loaded by
//     class          0  1  2  3  4  5  6  7  0  1 ...        warp 0: classes 0, 1; warp 1: 2, 3 ...
//     in the tile    0  8 16 24 32 40 48 56  1  9 ...        (64 rows: 8 of each class)
//
// - K-major operands: the tile's rows are rows (A) or columns (B) of C in that order. A lane finds
//   in its sums of eight 8 x 8 pieces 16 columns of C side by side. Rows go to their places one by
//   one, as each warp stores its own.
// - Both operands MN-major: rows of the tiles are steps along k, in the same order in both.
// - A K-major, B MN-major: wgmma takes A from registers, where a lane puts the steps of a row into
//   the order that B has. What it needs of a row are 32 bytes side by side.
// - A MN-major, B K-major (both transposed): the same of C^T = B^T A^T. The two swap roles, and C
//   is transposed on its way through shared memory.
// - Four warps load, a thread of each, because a step has at least eight boxes of A and of B.
//
// Boxes are small, 1 to 4 KiB, and rows begin within lines of L2. Kernel 07 should be faster for
// products so large that its copy takes little of the time, and where nothing is to be copied.
//
// It was not timed on a GPU yet.

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
#define MB 128  // rows of C that one block computes; columns where both are transposed
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes; then rows
#endif
#ifndef KB
#define KB 64  // depth of a tile
#endif
#ifndef TA
#define TA 64  // of these, those of one warpgroup
#endif
#ifndef TB
#define TB 128  // of these, those of one warpgroup
#endif
#ifndef STAGES
#define STAGES 6  // tiles in shared memory
#endif
#ifndef SPLIT
#define SPLIT 1  // parts that k is split into
#endif
#define CLUSTER 1

#include "common/hopper.cuh"
#include "common/row_classes.cuh"
#include "common/split_k_schedule.cuh"
#include "common/wgmma_registers.cuh"

// From here on A is what gives the rows of a tile, and the tile is one of C^T where A and B are
// SWAPPED.
constexpr bool SWAPPED = TRANS_A && TRANS_B;
constexpr bool A_K_MAJOR = !TRANS_A || SWAPPED, B_K_MAJOR = TRANS_B && !SWAPPED;
constexpr bool VIA_REGISTERS = A_K_MAJOR && !B_K_MAJOR;  // A is multiplied

constexpr int WARPGROUPS_N = NB / TB, CONSUMERS = MB / TA * WARPGROUPS_N;  // one more loads
constexpr int THREADS = 128 * (CONSUMERS + 1), PRODUCERS = 4;              // warps that load
constexpr int A_BYTES = MB * KB * sizeof(REAL), STAGE_BYTES = A_BYTES + NB * KB * sizeof(REAL);
constexpr int PIECE = 8 * LINE_BYTES;  // bytes of 8 rows of a K-major tile
constexpr int PILE = KB * LINE_BYTES;  // of 64 columns of an MN-major one
constexpr int ROWS = TA / 64;          // pieces of 64 rows of a warpgroup

// C is stored in pieces of 64 x 64, 16 rows of them by each warp. In shared memory rows are 16
// bytes further apart than they are long: lanes that store or read rows one below the other meet
// different banks.
constexpr int PITCH = 64 * sizeof(OUT) + 16;
constexpr int STAGED_BYTES = SPLIT > 1 ? 0 : 16 * PITCH;

#include "common/warpgroups.cuh"

static_assert(MB % TA == 0 && TA % 64 == 0 && NB % TB == 0 && TB % 64 == 0,
              "warpgroups tile the block evenly: TA divides MB, TB divides NB, 64 divides both");
static_assert(MB <= 256 && NB <= 256, "MB and NB are at most 256");
static_assert(KB == 64, "a step is as deep as a box: KB is 64");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(CONSUMERS <= 4 && TA * TB / 128 + (VIA_REGISTERS ? TA / 2 : 0) + 40 <=
                                    CONSUMER_REGISTERS,
              "TA TB / 128 (+ TA / 2 of A in registers) <= 192 (3, 4 warpgroups: 120, 64)");

#include "common/combine.cuh"

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

// One thread of a warp that loads: its classes of all tiles.
__device__ __forceinline__ void produce(const Product& p, const Stages& stages, const RowClasses& a,
                                        const RowClasses& b, unsigned warp) {
    constexpr unsigned SHARE = CLASSES / PRODUCERS;
#pragma unroll
    for (unsigned c = warp * SHARE; c < warp * SHARE + SHARE; c++)
        if (p.steps > 0) prefetch_tensormap(a.maps + c), prefetch_tensormap(b.maps + c);
    Ring ring{0, 1};  // all stages are empty
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit = p[id];
        for (unsigned step = 0; step < unit.steps; step++, ring.advance()) {
            const unsigned tile_a = stages.base + ring.stage * STAGE_BYTES;
            const unsigned full = stages.full + 8 * ring.stage, k0 = (unit.first + step) * KB;
            mbarrier_wait(stages.empty + 8 * ring.stage, ring.parity);
            mbarrier_expect_tx(full, STAGE_BYTES / PRODUCERS);
#pragma unroll
            for (unsigned x = 0; x < SHARE; x++) {
                const unsigned c = warp * SHARE + x;
                a.load<A_K_MAJOR, MB>(tile_a, c, full, unit.i0, k0);
                b.load<B_K_MAJOR, NB>(tile_a + A_BYTES, c, full, unit.j0, k0);
            }
        }
    }
}

// A tile of wgmma that is K-major, its pieces of 8 rows `apart` bytes apart.
__device__ __forceinline__ unsigned long long k_major(unsigned address, unsigned apart) {
    return (address & 0x3FFFFu) >> 4 | static_cast<unsigned long long>(apart >> 4) << 32 |
           1ull << 62;
}

// 16 bytes of shared memory, read or written at a time.
struct alignas(16) Words {
    unsigned x[4];
};

// Steps of 16 along k of 64 rows of A.
using Fragments = unsigned[KB / 16][4];

// Of a warp's 16 rows of A in shared memory each lane reads 32 bytes of two rows, steps
// 16 t .. 16 t + 15, and puts step 8 i + c, which B has in row i of class c, where row 8 c + i of
// B's tile is multiplied.
__device__ __forceinline__ void read_fragments(Fragments& a, const unsigned char* tile) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const unsigned char* const row =
            tile + (2 * warp + h) * (MB / CLASSES) * LINE_BYTES + g * LINE_BYTES;
        const Words low = *reinterpret_cast<const Words*>(row + ((2 * (lane % 4) ^ g) << 4));
        const Words high = *reinterpret_cast<const Words*>(row + ((2 * (lane % 4) + 1 ^ g) << 4));
#pragma unroll
        for (int x = 0; x < KB / 16; x++) {
            a[x][h] = (low.x[x] & 0xFFFF) | high.x[x] << 16;
            a[x][2 + h] = low.x[x] >> 16 | (high.x[x] & 0xFFFF0000);
        }
    }
}

// One warpgroup that multiplies: where its tiles are, and its place in the ring.
struct Consumer {
    const unsigned char* shared;  // the stages
    Stages stages;
    unsigned at_a, at_b;  // of its rows and columns in a stage
    Ring ring;

    // One step, `first` or not of a unit. With A from registers, `a` must not change before the
    // step has ended.
    __device__ __forceinline__ void step(float (&sum)[ROWS][TB / 2], bool first,
                                         Fragments (&a)[ROWS]) {
        const unsigned tile_a = stages.base + ring.stage * STAGE_BYTES + at_a;
        const unsigned tile_b = stages.base + ring.stage * STAGE_BYTES + A_BYTES + at_b;
        const unsigned long long b =
            B_K_MAJOR ? k_major(tile_b, NB / TB * PIECE) : mn_major_descriptor<64, KB>(tile_b);
        constexpr unsigned STEP_A = A_K_MAJOR ? 32 : 16 * LINE_BYTES,
                           STEP_B = B_K_MAJOR ? 32 : 16 * LINE_BYTES,
                           PIECE_A = A_K_MAJOR ? PIECE : PILE;
        mbarrier_wait(stages.full + 8 * ring.stage, ring.parity);
        if constexpr (VIA_REGISTERS) {
#pragma unroll
            for (int u = 0; u < ROWS; u++)
                read_fragments(a[u], shared + ring.stage * STAGE_BYTES + at_a + u * PIECE_A);
        }
        const unsigned long long in_memory = A_K_MAJOR
                                                 ? k_major(tile_a, MB / 64 * PIECE)
                                                 : mn_major_descriptor<64, KB>(tile_a);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < KB / 16; x++)
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                if constexpr (VIA_REGISTERS)
                    wgmma<B_K_MAJOR>(REAL{}, sum[u], a[u][x], b + x * STEP_B / 16, true);
                else
                    wgmma<A_K_MAJOR, B_K_MAJOR>(REAL{}, sum[u],
                                             in_memory + (u * PIECE_A + x * STEP_A) / 16,
                                             b + x * STEP_B / 16, true);
            }
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the step before has ended: its stage may be filled again
        if (!first) release();
        ring.advance();
    }
    // The stage before the ring's may be filled again.
    __device__ __forceinline__ void release() const {
        const unsigned before = (ring.stage == 0 ? STAGES : ring.stage) - 1;
        if (threadIdx.x % 128 == 0) mbarrier_arrive(stages.empty + 8 * before);
    }
    // sum = op(A) op(B) of a unit of so many steps. All sums begin as zeros: then the compiler need
    // not keep those of the unit before while it stores them.
    __device__ __forceinline__ void multiply(float (&sum)[ROWS][TB / 2], unsigned steps) {
#pragma unroll
        for (int e = 0; e < ROWS * TB / 2; e++) sum[e / (TB / 2)][e % (TB / 2)] = 0.0f;
        Fragments even[ROWS], odd[ROWS];  // one is multiplied while the other is read
        unsigned x = 0;
        for (; x + 1 < steps; x += 2) {
            step(sum, x == 0, even);
            step(sum, false, odd);
        }
        wgmma_wait_group<0>();  // else ptxas serializes wgmma for want of registers
        if (x < steps) step(sum, x == 0, even);
        wgmma_wait_group<0>();
        if (steps > 0) release();
    }
};

// Where a lane's sums of 64 rows and TB columns of a tile belong: sum[4 j + 2 h + e] of lane
// 4 g + t. Rows and columns of a K-major operand are those of class 0, of class 1, and so on. A
// warpgroup's columns come in pieces of 64, of a K-major B every NB / TBth of the tile's.
__device__ __forceinline__ unsigned row_of(unsigned h) {
    const unsigned g = threadIdx.x % 32 / 4, warp = threadIdx.x % 128 / 32;
    return A_K_MAJOR ? g * 8 + warp * 2 + h : warp * 16 + h * 8 + g;
}
__device__ __forceinline__ unsigned column_in_piece(int e) {
    const unsigned t = threadIdx.x % 4, j = e / 4;
    return B_K_MAJOR ? t * 16 + e % 2 * 8 + j / (TB / 64) : j % 8 * 8 + t * 2 + e % 2;
}
// Where a piece begins in the block's tile.
__device__ __forceinline__ unsigned piece_column(unsigned group, int piece) {
    const unsigned right = group % WARPGROUPS_N;
    return B_K_MAJOR ? (piece * WARPGROUPS_N + right) * 64 : right * TB + piece * 64;
}
// The sum of column `column` of 16 in the piece of 64 columns, where B is K-major.
__device__ __forceinline__ constexpr int element(int piece, int h, int column) {
    return (column % 8 * (TB / 64) + piece) * 4 + h * 2 + column / 8;
}

// C <- alpha sum + beta C of a warpgroup.
struct Output {
    OUT* C;
    float* parts;
    long long ld;
    unsigned m, n;  // rows and columns of C that are stored
    float alpha, beta;
    bool aligned;  // rows of C start at multiples of 16 bytes
    EPILOGUE_MEMBER

    // 64 rows from i0 on and TB columns of a tile that begins at column j0. `staging` is the
    // warpgroup's.
    __device__ __forceinline__ void store(float (&sum)[TB / 2], unsigned i0, unsigned j0,
                                          unsigned char* staging, unsigned group) const {
        const unsigned warp = threadIdx.x % 128 / 32;
#pragma unroll
        for (int piece = 0; piece < TB / 64; piece++) {
            const unsigned j = j0 + piece_column(group, piece);
            const unsigned row = SWAPPED ? j : i0, column = SWAPPED ? i0 : j;
            if (column >= n || !any_stored(row, column, 64, 64)) continue;
            scale(sum, piece, i0, j);
            SWAPPED ? warpgroup_sync(group + 1) : __syncwarp();
            SWAPPED ? stage_transposed(sum, piece, staging) : stage(sum, piece, staging);
            SWAPPED ? warpgroup_sync(group + 1) : __syncwarp();
            copy(staging + warp * STAGED_BYTES, row, column);
        }
    }
    // The elements of a piece, whose columns begin at j0, as they are stored.
    __device__ __forceinline__ void scale(float (&sum)[TB / 2], int piece, unsigned i0,
                                          unsigned j0) const {
#pragma unroll
        for (int x = 0; x < 32; x++) {
            const int e = B_K_MAJOR ? (x / 4 * (TB / 64) + piece) * 4 + x % 4 : piece * 32 + x;
            const unsigned i = i0 + row_of(e / 2 % 2), j = j0 + column_in_piece(e);
            const unsigned row = SWAPPED ? j : i, column = SWAPPED ? i : j;
            sum[e] *= alpha;
            if (beta != 0.0f && row < m && column < n && is_stored(row, column))
                sum[e] += beta * widen(C[row * ld + column]);
            sum[e] = FINISHED(sum[e], row, column);
        }
    }
    // A warp's 16 rows of 64 columns to shared memory, in the order of the tile.
    static __device__ __forceinline__ void stage(const float (&sum)[TB / 2], int piece,
                                                 unsigned char* staging) {
        constexpr int EACH = 16 / sizeof(OUT);  // columns that are stored at a time
        const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            unsigned char* const row =
                staging + (threadIdx.x % 128 / 32 * 16 + h * 8 + g) * PITCH;
            if constexpr (B_K_MAJOR) {
#pragma unroll
                for (int x = 0; x < 16; x += EACH) {
                    float s[EACH];
#pragma unroll
                    for (int y = 0; y < EACH; y++) s[y] = sum[element(piece, h, x + y)];
                    store_columns(row + (t * 16 + x) * sizeof(OUT), s);
                }
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const float* const s = sum + (piece * 8 + j) * 4 + h * 2;
                    store_pair(row + (j * 8 + t * 2) * sizeof(OUT), s[0], s[1]);
                }
            }
        }
    }
    // The same of 64 columns of a tile, which are rows of C: a lane's two rows of the tile are
    // columns of C side by side.
    static __device__ __forceinline__ void stage_transposed(const float (&sum)[TB / 2], int piece,
                                                            unsigned char* staging) {
        const unsigned t = threadIdx.x % 4;
#pragma unroll
        for (int x = 0; x < 16; x++) {
            const float* const s = sum + (piece * 8 + x / 2) * 4 + x % 2;
            store_pair(staging + (x / 2 * 8 + t * 2 + x % 2) * PITCH + row_of(0) * sizeof(OUT),
                       s[0], s[2]);
        }
    }
    // 16 bytes of numbers.
    static __device__ __forceinline__ void store_columns(unsigned char* to, const float (&s)[4]) {
        *reinterpret_cast<float4*>(to) = {s[0], s[1], s[2], s[3]};
    }
    static __device__ __forceinline__ void store_columns(unsigned char* to, const float (&s)[8]) {
        *reinterpret_cast<Words*>(to) = {narrow(REAL{}, s[0], s[1]), narrow(REAL{}, s[2], s[3]),
                                         narrow(REAL{}, s[4], s[5]), narrow(REAL{}, s[6], s[7])};
    }
    static __device__ __forceinline__ void store_pair(unsigned char* to, float first,
                                                      float second) {
        if constexpr (sizeof(OUT) == 4)
            *reinterpret_cast<float2*>(to) = {first, second};
        else
            *reinterpret_cast<unsigned*>(to) = narrow(REAL{}, first, second);
    }
    // The row of 64 that is `x`th of a warp's 16 in shared memory.
    static __device__ __forceinline__ unsigned staged_row(unsigned x) {
        const unsigned warp = threadIdx.x % 128 / 32;
        return A_K_MAJOR && !SWAPPED ? x % 8 * 8 + warp * 2 + x / 8 : warp * 16 + x;
    }
    // A warp's 16 rows from shared memory to C.
    __device__ __forceinline__ void copy(const unsigned char* staged, unsigned row0,
                                         unsigned column0) const {
        constexpr unsigned EACH = 16 / sizeof(OUT), CHUNKS = 64 / EACH;
        const unsigned lane = threadIdx.x % 32;
        if (aligned && !partly_stored(row0, column0, 64, 64)) {
#pragma unroll
            for (unsigned x = lane; x < 16 * CHUNKS; x += 32) {
                const unsigned row = row0 + staged_row(x / CHUNKS);
                const unsigned column = x % CHUNKS * EACH;
                if (row < m && column0 + column < n)
                    *reinterpret_cast<Words*>(C + row * ld + column0 + column) =
                        *reinterpret_cast<const Words*>(staged + x / CHUNKS * PITCH +
                                                        column * sizeof(OUT));
            }
            return;
        }
#pragma unroll 1
        for (unsigned x = 0; x < 16; x++) {
            const unsigned row = row0 + staged_row(x);
            if (row < m) copy_row(reinterpret_cast<const OUT*>(staged + x * PITCH), row, column0);
        }
    }
    // One row of 64 columns, 4 bytes at a time: where it starts at an odd element the words begin
    // with the second one.
    __device__ __forceinline__ void copy_row(const OUT* from, unsigned row,
                                             unsigned column0) const {
        constexpr unsigned IN_WORD = 4 / sizeof(OUT);
        OUT* const to = C + row * ld + column0;
        const unsigned odd = reinterpret_cast<size_t>(to) / sizeof(OUT) % IN_WORD;
        const int columns = n - column0 < 64 ? n - column0 : 64;
#pragma unroll 1
        for (int x = int(threadIdx.x % 32 * IN_WORD) - int(odd); x < columns; x += 32 * IN_WORD) {
            const int y = x + IN_WORD - 1;  // the last of the word
            const bool first = x >= 0 && is_stored(row, column0 + x);
            const bool last = y < columns && is_stored(row, column0 + y);
            if (IN_WORD == 2 && first && last) {
                const unsigned short low = *reinterpret_cast<const unsigned short*>(from + x);
                const unsigned short high = *reinterpret_cast<const unsigned short*>(from + y);
                *reinterpret_cast<unsigned*>(to + x) = low | unsigned(high) << 16;
            } else {
                if (first) to[x] = from[x];
                if (IN_WORD == 2 && last) to[y] = from[y];
            }
        }
    }
    // The sums of a part as they are.
    __device__ __forceinline__ void store_part(const float (&sum)[TB / 2], unsigned part,
                                               unsigned i0, unsigned j0, unsigned group) const {
        const unsigned pitch = (n + 3) / 4 * 4, t = threadIdx.x % 4;
        float* const to = parts + 1ull * part * m * pitch;
        if constexpr (SWAPPED) {
            const unsigned column = i0 + row_of(0);
#pragma unroll
            for (int x = 0; x < TB / 4; x++) {
                const unsigned row =
                    j0 + piece_column(group, x / 16) + x % 16 / 2 * 8 + t * 2 + x % 2;
                const float* const s = sum + x / 2 * 4 + x % 2;
                if (row < m && column < pitch)
                    *reinterpret_cast<float2*>(to + 1ull * row * pitch + column) = {s[0], s[2]};
            }
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned row = i0 + row_of(h);
                if (row < m) store_part_of_row(sum, h, to + 1ull * row * pitch, j0, pitch, group);
            }
        }
    }
    static __device__ __forceinline__ void store_part_of_row(const float (&sum)[TB / 2], int h,
                                                             float* row, unsigned j0,
                                                             unsigned pitch, unsigned group) {
        const unsigned t = threadIdx.x % 4;
        if constexpr (B_K_MAJOR) {
#pragma unroll
            for (int x = 0; x < TB / 4; x += 4) {
                const unsigned column = j0 + piece_column(group, x / 16) + t * 16 + x % 16;
                float4 s;
                s.x = sum[element(x / 16, h, x % 16)];
                s.y = sum[element(x / 16, h, x % 16 + 1)];
                s.z = sum[element(x / 16, h, x % 16 + 2)];
                s.w = sum[element(x / 16, h, x % 16 + 3)];
                if (column < pitch) *reinterpret_cast<float4*>(row + column) = s;
            }
        } else {
#pragma unroll
            for (int j = 0; j < TB / 8; j++) {
                const unsigned column = j0 + piece_column(group, j / 8) + j % 8 * 8 + t * 2;
                const float* const s = sum + j * 4 + h * 2;
                if (column < pitch) *reinterpret_cast<float2*>(row + column) = {s[0], s[1]};
            }
        }
    }
};

// A warpgroup that multiplies: all its units. The first time round nothing is multiplied or stored:
// the instructions come from device memory while the first tiles do.
__device__ __forceinline__ void consume(const Product& p, const Output& result, Consumer consumer,
                                        unsigned char* staging, unsigned group) {
    unsigned warm_up = 1;
    make_opaque(warm_up);  // else the code would be there twice
    for (unsigned id = blockIdx.x; id < p.units();) {
        const Unit unit = p[id];
        const unsigned i0 = unit.i0 + group / WARPGROUPS_N * TA;
        Output out = result;
        if (warm_up) out.m = 0;
        float sum[ROWS][TB / 2];
        consumer.multiply(sum, warm_up ? 0 : unit.steps);
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            if constexpr (SPLIT == 1)
                out.store(sum[u], i0 + u * 64, unit.j0, staging, group);
            else if (!warm_up)
                out.store_part(sum[u], unit.part, i0 + u * 64, unit.j0, group);
        }
        id += warm_up ? 0 : gridDim.x;
        warm_up = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int aligned_c, OUT* C, long long ldc, long long batch_c,
         float* parts, unsigned shifts_a, unsigned shifts_b EPILOGUE_PARAMETER) {
    extern __shared__ unsigned char shared[];
    unsigned char* const aligned = shared + (-address_of_shared(shared) & 1023);
    unsigned char* const staging = aligned + STAGES * STAGE_BYTES;
    const unsigned full = address_of_shared(staging + CONSUMERS * 4 * STAGED_BYTES);
    const unsigned rows = SWAPPED ? n : m, columns = SWAPPED ? m : n;
    const Product p{1, (k + KB - 1u) / KB, (rows + MB - 1) / MB, (columns + NB - 1) / NB};
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
            const RowClasses a{maps.a, shifts_a}, b{maps.b, shifts_b};
            produce(p, stages, SWAPPED ? b : a, SWAPPED ? a : b, warp % 4);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const unsigned down = group / WARPGROUPS_N, right = group % WARPGROUPS_N;
        constexpr unsigned PIECES_A = TA / 64 * (A_K_MAJOR ? PIECE : PILE);
        constexpr unsigned PIECES_B = B_K_MAJOR ? PIECE : TB / 64 * PILE;
        consume(p,
                {C, parts, ldc, unsigned(m), unsigned(n), alpha, beta,
                 aligned_c != 0 EPILOGUE_ARGUMENT},
                {aligned, stages, down * PIECES_A, right * PIECES_B, {}},
                staging + group * 4 * STAGED_BYTES, group);
    }
}
