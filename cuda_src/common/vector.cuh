// What is moved at a time: as much as the alignment of the operands allows.

#ifndef ALIGN
#define ALIGN 4  // bytes that every row of A, B and C starts at a multiple of, its length included
#endif

constexpr int PIECE = ALIGN / sizeof(REAL) > 0 ? ALIGN / sizeof(REAL) : 1;  // elements at a time
constexpr int VECTOR = 16 / sizeof(REAL);  // elements of a 16-byte access to shared memory

template <int COUNT>
struct alignas(COUNT * sizeof(REAL)) Elements {
    REAL x[COUNT];
};
using Vector = Elements<VECTOR>;
using Piece = Elements<PIECE>;
