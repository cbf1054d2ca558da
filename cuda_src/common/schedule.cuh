// Which tile of C a block computes.

#ifndef GROUP
#define GROUP 8  // rows of tiles that are walked together
#endif

// Tile number `id` of tiles_m x tiles_n, in groups of GROUP rows and within a group column by
// column. The blocks that run at one time then share few rows of A and few columns of B, which
// stay in L2: for 132 blocks of 128 x 256, GROUP 8 has 8 * 128 rows and 17 * 256 columns in use,
// where row by row would have 9 * 128 rows and all columns.
__device__ __forceinline__ void tile_of(unsigned id, unsigned tiles_m, unsigned tiles_n,
                                        unsigned& tile_m, unsigned& tile_n) {
    const unsigned group = id / (GROUP * tiles_n), within = id % (GROUP * tiles_n);
    const unsigned left = tiles_m - group * GROUP, rows = left < GROUP ? left : GROUP;
    tile_m = group * GROUP + within % rows;
    tile_n = within / rows;
}
