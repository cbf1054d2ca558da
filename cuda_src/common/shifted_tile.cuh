// Tiles whose rows start anywhere in global memory, copied 16 bytes at a time all the same: from
// the multiple of 16 bytes before a line begins to the one behind its end.

#include "common/mma_fragments.cuh"
#include "common/vector.cuh"
#include "common/ptx.cuh"

// A tile of OUTER x KB elements of op(A) (or of op(B)^T), kept as OUTER lines of KB elements where
// it is stored K-major (K_MAJOR), otherwise as KB lines of OUTER. Each line lies as far behind a
// multiple of 16 bytes as it does in global memory, and has 16 bytes more than its elements take:
//
//     a line of 64 elements of 2 bytes that begins 6 bytes behind a multiple of 16
//     | . . . 0 1 2 3 4 | 5 6 7 8 9 10 11 12 | ... | 61 62 63 . . . . . |
//
// Lines that are 8 apart begin alike, so each lane knows once and for all where its own do.
// `ldmatrix` cannot read them: it wants multiples of 16 bytes. A lane reads its words itself: two
// 16-bit elements of one line from two words, of which it takes the middle if the line begins at an
// odd element; two of different lines one by one. The 16 bytes more spread the lanes over the
// banks: only lines that begin differently can meet.
template <bool LEFT, bool K_MAJOR, int OUTER, int THREADS>
struct ShiftedTile {
    static constexpr int SIZE = sizeof(REAL), CHUNK = 16 / SIZE;  // elements of 16 bytes
    static constexpr int LINE = K_MAJOR ? KB : OUTER, LINES = K_MAJOR ? OUTER : KB;
    static constexpr int PITCH = LINE * SIZE + 16, BYTES = LINES * PITCH;  // of a line, of the tile
    static constexpr int IN_LINE = LINE / CHUNK, PIECES = IN_LINE * LINES / THREADS;
    static constexpr int DOWN = THREADS / IN_LINE;  // lines from one piece of a thread to its next
    static constexpr int ENDS = (LINES + THREADS - 1) / THREADS;  // pieces at the ends of lines
    static_assert(LINE % CHUNK == 0 && THREADS % IN_LINE == 0 && IN_LINE * LINES % THREADS == 0,
                  "threads copy whole lines of both tiles at a time");

    // Where a lane reads. K-major: its first word, and by how many bits words are shifted.
    // MN-major: its first element of an even line, and of the next.
    struct Place {
        unsigned at, other;
    };

    const REAL* start;  // of the tile that is fetched next
    long long ld;
    unsigned thread;
    int lines, length;  // of the matrix, from the tile's first element on, at k = 0

    __device__ __forceinline__ ShiftedTile(const REAL* X, long long ld, unsigned first,
                                           unsigned outer, unsigned k0, int k, unsigned thread)
        : ld(ld), thread(thread) {
        start = X + (K_MAJOR ? first * ld + k0 : k0 * ld + first);
        lines = K_MAJOR ? outer - first : k;
        length = K_MAJOR ? k : outer - first;
    }

    // Ask for the 16 bytes that hold element `along` of a line. Nothing behind the line is read.
    __device__ __forceinline__ void fetch_piece(unsigned char* tile, int line, int along, int k0,
                                                bool end, AsyncCopies& copies) const {
        const auto from = reinterpret_cast<unsigned long long>(start + line * ld + along);
        const int before = from % 16;
        int bytes = 16;
        if (GUARDED || end) {
            bytes = (length - (K_MAJOR ? k0 : 0) - along) * SIZE + before;
            bytes = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
            if (GUARDED && line >= lines - (K_MAJOR ? 0 : k0)) bytes = 0;
        }
        copies.copy_first(tile + line * PITCH + along * SIZE,
                          reinterpret_cast<const void*>(from - before), bytes);
    }

    // Ask for the next tile along k, which begins at k0.
    __device__ __forceinline__ void fetch(unsigned char* tile, int k0, AsyncCopies& copies) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            fetch_piece(tile, thread / IN_LINE + i * DOWN, thread % IN_LINE * CHUNK, k0, false,
                        copies);
#pragma unroll
        for (int i = 0; i < ENDS; i++)
            if (LINES % THREADS == 0 || thread + i * THREADS < LINES)
                fetch_piece(tile, thread + i * THREADS, LINE, k0, true, copies);
        start += K_MAJOR ? KB : KB * ld;
    }

    // The order of a fragment's four 8 x 16 bytes: A's register number q has its upper or lower
    // rows by q % 2, B's by q / 2, so that the two that an instruction takes of B are neighbours.
    static __device__ __forceinline__ constexpr unsigned half(unsigned q) {
        return LEFT ? q % 2 : q / 2;
    }
    static __device__ __forceinline__ constexpr unsigned deeper(unsigned q) {
        return LEFT ? q / 2 : q % 2;
    }
    // Where a lane reads in the tile, for a warp whose part of it begins at `first`, 32 * `p` bytes
    // deep. Before the first fetch.
    __device__ __forceinline__ Place lane_place(unsigned first, unsigned p, unsigned lane) const {
        const unsigned row = first + lane / 4, deep = p * (32 / SIZE) + lane % 4 * (4 / SIZE);
        const unsigned line = K_MAJOR ? row : deep, along = K_MAJOR ? deep : row;
        const auto begin = reinterpret_cast<unsigned long long>(start + line * ld);
        const unsigned shift = begin % 16, next = (begin + ld * SIZE) % 16;
        if (K_MAJOR)
            return {line * PITCH + along * SIZE + shift / 4 * 4, shift % 4 * 8};
        return {line * PITCH + along * SIZE + shift, (line + 1) * PITCH + along * SIZE + next};
    }
    // Fragment i of the warp's part, p * 32 bytes deep.
    static __device__ __forceinline__ void read(unsigned (&r)[4], const unsigned char* tile,
                                                const Place& place, int i, int p) {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int row = i * 16 + half(q) * 8, deep = (p * 32 + deeper(q) * 16) / SIZE;
            const unsigned char* const here =
                tile + (K_MAJOR ? row * PITCH + deep * SIZE : deep * PITCH + row * SIZE);
            if constexpr (K_MAJOR) {
                const auto* const words = reinterpret_cast<const unsigned*>(here + place.at);
                r[q] = SIZE == 4 ? words[0] : __funnelshift_r(words[0], words[1], place.other);
            } else {
                const unsigned low = *reinterpret_cast<const unsigned short*>(here + place.at);
                const unsigned high = *reinterpret_cast<const unsigned short*>(here + place.other);
                r[q] = low | high << 16;
            }
        }
    }
    // Rounds float32 to tf32, as SwizzledTile does.
    static __device__ __forceinline__ void round_operands(unsigned (&r)[4]) {
        if constexpr (SIZE == 4) {
#pragma unroll
            for (int q = 0; q < 4; q++) r[q] = rounded(r[q]);
        }
    }
};
