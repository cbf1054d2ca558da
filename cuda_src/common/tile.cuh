// Tiles: where an element is stored, how a block copies a tile into shared memory together, how a
// result goes back to C. Shared by all rungs, with the parameters that all of them have.

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

// Fills `tile` from the ROWS x COLS elements of op(X) that begin at X, of which only rows x columns
// lie inside the matrix. Any number of threads loads a tile of any shape: thread t takes elements
// t, t + THREADS, t + 2 THREADS, ... counted along the axis that is contiguous in memory, so that
// neighbouring threads read neighbouring addresses in both layouts.
//
//     not transposed: t = 0 1 2 3     transposed: t = 0 3 6 9     (THREADS = 12, one step)
//                         4 5 6 7                     1 4 7 10
//                         8 9 10 11                   2 5 8 11
//
// What lies outside becomes zero in both tiles of a product: it adds 0 * 0 to a sum and never meets
// an Inf or NaN of the other operand. Up to 16 loads are under way before the first is stored.
template <int THREADS, bool TRANSPOSED, int ROWS, int COLS>
__device__ __forceinline__ void load_tile(REAL (&tile)[ROWS][COLS], const REAL* X, long long ld,
                                          unsigned rows, unsigned columns, unsigned thread) {
    constexpr int SIZE = ROWS * COLS, LENGTH = TRANSPOSED ? ROWS : COLS;
    constexpr int STEPS = (SIZE + THREADS - 1) / THREADS;
#pragma unroll(STEPS < 16 ? STEPS : 16)
    for (int step = 0; step < STEPS; step++) {
        const unsigned e = step * THREADS + thread, along = e % LENGTH, across = e / LENGTH;
        const unsigned row = TRANSPOSED ? along : across, column = TRANSPOSED ? across : along;
        if (SIZE % THREADS != 0 && e >= SIZE) break;
        const bool inside = !GUARDED || (row < rows && column < columns);
        tile[row][column] = inside ? X[across * ld + along] : REAL(0);
    }
}

// One element of C <- alpha sum + beta C. beta = 0 does not read C, which may hold NaN or nothing.
__device__ __forceinline__ void store(REAL* c, REAL alpha, REAL sum, REAL beta) {
    *c = beta == REAL(0) ? alpha * sum : alpha * sum + beta * *c;
}
