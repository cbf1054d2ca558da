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

    static constexpr int LINES_APART = THREADS > IN_LINE ? THREADS / IN_LINE : 1;

    const REAL* source;    // what the thread copies next
    long long apart, next;  // from its line to that of a later copy, from the last to the next tile
    int lines, length;      // of the matrix, from its first copy of the next tile on
    unsigned at;            // where that goes in a stage

    // The tiles that begin at line or column `first` of the matrix and, along k, at `begin`.
    __device__ __forceinline__ StagedTile(const REAL* X, long long ld, unsigned first,
                                          unsigned outer, unsigned begin, unsigned k,
                                          unsigned thread)
        : apart(LINES_APART * ld),
          next((K_MAJOR ? KB : KB * ld) - (LINES / LINES_APART - 1) * apart) {
        const unsigned line = thread / IN_LINE, along = thread % IN_LINE * MOVED;
        source = X + (K_MAJOR ? (first + line) * ld + begin + along
                              : (begin + line) * ld + first + along);
        lines = (K_MAJOR ? outer - first : k - begin) - line;
        length = (K_MAJOR ? k - begin : outer - first) - along;
        at = K_MAJOR ? along * PITCH + line : line * PITCH + along;
    }

    // Ask for part `part` of `parts` of the next tile, the parts in their order. CHECKED: it may
    // stick out of the matrix.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* tile, AsyncCopies& copies, int part = 0,
                                          int parts = 1) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            if (i < part * COPIES / parts || i >= (part + 1) * COPIES / parts) continue;
            if (i > 0 && along(i) == 0) source += apart;
            copies.copy<MOVED * sizeof(REAL)>(tile + at + place(i), source + along(i),
                                              !CHECKED || (down(i) < lines && along(i) < length));
        }
        if (part + 1 < parts) return;
        source += next;
        (K_MAJOR ? length : lines) -= KB;
    }

  private:
    // Copy i of a thread, from its first one: lines further, elements further along them, and where.
    static __device__ __forceinline__ constexpr int down(int i) { return i * THREADS / IN_LINE; }
    static __device__ __forceinline__ constexpr int along(int i) { return i * THREADS % IN_LINE * MOVED; }
    static __device__ __forceinline__ constexpr int place(int i) {
        return K_MAJOR ? along(i) * PITCH + down(i) : down(i) * PITCH + along(i);
    }
};
