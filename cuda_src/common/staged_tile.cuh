// Tiles copied from global to shared memory while the block computes on older ones.

#include "common/vector.cuh"

// A tile of OUTER x KB elements of op(A) (or of op(B)^T), kept as KB rows of OUTER elements. If it
// lies the same way in memory it comes by asynchronous copies. If it is K-major (K_MAJOR)
// it has to be transposed: `fetch` reads pieces into registers, `put` spreads them over rows of
// shared memory once the multiply-adds in between have hidden the latency. The padding of 16 bytes
// makes the 4-byte stores of a warp, 8 rows x 4 columns of pieces, miss one another's banks.
template <bool K_MAJOR, int OUTER, int THREADS>
struct StagedTile {
    static constexpr int PITCH = OUTER + (K_MAJOR ? VECTOR : 0), ELEMENTS = KB * PITCH;
    static constexpr int LINE = K_MAJOR ? KB : OUTER, LINES = K_MAJOR ? OUTER : KB;
    static constexpr int IN_LINE = LINE / PIECE, PIECES = IN_LINE * LINES / THREADS;
    static_assert(LINE % PIECE == 0 && (THREADS % IN_LINE == 0 || IN_LINE % THREADS == 0) &&
                      IN_LINE * LINES % THREADS == 0,
                  "threads share the pieces of both tiles evenly");

    // One tile on its way through the registers of a thread.
    struct Pieces {
        Piece of[K_MAJOR ? PIECES : 1];
    };

    const REAL* source;     // the thread's first piece of the next tile to fetch
    long long apart, step;  // from its line to that of its next piece, from tile to tile: elements
    int lines, length;      // of the matrix, from that piece on
    unsigned at;            // where the piece goes in a stage

    // The tiles that begin at line or column `first` of the matrix and, along k, at `begin`.
    __device__ __forceinline__ StagedTile(const REAL* X, long long ld, unsigned first,
                                          unsigned outer, unsigned begin, unsigned k,
                                          unsigned thread)
        : apart((THREADS > IN_LINE ? THREADS / IN_LINE : 1) * ld), step(K_MAJOR ? KB : KB * ld) {
        const unsigned line = thread / IN_LINE, along = thread % IN_LINE * PIECE;
        source = X + (K_MAJOR ? (first + line) * ld + begin + along
                              : (begin + line) * ld + first + along);
        lines = (K_MAJOR ? outer - first : k - begin) - line;
        length = (K_MAJOR ? k - begin : outer - first) - along;
        at = K_MAJOR ? along * PITCH + line : line * PITCH + along;
    }

    // Ask for the next tile. CHECKED: it may stick out of the matrix.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* tile, Pieces& pieces, AsyncCopies& copies) {
        const REAL* line = source;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const int down = i * THREADS / IN_LINE, along = i * THREADS % IN_LINE * PIECE;
            const bool inside = !CHECKED || (down < lines && along < length);
            if (i > 0 && along == 0) line += apart;
            if constexpr (K_MAJOR) {
                if (inside) {
                    pieces.of[i] = *reinterpret_cast<const Piece*>(line + along);
                } else {
                    pieces.of[i] = Piece{};
                }
            } else {
                copies.copy<PIECE * sizeof(REAL)>(tile + at + (down * PITCH + along), line + along,
                                                  inside);
            }
        }
        source += step;
        (K_MAJOR ? length : lines) -= KB;
    }

    // Store what `fetch` left in registers.
    __device__ __forceinline__ void put(REAL* tile, const Pieces& pieces) {
        if constexpr (K_MAJOR) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const int down = i * THREADS / IN_LINE, along = i * THREADS % IN_LINE * PIECE;
#pragma unroll
                for (int x = 0; x < PIECE; x++)
                    (tile + at)[(along + x) * PITCH + down] = pieces.of[i].x[x];
            }
        }
    }
};
