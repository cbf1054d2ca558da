// Which elements of C are kept: all, or one half of a square C.

#ifndef FILL
#define FILL 0  // what of C is kept: 0 all, 1 row >= column, 2 column >= row
#endif

static_assert(FILL == 0 || FILL == 1 || FILL == 2, "FILL is 0, 1 or 2");

// Whether an element of C is kept.
__device__ __forceinline__ bool is_stored(unsigned row, unsigned column) {
    return FILL == 0 || (FILL == 1 ? row >= column : column >= row);
}

// Whether anything is kept of rows x columns elements from (i0, j0) on.
__device__ __forceinline__ bool any_stored(unsigned i0, unsigned j0, unsigned rows,
                                           unsigned columns) {
    return FILL == 0 || (FILL == 1 ? i0 + rows > j0 : j0 + columns > i0);
}

// Whether something of them is not kept.
__device__ __forceinline__ bool partly_stored(unsigned i0, unsigned j0, unsigned rows,
                                              unsigned columns) {
    return FILL != 0 && (FILL == 1 ? i0 + 1 < j0 + columns : j0 + 1 < i0 + rows);
}
