// Tiles of double precision that TMA brings in lines of 128 bytes, swizzled, and the fragments of
// mma that are read from them. The kernel defines MB, NB, KB, TA, TB, TK, KI, TRANS_A and TRANS_B.

constexpr int LINE = 16;                         // elements in a line
constexpr int ROWS = TA / 16, COLUMNS = TB / 8;  // mma of a warp along m and n

// Depth of what comes together: what a warp takes of a step, a line at least. Where both operands
// are MN-major all boxes are that deep, and to ask for one takes some 80 clocks: for the eight of
// 64 x 64 x 16 longer than to multiply them. There it is two lines.
constexpr int LEAST = TRANS_A && !TRANS_B ? 32 : LINE;
constexpr int DEEP = TK >= LEAST ? TK : KB % LEAST == 0 ? LEAST : KB;

// A tile of OUTER x DEEP elements of op(A) (or of op(B)^T). K_MAJOR: a line is 16 elements of a
// row, DEEP / 16 piles of OUTER lines; else 16 elements of a column, OUTER / 16 piles of DEEP
// lines, the last of which may be used by half.
//
// TMA puts piece c (16 bytes) of line l where c ^ l % 8 would be, to spread columns over the banks.
// 16 lanes are served together: four rows of a fragment, four elements of each, deep in a row. Rows
// may be taken in any order, as long as C is stored in the same one, and so each group of 16 is
// permuted. K_MAJOR: four rows must differ in bits 1 and 2 of l, which move pairs of pieces. Else:
// the four elements are in four lines, which move pieces within fours; the four rows must differ in
// bit 0, within a piece, and bit 3, from four to four. A last group of 8 rows has no bit 3: there
// two lanes meet in a bank.
template <bool K_MAJOR, int OUTER>
struct OperandTile {
    static constexpr int PILES = (K_MAJOR ? DEEP : OUTER + LINE - 1) / LINE;
    static constexpr int PILE_BYTES = (K_MAJOR ? OUTER : DEEP) * 128, BYTES = PILES * PILE_BYTES;
    static constexpr int HALF = K_MAJOR ? 1 : 4;  // from a row of an mma's first half to the second

    // The row, of 16, that is number g of 8 in the first half.
    static __device__ __forceinline__ unsigned row(unsigned g) {
        if (K_MAJOR) return g % 2 == 0 ? g : 8 + (g - 1 ^ 4);
        return g % 2 + g / 2 % 2 * 8 + g / 4 * 2;
    }
    // The same of a last group of 8.
    static __device__ __forceinline__ unsigned last_row(unsigned g) {
        return K_MAJOR && g % 2 != 0 ? (g - 1 ^ 4) + 1 : g;
    }
    // Where row r is at depth t < 4 after `deep`, a multiple of 8.
    static __device__ __forceinline__ unsigned place(unsigned r, unsigned deep, unsigned t) {
        if (K_MAJOR)
            return (deep / LINE * OUTER + r) * 128 + ((deep % LINE / 2 + t / 2 ^ r % 8) << 4) +
                   t % 2 * 8;
        return (r / LINE * DEEP + deep + t) * 128 + ((r % LINE / 2 ^ t) << 4) + r % 2 * 8;
    }
    // Where lane 4 g + t finds number g of rows `first` and on, and of a last group of 8.
    static __device__ __forceinline__ unsigned begin(unsigned first, unsigned deep, unsigned lane) {
        return place(first + row(lane / 4), deep, lane % 4);
    }
    static __device__ __forceinline__ unsigned begin_last(unsigned deep, unsigned lane) {
        return place(last_row(lane / 4), deep, lane % 4);
    }
    // From there to 16 i rows and half h further down, 4 q deeper.
    static __device__ __forceinline__ unsigned at(unsigned begin, int i, int h, int q) {
        if (K_MAJOR) return (begin ^ (q % 4 * 32 | h * 144)) + (q / 4 * OUTER + i * LINE) * 128;
        return (begin ^ (q % 2 * 64 | h * 32)) + (q * 4 + i * DEEP) * 128;
    }
    static __device__ __forceinline__ void fetch(unsigned tile, const TensorMap* map, unsigned full,
                                                 unsigned outer, unsigned k0, unsigned matrix) {
#pragma unroll
        for (int i = 0; i < PILES; i++)
            tma_load(tile + i * PILE_BYTES, map, full, K_MAJOR ? k0 + i * LINE : outer + i * LINE,
                     K_MAJOR ? outer : k0, matrix);
    }
};
using TileA = OperandTile<!TRANS_A, MB>;
using TileB = OperandTile<TRANS_B, NB>;

constexpr int LAST = COLUMNS % 2 ? COLUMNS - 1 : COLUMNS;  // the mma of a last group of 8 columns

// Where a lane begins to read: rows, columns, and columns of a last group of 8.
struct FragmentBases {
    unsigned a, b, last;
};

// What a lane holds of KI columns of the warp's rows of A and of KI rows of its columns of B.
struct Fragments {
    double a[ROWS][KI / 2], b[COLUMNS][KI / 4];

    __device__ __forceinline__ void read(const FragmentBases& from, unsigned here, int p) {
        const unsigned from_a = from.a + here, from_b = from.b + here, last = from.last + here;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int x = 0; x < KI / 4; x++)
                b[j][x] =
                    load_shared(TileB::at(j == LAST ? last : from_b, j / 2, j % 2, p / 4 + x));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int x = 0; x < KI / 2; x++)
                a[i][x] = load_shared(TileA::at(from_a, i, x % 2, p / 4 + x / 2));
    }
};
