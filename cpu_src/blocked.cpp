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
// and nothing else. Tried without gain on Zen 4: prefetching the next panel of A or of B, and 2 MiB
// pages (1 %).
//
// Threads: C is cut into a grid of rectangles that are computed independently. Each thread packs
// for itself: no barrier, no shared block. A large batch is distributed matrix by matrix.
//
// Compile: g++ -O3 -march=native -std=c++17 -fopenmp -shared -fPIC
// Never with -ffast-math: NaN and Inf must come through.
#include <atomic>
#include <cstdlib>
#include <omp.h>

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
#define REAL float  // element type of A, B and C: float or double
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored k x m
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored n x k
#endif
#ifndef MB
#define MB 192  // rows of the packed block of A
#endif
#ifndef NB
#define NB 1536  // columns of the packed block of B
#endif
#ifndef KB
#define KB 256  // depth of both blocks
#endif
#ifndef TA
#define TA 6  // rows of the register tile
#endif
#ifndef TB
#define TB (2 * VECTOR_BYTES / int(sizeof(REAL)))  // columns of the register tile: whole vectors
#endif

using Index = long long;  // offsets: m * lda passes 2^31 long before memory ends
constexpr int LANES = VECTOR_BYTES / sizeof(REAL);
constexpr int VECTORS = TB / LANES;           // vectors in a row of the register tile
constexpr int LINE = 64 / int(sizeof(REAL));  // elements of a cache line
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
constexpr Index WORKSPACE = A_BLOCK + NB / TB * B_PANEL;  // elements for one thread

typedef REAL Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef REAL Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

struct Matrix { const REAL* data; Index ld; };
struct Target { REAL* data; Index ld; REAL alpha, beta; };  // <- alpha * sum + beta * element

#include "epilogue.hpp"

static Index least(Index a, Index b) { return a < b ? a : b; }
static Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// `count` of `width` rows of `depth` elements into rows `pitch` apart; zeros for the others.
static void copy_rows(Matrix from, int count, int width, int depth, REAL* to, int pitch) {
    for (int i = 0; i < width; i++)
        for (int p = 0; p < depth; p++)
            to[i * pitch + p] = i < count ? from.data[i * from.ld + p] : REAL(0);
}

// `depth` rows of `count` elements side by side, each filled up with zeros to WIDTH.
template <int WIDTH>
static void copy_columns(Matrix from, int count, int depth, REAL* to) {
    for (int p = 0; p < depth; p++, to += WIDTH) {
        const REAL* row = from.data + p * from.ld;
        if (count == WIDTH)
            for (int i = 0; i < WIDTH; i++) to[i] = row[i];
        else
            for (int i = 0; i < WIDTH; i++) to[i] = i < count ? row[i] : REAL(0);
    }
}

// Transposes TB rows (of which `count` exist) of `depth` elements, a cache line of each at a time.
static void transpose(Matrix from, int count, int depth, REAL* to) {
    for (int p0 = 0; p0 < depth; p0 += LINE)
        for (int j = 0; j < TB; j++)
            for (int p = p0; p < least(p0 + LINE, depth); p++)
                to[p * TB + j] = j < count ? from.data[j * from.ld + p] : REAL(0);
}

static void pack_a(Matrix A, Index i, Index p, int rows, int depth, REAL* to) {
    if (TRANS_A)
        copy_columns<TA>({A.data + p * A.ld + i, A.ld}, rows, depth, to);
    else
        copy_rows({A.data + i * A.ld + p, A.ld}, rows, TA, depth, to, A_ROW);
}

static void pack_b(Matrix B, Index p, Index j, int columns, int depth, REAL* to) {
    if (TRANS_B)
        transpose({B.data + j * B.ld + p, B.ld}, columns, depth, to);
    else
        copy_columns<TB>({B.data + p * B.ld + j, B.ld}, columns, depth, to);
}

static void write_part(const REAL* sum, int pitch, Target C, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            REAL* c = C.data + i * C.ld + j;
            const REAL x = C.alpha * sum[i * pitch + j];
            *c = C.beta == 0 ? x : x + C.beta * *c;
        }
}

// R rows of V vectors of C. Every loop but the one over p has constant bounds and is unrolled:
// that lets the compiler keep `sum` in registers.
template <int R, int V>
static void tile(int depth, const REAL* a, const REAL* b, Target C, int rows, int columns) {
    Vector sum[R][V] = {};
    for (int i = 0; i < rows; i++) __builtin_prefetch(C.data + i * C.ld, 1);
#pragma GCC unroll 2
    for (int p = 0; p < depth; p++) {
        Vector row[V];
#pragma GCC unroll 32
        for (int v = 0; v < V; v++) row[v] = *(const Vector*)(b + p * TB + v * LANES);
#pragma GCC unroll 32
        for (int i = 0; i < R; i++)
#pragma GCC unroll 32
            for (int v = 0; v < V; v++) sum[i][v] += a[i * A_ROW + p * A_STEP] * row[v];
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
        write_part((const REAL*)part, V * LANES, C, rows, columns);
    }
}

// The smallest tile that holds rows x columns: vectors go one by one, rows by halves.
template <int R = TA, int V = VECTORS>
static void fit(int depth, const REAL* a, const REAL* b, Target C, int rows, int columns) {
    if constexpr (V > 1)
        if (columns <= (V - 1) * LANES) return fit<R, V - 1>(depth, a, b, C, rows, columns);
    if constexpr (R > 1)
        if (rows <= R / 2) return fit<R / 2, V>(depth, a, b, C, rows, columns);
    tile<R, V>(depth, a, b, C, rows, columns);
}

// Rows i0 to i1 and columns j0 to j1 of C.
static void rectangle(Index i0, Index i1, Index j0, Index j1, Index k, Matrix A, Matrix B,
                      Target C, REAL* workspace EPILOGUE_PLACE) {
    for (Index jb = j0; jb < j1; jb += NB)
        for (Index pb = 0; pb < k; pb += KB) {
            const int depth = least(KB, k - pb);
            const REAL beta = pb == 0 ? C.beta : REAL(1);  // later blocks add to the first
            for (Index ib = i0; ib < i1; ib += MB) {
                const Index i_end = least(ib + MB, i1), j_end = least(jb + NB, j1);
                REAL* a = workspace;
                for (Index i = ib; i < i_end; i += TA, a += A_PANEL)
                    pack_a(A, i, pb, least(TA, i_end - i), depth, a);
                REAL* b = workspace + A_BLOCK;
                for (Index j = jb; j < j_end; j += TB, b += B_PANEL) {
                    const int columns = least(TB, j_end - j);
                    if (ib == i0) pack_b(B, pb, j, columns, depth, b);
                    a = workspace;
                    for (Index i = ib; i < i_end; i += TA, a += A_PANEL)
                        fit(depth, a, b, {C.data + i * C.ld + j, C.ld, C.alpha, beta},
                            least(TA, i_end - i), columns);
#if EPILOGUE
                    if (pb + KB >= k) epilogue.finish(C.data, C.ld, ib, i_end, j, j + columns);
#endif
                }
            }
        }
}

static void scale(Index i0, Index i1, Index j0, Index j1, Target C EPILOGUE_PLACE) {
    for (Index i = i0; i < i1; i++)
        for (Index j = j0; j < j1; j++) {
            REAL* c = C.data + i * C.ld + j;
            *c = C.beta == 0 ? REAL(0) : C.beta * *c;
        }
#if EPILOGUE
    epilogue.finish(C.data, C.ld, i0, i1, j0, j1);
#endif
}

// One block of memory is kept between calls, because fresh pages cost more than packing: with a
// block from malloc each time, a product of 1024 x 1024 doubles met 612 page faults in every call.
// A second caller at the same time gets its own. Unloading the library frees what is kept.
struct Spare {
    std::atomic<REAL*> memory{nullptr};
    ~Spare() { std::free(memory); }
};
static Spare spare;

static REAL* take(Index elements) {
    REAL* memory = spare.memory.exchange(nullptr);
    if (memory && *(Index*)memory >= elements) return memory;  // its first line holds its size
    std::free(memory);
    memory = (REAL*)std::aligned_alloc(64, ceil_div(elements, LINE) * 64 + 64);
    if (memory) *(Index*)memory = elements;
    return memory;
}

static void give_back(REAL* memory) { std::free(spare.memory.exchange(memory)); }

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

// C (m x n, rows ldc apart) <- alpha op(A) op(B) + beta C for each of `batch` matrices, batch_*
// elements apart (A and B: 0 for the same one each time). As in BLAS, alpha = 0 reads neither A nor
// B and beta = 0 does not read C. Returns 0, or 1 if there is no memory to pack into: C is then
// untouched.
extern "C" int gemm(int m, int n, int k, REAL alpha, const REAL* A, long long lda,
                    long long batch_a, const REAL* B, long long ldb, long long batch_b, REAL beta,
                    REAL* C, long long ldc, long long batch_c, int batch,
                    int threads EPILOGUE_PARAMETER) {
    if (m <= 0 || n <= 0 || batch <= 0) return 0;
    const bool multiply = k > 0 && alpha != 0;
    const Index workers = threads > 1 ? threads : 1;
    const Grid grid = cut(m, n, batch >= 4 * workers ? 1 : workers);
    const Index parts = grid.rows * grid.columns, items = parts * batch;
    const int team = least(workers, items);
    REAL* workspace = multiply ? take(team * WORKSPACE) : nullptr;
    if (multiply && !workspace) return 1;
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
    for (Index item = 0; item < items; item++) {
        REAL* own = workspace + LINE + omp_get_thread_num() * WORKSPACE;
        const Index s = item / parts, part = item % parts;
        const Index row = part / grid.columns, column = part % grid.columns;
        const Index i0 = row * grid.height, i1 = least(i0 + grid.height, m);
        const Index j0 = column * grid.width, j1 = least(j0 + grid.width, n);
        const Target target{C + s * batch_c, ldc, alpha, beta};
        if (!multiply)
            scale(i0, i1, j0, j1, target EPILOGUE_ARGUMENT);
        else if (i0 < i1)
            rectangle(i0, i1, j0, j1, k, {A + s * batch_a, lda}, {B + s * batch_b, ldb}, target,
                      own EPILOGUE_ARGUMENT);
    }
    if (workspace) give_back(workspace);
    return 0;
}
