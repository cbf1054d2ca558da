// Which tile of C a block computes.

#include "common/triangle.cuh"

#ifndef GROUP
#define GROUP 8  // rows of tiles that are walked together
#endif
#ifndef TILE_M
#define TILE_M MB  // rows of a tile: more than one block's, if a cluster shares it
#endif
#ifndef TILE_N
#define TILE_N NB  // columns of a tile
#endif

// A half of a square C is a stair. Its lines are rows of tiles if the lower half is kept, columns
// of the upper: line l has width(l) tiles, those that begin before its end. Groups of LINES lines,
// a multiple of PERIOD, each have GROWTH tiles more than the one before.
namespace triangle {
constexpr unsigned HIGH = FILL == 2 ? TILE_N : TILE_M, WIDE = FILL == 2 ? TILE_M : TILE_N;
__device__ constexpr unsigned common_divisor(unsigned a, unsigned b) {
    return b == 0 ? a : common_divisor(b, a % b);
}
__device__ constexpr unsigned width(unsigned line) {
    return (line * HIGH + HIGH + WIDE - 1) / WIDE;
}
__device__ constexpr unsigned widths(unsigned lines) {
    return lines == 0 ? 0 : width(lines - 1) + widths(lines - 1);
}
constexpr unsigned PERIOD = WIDE / common_divisor(HIGH, WIDE);  // lines that WIDE divides
constexpr unsigned LINES = (GROUP + PERIOD - 1) / PERIOD * PERIOD, STEP = LINES * HIGH / WIDE;
constexpr unsigned FIRST = widths(LINES), GROWTH = LINES * STEP;

// Tiles of all groups before this one.
__device__ __forceinline__ unsigned before(unsigned group) {
    return group * FIRST + group * (group - 1) / 2 * GROWTH;
}
}  // namespace triangle

// Tiles with an element that is kept.
__device__ __forceinline__ unsigned tiles_in(unsigned tiles_m, unsigned tiles_n) {
    if (FILL == 0) return tiles_m * tiles_n;
    using namespace triangle;
    const unsigned lines = FILL == 2 ? tiles_n : tiles_m, across = FILL == 2 ? tiles_m : tiles_n;
    if (lines == 0) return 0;
    const unsigned group = (lines - 1) / LINES;
    unsigned count = before(group) + across;  // the last line may end before its width
    for (unsigned line = group * LINES; line < lines - 1; line++) count += width(line);
    return count;
}

// Tile number `id` of those, in groups of GROUP rows and within a group column by column. The
// blocks that run at one time then share few rows of A and few columns of B, which stay in L2: for
// 132 blocks of 128 x 256, GROUP 8 has 8 * 128 rows and 17 * 256 columns in use, where row by row
// would have 9 * 128 rows and all columns. In a stair a group's columns that all its lines have
// come first, then line by line what sticks out.
__device__ __forceinline__ void tile_of(unsigned id, unsigned tiles_m, unsigned tiles_n,
                                        unsigned& tile_m, unsigned& tile_n) {
    if constexpr (FILL == 0) {
        const unsigned group = id / (GROUP * tiles_n), within = id % (GROUP * tiles_n);
        const unsigned left = tiles_m - group * GROUP, rows = left < GROUP ? left : GROUP;
        tile_m = group * GROUP + within % rows;
        tile_n = within / rows;
    } else {
        using namespace triangle;
        unsigned first = 0, place, size = FIRST;
        for (; id >= size; first += LINES, size += GROWTH) id -= size;
        const unsigned left = (FILL == 2 ? tiles_n : tiles_m) - first;
        const unsigned lines = left < LINES ? left : LINES, common = width(first);
        unsigned line = first + id % lines;
        if (id < common * lines) {
            place = id / lines;
        } else {
            id -= common * lines;
            for (line = first + 1; id >= width(line) - common; line++) id -= width(line) - common;
            place = common + id;
        }
        tile_m = FILL == 2 ? place : line;
        tile_n = FILL == 2 ? line : place;
    }
}

// The id of a tile: the inverse of `tile_of`. For one of which nothing is kept, some number.
__device__ __forceinline__ unsigned id_of(unsigned tile_m, unsigned tile_n, unsigned tiles_m,
                                          unsigned tiles_n) {
    if constexpr (FILL == 0) {
        const unsigned group = tile_m / GROUP * GROUP;
        const unsigned rows = tiles_m - group < GROUP ? tiles_m - group : GROUP;
        return group * tiles_n + tile_n * rows + tile_m - group;
    } else {
        using namespace triangle;
        const unsigned line = FILL == 2 ? tile_n : tile_m, place = FILL == 2 ? tile_m : tile_n;
        const unsigned first = line / LINES * LINES, common = width(first);
        const unsigned left = (FILL == 2 ? tiles_n : tiles_m) - first;
        const unsigned lines = left < LINES ? left : LINES;
        unsigned id = before(line / LINES);
        if (place < common) return id + place * lines + line - first;
        id += common * lines + place - common;
        for (unsigned l = first + 1; l < line; l++) id += width(l) - common;
        return id;
    }
}
