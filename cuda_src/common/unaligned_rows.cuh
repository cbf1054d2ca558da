// Rows of C that start anywhere, stored from shared memory 8 bytes at a time.
//
// One element of 2 bytes for each lane, an instruction stores 64 bytes, and sectors of 32 in parts.
// Here it stores up to 256. What 8 bytes of C hold lies across two words of the row in shared
// memory; `behind` is how far the row begins behind a multiple of 8:
//
//     shared memory, words of 8 bytes     | 0 1 2 3 | 4 5 6 7 | 8 9 ...
//     C, elements of 2 bytes, behind 6    . . . 0 | 1 2 3 4 | 5 6 7 8 | 9 ...
//
// The elements before the first multiple of 8 and behind the last one are stored one by one.

// Stores `rows` rows of `columns` elements, at most ROWS and COLUMNS, of one warp to C, whose row 0
// begins there. COLUMNS fill 32 words of 8 bytes or a power of two below; MOST words of a lane are
// read before one is stored. `Staged` says where they are in shared memory:
//
//     staged.place(row, i)    where word i of a row is: one of as many rows, 8 at most, as a warp
//                             stores at a time
//     staged.word(place, r)   the address of the word r rows further, a multiple of so many
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
    unsigned behind = (begin + row * unsigned(stride)) % 8;
    const auto here = staged.place(row, i), before = staged.place(row, i > 0 ? i - 1 : 0);
    const int first = i * 8, last = first + 8 - bytes;  // the word is whole for which `behind`
#pragma unroll 1
    for (int r = 0; r < ROWS && row < rows; r += BATCH * TOGETHER) {
        uint2 x[BATCH];
        const unsigned at_first = behind;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int further = r + b * TOGETHER;
            const uint2 left = *reinterpret_cast<const uint2*>(staged.word(before, further));
            const uint2 right = *reinterpret_cast<const uint2*>(staged.word(here, further));
            const unsigned bits = behind * 8;  // modulo 32 where it shifts
            const bool far = behind >= 4;
            const unsigned middle = far ? left.y : right.x;
            x[b].x = __funnelshift_l(far ? left.x : left.y, middle, bits);
            x[b].y = __funnelshift_l(middle, far ? right.x : right.y, bits);
            behind = (behind + TOGETHER * unsigned(stride)) % 8;
        }
        behind = at_first;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (row < rows && first >= int(behind) && last <= int(behind))
                *reinterpret_cast<uint2*>(to - behind) = x[b];
            behind = (behind + TOGETHER * unsigned(stride)) % 8;
            row += TOGETHER;
            to += TOGETHER * stride;
        }
    }
    if ((begin | unsigned(stride) | unsigned(bytes)) % 8 == 0) return;
    // At each end of a row there is less than a word. One lane stores its first element, or its
    // last one, the next lane the element behind it, or before it.
    constexpr int EACH = 8 / SIZE, ENDS = 16 / EACH;  // elements of a word; rows at a time
    const int e = lane % EACH * SIZE;                 // bytes from the end
    const bool at_end = lane / EACH % 2 != 0;
    const unsigned offset = at_end ? bytes - SIZE - e : e;
    row = lane / (2 * EACH);
    to = start + row * stride + offset;
    behind = (begin + row * unsigned(stride)) % 8;
    const auto place = staged.place(row, offset / 8);
#pragma unroll
    for (int r = 0; r < ROWS; r += ENDS) {
        const int head = min(int((8 - behind) % 8), bytes);
        const int tail = head < bytes ? (behind + bytes) % 8 : 0;
        if (row < rows && e < (at_end ? tail : head))
            *reinterpret_cast<T*>(to) =
                *reinterpret_cast<const T*>(staged.word(place, r) + offset % 8);
        behind = (behind + ENDS * unsigned(stride)) % 8;
        row += ENDS;
        to += ENDS * stride;
    }
}
