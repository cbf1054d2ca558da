// Where the sums of mma go whose fragments come from common/f64_swizzled_tile.cuh: pairs of
// neighbours in a row, 8 rows of two or four full sectors of 32 bytes at a time.

#include "common/row_buffer.cuh"

using Sums = double[ROWS * COLUMNS][4];
using Rows = RowBuffer<TB, TRANS_B ? 2 : 8>;  // of a warp, with STORE 2

struct Output {
    double *C, *parts;
    long long ld, batch;
    unsigned m, n;
    double alpha, beta;
    bool aligned;  // rows of C start at multiples of 16 bytes, and are so long
    EPILOGUE_MEMBER

    // Runs `use(row, line, column, two)` for every pair of a lane; `line` is where its row begins.
    // After the pairs of 8 rows `next(rows)`: row g of these is rows + TileA::row(g).
    template <class Use, class Next>
    static __device__ __forceinline__ void each(const Sums& sum, double* first, long long pitch,
                                                unsigned lane, Use use, Next next) {
        double* line = first + TileA::row(lane / 4) * pitch;
#pragma unroll
        for (int h = 0; h < ROWS * 2; h++) {
#pragma unroll
            for (int u = 0; u < COLUMNS; u++) {
                // Neighbours along n: in halves of two mma where B is K-major, else in one. Of
                // a last group of 8 along k the neighbour is two lanes away.
                const int s = h / 2 * COLUMNS + (u == LAST ? u : u / 2 * 2), e = h % 2 * 2;
                const unsigned t = lane % 4 * 2;
                double2 two{sum[s][e], sum[s][e + 1]};
                unsigned column = u / 2 * 16 + t;
                if (u == LAST) {
                    if (TRANS_B) two.y = __shfl_xor_sync(~0u, two.y, 2);
                } else if (TRANS_B) {
                    two = {sum[s][e + u % 2], sum[s + 1][e + u % 2]};
                    column = u / 2 * 16 + TileB::row(t + u % 2);
                } else {
                    two = {sum[s + u % 2][e], sum[s + u % 2][e + 1]};
                    column = u / 2 * 16 + TileB::row(t) + u % 2 * TileB::HALF;
                }
                use(h / 2 * 16 + TileA::row(lane / 4) + h % 2 * TileA::HALF, line, column, two);
            }
            next(h / 2 * 16 + h % 2 * TileA::HALF);
            line += (h % 2 == 0 ? TileA::HALF : 16 - TileA::HALF) * pitch;
            make_opaque(line);  // one after the other: there is no room for all
        }
    }
    template <class Use>
    static __device__ __forceinline__ void each(const Sums& sum, double* first, long long pitch,
                                                unsigned lane, Use use) {
        each(sum, first, pitch, lane, use, [](unsigned) {});
    }
    // Whether a warp's tile at (i0, j0) has an element that is wanted.
    __device__ __forceinline__ bool has(unsigned i0, unsigned j0) const {
        return i0 < m && j0 < n && any_stored(i0, j0, TA, TB);
    }
    // What the block has of a tile that is shared: the warp's tile at (y, x) of it.
    __device__ __forceinline__ void store_part(const Sums& sum, unsigned slot, unsigned y,
                                               unsigned x, unsigned lane) const {
        double* const to = slot_of(parts, slot) + y * NB + x;
        each(sum, to, NB, lane, [&](unsigned, double* line, unsigned column, double2 two) {
            *reinterpret_cast<double2*>(line + column) = two;
        });
    }
#if EPILOGUE
    // Two elements of a row as they are stored.
    __device__ __forceinline__ void finish(double2& x, unsigned row, unsigned column) const {
        x = {epilogue(x.x, row, column), epilogue(x.y, row, column + 1)};
    }
#endif
    // C <- alpha sum + beta C there.
    __device__ __forceinline__ void store(Sums& sum, unsigned i0, unsigned j0, unsigned matrix,
                                          unsigned lane) const {
#pragma unroll
        for (int s = 0; s < ROWS * COLUMNS * 4; s++) sum[s / 4][s % 4] *= alpha;
        double* const to = C + matrix * batch + i0 * ld + j0;
        double* const over = C + matrix * batch + j0 * ld + i0;  // the same place of the other half
        const bool whole = i0 + TA <= m && j0 + TB <= n && !partly_stored(i0, j0, TA, TB);
        if (aligned && beta == 0.0 && whole) {
            each(sum, to, ld, lane, [&](unsigned row, double* line, unsigned column, double2 x) {
#if EPILOGUE
                finish(x, i0 + row, j0 + column);
#endif
                *reinterpret_cast<double2*>(line + column) = x;
                if (BOTH) over[column * ld + row] = x.x, over[(column + 1) * ld + row] = x.y;
            });
            return;
        }
        each(sum, to, ld, lane, [&](unsigned row, double* line, unsigned column, double2 x) {
            bool one = i0 + row < m && j0 + column < n, two = one && j0 + column + 1 < n;
            one = one && is_stored(i0 + row, j0 + column);
            two = two && is_stored(i0 + row, j0 + column + 1);
            if (beta != 0.0) {
                if (one) x.x += beta * line[column];
                if (two) x.y += beta * line[column + 1];
            }
#if EPILOGUE
            finish(x, i0 + row, j0 + column);
#endif
            if (one) line[column] = x.x;
            if (two) line[column + 1] = x.y;
            if (BOTH && one) over[column * ld + row] = x.x;
            if (BOTH && two) over[(column + 1) * ld + row] = x.y;
        });
    }
    // The same by way of `buffer` in shared memory, for rows of C that start anywhere.
    __device__ __forceinline__ void store_rows(const Sums& sum, unsigned i0, unsigned j0,
                                               unsigned matrix, unsigned lane,
                                               unsigned buffer) const {
        double* const rows = static_cast<double*>(__cvta_shared_to_generic(buffer));
        double* const to = C + matrix * batch + i0 * ld + j0;
        const auto put = [&](unsigned, double*, unsigned column, double2 two) {
            Rows::put(rows, lane / 4, column, two);
        };
        each(sum, rows, 0, lane, put, [&](unsigned first) {
            Rows::each(rows, lane, [&](unsigned g, unsigned column, double total) {
                const unsigned row = first + TileA::row(g);
                if (i0 + row >= m || j0 + column >= n || !is_stored(i0 + row, j0 + column)) return;
                double* const element = to + row * ld + column;
                double x = alpha * total;
                if (beta != 0.0) x += beta * *element;
                *element = FINISHED(x, i0 + row, j0 + column);
            });
        });
    }
};
