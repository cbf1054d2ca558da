// Tiles that are piles of boxes of 64 x 64: on their way in, and C's on their way out. The kernel
// says REAL, BOX, BOX_BYTES, DEEP (boxes along k), STAGES, CLUSTER and STAGED (columns of a piece).

// Where the ring stands: the stage, and the parity of its barriers' phase.
struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// The boxes of one matrix from `first` to `last`, at row (or column) `outer` of op(X) and depth k0.
template <bool ALONG_K, bool ALL, int COUNT>
__device__ __forceinline__ void fetch(unsigned tile, const TensorMap* map, unsigned full,
                                      unsigned outer, unsigned k0, unsigned matrix,
                                      unsigned first = 0, unsigned last = COUNT) {
    for (unsigned deep = 0; deep < DEEP; deep++)
        for (unsigned i = first; i < last; i++) {
            const unsigned o = outer + i * BOX, k = k0 + deep * BOX;
            const unsigned target = tile + (deep * COUNT + i) * BOX_BYTES;
            if constexpr (ALL)
                fetch_box(target, map, full, ALONG_K ? k : o, ALONG_K ? o : k, matrix,
                          (1 << CLUSTER) - 1);
            else
                fetch_box(target, map, full, ALONG_K ? k : o, ALONG_K ? o : k, matrix);
        }
}

// C <- alpha sum + beta C, through shared memory in pieces of 64 rows and STAGED columns.
struct Result {
    const TensorMap* map;
    REAL* C;
    long long ld, batch;
    unsigned m, n;
    float alpha, beta;
    bool boxed;

    // sum <- alpha sum + beta C, of 64 rows and TB columns. Apart from what follows, so that the
    // way without C is short: its instructions come from device memory when a kernel is new.
    __device__ __forceinline__ void scale(float (&sum)[TB / 2], unsigned i0, unsigned j0) const {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
        for (int e = 0; e < TB / 2; e++) sum[e] *= alpha;
        if (beta == 0.0f) return;
#pragma unroll
        for (int e = 0; e < TB / 2; e++) {
            const unsigned row = i0 + warp * 16 + lane / 4 + e / 2 % 2 * 8;
            const unsigned column = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
            if (row < m && column < n) sum[e] += beta * widen(C[row * ld + column]);
        }
    }
    // A piece to where `staged` lies, swizzled as TMA does it.
    static __device__ __forceinline__ void stage(unsigned staged, const float* sum) {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
        for (int j = 0; j < STAGED / 16; j++) {
            unsigned packed[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float* s = sum + j * 8 + q / 2 * 4 + q % 2 * 2;
                packed[q] = narrow(REAL{}, s[0], s[1]);
            }
            const unsigned row = warp * 16 + lane % 16, chunk = j % 4 * 2 + lane / 16;
            store_matrices(staged + j / 4 * BOX_BYTES + row * 128 + ((chunk ^ row % 8) << 4),
                           packed);
        }
    }
    // A warp's own 16 rows of a staged piece, for a C that TMA cannot store to.
    __device__ __forceinline__ void copy(const unsigned char* staged, unsigned i0,
                                         unsigned j0) const {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        for (unsigned row = warp * 16; row < warp * 16 + 16 && i0 + row < m; row++)
#pragma unroll
            for (unsigned column = lane; column < STAGED; column += 32)
                if (j0 + column < n)
                    C[(i0 + row) * ld + j0 + column] = *reinterpret_cast<const REAL*>(
                        staged + column / BOX * BOX_BYTES + row * 128 +
                        ((column % BOX / 8 ^ row % 8) << 4) + column % 8 * 2);
    }
};
