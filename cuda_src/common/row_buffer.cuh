// Rows of C that start anywhere, on their way through shared memory.
//
// What an mma leaves in a lane are two neighbours of a row. Stored from there, 8 bytes at a time,
// one instruction writes to 8 rows and to parts of some 20 sectors of 32 bytes, and each costs a
// multiprocessor about a clock: an element of C takes ten times as long as with 16 bytes. By way of
// shared memory one instruction writes neighbours in one row, and nearly all sectors whole.

// Eight rows of COLUMNS elements of one warp. The padding keeps two rows of 16-byte pairs, which
// are written together, out of each other's banks; APART is what neighbouring lanes are apart.
template <int COLUMNS, int APART = 2>
struct RowBuffer {
    static constexpr int PADDING = COLUMNS % 16 != 0 ? 0 : APART == 2 ? 8 : 4;
    static constexpr int PITCH = COLUMNS + PADDING, ELEMENTS = 8 * PITCH;

    static __device__ __forceinline__ void put(double* rows, unsigned row, unsigned column,
                                               double2 two) {
        *reinterpret_cast<double2*>(rows + row * PITCH + column) = two;
    }
    // Runs `use(row, column, element)` for each element once, row by row; then the rows may be
    // overwritten.
    template <class Use>
    static __device__ __forceinline__ void each(const double* rows, unsigned lane, Use use) {
        __syncwarp();
#pragma unroll
        for (unsigned e = lane; e < 8 * COLUMNS; e += 32)
            use(e / COLUMNS, e % COLUMNS, rows[e / COLUMNS * PITCH + e % COLUMNS]);
        __syncwarp();
    }
};
