// Rows of C that start anywhere, stored from shared memory 8 bytes at a time.
//
// Stored one by one, 2-byte elements make an instruction write 64 bytes of a row, and most sectors
// of 32 bytes in two pieces. Here an instruction writes up to 256 bytes. Each 8 bytes of C come
// from two words of the row in shared memory. `shift` is by how many bytes the row of C begins past
// a multiple of 8:
//
//     shared memory, words of 8 bytes     | 0 1 2 3 | 4 5 6 7 | 8 9 ...
//     C, elements of 2 bytes, shift 6     . . . 0 | 1 2 3 4 | 5 6 7 8 | 9 ...
//
// The elements before the first multiple of 8 and past the last one are stored one by one.

// Stores `rows` rows of `columns` elements, at most ROWS and COLUMNS, of 2 or 4 bytes, from the
// shared memory of one warp to C. COLUMNS fill 8, 16 or 32 words of 8 bytes; a lane reads what it
// needs for MOST words of C before it stores the first. `Staged` says where the rows are:
//
//     staged.place(row, i)    where word i of a row is, row < R
//     staged.word(place, r)   the address of the word r rows further; r is a multiple of R, so that
//                             a swizzle may combine both by xor
//
// R is a power of two, 8 at most: the number of rows that a warp stores at the same time.
template <int ROWS, int COLUMNS, int MOST = 4, class T, class Staged>
__device__ __forceinline__ void store_unaligned_rows(T* C, long long ld, unsigned rows,
                                                     unsigned columns, const Staged& staged) {
    constexpr int SIZE = sizeof(T), WORDS = COLUMNS * SIZE / 8, TOGETHER = 32 / WORDS;  // rows
    constexpr int COUNT = ROWS / TOGETHER, BATCH = COUNT < MOST ? COUNT : MOST;
    const unsigned lane = threadIdx.x % 32, i = lane % WORDS;
    const long long stride = ld * SIZE;  // bytes from row to row
    rows = rows < ROWS ? rows : ROWS;
    const int bytes = (columns < COLUMNS ? columns : COLUMNS) * SIZE;
    unsigned char* const start = reinterpret_cast<unsigned char*>(C);
    const unsigned begin = unsigned(reinterpret_cast<unsigned long long>(start));

    unsigned row = lane / WORDS;
    unsigned char* to = start + row * stride + i * 8;
    unsigned shift = (begin + row * unsigned(stride)) % 8;
    const auto here = staged.place(row, i), before = staged.place(row, i > 0 ? i - 1 : 0);
    const int first = i * 8, last = first + 8 - bytes;  // the lane's word: last <= shift <= first
#pragma unroll 1
    for (int r = 0; r < ROWS && row < rows; r += BATCH * TOGETHER) {
        uint2 x[BATCH];
        const unsigned first_shift = shift;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int further = r + b * TOGETHER;
            const uint2 left = *reinterpret_cast<const uint2*>(staged.word(before, further));
            const uint2 right = *reinterpret_cast<const uint2*>(staged.word(here, further));
            const unsigned bits = shift * 8;  // modulo 32 where it shifts
            const bool far = shift >= 4;
            const unsigned middle = far ? left.y : right.x;
            x[b].x = __funnelshift_l(far ? left.x : left.y, middle, bits);
            x[b].y = __funnelshift_l(middle, far ? right.x : right.y, bits);
            shift = (shift + TOGETHER * unsigned(stride)) % 8;
        }
        shift = first_shift;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (row < rows && first >= int(shift) && last <= int(shift))
                *reinterpret_cast<uint2*>(to - shift) = x[b];
            shift = (shift + TOGETHER * unsigned(stride)) % 8;
            row += TOGETHER;
            to += TOGETHER * stride;
        }
    }
    if ((begin | unsigned(stride) | unsigned(bytes)) % 8 == 0) return;
    // At each end of a row less than a word is left. Two groups of EACH lanes store the ends of a
    // row: the first its first elements, the second its last ones, counted from the end.
    constexpr int EACH = 8 / SIZE, ENDS = 16 / EACH;  // elements of a word; rows at a time
    const int e = lane % EACH * SIZE;                 // bytes from the end
    const bool at_end = lane / EACH % 2 != 0;
    const int offset = at_end ? max(bytes - SIZE - e, 0) : e;
    row = lane / (2 * EACH);
    to = start + row * stride + offset;
    shift = (begin + row * unsigned(stride)) % 8;
    const auto place = staged.place(row, unsigned(offset) / 8);
#pragma unroll
    for (int r = 0; r < ROWS; r += ENDS) {
        const int head = min(int((8 - shift) % 8), bytes);
        const int tail = head < bytes ? (shift + bytes) % 8 : 0;
        if (row < rows && e < (at_end ? tail : head))
            *reinterpret_cast<T*>(to) =
                *reinterpret_cast<const T*>(staged.word(place, r) + offset % 8);
        shift = (shift + ENDS * unsigned(stride)) % 8;
        row += ENDS;
        to += ENDS * stride;
    }
}
