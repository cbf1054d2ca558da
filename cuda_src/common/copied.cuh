// Tiles copied from global to shared memory as they lie there, for fragments of single elements.

#include "common/staged.cuh"

// A tile of OUTER x KB elements of op(A) (or of op(B)^T). Stored along k (K_CONTIGUOUS) it is kept
// as OUTER lines of KB elements, otherwise as KB lines of OUTER. The padding of four elements puts
// what 16 lanes of a fragment read, 4 x 4 elements one of whose axes runs across lines, into 16
// different pairs of banks if elements have 8 bytes, whichever way the tile lies.
template <bool K_CONTIGUOUS, int OUTER, int THREADS>
struct Copied {
    static constexpr int LINE = K_CONTIGUOUS ? KB : OUTER, LINES = K_CONTIGUOUS ? OUTER : KB;
    static constexpr int PITCH = LINE + 4, ELEMENTS = LINES * PITCH;
    static constexpr int IN_LINE = LINE / PIECE, PIECES = IN_LINE * LINES / THREADS;
    static constexpr int DOWN = THREADS / IN_LINE;  // lines from one piece of a thread to its next
    static_assert(LINE % PIECE == 0 && THREADS % IN_LINE == 0 && IN_LINE * LINES % THREADS == 0,
                  "threads copy whole lines of both tiles at a time");

    const REAL* source;  // the thread's first piece of the next tile
    long long ld;
    unsigned line, at;       // where that piece lies within the tile
    unsigned lines, length;  // of the matrix, from this tile's start; k counts from 0

    __device__ __forceinline__ Copied(const REAL* X, long long ld, unsigned first, unsigned outer,
                                      int k, unsigned thread)
        : ld(ld), line(thread / IN_LINE), at(thread % IN_LINE * PIECE) {
        source = X + (K_CONTIGUOUS ? (first + line) * ld + at : line * ld + first + at);
        lines = K_CONTIGUOUS ? outer - first : k;
        length = K_CONTIGUOUS ? k : outer - first;
    }

    // Ask for the next tile along k, which begins at k0.
    __device__ __forceinline__ void fetch(REAL* tile, unsigned k0, AsyncCopies& copies) {
        const REAL* from = source;
        REAL* to = tile + line * PITCH + at;
        const bool along = !GUARDED || at + (K_CONTIGUOUS ? k0 : 0) < length;
#pragma unroll
        for (int i = 0; i < PIECES; i++, from += DOWN * ld, to += DOWN * PITCH) {
            const unsigned y = line + i * DOWN + (K_CONTIGUOUS ? 0 : k0);
            const bool inside = !GUARDED || (along && y < lines);
            copies.copy<PIECE * sizeof(REAL)>(to, from, inside);
        }
        source += K_CONTIGUOUS ? KB : KB * ld;
    }

    // Where element (outer, p) of the tile lies.
    static __device__ __forceinline__ unsigned place(unsigned outer, unsigned p) {
        return K_CONTIGUOUS ? outer * PITCH + p : p * PITCH + outer;
    }
};
