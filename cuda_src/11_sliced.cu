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
//   (common/split_k_tree.cuh), both in a fixed order.
// - An operand is stored in shared memory as in global memory. One that is K-major is read 16 bytes
//   of k at a time: TA reads give a thread its TA rows of four columns.
// - Or, with register tiles of 96 floats and more and slices of 8 rows: both operands are MN-major,
//   what is K-major is transposed by copies of 4 bytes, and rows are read one ahead. Then 6 to
//   17 % of the multiply-adds read two registers of one bank; four columns at a time had 20 to 30.
//   Copies of 4 bytes cost as much as that gains, except for rows at odd addresses, which need them
//   anyway: 641 in 24 us instead of 27 (64 x 64), 1024 in 53 either way.
// - With tiles of 40 x 80, 48 x 64 or 56 x 64 floats a small product has one for nearly each
//   multiprocessor of an H200: 640 cubed is 128 tiles of 40 x 80 (10 x 10 floats of a thread; NN in
//   18.8 us), but 100 of 32 x 128 (20.4); 641 cubed 132 of 56 x 64 (22.1; 121 of 64 x 64: 23.4). A
//   side of a register tile that is no multiple of four floats is read 8 bytes at a time.
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

#include "common/vector.cuh"
#include "common/split_k_tree.cuh"

constexpr int LANES_N = NB / TB;  // threads of a warp along n; MB / TA along m
constexpr int THREADS = 32 * SLICES;
constexpr int SLICE_STRIDE = SPLIT * SLICES;  // slices from one of a warp to its next
constexpr int ROWS = 8;                       // of a slice that is multiplied row by row
constexpr bool BY_ROWS = sizeof(REAL) == 4 && TA * TB >= 96 && KB == ROWS;

static_assert(MB % TA == 0 && NB % TB == 0 && MB / TA * (NB / TB) == 32,
              "each warp computes the whole tile: MB / TA * NB / TB is 32");
static_assert(TA % 2 == 0 && TB % 2 == 0 && MB % VECTOR == 0 && NB % VECTOR == 0 &&
                  KB % VECTOR == 0,
              "fragments are made of vectors of 16 or 8 bytes, lines of those of 16");
static_assert((KB & (KB - 1)) == 0, "the depth of a slice is a power of two");
static_assert(STAGES >= 2, "a slice is fetched while another is used: STAGES >= 2");

#include "common/warp_slices.cuh"

#define STRIDE 2  // has the fewest conflicts of registers, counted in machine code
#include "common/outer_product.cuh"

template <bool TURNED, bool K_MAJOR, int OUTER, int T>
struct SliceOf {
    using Type = Slice<K_MAJOR, OUTER, T>;
};
template <bool K_MAJOR, int OUTER, int T>
struct SliceOf<true, K_MAJOR, OUTER, T> {
    using Type = TransposedSlice<OUTER, T>;
};
using SliceA = SliceOf<BY_ROWS && !TRANS_A, !TRANS_A, MB, TA>::Type;
using SliceB = SliceOf<BY_ROWS && TRANS_B, TRANS_B, NB, TB>::Type;

// The slices of one warp, from slice `begin` of k on; `fetch` asks for a slice to go to a stage.
// Here VECTOR steps along k at a time: fragments as an operand along k gives them.
template <typename SliceA, typename SliceB, typename Fetch>
__device__ __forceinline__ void multiply_vectors(REAL (&sum)[TA][TB], const REAL* As,
                                                 const REAL* Bs, unsigned y, unsigned x,
                                                 unsigned begin, unsigned end, AsyncCopies& copies,
                                                 const Fetch& fetch) {
    int reading = 0, writing = STAGES - 1;
#pragma unroll 1
    for (unsigned slice = begin; slice < end; slice += SLICE_STRIDE) {
        copies.wait<STAGES - 2>();
        __syncwarp();  // the copies of all lanes are there, and all have left the slice before
        fetch(writing, slice + (STAGES - 1) * SLICE_STRIDE);
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

// Here one row at a time, both operands across k. The next row is read ahead, the first of the next
// slice before the last of this one is multiplied; at the end the first of the last, for nothing.
template <typename SliceA, typename SliceB, typename Fetch>
__device__ __forceinline__ void multiply_rows(REAL (&sum)[TA][TB], const REAL* As, const REAL* Bs,
                                              unsigned y, unsigned x, unsigned begin, unsigned end,
                                              AsyncCopies& copies, const Fetch& fetch) {
    int reading = 0, writing = STAGES - 1;
    REAL a[2][TA], b[2][TB];
    const REAL *row_a, *row_b;
    const auto enter = [&] {
        row_a = As + reading * SliceA::ELEMENTS + y * SIDE_BY_SIDE<TA>;
        row_b = Bs + reading * SliceB::ELEMENTS + x * SIDE_BY_SIDE<TB>;
        copies.wait<STAGES - 2>();
        __syncwarp();  // the copies of all lanes are there, and all have left the slice before
    };
    const auto read = [&](int to, int row) {
        read_fragment<TA, MB / TA>(a[to], row_a + row * SliceA::PITCH);
        read_fragment<TB, NB / TB>(b[to], row_b + row * SliceB::PITCH);
    };
    enter();
    read(0, 0);
#pragma unroll 1
    for (unsigned slice = begin; slice < end; slice += SLICE_STRIDE) {
        fetch(writing, slice + (STAGES - 1) * SLICE_STRIDE);
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            if (q + 1 == ROWS && slice + SLICE_STRIDE < end) enter();
            read((q + 1) % 2, (q + 1) % ROWS);
            add_outer_product(sum, a[q % 2], b[q % 2]);
        }
    }
}

template <typename SliceA, typename SliceB>
__device__ __forceinline__ void multiply_slices(REAL (&sum)[TA][TB], REAL* As, REAL* Bs, unsigned y,
                                                unsigned x, unsigned lane, unsigned begin,
                                                unsigned end, unsigned whole, SliceA& slice_a,
                                                SliceB& slice_b) {
    AsyncCopies copies;
    const auto fetch = [&](int stage, unsigned slice) {
        if (slice < end) {
            REAL* const a = As + stage * SliceA::ELEMENTS;
            REAL* const b = Bs + stage * SliceB::ELEMENTS;
            if (!GUARDED || slice < whole) {
                slice_a.template fetch<false>(a, slice * KB, lane, copies);
                slice_b.template fetch<false>(b, slice * KB, lane, copies);
            } else {
                slice_a.template fetch<true>(a, slice * KB, lane, copies);
                slice_b.template fetch<true>(b, slice * KB, lane, copies);
            }
        }
        copies.commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) fetch(stage, begin + stage * SLICE_STRIDE);
    if constexpr (BY_ROWS)
        multiply_rows<SliceA, SliceB>(sum, As, Bs, y, x, begin, end, copies, fetch);
    else
        multiply_vectors<SliceA, SliceB>(sum, As, Bs, y, x, begin, end, copies, fetch);
}

constexpr int RING = STAGES * (SliceA::ELEMENTS + SliceB::ELEMENTS);  // elements of a warp's ring
constexpr int WHOLE = MB * NB / (THREADS * VECTOR);  // vectors of the tile that each thread adds up
constexpr int REST = MB * NB % (THREADS * VECTOR);   // elements that are left for the first threads
constexpr int VECTORS = WHOLE + (REST > 0);

// Position in the tile of the thread's element e of vector v.
__device__ __forceinline__ unsigned place_of(int v, int e, unsigned thread) {
    return PIECE == 1 ? (v * VECTOR + e) * THREADS + thread : (v * THREADS + thread) * VECTOR + e;
}

// Elements from one row of the sums of a warp to the next in shared memory. If a thread's sums lie
// side by side in pairs, lanes that store them by rows would meet in half of the banks if rows
// followed each other.
constexpr int PITCH = NB + (SIDE_BY_SIDE<TB> < VECTOR ? LANES_N : 0);
static_assert(PITCH % VECTOR == 0, "rows of sums start at multiples of 16 bytes");

__device__ __forceinline__ unsigned in_shared(unsigned at) {
    return PITCH == NB ? at : at / NB * PITCH + at % NB;
}

// Whether the tile has that element.
__device__ __forceinline__ bool has(int v, int e, unsigned thread) {
    return REST == 0 || v < WHOLE || place_of(v, e, thread) < MB * NB;
}

// Whether a thread's sums are neighbours in a row of the tile. They are then stored in vectors,
// scaled, so that registers side by side are needed for the results and not for the sums.
constexpr bool IN_VECTORS = BY_ROWS || !TRANS_B;

// The sums of all warps, added in their order; each thread gets its vectors of the tile.
__device__ __forceinline__ void add_slices(Vector (&total)[VECTORS], const REAL (&sum)[TA][TB],
                                           REAL alpha, REAL* shared, unsigned thread, unsigned y,
                                           unsigned x) {
    constexpr int WIDTH = SIDE_BY_SIDE<TB>;
    __syncthreads();  // no warp reads its ring any more
    REAL* const mine = shared + thread / 32 * (MB * PITCH);
#pragma unroll
    for (int i = 0; i < TA; i++) {
        REAL* const row = mine + SliceA::outer(y, i) * PITCH;
        if (IN_VECTORS) {
#pragma unroll
            for (int j = 0; j < TB; j += WIDTH) {
                Elements<WIDTH> v;
#pragma unroll
                for (int e = 0; e < WIDTH; e++) v.x[e] = alpha * sum[i][j + e];
                *reinterpret_cast<Elements<WIDTH>*>(row + SliceB::outer(x, j)) = v;
            }
        } else {
#pragma unroll
            for (int j = 0; j < TB; j++) row[SliceB::outer(x, j)] = sum[i][j];
        }
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        total[v] = Vector{};
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const REAL* from = shared + slice * (MB * PITCH);
            if (PIECE == 1) {
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    if (has(v, e, thread)) total[v].x[e] += from[in_shared(place_of(v, e, thread))];
            } else if (has(v, 0, thread)) {
                const Vector other =
                    *reinterpret_cast<const Vector*>(from + in_shared(place_of(v, 0, thread)));
#pragma unroll
                for (int e = 0; e < VECTOR; e++) total[v].x[e] += other.x[e];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, long long lda,
         long long batch_a, const REAL* __restrict__ B, long long ldb, long long batch_b, REAL beta,
         REAL* C, long long ldc, long long batch_c, void* workspace EPILOGUE_PARAMETER) {
    extern __shared__ __align__(16) unsigned char bytes[];
    REAL* const shared = reinterpret_cast<REAL*>(bytes);
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const unsigned y = lane / LANES_N, x = lane % LANES_N;
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
        SliceA slice_a(A + blockIdx.z * batch_a, lda, i0, m, begin * KB, k, lane);
        SliceB slice_b(B + blockIdx.z * batch_b, ldb, j0, n, begin * KB, k, lane);
        // Only slices on the edges of the matrices have anything to check.
        const unsigned whole = i0 + MB <= m && j0 + NB <= n ? k / KB : 0;
        multiply_slices(sum, As, Bs, y, x, lane, begin, end, whole, slice_a, slice_b);
    }
    Vector total[VECTORS];
    add_slices(total, sum, alpha, shared, thread, y, x);
    unsigned& arrived = *reinterpret_cast<unsigned*>(bytes);
    if (!combine_tree<THREADS>(total, workspace, thread, arrived)) return;
    C += blockIdx.z * batch_c;
    const REAL scale = IN_VECTORS ? REAL(1) : alpha;  // what is left to do
    const bool cut = partly_stored(i0, j0, MB, NB);
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int e = 0; e < VECTOR; e += PIECE) {
            if (!has(v, e, thread)) continue;
            const unsigned at = place_of(v, e, thread);
            const unsigned row = i0 + at / NB, column = j0 + at % NB;
            if (GUARDED && (row >= m || column >= n)) continue;
            if (cut) {
#pragma unroll
                for (int i = 0; i < PIECE; i++)
                    if (is_stored(row, column + i))
                        store(C + row * ldc + column + i, scale, total[v].x[e + i],
                              beta EPILOGUE_AT(row, column + i));
                continue;
            }
            Piece* const c = reinterpret_cast<Piece*>(C + row * ldc + column);
            Piece result = beta == REAL(0) ? Piece{} : *c;
#pragma unroll
            for (int i = 0; i < PIECE; i++)
                store(&result.x[i], scale, total[v].x[e + i], beta EPILOGUE_AT(row, column + i));
            *c = result;
        }
}
