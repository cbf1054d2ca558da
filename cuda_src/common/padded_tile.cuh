// Tiles copied from global to shared memory in the same layout, for fragments of single elements.

#include "common/vector.cuh"

// A tile of OUTER x KB elements of op(A) (or of op(B)^T). Stored K-major (K_MAJOR) it is kept
// as OUTER lines of KB elements, otherwise as KB lines of OUTER. The padding of four elements puts
// what 16 lanes of a fragment read, 4 x 4 elements one of whose axes runs across lines, into 16
// different pairs of banks if elements have 8 bytes, whichever way the tile lies.
template <bool K_MAJOR, int OUTER, int THREADS>
struct PaddedTile {
    static constexpr int LINE = K_MAJOR ? KB : OUTER, LINES = K_MAJOR ? OUTER : KB;
    static constexpr int PITCH = LINE + 4, ELEMENTS = LINES * PITCH;
    static constexpr int IN_LINE = LINE / PIECE;
    static constexpr int DOWN = THREADS / IN_LINE;  // lines from one piece of a thread to its next
    static constexpr int PIECES = (LINES + DOWN - 1) / DOWN, UNROLLED = PIECES < 4 ? PIECES : 4;
    static constexpr bool EVEN = THREADS % IN_LINE == 0 && LINES % DOWN == 0;
    static_assert(LINE % PIECE == 0 && DOWN > 0, "threads copy a whole line of a tile at a time");

    const REAL* source;  // the thread's first piece of the next tile
    long long ld;
    unsigned place;   // of that piece in the tile
    int mine;         // lines of the tile from that piece on, none if others copy all
    int down, along;  // to the matrix's end from that piece, across lines and along them, at k = 0

    __device__ __forceinline__ PaddedTile(const REAL* X, long long ld, unsigned first,
                                          unsigned outer, unsigned k0, int k, unsigned thread)
        : ld(ld) {
        const unsigned line = thread / IN_LINE, at = thread % IN_LINE * PIECE;
        source = X + (K_MAJOR ? (first + line) * ld + k0 + at : (k0 + line) * ld + first + at);
        place = line * PITCH + at;
        mine = line < DOWN ? LINES - int(line) : 0;
        down = int(K_MAJOR ? outer - first : k) - int(line);
        along = int(K_MAJOR ? k : outer - first) - int(at);
    }

    // Ask for the next tile along k, which begins at k0.
    __device__ __forceinline__ void fetch(REAL* tile, int k0, AsyncCopies& copies) {
        const REAL* from = source;
        const bool within = !GUARDED || along > (K_MAJOR ? k0 : 0);
        const int lines = K_MAJOR ? down : down - k0;
#pragma unroll(UNROLLED)
        for (int i = 0; i < PIECES; i++, from += DOWN * ld) {
            if (!EVEN && i * DOWN >= mine) break;
            copies.copy<PIECE * sizeof(REAL)>(tile + place + i * DOWN * PITCH, from,
                                              !GUARDED || (within && i * DOWN < lines));
        }
        source += K_MAJOR ? KB : KB * ld;
    }

    // Where element (outer, p) of the tile lies.
    static __device__ __forceinline__ unsigned index(unsigned outer, unsigned p) {
        return K_MAJOR ? outer * PITCH + p : p * PITCH + outer;
    }
};
