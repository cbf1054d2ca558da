// What a warp of rung 11 keeps of an operand: a slice of KB columns of op(A) or KB rows of op(B).
// The kernel says KB, and TURN, the slices from one of a warp to its next.

// OUTER x KB elements of op(A) (or of op(B)^T) in shared memory. Stored along k (ALONG) they are
// OUTER lines of KB elements, otherwise KB lines of OUTER. Eight lanes that read 16 bytes each from
// one column of eight lines along k would meet in few banks: so the vectors of a line change places
// (`turn`), and what eight lanes read or write at a time lies in eight different groups of banks.
template <bool ALONG, int OUTER, int T>
struct Slice {
    static constexpr int PITCH = OUTER;  // from one row to the next of what lies across k
    static constexpr int LINE = ALONG ? KB : OUTER, LINES = ALONG ? OUTER : KB;
    static constexpr int IN_LINE = LINE / PIECE, COPIES = IN_LINE * LINES;
    static constexpr int ELEMENTS = LINE * LINES, LANES = OUTER / T;
    static_assert(LINE % PIECE == 0 && (32 % IN_LINE == 0 || IN_LINE % 32 == 0),
                  "the lanes of a warp share the lines of a slice evenly");

    const REAL* source;  // the lane's first piece of the next slice
    long long ld;
    unsigned line, at;  // where that piece lies within the slice
    int down, along;    // from it to the matrix's end, across lines and along them, at k = 0

    __device__ __forceinline__ Slice(const REAL* X, long long ld, unsigned first, unsigned outer,
                                     unsigned k0, int k, unsigned lane)
        : ld(ld), line(lane / IN_LINE), at(lane % IN_LINE * PIECE) {
        source = X + (ALONG ? (first + line) * ld + k0 + at : (k0 + line) * ld + first + at);
        down = int(ALONG ? outer - first : k) - int(line);
        along = int(ALONG ? k : outer - first) - int(at);
    }

    // Vector x of a line lies where vector x ^ turn(line) would; turn(i + j) is turn(i) ^ turn(j)
    // if i and j have no bit in common.
    static __device__ __forceinline__ unsigned turn(unsigned line) {
        constexpr int TURNS = !ALONG ? 1 : KB / VECTOR < 8 ? KB / VECTOR : 8;
        return line * TURNS / 8 % TURNS;
    }

    // Ask for the next slice of the warp, which begins at k0. CHECKED: it may stick out.
    template <bool CHECKED>
    __device__ __forceinline__ void fetch(REAL* slice, int k0, unsigned lane, AsyncCopies& copies) {
        const REAL* from = source;
        const int lines = ALONG ? down : down - k0, length = ALONG ? along - k0 : along;
        const unsigned vector = at / VECTOR ^ turn(line);
#pragma unroll
        for (int i = 0; i < COPIES; i += 32) {
            const int below = i / IN_LINE, beside = i % IN_LINE * PIECE;
            if (COPIES % 32 != 0 && COPIES - i < 32 && lane >= COPIES - i) break;
            const bool inside = !CHECKED || (below < lines && beside < length);
            const unsigned place = (vector ^ turn(below) ^ beside / VECTOR) * VECTOR + at % VECTOR;
            copies.copy_of_line<PIECE * sizeof(REAL)>(slice + (line + below) * LINE + place,
                                                      from + below * ld + beside, inside);
        }
        source += TURN * KB * (ALONG ? 1 : ld);
    }

    // Which row of the tile (of op(B)^T) is number i of the T that lane number `lane` computes.
    static __device__ __forceinline__ unsigned outer(unsigned lane, int i) {
        return ALONG ? lane + i * LANES
                     : lane * VECTOR + i / VECTOR * VECTOR * LANES + i % VECTOR;
    }

    // The lane's T rows, VECTOR columns from p on.
    static __device__ __forceinline__ void read(REAL (&fragment)[VECTOR][T], const REAL* slice,
                                                unsigned lane, int p) {
#pragma unroll
        for (int i = 0; i < T * VECTOR; i += VECTOR) {
            const int q = ALONG ? i / VECTOR : i % T, e = ALONG ? 0 : i / T;
            const unsigned turned = turn(lane) ^ turn(q * LANES) ^ p / VECTOR;
            const unsigned place = ALONG ? outer(lane, q) * KB + turned * VECTOR
                                         : (p + e) * OUTER + outer(lane, q);
            const Vector v = *reinterpret_cast<const Vector*>(slice + place);
#pragma unroll
            for (int x = 0; x < VECTOR; x++) fragment[ALONG ? x : e][ALONG ? q : q + x] = v.x[x];
        }
    }
};

// The same across k, KB rows of OUTER elements, by way of registers: this turns what lies along k,
// and what starts at odd addresses comes more quickly (a copy of 4 bytes for each lane of a warp
// takes the multiprocessor 8 cycles). Along k, eight lanes take the elements of a line and
// rows in shared memory are 4 elements longer than they need to be, so that what a warp writes at a
// time lies in 32 different banks.
template <bool ALONG, int OUTER, int T>
struct HeldSlice {
    static constexpr int PITCH = ALONG ? OUTER + 4 : OUTER, ELEMENTS = KB * PITCH;
    static constexpr int LINE = ALONG ? KB : OUTER, HELD = OUTER * KB / 32;
    static_assert(32 % LINE == 0 || LINE % 32 == 0,
                  "the lanes of a warp share the lines of a slice evenly");

    const REAL* source;  // the lane's first element of the next slice
    long long ld;
    unsigned place;      // where that lies within the slice
    int down, along;     // from it to the matrix's end, across lines and along them, at k = 0
    REAL held[HELD];

    static __device__ __forceinline__ int below(int i) { return i * 32 / LINE; }
    static __device__ __forceinline__ int beside(int i) { return i * 32 % LINE; }

    __device__ __forceinline__ HeldSlice(const REAL* X, long long ld, unsigned first,
                                         unsigned outer, unsigned k0, int k, unsigned lane)
        : ld(ld) {
        const unsigned line = lane / LINE, at = lane % LINE;
        place = ALONG ? at * PITCH + line : line * PITCH + at;
        source = X + (ALONG ? (first + line) * ld + k0 + at : (k0 + line) * ld + first + at);
        down = int(ALONG ? outer - first : k) - int(line);
        along = int(ALONG ? k : outer - first) - int(at);
    }
    // Have the next slice, which begins at k0, on its way. CHECKED: it may stick out.
    template <bool CHECKED>
    __device__ __forceinline__ void load(int k0) {
        const int lines = ALONG ? down : down - k0, length = ALONG ? along - k0 : along;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const bool inside = !CHECKED || (below(i) < lines && beside(i) < length);
            held[i] = inside ? source[below(i) * ld + beside(i)] : REAL(0);
        }
        source += TURN * KB * (ALONG ? 1 : ld);
    }
    __device__ __forceinline__ void store(REAL* slice) const {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            slice[place + (ALONG ? below(i) : below(i) * PITCH + beside(i))] = held[i];
    }
    // Which row of the tile (of op(B)^T) is number i of the T that lane number `lane` computes.
    static __device__ __forceinline__ unsigned outer(unsigned lane, int i) {
        return lane * VECTOR + i / VECTOR * VECTOR * (OUTER / T) + i % VECTOR;
    }
};
