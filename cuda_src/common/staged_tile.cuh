// Tiles copied from global to shared memory while the block computes on older ones.

#include "common/vector.cuh"

// A tile of OUTER x KB elements of op(A) (or of op(B)^T), kept as KB rows of OUTER elements. It
// comes by asynchronous copies, past the registers: a piece at a time if it lies the same way in
// memory. If it is K-major (K_MAJOR) it is transposed on the way, by copies of single elements:
// thanks to the padding of 16 bytes only KB / 8 of those that a warp writes at a time share a bank.
template <bool K_MAJOR, int OUTER, int THREADS>
struct StagedTile {
    static constexpr int PITCH = OUTER + (K_MAJOR ? VECTOR : 0), ELEMENTS = KB * PITCH;
    static constexpr int LINE = K_MAJOR ? KB : OUTER, LINES = K_MAJOR ? OUTER : KB;
    static constexpr int MOVED = K_MAJOR ? 1 : PIECE;  // elements of a copy
    static constexpr int IN_LINE = LINE / MOVED, COPIES = IN_LINE * LINES / THREADS;  // of a thread
    static_assert(LINE % MOVED == 0 && (THREADS % IN_LINE == 0 || IN_LINE % THREADS == 0) &&
                      IN_LINE * LINES % THREADS == 0,
                  "threads share the pieces of both tiles evenly");

    const REAL* source;     // what the thread copies first of the next tile
    long long apart, step;  // from its line to that of its next copy, from tile to tile: elements
    int lines, length;      // of the matrix, from there on
    unsigned at;            // where it goes in a stage

    // The tiles that begin at line or column `first` of the matrix and, along k, at `begin`.
    __device__ __forceinline__ StagedTile(const REAL* X, long long ld, unsigned first,
                                          unsigned outer, unsigned begin, unsigned k,
                                          unsigned thread)
        : apart((THREADS > IN_LINE ? THREADS / IN_LINE : 1) * ld), step(K_MAJOR ? KB : KB * ld) {
        const unsigned line = thread / IN_LINE, along = thread % IN_LINE * MOVED;
        source = X + (K_MAJOR ? (first + line) * ld + begin + along
                              : (begin + line) * ld + first + along);
        lines = (K_MAJOR ? outer - first : k - begin) - line;
        length = (K_MAJOR ? k - begin : outer - first) - along;
        at = K_MAJOR ? along * PITCH + line : line * PITCH + along;
    }

    // Ask for the next tile. CHECKED: it may stick out of the matrix.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* tile, AsyncCopies& copies) {
        const REAL* line = source;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int down = i * THREADS / IN_LINE, along = i * THREADS % IN_LINE * MOVED;
            const int to = K_MAJOR ? along * PITCH + down : down * PITCH + along;
            if (i > 0 && along == 0) line += apart;
            copies.copy<MOVED * sizeof(REAL)>(tile + at + to, line + along,
                                              !CHECKED || (down < lines && along < length));
        }
        source += step;
        (K_MAJOR ? length : lines) -= KB;
    }
};
