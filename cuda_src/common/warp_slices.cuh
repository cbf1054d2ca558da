// What a warp of kernel 11 keeps of an operand: a slice of KB columns of op(A) or KB rows of op(B).
// The kernel defines KB, and SLICE_STRIDE, the slices from one of a warp to its next.

#include "common/fragment.cuh"

// Lanes of a warp that copy at a time where a line has so many pieces: a piece each, of as many
// whole lines as 32 lanes can take, or of an even part of a line with more than 32 pieces.
constexpr int lanes_that_copy(int in_line) {
    int lanes = in_line < 32 ? 32 / in_line * in_line : 32;
    while (in_line > lanes && in_line % lanes) lanes--;
    return lanes;
}

// OUTER x KB elements of op(A) (or of op(B)^T) in shared memory. Stored K-major (K_MAJOR) they are
// OUTER lines of KB elements, otherwise KB lines of OUTER. Eight lanes that read 16 bytes each from
// one column of eight lines along k would meet in few banks: so the vectors of a line are swapped
// (`swizzle`), and what eight lanes read or write at a time lies in eight different groups of
// banks.
//
// Some lanes may have nothing to copy: a line of 80 floats is copied by 20.
template <bool K_MAJOR, int OUTER, int T>
struct Slice {
    static constexpr int PITCH = OUTER;  // from one row to the next of what is MN-major
    static constexpr int LINE = K_MAJOR ? KB : OUTER, LINES = K_MAJOR ? OUTER : KB;
    static constexpr int IN_LINE = LINE / PIECE, COPIES = IN_LINE * LINES;
    static constexpr int COPYING = lanes_that_copy(IN_LINE);
    static constexpr bool RAGGED = 32 % COPYING != 0;  // then MN-major: KB is a power of two
    static constexpr int ELEMENTS = LINE * LINES, LANES = OUTER / T;
    static constexpr int WIDTH = SIDE_BY_SIDE<T>;

    const REAL* source;  // the lane's first piece of the next slice
    long long ld;
    unsigned line, at;  // offset of that piece within the slice
    int down, along;    // from it to the matrix's end, across lines and along them, at k = 0

    __device__ __forceinline__ Slice(const REAL* X, long long ld, unsigned first, unsigned outer,
                                     unsigned k0, int k, unsigned lane)
        : ld(ld), line(lane / IN_LINE), at(lane % IN_LINE * PIECE) {
        source = X + (K_MAJOR ? (first + line) * ld + k0 + at : (k0 + line) * ld + first + at);
        down = int(K_MAJOR ? outer - first : k) - int(line);
        along = int(K_MAJOR ? k : outer - first) - int(at);
    }

    // Vector x of a line lies where vector x ^ turn(line) would; turn(i + j) is turn(i) ^ turn(j)
    // if i and j have no bit in common.
    static __device__ __forceinline__ unsigned swizzle(unsigned line) {
        constexpr int TURNS = !K_MAJOR ? 1 : KB / VECTOR < 8 ? KB / VECTOR : 8;
        return line * TURNS / 8 % TURNS;
    }

    // Ask for the next slice of the warp, which begins at k0. CHECKED: it may stick out.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* slice, int k0, unsigned lane, AsyncCopies& copies) {
        const REAL* from = source;
        const int lines = K_MAJOR ? down : down - k0, length = K_MAJOR ? along - k0 : along;
        const unsigned vector = at / VECTOR ^ swizzle(line);
#pragma unroll
        for (int i = 0; i < COPIES; i += COPYING) {
            const int below = i / IN_LINE, beside = i % IN_LINE * PIECE;
            if (COPYING < 32 && lane >= COPYING) break;
            if (COPIES % COPYING != 0 && COPIES - i < COPYING && lane >= COPIES - i) break;
            const bool inside = !CHECKED || (below < lines && beside < length);
            const unsigned place =
                RAGGED ? at + beside
                       : (vector ^ swizzle(below) ^ beside / VECTOR) * VECTOR + at % VECTOR;
            copies.copy_of_line<PIECE * sizeof(REAL)>(slice + (line + below) * LINE + place,
                                                      from + below * ld + beside, inside);
        }
        source += SLICE_STRIDE * KB * (K_MAJOR ? 1 : ld);
    }

    // Which row of the tile (of op(B)^T) is number i of the T that lane number `lane` computes.
    static __device__ __forceinline__ unsigned outer(unsigned lane, int i) {
        return K_MAJOR ? lane + i * LANES
                       : lane * WIDTH + i / WIDTH * WIDTH * LANES + i % WIDTH;
    }

    // The lane's T rows, VECTOR columns from p on.
    static __device__ __forceinline__ void read(REAL (&fragment)[VECTOR][T], const REAL* slice,
                                                unsigned lane, int p) {
        if constexpr (K_MAJOR) {
#pragma unroll
            for (int q = 0; q < T; q++) {
                const unsigned turned = swizzle(lane) ^ swizzle(q * LANES) ^ p / VECTOR;
                const Vector v = *reinterpret_cast<const Vector*>(slice + outer(lane, q) * KB +
                                                                  turned * VECTOR);
#pragma unroll
                for (int x = 0; x < VECTOR; x++) fragment[x][q] = v.x[x];
            }
        } else {
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                read_fragment<T, LANES>(fragment[e], slice + (p + e) * OUTER + lane * WIDTH);
        }
    }
};

// One that is K-major, transposed while loaded: KB rows of OUTER elements, 4 longer than they need
// to be. Each lane copies one element at a time, eight lanes side by side along k: what a warp
// writes at a time then lies in 32 different banks. A copy takes a multiprocessor some 8 cycles.
template <int OUTER, int T>
struct TransposedSlice {
    static constexpr int PITCH = OUTER + 4, ELEMENTS = KB * PITCH;

    const REAL* source;  // the lane's first element of the next slice
    long long ld;
    unsigned place;   // its offset within the slice
    int down, along;  // from it to the matrix's end, across lines and along them, at k = 0

    __device__ __forceinline__ TransposedSlice(const REAL* X, long long ld, unsigned first,
                                               unsigned outer, unsigned k0, int k, unsigned lane)
        : ld(ld), place(lane % 8 * PITCH + lane / 8) {
        source = X + (first + lane / 8) * ld + k0 + lane % 8;
        down = int(outer - first) - int(lane / 8);
        along = k - int(lane % 8);
    }
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* slice, int k0, unsigned, AsyncCopies& copies) {
        const REAL* from = source;
#pragma unroll
        for (int i = 0; i < OUTER; i += 4, from += 4 * ld) {
            const bool inside = !CHECKED || (i < down && k0 < along);
            copies.copy_of_line<sizeof(REAL)>(slice + place + i, from, inside);
        }
        source += SLICE_STRIDE * KB;
    }
    static __device__ __forceinline__ unsigned outer(unsigned lane, int i) {
        return Slice<false, OUTER, T>::outer(lane, i);
    }
};

// sum += a b, VECTOR steps along k at a time. The elements of one operand, used one after another
// in all steps, are the outer loop: those of the operand that is K-major, whose vectors run across
// the steps. In the inner loop every second sum and number of the other operand then sit in one
// register bank, and the order of the registers can keep the two apart.
__device__ __forceinline__ void multiply(REAL (&sum)[TA][TB], const REAL (&a)[VECTOR][TA],
                                         const REAL (&b)[VECTOR][TB]) {
    constexpr bool OF_A = TRANS_A != TRANS_B ? TA <= TB : !TRANS_A;
    constexpr int OUTER = OF_A ? TA : TB, INNER = OF_A ? TB : TA;
#pragma unroll
    for (int o = 0; o < OUTER; o++)
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
#pragma unroll
            for (int x = 0; x < INNER; x++) {
                const int turned = e % 2 ? INNER - 1 - x : x;
                const int i = OF_A ? o : turned, j = OF_A ? turned : o;
                sum[i][j] += a[e][i] * b[e][j];
            }
}
