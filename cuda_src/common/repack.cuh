// Repacks matrices for TMA: those whose rows do not start at multiples of 16 bytes, those that are
// MN-major where the kernel needs K-major or the reverse, and those whose elements the kernel needs
// rounded.

#include "common/half_types.cuh"
#include "common/dependent_launch.cuh"

#ifndef TERMS
#define TERMS 1  // terms of an element: 2 for high + low
#endif
#ifndef ROUNDED
#define ROUNDED 0  // 1: to tf32
#endif

namespace repack_details {
constexpr int SIDE = 64;                          // of the square that a block copies
constexpr int WIDE = 16 / sizeof(REAL);           // elements that are stored at a time
constexpr int PIECES = SIDE * SIDE / WIDE / 256;  // of these that a thread copies
constexpr int DOWN = SIDE / PIECES;               // rows from one to its next
// Pieces that a thread waits for at a time, and blocks of a multiprocessor. Transposing 8192 x 8192
// of float takes 139 us with 8 blocks and 183 with 4; 4 pieces at a time are then too many (148,
// 133).
constexpr int AHEAD = sizeof(REAL) == 8 ? 8 : 2;
constexpr int BLOCKS_PER_SM = sizeof(REAL) == 8 ? 5 : TERMS == 2 ? 6 : 8;
constexpr int SQUARE_PITCH =
    SIDE + (sizeof(REAL) == 2 ? 2 : 1);  // rows in shared memory: odd in words

struct alignas(16) Piece {
    REAL x[WIDE];
};

// A batch of `count` matrices in place, and where it goes: to rows `pitch` elements apart, a
// multiple of WIDE; transposed, to `columns` rows of `rows` elements. With two terms each matrix is
// followed by that of its low terms.
struct Copy {
    const REAL* from;
    REAL* to;
    long long ld, batch, pitch;
    unsigned rows, columns, count, turned;

    __device__ __forceinline__ unsigned across() const { return (columns + SIDE - 1) / SIDE; }
    __device__ __forceinline__ unsigned down() const { return (rows + SIDE - 1) / SIDE; }
};

// WIDE elements from x on, of which only `left` belong to the row, the rest zeros. Those of two
// bytes are read as words, each of which has one of them at least, in one way for all pieces: lanes
// that read in different ways would wait for memory one after the other.
__device__ __forceinline__ Piece read(const REAL* x, unsigned left) {
    Piece piece = {};
    if (sizeof(REAL) == 2) {
        const unsigned odd = reinterpret_cast<size_t>(x) / 2 % 2;
        const unsigned* const words = reinterpret_cast<const unsigned*>(x - odd);
        unsigned word[5] = {};
#pragma unroll
        for (int i = 0; i < 5; i++) {
            const unsigned second = 2 * i + 1 - odd;
            if (i == 4 && !odd) continue;
            if (second < left)
                word[i] = words[i];
            else if (second <= left)
                word[i] = *reinterpret_cast<const unsigned short*>(words + i);
        }
        unsigned* const shifted = reinterpret_cast<unsigned*>(&piece);
#pragma unroll
        for (int i = 0; i < 4; i++)
            shifted[i] = __funnelshift_r(word[i], word[i + 1], odd * 16);
        return piece;
    }
    if (left >= WIDE && reinterpret_cast<unsigned long long>(x) % 16 == 0)
        return *reinterpret_cast<const Piece*>(x);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (i < left) piece.x[i] = x[i];
    return piece;
}

#if ROUNDED
// To 11 significant bits, ties away from zero, as cvt.rna.tf32.f32 does it; but
// the largest elements do not become infinite. NaN stays NaN where only the upper bits are read.
__device__ __forceinline__ float rounded(float x) {
    const unsigned bits = __float_as_uint(x), size = bits & 0x7FFFFFFFu;
    if (size >= 0x7F800000u) return __uint_as_float(size > 0x7F800000u ? bits | 0x400000u : bits);
    const unsigned up = size >= 0x7F7FF000u ? bits : bits + 0x1000u;
    return __uint_as_float(up & ~0x1FFFu);
}
// The first of two terms of x. What high high + high low + low high makes of an infinite number is
// what IEEE 754 makes of it: its low term is infinite, and no high term is, nor zero where the
// number is not. There it is the smallest number of tf32.
__device__ __forceinline__ float high_term(float x) {
    const float high = rounded(x);
    const bool lost = high == 0.0f && x != 0.0f, infinite = fabsf(high) == INFINITY;
    return lost || infinite ? copysignf(0x1p-136f, x) : high;
}
#endif

// A piece to its place, its low terms `behind` elements further on.
__device__ __forceinline__ void store(REAL* to, Piece piece, long long behind) {
#if ROUNDED
    Piece low;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        const float high = TERMS == 2 ? high_term(piece.x[i]) : rounded(piece.x[i]);
        low.x[i] = rounded(piece.x[i] - high);
        piece.x[i] = high;
    }
    if (TERMS == 2) *reinterpret_cast<Piece*>(to + behind) = low;
#endif
    *reinterpret_cast<Piece*>(to) = piece;
}
}  // namespace repack_details

// One block for each square of both batches.
extern "C" __global__ void __launch_bounds__(256, repack_details::BLOCKS_PER_SM)
    repack(repack_details::Copy a, repack_details::Copy b) {
    using namespace repack_details;
    __shared__ REAL square[SIDE * SQUARE_PITCH];
    griddepcontrol_launch_dependents();
    const unsigned before = a.across() * a.down() * a.count;
    const bool second = blockIdx.x >= before;
    const Copy copy = second ? b : a;
    const unsigned id = blockIdx.x - (second ? before : 0);
    const unsigned across = copy.across(), down = copy.down(), matrix = id / across / down;
    const unsigned i0 = id / across % down * SIDE, j0 = id % across * SIDE;
    const unsigned rows = copy.rows - i0, columns = copy.columns - j0;  // to the matrix's end
    const long long behind = copy.pitch * (copy.turned ? copy.columns : copy.rows);
    const REAL* const from = copy.from + matrix * copy.batch + i0 * copy.ld + j0;
    REAL* const to = copy.to + matrix * TERMS * behind +
                     (copy.turned ? j0 * copy.pitch + i0 : i0 * copy.pitch + j0);
    if (!copy.turned) {
        const unsigned i = threadIdx.x / (SIDE / WIDE), j = threadIdx.x % (SIDE / WIDE) * WIDE;
        if (j >= columns) return;
#pragma unroll
        for (int first = i; first < SIDE; first += AHEAD * DOWN) {
            Piece pieces[AHEAD];  // all are loaded before the first is stored
#pragma unroll
            for (int p = 0; p < AHEAD; p++)
                if (first + p * DOWN < rows)
                    pieces[p] = read(from + (first + p * DOWN) * copy.ld + j, columns - j);
#pragma unroll
            for (int p = 0; p < AHEAD; p++)
                if (first + p * DOWN < rows)
                    store(to + (first + p * DOWN) * copy.pitch + j, pieces[p], behind);
        }
        return;
    }
#pragma unroll 16
    for (unsigned v = threadIdx.x; v < SIDE * SIDE; v += 256) {
        const unsigned i = v / SIDE, j = v % SIDE;
        if (i < rows && j < columns) square[i * SQUARE_PITCH + j] = from[i * copy.ld + j];
    }
    __syncthreads();
    // A warp stores 128 bytes of each of four columns: its lanes read from different banks (those
    // of two bytes two by two).
#pragma unroll
    for (unsigned v = threadIdx.x; v < SIDE * SIDE / WIDE; v += 256) {
        const unsigned j = v / 32 / (SIDE / WIDE / 8) * 4 + v / 8 % 4;
        const unsigned i = (v / 32 % (SIDE / WIDE / 8) * 8 + v % 8) * WIDE;
        if (j >= columns || i >= rows) continue;
        Piece piece = {};
#pragma unroll
        for (int e = 0; e < WIDE; e++)
            if (i + e < rows) piece.x[e] = square[(i + e) * SQUARE_PITCH + j];
        store(to + j * copy.pitch + i, piece, behind);
    }
}
