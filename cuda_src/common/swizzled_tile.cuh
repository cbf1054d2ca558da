// Tiles copied from global to shared memory in the same layout, without padding: fragments read
// them by `ldmatrix`, which wants 16 bytes at multiples of 16.

#include "common/mma_fragments.cuh"
#include "common/vector.cuh"
#include "common/ptx.cuh"

// A tile of OUTER x KB elements of op(A) (or of op(B)^T), kept as OUTER lines of KB elements where
// it is stored K-major (K_MAJOR), otherwise as KB lines of OUTER. Eight lanes read 16 bytes
// each, at one place of eight lines. So that these lie in different banks, the 16-byte chunks of a
// line are swapped: chunk number c of line l lies at c xor (l mod 8).
//
//     line 0   0 1 2 3 4 5 6 7      A line of 32 or 64 bytes has 2 or 4 chunks; 4 or 2 lines that
//     line 1   1 0 3 2 5 4 7 6      share 128 bytes, all the banks, then have the same order.
//     line 2   2 3 0 1 6 7 4 5
//
// `ldmatrix` transposes 16-bit elements only. Those of 32 bits that are MN-major are read one by
// one, each lane its own: of 4 lines 8 neighbours, two chunks. There pairs of chunks are swapped.
template <bool LEFT, bool K_MAJOR, int OUTER, int THREADS>
struct SwizzledTile {
    static constexpr int SIZE = sizeof(REAL);
    static constexpr bool SINGLE = !K_MAJOR && SIZE == 4;
    static constexpr int LINE = K_MAJOR ? KB : OUTER, LINES = K_MAJOR ? OUTER : KB;
    static constexpr int PITCH = LINE * SIZE, BYTES = LINES * PITCH;  // of a line, of the tile
    static constexpr int WAYS = PITCH < 128 ? PITCH / 16 : 8, SHARING = 8 / WAYS;
    static constexpr int IN_LINE = LINE / PIECE, PIECES = IN_LINE * LINES / THREADS;
    static constexpr int DOWN = THREADS / IN_LINE;  // lines from one piece of a thread to its next
    static_assert(LINE % PIECE == 0 && THREADS % IN_LINE == 0 && IN_LINE * LINES % THREADS == 0,
                  "threads copy whole lines of both tiles at a time");

    const REAL* source;  // the thread's next piece
    long long ld;
    unsigned place;   // of its first piece in a tile, in bytes
    int down, along;  // to the matrix's end from that piece, across lines and along them, at k = 0

    __device__ __forceinline__ SwizzledTile(const REAL* X, long long ld, unsigned first,
                                            unsigned outer, unsigned k0, int k, unsigned thread)
        : ld(ld) {
        const unsigned line = thread / IN_LINE, at = thread % IN_LINE * PIECE;
        source = X + (K_MAJOR ? (first + line) * ld + k0 + at : (k0 + line) * ld + first + at);
        place = line * PITCH + (at * SIZE ^ swizzle(line));
        down = int(K_MAJOR ? outer - first : k) - int(line);
        along = int(K_MAJOR ? k : outer - first) - int(at);
    }

    // What changes the places of a line's bytes. The turn of line a + b is that of a xor that of b
    // if b is a multiple of a power of two above a.
    static __device__ __forceinline__ constexpr unsigned swizzle(unsigned line) {
        return SINGLE ? line / SHARING % (WAYS / 2) * 32 : line / SHARING % WAYS * 16;
    }

    // Ask for the next tile along k, which begins at k0.
    __device__ __forceinline__ void fetch(unsigned char* tile, int k0, AsyncCopies& copies) {
        const bool within = !GUARDED || along > (K_MAJOR ? k0 : 0);
        const int lines = K_MAJOR ? down : down - k0;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const bool inside = !GUARDED || (within && i * DOWN < lines);
            copies.copy<PIECE * SIZE>(tile + at(i), source, inside);
            source += DOWN * ld;
        }
        if (K_MAJOR) source += KB - OUTER * ld;  // else it is there
    }
    __device__ __forceinline__ unsigned at(int i) const {
        return (place ^ swizzle(i * DOWN)) + i * DOWN * PITCH;
    }

    // The order of a fragment's four 8 x 16 bytes: A's register number q has its upper or lower
    // rows by q % 2, B's by q / 2, so that the two that an instruction takes of B are neighbours.
    static __device__ __forceinline__ constexpr unsigned half(unsigned q) {
        return LEFT ? q % 2 : q / 2;
    }
    static __device__ __forceinline__ constexpr unsigned deeper(unsigned q) {
        return LEFT ? q / 2 : q % 2;
    }
    // Where a lane reads in the tile, for a warp whose part of it begins at `first`, 32 * `deep`
    // bytes deep.
    static __device__ __forceinline__ unsigned lane_place(unsigned first, unsigned deep,
                                                          unsigned lane) {
        const unsigned above = K_MAJOR ? 0 : deep * (32 / SIZE) * PITCH;
        if (SINGLE) return above + lane % 4 * PITCH + ((first + lane / 4) * 4 ^ swizzle(lane % 4));
        const unsigned h = half(lane / 8), x = deeper(lane / 8);
        const unsigned line = K_MAJOR ? first + h * 8 + lane % 8 : x * 8 + lane % 8;
        const unsigned along = K_MAJOR ? deep * 32 + x * 16 : first * SIZE + h * 16;
        return above + line * PITCH + (along ^ swizzle(line));
    }
    // Fragment i of the warp's part, p * 32 bytes deep. i and p are powers of two apart from what
    // else is in `place`, so that they can be turned with it.
    static __device__ __forceinline__ void read(unsigned (&r)[4], const unsigned char* tile,
                                                unsigned place, int i, int p) {
        if constexpr (SINGLE) {
#pragma unroll
            for (int q = 0; q < 4; q++)
                r[q] = *reinterpret_cast<const unsigned*>(tile + (place ^ (i * 64 + half(q) * 32)) +
                                                          (p * 8 + deeper(q) * 4) * PITCH);
        } else {
            const int across = K_MAJOR ? i : p, inside = K_MAJOR ? p : i;
            ldmatrix_x4<!K_MAJOR>(r, tile + (place ^ inside * 32) + across * 16 * PITCH);
        }
    }
    // Rounds what `read` has read for the tensor cores, as late as possible: rounding right after
    // reading would wait for shared memory.
    static __device__ __forceinline__ void round_operands(unsigned (&r)[4]) {
        if constexpr (SIZE == 4) {
#pragma unroll
            for (int q = 0; q < 4; q++) r[q] = rounded(r[q]);
        }
    }
};
