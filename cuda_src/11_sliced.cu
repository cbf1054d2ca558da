// 11 sliced: for products that are skinny, deep or small. The warps of a block share one tile of C,
// and each takes its own slices of k.
//
// 8192 x 16 x 8192 has 128 tiles of 64 x 16, each with work for one warp: a multiprocessor with one
// warp waits most of the time. Here SLICES warps compute the same tile, from different slices: KB
// columns of A and KB rows of B.
//
//     slices of k    | 0 | 1 | 2 | 3 | 0 | 1 | 2 | 3 | 0 | ...    SLICES 4: which warp takes it
//
// - Each warp has a ring of STAGES slices, which it fills by cp.async and waits for alone: no block
//   has a barrier in its main loop, and while one warp begins a slice the others multiply.
// - Where tiles are fewer than multiprocessors, SPLIT blocks share one and take turns in the same
//   way. What is fetched at one time then lies side by side (parts of k far apart: 15 % slower),
//   and L2 fetches whole lines (18 % where a slice has 64 bytes of each).
// - At the end a block adds up its warps, and the blocks are added up in a tree
//   (common/gather.cuh), both in a fixed order.
// - An operand lies in shared memory as in global memory. One that lies along k is read 16 bytes of
//   k at a time: TA reads give a thread its TA rows of four columns.
//
// One H200: 8192 x 16 x 8192 in 76 us, where reading takes 60 and cuBLAS 144; 64 x 64 x 262144 in
// 60 us (92); 256 x 256 x 256 in 5.9 us (11.4). Large products are not for it: each warp fetches
// all of its own 64 x 64, so that 2048 cubed is at 0.92 of cuBLAS.

#include "common/tile.cuh"
#include "common/ptx.cuh"
#include "common/schedule.cuh"

#ifndef MB
#define MB 64  // rows of C that one block computes, and each of its warps
#endif
#ifndef NB
#define NB 64  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // depth of a slice
#endif
#ifndef TA
#define TA 16  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 8  // columns of C that one thread computes
#endif
#ifndef SLICES
#define SLICES 8  // warps that share a tile
#endif
#ifndef STAGES
#define STAGES 2  // slices of each warp in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 1  // blocks that one multiprocessor is to hold: bounds the registers of a thread
#endif

#include "common/pieces.cuh"
#include "common/gather.cuh"

constexpr int ACROSS = NB / TB;  // threads of a warp along n; MB / TA lie along m
constexpr int THREADS = 32 * SLICES;
constexpr int TURN = SPLIT * SLICES;  // slices from one of a warp to its next

static_assert(MB % TA == 0 && NB % TB == 0 && MB / TA * (NB / TB) == 32,
              "each warp computes the whole tile: MB / TA * NB / TB is 32");
static_assert(TA % VECTOR == 0 && TB % VECTOR == 0 && KB % VECTOR == 0,
              "fragments are made of 16-byte vectors");
static_assert(STAGES >= 2, "a slice is fetched while another is used: STAGES >= 2");
static_assert(MB * NB % (THREADS * VECTOR) == 0, "threads share the vectors of a tile evenly");

// OUTER x KB elements of op(A) (or of op(B)^T) in shared memory. Stored along k (ALONG) they are
// OUTER lines of KB elements, otherwise KB lines of OUTER. Eight lanes that read 16 bytes each from
// one column of eight lines along k would meet in few banks: so the vectors of a line change places
// (`turn`), and what eight lanes read or write at a time lies in eight different groups of banks.
template <bool ALONG, int OUTER, int T>
struct Slice {
    static constexpr int LINE = ALONG ? KB : OUTER, LINES = ALONG ? OUTER : KB;
    static constexpr int IN_LINE = LINE / PIECE, COPIES = IN_LINE * LINES;
    static constexpr int ELEMENTS = LINE * LINES, LANES = OUTER / T;
    static_assert(LINE % PIECE == 0 && (32 % IN_LINE == 0 || IN_LINE % 32 == 0),
                  "the lanes of a warp share the lines of a slice evenly");

    const REAL* source;  // the lane's first piece of the next slice
    long long ld;
    unsigned line, at;  // where that piece lies within the slice
    int down, along;    // from it to the matrix's end, across lines and along them, at k = 0

    __device__ __forceinline__ Slice(const REAL* X, long long ld, unsigned first, unsigned outer,
                                     unsigned k0, int k, unsigned lane)
        : ld(ld), line(lane / IN_LINE), at(lane % IN_LINE * PIECE) {
        source = X + (ALONG ? (first + line) * ld + k0 + at : (k0 + line) * ld + first + at);
        down = int(ALONG ? outer - first : k) - int(line);
        along = int(ALONG ? k : outer - first) - int(at);
    }

    // Vector x of a line lies where vector x ^ turn(line) would; turn(i + j) is turn(i) ^ turn(j)
    // if i and j have no bit in common.
    static __device__ __forceinline__ unsigned turn(unsigned line) {
        constexpr int TURNS = !ALONG ? 1 : KB / VECTOR < 8 ? KB / VECTOR : 8;
        return line * TURNS / 8 % TURNS;
    }

    // Ask for the next slice of the warp, which begins at k0. CHECKED: it may stick out.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* slice, int k0, unsigned lane, AsyncCopies& copies) {
        const REAL* from = source;
        const int lines = ALONG ? down : down - k0, length = ALONG ? along - k0 : along;
        const unsigned vector = at / VECTOR ^ turn(line);
#pragma unroll
        for (int i = 0; i < COPIES; i += 32) {
            const int below = i / IN_LINE, beside = i % IN_LINE * PIECE;
            if (COPIES % 32 != 0 && COPIES - i < 32 && lane >= COPIES - i) break;
            const bool inside = !CHECKED || (below < lines && beside < length);
            const unsigned place = (vector ^ turn(below) ^ beside / VECTOR) * VECTOR + at % VECTOR;
            copies.copy_of_line<PIECE * sizeof(REAL)>(slice + (line + below) * LINE + place,
                                                      from + below * ld + beside, inside);
        }
        source += TURN * KB * (ALONG ? 1 : ld);
    }

    // Which row of the tile (of op(B)^T) is number i of the T that lane number `lane` computes.
    static __device__ __forceinline__ unsigned outer(unsigned lane, int i) {
        return ALONG ? lane + i * LANES
                     : lane * VECTOR + i / VECTOR * VECTOR * LANES + i % VECTOR;
    }

    // The lane's T rows, VECTOR columns from p on.
    static __device__ __forceinline__ void read(REAL (&fragment)[VECTOR][T], const REAL* slice,
                                                unsigned lane, int p) {
#pragma unroll
        for (int i = 0; i < T * VECTOR; i += VECTOR) {
            const int q = ALONG ? i / VECTOR : i % T, e = ALONG ? 0 : i / T;
            const unsigned turned = turn(lane) ^ turn(q * LANES) ^ p / VECTOR;
            const unsigned place = ALONG ? outer(lane, q) * KB + turned * VECTOR
                                         : (p + e) * OUTER + outer(lane, q);
            const Vector v = *reinterpret_cast<const Vector*>(slice + place);
#pragma unroll
            for (int x = 0; x < VECTOR; x++) fragment[ALONG ? x : e][ALONG ? q : q + x] = v.x[x];
        }
    }
};

using SliceA = Slice<!TRANS_A, MB, TA>;
using SliceB = Slice<TRANS_B, NB, TB>;

// sum += a b, VECTOR steps along k at a time. The numbers of one operand, used one after another in
// all steps, are the outer loop: those of the operand that lies along k, whose vectors run across
// the steps. In the inner loop every second sum and number of the other operand then sit in one
// register bank, and the order of the registers can keep the two apart.
__device__ __forceinline__ void multiply(REAL (&sum)[TA][TB], const REAL (&a)[VECTOR][TA],
                                         const REAL (&b)[VECTOR][TB]) {
    constexpr bool BY_ROWS = TRANS_A != TRANS_B ? TA <= TB : !TRANS_A;
    constexpr int OUTER = BY_ROWS ? TA : TB, INNER = BY_ROWS ? TB : TA;
#pragma unroll
    for (int o = 0; o < OUTER; o++)
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
#pragma unroll
            for (int x = 0; x < INNER; x++) {
                const int turned = e % 2 ? INNER - 1 - x : x;
                const int i = BY_ROWS ? o : turned, j = BY_ROWS ? turned : o;
                sum[i][j] += a[e][i] * b[e][j];
            }
}

constexpr int RING = STAGES * (SliceA::ELEMENTS + SliceB::ELEMENTS);  // elements of a warp's ring
constexpr int VECTORS = MB * NB / (THREADS * VECTOR);  // of the tile, for each thread at the end

// The sums of all warps, added in their order; each thread gets its vectors of the tile.
__device__ __forceinline__ void add_slices(Vector (&total)[VECTORS], const REAL (&sum)[TA][TB],
                                           REAL* shared, unsigned thread, unsigned y, unsigned x) {
    __syncthreads();  // no warp reads its ring any more
    REAL* const mine = shared + thread / 32 * (MB * NB);
#pragma unroll
    for (int i = 0; i < TA; i++)
#pragma unroll
        for (int j = 0; j < TB; j++)
            mine[SliceA::outer(y, i) * NB + SliceB::outer(x, j)] = sum[i][j];
    __syncthreads();
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        total[v] = Vector{};
        const REAL* from = shared + (v * THREADS + thread) * VECTOR;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const Vector other = *reinterpret_cast<const Vector*>(from + slice * (MB * NB));
#pragma unroll
            for (int e = 0; e < VECTOR; e++) total[v].x[e] += other.x[e];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c, void* workspace) {
    extern __shared__ __align__(16) unsigned char bytes[];
    REAL* const shared = reinterpret_cast<REAL*>(bytes);
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const unsigned y = lane / ACROSS, x = lane % ACROSS;
    unsigned i0, j0;
    tile_of(blockIdx.x, (m + MB - 1u) / MB, (n + NB - 1u) / NB, i0, j0);
    i0 *= MB;
    j0 *= NB;

    REAL sum[TA][TB] = {};
    // The blocks that share a tile take turns as their warps do.
    const unsigned begin = blockIdx.y * SLICES + warp, end = (k + KB - 1u) / KB;
    if (begin < end) {
        REAL* const As = shared + warp * RING;
        REAL* const Bs = As + STAGES * SliceA::ELEMENTS;
        AsyncCopies copies;
        SliceA slice_a(A + blockIdx.z * batch_a, lda, i0, m, begin * KB, k, lane);
        SliceB slice_b(B + blockIdx.z * batch_b, ldb, j0, n, begin * KB, k, lane);
        // Only slices on the edges of the matrices have anything to check.
        const bool inner = i0 + MB <= m && j0 + NB <= n;
        const auto fetch = [&](int stage, unsigned slice) {
            if (slice < end) {
                REAL* const a = As + stage * SliceA::ELEMENTS;
                REAL* const b = Bs + stage * SliceB::ELEMENTS;
                if (!GUARDED || (inner && (slice + 1) * KB <= k)) {
                    slice_a.fetch<false>(a, slice * KB, lane, copies);
                    slice_b.fetch<false>(b, slice * KB, lane, copies);
                } else {
                    slice_a.fetch<true>(a, slice * KB, lane, copies);
                    slice_b.fetch<true>(b, slice * KB, lane, copies);
                }
            }
            copies.commit();
        };
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) fetch(stage, begin + stage * TURN);
        int reading = 0, writing = STAGES - 1;
#pragma unroll 1
        for (unsigned slice = begin; slice < end; slice += TURN) {
            copies.wait<STAGES - 2>();
            __syncwarp();  // the copies of all lanes are there, and all have left the slice before
            fetch(writing, slice + (STAGES - 1) * TURN);
            const REAL* const a = As + reading * SliceA::ELEMENTS;
            const REAL* const b = Bs + reading * SliceB::ELEMENTS;
#pragma unroll
            for (int p = 0; p < KB; p += VECTOR) {
                REAL rows[VECTOR][TA], columns[VECTOR][TB];
                SliceA::read(rows, a, y, p);
                SliceB::read(columns, b, x, p);
                multiply(sum, rows, columns);
            }
            reading = reading + 1 == STAGES ? 0 : reading + 1;
            writing = writing + 1 == STAGES ? 0 : writing + 1;
        }
    }
    Vector total[VECTORS];
    add_slices(total, sum, shared, thread, y, x);
    unsigned& arrived = *reinterpret_cast<unsigned*>(bytes);
    if (!gather<THREADS>(total, workspace, thread, arrived)) return;
    C += blockIdx.z * batch_c;
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int e = 0; e < VECTOR; e += PIECE) {
            const unsigned at = (v * THREADS + thread) * VECTOR + e;
            const unsigned row = i0 + at / NB, column = j0 + at % NB;
            if (GUARDED && (row >= m || column >= n)) continue;
            Piece* const c = reinterpret_cast<Piece*>(C + row * ldc + column);
            Piece result = beta == REAL(0) ? Piece{} : *c;
#pragma unroll
            for (int i = 0; i < PIECE; i++) store(&result.x[i], alpha, total[v].x[e + i], beta);
            *c = result;
        }
}
