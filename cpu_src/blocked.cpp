// Blocked: the same product with every level of the memory hierarchy given a block of its own.
//
// C <- alpha op(A) op(B) + beta C. The kernel below stores C once per multiply-add. Here a tile of
// TA x TB elements of C stays in vector registers for KB steps along k; one step loads TB elements
// of B and TA of A and makes TA * TB multiply-adds of them. The blocks around the tile decide what
// is found where:
//
//     for NB columns of C                    KB x NB block of B: packed, third-level cache
//       for KB steps along k
//         for MB rows of C                   MB x KB block of A: packed, second-level cache
//           for TB columns                   KB x TB panel of B: first-level cache
//             for TA rows                    TA x KB panel of A: streams from the second level
//               for each p: sum[TA][TB] += a[TA] * b[TB]                     registers
//
// (the loops of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM
// TOMS 34(3), 2008). Packing copies a block into the order in which it is read: rows a power of two
// apart no longer fight for the same cache sets, transposed operands cost nothing afterwards, and
// a partial tile is filled up with zeros so that the loop inside knows no edges. A panel of B is
// packed just before its first use, and so found in the first level. A panel of A keeps the order
// in which A is stored, since single elements of it are broadcast and any order serves: by rows,
// which lie KB plus one cache line apart, or by columns if A is transposed. Both are plain copies.
//
// On AVX-512 one step along k of the 8 x 48 float tile is 24 multiply-adds, 3 loads, 8 broadcasts
// and nothing else. Tried without gain on Zen 4: prefetching the next panel of A or of B.
//
// Threads: C is cut into a grid of rectangles that are computed independently, more of them than
// threads where the product is large, and threads take one after the other (pool.cpp). Each packs
// for itself: no barrier, no shared block. A large batch is distributed matrix by matrix, and a
// small product has one thread.
//
// Small products: packing 64 x 64 x 64 takes a quarter as long as multiplying it. Where A and B fit
// the first-level cache they are used as they are stored, but for a transposed B and for columns
// that fill no vector.
//
// Elements of 16 bits become floats when they are packed. A C of 16 bits is rounded once: its sums
// stay in a buffer until they are complete.
//
// Compile: g++ -O3 -march=native -std=c++17 -pthread -shared -fPIC
// Never with -ffast-math: NaN and Inf must come through.
#include <atomic>
#include <cstdlib>
#include <type_traits>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "call.hpp"
#include "half.hpp"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define VECTOR_REGISTERS 32
#else
#define VECTOR_REGISTERS 16
#endif

#ifndef REAL
#define REAL float  // element type of A and B: float, double, F16 or BF16
#endif
#ifndef OUT
#define OUT REAL  // element type of C: REAL, or float where that has 16 bits
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored k x m
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored n x k
#endif
#ifndef MB
#define MB 96  // rows of the packed block of A
#endif
#ifndef NB
#define NB 1536  // columns of the packed block of B
#endif
#ifndef KB
#define KB 512  // depth of both blocks
#endif
#ifndef TA
#define TA 6  // rows of the register tile
#endif
#ifndef TB
#define TB (2 * VECTOR_BYTES / int(sizeof(Sum)))  // columns of the register tile: whole vectors
#endif

#ifndef ONE_THREAD
#define ONE_THREAD (1 << 19)  // multiply-adds of a product that several threads share, at least
#endif
#ifndef PIECE
#define PIECE (1 << 25)  // multiply-adds of a piece, at least where each thread has several
#endif
#ifndef DIRECT_BYTES
#define DIRECT_BYTES (32 * 1024)  // A and B of a product that is not packed, at most
#endif

using Index = long long;  // offsets: m * lda passes 2^31 long before memory ends
using Sum = SumOf<REAL>::type;
constexpr bool SAME = std::is_same<REAL, Sum>::value;   // A and B need no conversion
constexpr bool ROUNDED = !std::is_same<OUT, Sum>::value;  // C does
constexpr int LANES = VECTOR_BYTES / sizeof(Sum);
constexpr int VECTORS = TB / LANES;          // vectors in a row of the register tile
constexpr int LINE = 64 / int(sizeof(Sum));  // sums in a cache line
static_assert(TA >= 1 && TB >= 1 && KB >= 1, "tiles have at least one row and column");
static_assert(TB % LANES == 0, "a row of the register tile is made of whole vectors");
static_assert((TA + 1) * VECTORS + 1 <= VECTOR_REGISTERS,
              "the register tile, a row of B and one number of A fit in the vector registers");
static_assert(MB % TA == 0 && NB % TB == 0,
              "register tiles fill the cache blocks: TA divides MB and TB divides NB");

// A packed panel of A has (i, p) at i * A_ROW + p * A_STEP, one of B has (p, j) at p * TB + j.
constexpr int A_ROW = TRANS_A ? 1 : KB + LINE;
constexpr int A_STEP = TRANS_A ? TA : 1;
constexpr Index A_PANEL = TRANS_A ? Index(KB) * TA : Index(TA) * A_ROW;
constexpr Index B_PANEL = Index(KB) * TB;
constexpr Index A_BLOCK = (MB / TA * A_PANEL + LINE - 1) / LINE * LINE;  // B starts on a line
constexpr Index B_BLOCK = NB / TB * B_PANEL;
constexpr Index SUMS = ROUNDED ? (Index(MB) * NB + LINE - 1) / LINE * LINE : 0;
constexpr Index WORKSPACE = A_BLOCK + B_BLOCK + SUMS;  // elements for one thread

constexpr Index PIECES = 2;  // of a matrix for each thread, at most: more would pack more

typedef Sum Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Sum Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(Sum)), may_alias));

struct Matrix { const REAL* data; Index ld; };
struct Target { Sum* data; Index ld; Sum alpha, beta; };  // <- alpha * sum + beta * element
struct Result { OUT* data; Index ld; Sum alpha, beta; };
struct Panel { const Sum* data; Index row, step; };  // not packed: (i, p) at i * row + p * step

static Index least(Index a, Index b) { return a < b ? a : b; }
static Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

#include "epilogue.hpp"

// `count` of `width` rows of `depth` elements into rows `pitch` apart; zeros for the others.
static void copy_rows(Matrix from, int count, int width, int depth, Sum* __restrict to, int pitch) {
    for (int i = 0; i < width; i++)
        for (int p = 0; p < depth; p++)
            to[i * pitch + p] = i < count ? widen(from.data[i * from.ld + p]) : Sum(0);
}

// `depth` rows of `count` elements side by side, each filled up with zeros to WIDTH.
template <int WIDTH>
static void copy_columns(Matrix from, int count, int depth, Sum* __restrict to) {
    for (int p = 0; p < depth; p++, to += WIDTH) {
        const REAL* __restrict row = from.data + p * from.ld;
        __builtin_prefetch(row + WIDTH);  // of the panel beside this one
        if (count == WIDTH)
            for (int i = 0; i < WIDTH; i++) to[i] = widen(row[i]);
        else
            for (int i = 0; i < WIDTH; i++) to[i] = i < count ? widen(row[i]) : Sum(0);
    }
}

// Transposes TB rows (of which `count` exist) of `depth` elements, a cache line of each at a time.
static void transpose(Matrix from, int count, int depth, Sum* to) {
    for (int p0 = 0; p0 < depth; p0 += LINE)
        for (int j = 0; j < TB; j++)
            for (int p = p0; p < least(p0 + LINE, depth); p++)
                to[p * TB + j] = j < count ? widen(from.data[j * from.ld + p]) : Sum(0);
}

static void pack_a(Matrix A, Index i, Index p, int rows, int depth, Sum* to) {
    if (TRANS_A)
        copy_columns<TA>({A.data + p * A.ld + i, A.ld}, rows, depth, to);
    else
        copy_rows({A.data + i * A.ld + p, A.ld}, rows, TA, depth, to, A_ROW);
}

static void pack_b(Matrix B, Index p, Index j, int columns, int depth, Sum* to) {
    if (TRANS_B)
        transpose({B.data + j * B.ld + p, B.ld}, columns, depth, to);
    else
        copy_columns<TB>({B.data + p * B.ld + j, B.ld}, columns, depth, to);
}

static void write_part(const Sum* sum, int pitch, Target C, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            Sum* c = C.data + i * C.ld + j;
            const Sum x = C.alpha * sum[i * pitch + j];
            *c = C.beta == 0 ? x : x + C.beta * *c;
        }
}

// R rows of V vectors of C, of packed panels or of A and B as they are stored. Rows beyond the last
// one of A are that one again: nothing behind A is read, and they are not stored. Every loop but
// the one over p has constant bounds and is unrolled: that lets the compiler keep `sum` in
// registers.
template <bool PACKED, int R, int V>
static void tile(int depth, Panel a, Panel b, Target C, int rows, int columns) {
    Vector sum[R][V] = {};
    const Sum* line[R];
#pragma GCC unroll 32
    for (int i = 0; i < R; i++)
        line[i] = a.data + (PACKED ? i * A_ROW : (i < rows ? i : rows - 1) * a.row);
    const Index a_step = PACKED ? A_STEP : a.step, b_step = PACKED ? TB : b.step;
    for (int i = 0; i < rows; i++) {  // rows of C seldom start on a line
        for (int j = 0; j < V * LANES; j += LINE) __builtin_prefetch(C.data + i * C.ld + j, 1);
        __builtin_prefetch(C.data + i * C.ld + V * LANES - 1, 1);
    }
#pragma GCC unroll 2
    for (int p = 0; p < depth; p++) {
        Vector row[V];
#pragma GCC unroll 32
        for (int v = 0; v < V; v++) {
            const Sum* from = b.data + p * b_step + v * LANES;
            row[v] = PACKED ? *(const Vector*)from : (Vector) * (const Unaligned*)from;
        }
#pragma GCC unroll 32
        for (int i = 0; i < R; i++)
#pragma GCC unroll 32
            for (int v = 0; v < V; v++) sum[i][v] += line[i][p * a_step] * row[v];
    }
    if (rows == R && columns == V * LANES) {
#pragma GCC unroll 32
        for (int i = 0; i < R; i++)
#pragma GCC unroll 32
            for (int v = 0; v < V; v++) {
                Unaligned* c = (Unaligned*)(C.data + i * C.ld + v * LANES);
                const Vector x = C.alpha * sum[i][v];
                *c = C.beta == 0 ? x : x + C.beta * *c;
            }
    } else {
        Vector part[R][V];  // a copy: taking the address of `sum` itself would put it in memory
#pragma GCC unroll 32
        for (int i = 0; i < R; i++)
#pragma GCC unroll 32
            for (int v = 0; v < V; v++) part[i][v] = sum[i][v];
        write_part((const Sum*)part, V * LANES, C, rows, columns);
    }
}

// The smallest tile that holds rows x columns: vectors go one by one, rows by halves.
template <bool PACKED, int R = TA, int V = VECTORS>
static void fit(int depth, Panel a, Panel b, Target C, int rows, int columns) {
    if constexpr (V > 1)
        if (columns <= (V - 1) * LANES)
            return fit<PACKED, R, V - 1>(depth, a, b, C, rows, columns);
    if constexpr (R > 1)
        if (rows <= R / 2) return fit<PACKED, R / 2, V>(depth, a, b, C, rows, columns);
    tile<PACKED, R, V>(depth, a, b, C, rows, columns);
}

// Rows i0 to i1 and columns j0 to j1 of sums: into C, or if they are to be rounded into a buffer,
// and from there into C when they are complete.
static void rectangle(Index i0, Index i1, Index j0, Index j1, Index k, Matrix A, Matrix B,
                      Result C, Sum* workspace, const Epilogue& epilogue) {
    Sum *const a_block = workspace, *const b_block = workspace + A_BLOCK;
    Sum* const sums = workspace + A_BLOCK + B_BLOCK;
    for (Index jb = j0; jb < j1; jb += NB)
        for (Index pb = 0; pb < k; pb += KB) {
            const int depth = least(KB, k - pb);
            for (Index ib = i0; ib < i1; ib += MB) {
                const Index i_end = least(ib + MB, i1), j_end = least(jb + NB, j1);
                Sum* a = a_block;
                for (Index i = ib; i < i_end; i += TA, a += A_PANEL)
                    pack_a(A, i, pb, least(TA, i_end - i), depth, a);
                Sum* b = b_block;
                for (Index j = jb; j < j_end; j += TB, b += B_PANEL) {
                    const int columns = least(TB, j_end - j);
                    if (ib == i0) pack_b(B, pb, j, columns, depth, b);
                    a = a_block;
                    for (Index i = ib; i < i_end; i += TA, a += A_PANEL) {
                        Target to{sums + (i - ib) * NB + j - jb, NB, 1, Sum(pb > 0)};
                        if (!ROUNDED)  // later blocks add to the first
                            to = Target{(Sum*)C.data + i * C.ld + j, C.ld, C.alpha,
                                        pb ? Sum(1) : C.beta};
                        fit<true>(depth, {a, 0, 0}, {b, 0, 0}, to, least(TA, i_end - i), columns);
                    }
                    if (pb + KB < k) continue;
                    if (ROUNDED)
                        epilogue.round(sums + j - jb, NB, C, ib, i_end, j, j + columns);
                    else
                        epilogue.finish((Sum*)C.data, C.ld, ib, i_end, j, j + columns);
                }
            }
        }
}

// The same of A and B as they are stored, but for panels of B that must be packed.
template <class Element>
static void small_rectangle(Index i0, Index i1, Index j0, Index j1, int k, Matrix A, Matrix B,
                            Result C, Sum* workspace, const Epilogue& epilogue) {
    if constexpr (std::is_same<Element, Sum>::value && !ROUNDED)
        for (Index j = j0; j < j1; j += TB) {
            const int columns = least(TB, j1 - j);
            Panel b{(const Sum*)B.data + j, 0, B.ld};
            if (TRANS_B || columns % LANES) {
                pack_b(B, 0, j, columns, k, workspace);
                b = {workspace, 0, TB};
            }
            for (Index i = i0; i < i1; i += TA) {
                const Panel a{(const Sum*)A.data + (TRANS_A ? i : i * A.ld), TRANS_A ? 1 : A.ld,
                              TRANS_A ? A.ld : 1};
                fit<false>(k, a, b, {(Sum*)C.data + i * C.ld + j, C.ld, C.alpha, C.beta},
                           least(TA, i1 - i), columns);
            }
            epilogue.finish((Sum*)C.data, C.ld, i0, i1, j, j + columns);
        }
}

static void scale(Index i0, Index i1, Index j0, Index j1, Result C, const Epilogue& epilogue) {
    for (Index i = i0; i < i1; i++)
        for (Index j = j0; j < j1; j++) {
            OUT* c = C.data + i * C.ld + j;
            const Sum scaled = C.beta == 0 ? Sum(0) : C.beta * widen(*c);
            narrow(epilogue.applied(scaled, i, j), *c);
        }
}

// One block of memory is kept between calls, because fresh pages cost more than packing: with a
// block from malloc each time, a product of 1024 x 1024 doubles met 612 page faults in every call.
// A second caller at the same time gets its own. Unloading the library frees what is kept.
struct Spare {
    std::atomic<Sum*> memory{nullptr};
    ~Spare() { std::free(memory); }
};
static Spare spare;

// In a virtual machine a page that the processor has no translation of costs two walks through
// tables: large blocks ask for pages of 2 MiB.
static void* aligned(Index bytes) {
    constexpr Index HUGE_PAGE = Index(2) << 20;
    if (bytes < HUGE_PAGE) return std::aligned_alloc(64, ceil_div(bytes, 64) * 64);
    bytes = ceil_div(bytes, HUGE_PAGE) * HUGE_PAGE;
    void* const memory = std::aligned_alloc(HUGE_PAGE, bytes);
#if defined(__linux__)
    if (memory) madvise(memory, bytes, MADV_HUGEPAGE);  // without them it works as well
#endif
    return memory;
}

static Sum* take(Index elements) {
    Sum* memory = spare.memory.exchange(nullptr);
    if (memory && *(Index*)memory >= elements) return memory;  // its first line holds its size
    std::free(memory);
    memory = (Sum*)aligned(elements * Index(sizeof(Sum)) + 64);
    if (memory) *(Index*)memory = elements;
    return memory;
}

static void give_back(Sum* memory) { std::free(spare.memory.exchange(memory)); }

// Of all ways to cut C into `parts` = rows x columns rectangles of whole tiles, the one whose
// rectangles take least time: h * w multiply-adds for each step along k and the packing of h + w
// elements, each of which takes as long as about 8 multiply-adds.
struct Grid { Index rows, columns, height, width; };

static Grid cut(Index m, Index n, Index parts) {
    Grid best{};
    Index least_cost = 0;
    for (Index rows = 1; rows <= parts; rows++) {
        if (parts % rows) continue;
        const Index columns = parts / rows;
        const Index h = ceil_div(ceil_div(m, TA), rows) * TA;
        const Index w = ceil_div(ceil_div(n, TB), columns) * TB;
        const Index cost = h * w + 8 * (h + w);
        if (rows == 1 || cost < least_cost) best = {rows, columns, h, w}, least_cost = cost;
    }
    return best;
}

// A call and how its work is shared: `parts` rectangles of each matrix, or several matrices at a
// time.
struct Shares {
    const Call& call;
    Grid grid;
    Index pieces, matrices;  // all pieces, and matrices in each
    bool multiply, small;
    Sum* workspace;
};

static void multiply_part(const Shares& shares, Index s, Index row, Index column, Sum* own) {
    const Call& call = shares.call;
    const Grid& grid = shares.grid;
    const Index i0 = row * grid.height, i1 = least(i0 + grid.height, call.m);
    const Index j0 = column * grid.width, j1 = least(j0 + grid.width, call.n);
    const Result C{(OUT*)call.C + s * call.batch_c, call.ldc, Sum(call.alpha), Sum(call.beta)};
    const Matrix A{(const REAL*)call.A + s * call.batch_a, call.lda};
    const Matrix B{(const REAL*)call.B + s * call.batch_b, call.ldb};
    const Epilogue epilogue{call};
    if (!shares.multiply)
        scale(i0, i1, j0, j1, C, epilogue);
    else if (shares.small)
        small_rectangle<REAL>(i0, i1, j0, j1, call.k, A, B, C, own, epilogue);
    else if (!ROUNDED)
        rectangle(i0, i1, j0, j1, call.k, A, B, C, own, epilogue);
    else
        for (Index i = i0; i < i1; i += MB)  // the buffer holds the sums of so many rows
            rectangle(i, least(i + MB, i1), j0, j1, call.k, A, B, C, own, epilogue);
}

static void multiply_piece(void* data, int piece, int worker) {
    const Shares& shares = *(const Shares*)data;
    const Grid& grid = shares.grid;
    const Index parts = grid.rows * grid.columns, part = piece % parts;
    const Index first = piece / parts * shares.matrices;
    Sum* own = shares.workspace + LINE + worker * WORKSPACE;
    for (Index s = first; s < least(first + shares.matrices, shares.call.batch); s++)
        multiply_part(shares, s, part / grid.columns, part % grid.columns, own);
}

extern "C" int gemm(const Call* given) {
    const Call& call = *given;
    const Index m = call.m, n = call.n, k = call.k, batch = call.batch;
    if (m <= 0 || n <= 0 || batch <= 0) return 0;
    const bool multiply = k > 0 && call.alpha != 0;
    const Index stored = (TRANS_A ? k : m) * call.lda + (TRANS_B ? n : k) * call.ldb;
    const bool small = SAME && !ROUNDED && k <= KB && stored * Index(sizeof(REAL)) <= DIRECT_BYTES;
    const Index one = m * n * (multiply ? k : 1);
    const Index most = call.run && one * double(batch) >= double(ONE_THREAD) ? call.threads : 1;
    Shares shares{call, {1, 1, m, n}, 1, batch, multiply, small, nullptr};
    if (most > 1 && batch >= 2 * PIECES * most) {
        shares.matrices = ceil_div(batch, least(batch, 32 * PIECES * most));
    } else if (most > 1) {
        const Index each = one / most / PIECE;
        shares.grid = cut(m, n, most * (each < 1 ? 1 : least(each, PIECES)));
        shares.matrices = 1;
    }
    shares.pieces = shares.grid.rows * shares.grid.columns * ceil_div(batch, shares.matrices);
    const int threads = least(most, shares.pieces);
    if (multiply) {
        shares.workspace = take(threads * WORKSPACE);
        if (!shares.workspace) return 1;
    }
    if (threads > 1)
        call.run(multiply_piece, &shares, shares.pieces, threads);
    else
        for (Index piece = 0; piece < shares.pieces; piece++) multiply_piece(&shares, piece, 0);
    if (multiply) give_back(shares.workspace);
    return 0;
}
