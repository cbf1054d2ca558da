// Where the sums of mma go whose fragments come from common/lines.cuh: pairs of neighbours in a
// row, 8 rows of two or four full sectors of 32 bytes at a time.

using Sums = double[ROWS * COLUMNS][4];

struct Result {
    double *C, *parts;
    long long ld, batch;
    unsigned m, n;
    double alpha, beta;
    bool aligned;  // rows of C start at multiples of 16 bytes, and are so long

    // Runs `use(row, line, column, two)` for every pair of a lane; `line` is where its row begins.
    template <class Use>
    static __device__ __forceinline__ void each(const Sums& sum, double* first, long long pitch,
                                                unsigned lane, Use use) {
        double* line = first + SideA::row(lane / 4) * pitch;
#pragma unroll
        for (int h = 0; h < ROWS * 2; h++) {
#pragma unroll
            for (int u = 0; u < COLUMNS; u++) {
                // Neighbours along n: in halves of two mma where B lies along k, else in one.
                const int s = h / 2 * COLUMNS + u / 2 * 2, e = h % 2 * 2;
                const unsigned g = lane % 4 * 2 + (TRANS_B ? u % 2 : 0);
                const unsigned column =
                    u / 2 * 16 + SideB::row(g) + (TRANS_B ? 0 : u % 2 * SideB::HALF);
                const double2 two = TRANS_B ? double2{sum[s][e + u % 2], sum[s + 1][e + u % 2]}
                                            : double2{sum[s + u % 2][e], sum[s + u % 2][e + 1]};
                use(h / 2 * 16 + SideA::row(lane / 4) + h % 2 * SideA::HALF, line, column, two);
            }
            line += (h % 2 == 0 ? SideA::HALF : 16 - SideA::HALF) * pitch;
            forget(line);  // one after the other: there is no room for all
        }
    }
    // Whether a warp's tile at (i0, j0) has an element that is wanted.
    __device__ __forceinline__ bool has(unsigned i0, unsigned j0) const {
        return i0 < m && j0 < n && is_needed(i0, j0, TA, TB);
    }
    // What the block has of a tile that is shared: the warp's tile at (y, x) of it.
    __device__ __forceinline__ void store_part(const Sums& sum, unsigned slot, unsigned y,
                                               unsigned x, unsigned lane) const {
        double* const to = slot_of(parts, slot) + y * NB + x;
        each(sum, to, NB, lane, [&](unsigned, double* line, unsigned column, double2 two) {
            *reinterpret_cast<double2*>(line + column) = two;
        });
    }
    // C <- alpha sum + beta C there.
    __device__ __forceinline__ void store(Sums& sum, unsigned i0, unsigned j0, unsigned matrix,
                                          unsigned lane) const {
#pragma unroll
        for (int s = 0; s < ROWS * COLUMNS * 4; s++) sum[s / 4][s % 4] *= alpha;
        double* const to = C + matrix * batch + i0 * ld + j0;
        const bool whole = i0 + TA <= m && j0 + TB <= n && !is_cut(i0, j0, TA, TB);
        if (aligned && beta == 0.0 && whole) {
            each(sum, to, ld, lane, [&](unsigned, double* line, unsigned column, double2 x) {
                *reinterpret_cast<double2*>(line + column) = x;
            });
            return;
        }
        each(sum, to, ld, lane, [&](unsigned row, double* line, unsigned column, double2 x) {
            bool one = i0 + row < m && j0 + column < n, two = one && j0 + column + 1 < n;
            one = one && kept(i0 + row, j0 + column);
            two = two && kept(i0 + row, j0 + column + 1);
            if (beta != 0.0) {
                if (one) x.x += beta * line[column];
                if (two) x.y += beta * line[column + 1];
            }
            if (one) line[column] = x.x;
            if (two) line[column + 1] = x.y;
        });
    }
};
