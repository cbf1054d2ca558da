// An operand of float32 whose rows start anywhere, loaded by TMA where it is.
//
// A tensor map describes rows that start at multiples of 16 bytes. Rows whose distance is not a
// multiple of 4 elements do not. But rows i, i + 4, i + 8 ... are always multiples of 16 bytes
// apart: they are class i % 4 of the rows, a matrix of their own, with a map of its own.
//
//     rows 5 elements apart, 20 bytes      class 0: rows 0, 4, 8, ...  80 bytes apart
//     0 |.....                             class 1: rows 1, 5, 9, ...
//     1 |     .....                        ...
//
// TMA reads pieces of 16 bytes that start at multiples of 16: a box that starts elsewhere is an
// illegal instruction. So the map of a class begins at the multiple of 16 bytes at or before its
// first row, `shift_of` elements before it, and every box begins at a multiple of 16 bytes, too. In
// shared memory element x of a row is then `shift_of` elements behind the place that it would have
// in an aligned operand. Threads take it from there, and put it where it belongs: into a register
// (kernel 17) or a stage (kernel 18). What is before a row belongs to another, and is not used.
// Behind the end of a row are zeros.
//
// The operand, A or B, is the one that IN_PLACE says, 0 or 1.

constexpr int CLASSES = 4;

// One map for each class of the operand in place, one for the other, and one of C.
struct Maps {
    TensorMap a[IN_PLACE == 0 ? CLASSES : 1], b[IN_PLACE == 1 ? CLASSES : 1], c;
};

// Elements, 0 to 3, from where the map of a class begins to its first row: `shifts` has 4 bits for
// each class.
__device__ __forceinline__ unsigned shift_of(unsigned shifts, unsigned of) {
    return shifts >> 4 * of & 3;
}
