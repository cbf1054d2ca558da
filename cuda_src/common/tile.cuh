// Tiles: where an element is stored, how a block copies a tile into shared memory together, how a
// result goes back to C. Shared by all kernels, with the parameters that all of them have.

#include "common/epilogue.cuh"

#ifndef REAL
#define REAL float  // element type of A, B and C, and of every sum: float or double
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T
#endif
#ifndef GUARDED
#define GUARDED 1  // 0: m, n, k are multiples of MB, NB, KB; nothing is checked
#endif

static_assert(sizeof(REAL) == 4 || sizeof(REAL) == 8, "REAL is float or double");

// Distance in elements from the start of X to element (row, column) of op(X). 64 bits: a matrix
// may have more than 2^31 elements. Rows and columns are unsigned, so that a tile which sticks out
// of a matrix of 2^31 - 1 rows has no row number that overflows.
__device__ __forceinline__ long long offset(bool transposed, unsigned row, unsigned column,
                                            long long ld) {
    return transposed ? column * ld + row : row * ld + column;
}

// Fills `tile` with the ROWS x COLS elements of op(X) that begin at X, of which only rows x columns
// lie inside the matrix. Any number of threads loads a tile of any shape: they line up along the
// axis that is contiguous in memory, WIDTH in a line, DEPTH lines, and move on by strides. So
// neighbouring threads read neighbouring addresses in both layouts. Six threads, 4 x 3:
//
//     not transposed   0 1 2   WIDTH 3        transposed   0 0 0   WIDTH 4
//     (row by row)     3 4 5   DEPTH 2        (column      1 1 1   DEPTH 1
//                      0 1 2                  by column)   2 2 2   threads 4 and 5 idle
//                      3 4 5                               3 3 3
//
// Elements outside the matrix become zero. Beyond k that holds for both tiles of a product, so a
// sum gets 0 * 0 and padding never meets an Inf or NaN of the other operand.
template <int THREADS, bool TRANSPOSED, int ROWS, int COLS>
__device__ __forceinline__ void load_tile(REAL (&tile)[ROWS][COLS], const REAL* X, long long ld,
                                          unsigned rows, unsigned columns, unsigned thread) {
    constexpr int LENGTH = TRANSPOSED ? ROWS : COLS, LINES = TRANSPOSED ? COLS : ROWS;
    constexpr int WIDTH = LENGTH < THREADS ? LENGTH : THREADS, DEPTH = THREADS / WIDTH;
    constexpr int STEPS = (LENGTH + WIDTH - 1) / WIDTH;
    if (WIDTH * DEPTH < THREADS && thread >= WIDTH * DEPTH) return;
    unsigned line = thread / WIDTH;
    const REAL* source = X + line * ld + thread % WIDTH;
#pragma unroll(STEPS < 16 ? 16 / STEPS : 1)
    for (int first = 0; first < LINES; first += DEPTH, line += DEPTH, source += DEPTH * ld) {
        if (LINES % DEPTH != 0 && line >= LINES) break;
#pragma unroll(STEPS < 16 ? STEPS : 16)
        for (int step = 0; step < STEPS; step++) {
            const unsigned e = thread % WIDTH + step * WIDTH;
            if (LENGTH % WIDTH != 0 && e >= LENGTH) break;
            const unsigned row = TRANSPOSED ? e : line, column = TRANSPOSED ? line : e;
            const bool inside = !GUARDED || (row < rows && column < columns);
            tile[row][column] = inside ? source[step * WIDTH] : REAL(0);
        }
    }
}

// One element of C <- alpha sum + beta C. beta = 0 does not read C, which may hold NaN or nothing.
__device__ __forceinline__ void store(REAL* c, REAL alpha, REAL sum, REAL beta EPILOGUE_PLACE) {
    *c = FINISHED(beta == REAL(0) ? alpha * sum : alpha * sum + beta * *c, row, column);
}
