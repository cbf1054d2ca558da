// An operand whose rows start anywhere, loaded by TMA where it is.
//
// A tensor map describes rows that are multiples of 16 bytes apart. Rows of an odd number of
// elements are not, but every fourth of them is: row i is in class i % 4, and the rows of a class
// are a matrix of their own, with a map of its own.
//
//     rows of 5 elements, 20 bytes apart      class 0: rows 0, 4, 8, ...  80 bytes apart
//     0 |.....                                class 1: rows 1, 5, 9, ...
//     1 |     .....                           ...
//
// TMA reads pieces of 16 bytes that start at multiples of 16: a box that starts elsewhere is an
// illegal instruction. So the map of a class begins at the 16 bytes in which its first row does,
// `shift_of` elements before it, and so do the boxes: in shared memory element x of a row is
// shift_of elements behind the place that it would have in an aligned operand. It is read from
// there by threads, which read one element at a time. What is before a row belongs to another, and
// nothing reads it. Behind the end of a row are zeros.
//
// The operand, A or B, is the one that IN_PLACE says, 0 or 1.

constexpr int CLASSES = 4, LINE_BYTES = 128, IN_LINE = 32;

struct Maps {
    TensorMap a[IN_PLACE == 0 ? CLASSES : 1], b[IN_PLACE == 1 ? CLASSES : 1], c;
};

// Elements before the rows of a class, of the 4 bits that `shifts` has for each.
__device__ __forceinline__ unsigned shift_of(unsigned shifts, unsigned of) {
    return shifts >> 4 * of & 3;
}
