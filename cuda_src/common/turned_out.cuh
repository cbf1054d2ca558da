// C of common/turned.cuh on its way out.

// C <- alpha sum + beta C, or a part of the sums as it is.
struct Result {
    const TensorMap* map;
    float* C;
    long long ld;
    unsigned m, n;
    float alpha, beta;
    bool boxed;

    __device__ __forceinline__ void scale(float (&sum)[TA / 2], unsigned i0, unsigned j0,
                                          const Place& at) const {
#pragma unroll
        for (int e = 0; e < TA / 2; e++) sum[e] *= alpha;
        if (beta == 0.0f) return;
#pragma unroll
        for (int e = 0; e < TA / 2; e++) {
            const unsigned row = i0 + e / 4 * 8 + at.t * 2 + e % 2;
            const unsigned column = j0 + at.column(e / 2 % 2);
            if (row < m && column < n) sum[e] += beta * C[row * ld + column];
        }
    }
    // STAGED rows and 64 columns to shared memory, turned round, swizzled as TMA does it.
    static __device__ __forceinline__ void stage(unsigned char* staging, const float* sum,
                                                 const Place& at) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const unsigned column = at.column(e / 2), row = at.t * 2 + e % 2;
            unsigned char* const place = staging + column / 32 * (STAGED * ROW) + row * ROW +
                                         ((column % 32 / 4 ^ row) << 4) + column % 4 * 4;
#pragma unroll
            for (int j = 0; j < STAGED / 8; j++)
                *reinterpret_cast<float*>(place + j * 8 * ROW) = sum[j * 4 + e];
        }
    }
    // The staged piece by the threads of the warpgroup, where TMA cannot store it.
    __device__ __forceinline__ void copy(const unsigned char* staging, unsigned i0, unsigned j0,
                                         const Place& at) const {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
        for (unsigned row = at.warp; row < STAGED && i0 + row < m; row += 4)
#pragma unroll
            for (unsigned q = 0; q < 2; q++)
                if (j0 + q * 32 + lane < n)
                    C[(i0 + row) * ld + j0 + q * 32 + lane] = *reinterpret_cast<const float*>(
                        staging + q * STAGED * ROW + row * ROW + ((lane / 4 ^ row % 8) << 4) +
                        lane % 4 * 4);
    }
    __device__ __forceinline__ void store(Sums& sum, const Unit& unit, unsigned char* staging,
                                          const Place& at) const {
        const bool elected = threadIdx.x % 128 == 0;
        const unsigned staged = address_of_shared(staging);
        const unsigned i0 = unit.row + at.down * TA;
#pragma unroll
        for (int u = 0; u < PIECES; u++) {
            const unsigned j0 = unit.column + at.right * TB + u * 64;
            if (SPLIT == 1) scale(sum[u], i0, j0, at);
#pragma unroll
            for (int r = 0; r < TA; r += STAGED) {
                if (elected) stores_have_read();
                warpgroup_sync(at.group + 1);
                stage(staging, sum[u] + r / 2, at);
                if (boxed) written_for_copies();
                warpgroup_sync(at.group + 1);
                if (!boxed) {
                    copy(staging, i0 + r, j0, at);
                } else if (elected) {
                    store_box(map, staged, j0, i0 + r, unit.matrix);
                    store_box(map, staged + STAGED * ROW, j0 + 32, i0 + r, unit.matrix);
                    stores_commit();
                }
            }
        }
    }
};
