// Rows that start anywhere, read in place by TMA.
//
// A tensor map describes rows that are multiples of 16 bytes apart. Rows of an odd number of
// elements are not, but every CLASSES-th of them is: row i is in class i % CLASSES, and the rows of
// a class are a matrix of their own, with a map of its own.
//
//     rows of 5 16-bit elements, 10 bytes apart      class 0: rows 0, 8, 16, ...  80 bytes apart
//     0 |.....                                       class 1: rows 1, 9, 17, ...
//     1 |     .....                                  ...
//
// Where a class begins within 16 bytes, its map begins at their start, `shift` elements before the
// first row. A box may start at any element, so it starts `shift` further on, and what is before
// the row is not loaded. Past the row's end the map has ended: zeros, as for any matrix.
//
// A tile is then in shared memory class by class. Its rows are in another order: those of a K-major
// operand are rows or columns of C, which go to their places when C is stored; those of an MN-major
// one are steps along k, which may be added in any order that A and B share.
//
// The kernel defines REAL, and KB, the depth of a tile.

constexpr int CLASSES = 16 / sizeof(REAL);
constexpr int LINE_BYTES = 128, IN_LINE = LINE_BYTES / sizeof(REAL);

struct Maps {
    TensorMap a[CLASSES], b[CLASSES], c;
};

// The maps of an operand, and their shifts, 4 bits each.
struct RowClasses {
    const TensorMap* maps;
    unsigned shifts;

    // Loads the box of a class that begins at element x of row y, which is a multiple of CLASSES.
    __device__ __forceinline__ void load_box(unsigned target, unsigned of, unsigned full,
                                             unsigned x, unsigned y) const {
        tma_load(target, maps + of, full, x + (shifts >> 4 * of & 15), y / CLASSES, 0);
    }
    // Loads one class of a tile for wgmma: of EXTENT rows along k from k0 on, from row `outer` on
    // (K_MAJOR), or of KB rows along m or n, from column `outer` and row k0 on, in piles of 128
    // bytes a row.
    template <bool K_MAJOR, int EXTENT>
    __device__ __forceinline__ void load(unsigned tile, unsigned of, unsigned full, unsigned outer,
                                         unsigned k0) const {
        constexpr int PILES = K_MAJOR ? 1 : EXTENT / IN_LINE;
        constexpr int ROWS_IN_PILE = K_MAJOR ? EXTENT : KB;
        const unsigned x = K_MAJOR ? k0 : outer, y = K_MAJOR ? outer : k0;
#pragma unroll
        for (int pile = 0; pile < PILES; pile++)
            load_box(tile + (pile * ROWS_IN_PILE + of * (ROWS_IN_PILE / CLASSES)) * LINE_BYTES, of,
                     full, x + pile * IN_LINE, y);
    }
};
