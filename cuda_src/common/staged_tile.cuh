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

    const REAL* source;  // the thread's first piece at k = 0
    long long ld;
    unsigned line, at;       // offset of that piece within the tile
    unsigned lines, length;  // of the matrix, from this tile's start; k counts from 0
    Piece pieces[K_MAJOR ? PIECES : 1];

    __device__ __forceinline__ StagedTile(const REAL* X, long long ld, unsigned first,
                                          unsigned outer, int k, unsigned thread)
        : ld(ld), line(thread / IN_LINE), at(thread % IN_LINE * PIECE) {
        source = X + (K_MAJOR ? (first + line) * ld + at : line * ld + first + at);
        lines = K_MAJOR ? outer - first : k;
        length = K_MAJOR ? k : outer - first;
    }

    // Ask for the tile that begins at k0. CHECKED: it may stick out of the matrix.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* tile, unsigned k0, AsyncCopies& copies) {
        const REAL* from = source + (K_MAJOR ? k0 : k0 * ld);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const int down = i * THREADS / IN_LINE, along = i * THREADS % IN_LINE * PIECE;
            const bool inside = !CHECKED || (line + down + (K_MAJOR ? 0 : k0) < lines &&
                                             at + along + (K_MAJOR ? k0 : 0) < length);
            const REAL* piece = from + down * ld + along;
            if constexpr (K_MAJOR) {
                if (inside) {
                    pieces[i] = *reinterpret_cast<const Piece*>(piece);
                } else {
                    pieces[i] = Piece{};
                }
            } else {
                copies.copy<PIECE * sizeof(REAL)>(tile + (line + down) * PITCH + at + along,
                                                  inside ? piece : source, inside);
            }
        }
    }

    // Store what `fetch` holds in registers.
    __device__ __forceinline__ void put(REAL* tile) {
        if constexpr (K_MAJOR) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const int down = i * THREADS / IN_LINE, along = i * THREADS % IN_LINE * PIECE;
#pragma unroll
                for (int x = 0; x < PIECE; x++)
                    tile[(at + along + x) * PITCH + line + down] = pieces[i].x[x];
            }
        }
    }
};
