// C of common/turned.cuh on its way out.

// A piece of C: 64 columns of STAGED rows, or SWAPPED 64 rows of STAGED columns.
constexpr unsigned HIGH = SWAPPED ? 64 : STAGED, WIDE = SWAPPED ? STAGED : 64;
constexpr unsigned BOXES_C = (WIDE + 31) / 32;

// C <- alpha sum + beta C, or a part of the sums as it is.
struct Result {
    const TensorMap* map;
    float* C;
    long long ld;
    unsigned m, n;
    float alpha, beta;
    bool boxed;

    // Bytes from the start of a staged piece to its row y, column x, swizzled as TMA does it.
    static __device__ __forceinline__ unsigned place(unsigned y, unsigned x) {
        return x / 32 * (HIGH * ROW) + y * ROW + ((x % 32 / 4 ^ y % 8) << 4) + x % 4 * 4;
    }
    __device__ __forceinline__ void scale(float (&sum)[TA / 2], unsigned i0, unsigned j0,
                                          const Place& at) const {
#pragma unroll
        for (int e = 0; e < TA / 2; e++) sum[e] *= alpha;
        if (beta == 0.0f) return;
#pragma unroll
        for (int e = 0; e < TA / 2; e++) {
            const unsigned i = i0 + e / 4 * 8 + at.t * 2 + e % 2, j = j0 + at.column(e / 2 % 2);
            const unsigned row = SWAPPED ? j : i, column = SWAPPED ? i : j;
            if (row < m && column < n) sum[e] += beta * C[row * ld + column];
        }
    }
    static __device__ __forceinline__ void stage(unsigned char* staging, const float* sum,
                                                 const Place& at) {
#pragma unroll
        for (int e = 0; e < STAGED / 2; e++) {
            const unsigned i = e / 4 * 8 + at.t * 2 + e % 2, j = at.column(e / 2 % 2);
            *reinterpret_cast<float*>(staging + (SWAPPED ? place(j, i) : place(i, j))) = sum[e];
        }
    }
    // The staged piece by the threads of the warpgroup, where TMA cannot store it.
    __device__ __forceinline__ void copy(const unsigned char* staging, unsigned row,
                                         unsigned column, const Place& at) const {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
        for (unsigned y = at.warp; y < HIGH && row + y < m; y += 4)
#pragma unroll
            for (unsigned x = lane; x < WIDE; x += 32)
                if (column + x < n)
                    C[(row + y) * ld + column + x] =
                        *reinterpret_cast<const float*>(staging + place(y, x));
    }
    __device__ __forceinline__ void store(Sums& sum, const Unit& unit, unsigned char* staging,
                                          const Place& at) const {
        const bool elected = threadIdx.x % 128 == 0;
        const unsigned i0 = unit.row + at.down * TA;
#pragma unroll
        for (int u = 0; u < PIECES; u++) {
            const unsigned j0 = unit.column + at.right * TB + u * 64;
            if (SPLIT == 1) scale(sum[u], i0, j0, at);
#pragma unroll
            for (int r = 0; r < TA; r += STAGED) {
                const unsigned row = SWAPPED ? j0 : i0 + r, column = SWAPPED ? i0 + r : j0;
                // With nothing before it, the first piece does not know which slot is older.
                unsigned char* const slot =
                    staging + (u * (TA / STAGED) + r / STAGED) % SLOTS * SLOT_BYTES;
                if (elected) u + r == 0 ? stores_have_read<0>() : stores_have_read<SLOTS - 1>();
                warpgroup_sync(at.group + 1);
                stage(slot, sum[u] + r / 2, at);
                if (boxed) written_for_copies();
                warpgroup_sync(at.group + 1);
                if (!boxed) {
                    copy(slot, row, column, at);
                } else if (elected) {
#pragma unroll
                    for (unsigned q = 0; q < BOXES_C; q++)
                        store_box(map, address_of_shared(slot) + q * HIGH * ROW,
                                  column + q * 32, row, unit.matrix);
                    stores_commit();
                }
            }
        }
    }
};
