// How kernels with common/tf32_wgmma.cuh load A and B.

// Rows of a tile of A that a block fetches and of B, or columns where these are MN-major: no more
// than the matrices have, in whole boxes. Zeros around a matrix take as long as elements: 8192 x 16
// x 8192 with tiles of 64 columns 92 us, without those that are not there 77.
struct LoadExtents {
    static constexpr unsigned SHARE = MB / CLUSTER;
    unsigned a, b;
    __device__ __forceinline__ explicit LoadExtents(const Product& p)
        : a(whole<TRANSPOSES_A ? 32 : 8>(p.m, SHARE)), b(whole<BOTH_K_MAJOR ? 8 : 32>(p.n, NB)) {}
    template <unsigned EACH>
    static __device__ __forceinline__ unsigned whole(unsigned size, unsigned most) {
        return size < most ? (size + EACH - 1) / EACH * EACH : most;
    }
    __device__ __forceinline__ unsigned bytes() const { return TERMS * KB * 4 * (CLUSTER * a + b); }
    // All threads: zeros to where nothing is fetched to.
    __device__ __forceinline__ void zero_rest(unsigned char* stages) const {
        constexpr unsigned BOXES_B = BOTH_K_MAJOR ? TERMS * K_BOXES : 1,
                           EACH_B = B_BYTES * TERMS / BOXES_B;
        for (int s = 0; s < STAGES; s++, stages += STAGE_BYTES) {
            for (int x = 0; x < TERMS * K_BOXES * CLUSTER; x++)
                clear(stages + (x * SHARE + a) * ROW, (SHARE - a) * ROW);
            for (int x = 0; x < BOXES_B; x++)
                clear(stages + TERMS * A_BYTES + x * EACH_B + EACH_B / NB * b,
                      EACH_B / NB * (NB - b));
        }
        fence_proxy_async();
        __syncthreads();
    }
    static __device__ __forceinline__ void clear(unsigned char* from, unsigned bytes) {
        for (unsigned i = threadIdx.x * 16; i < bytes; i += THREADS * 16)
            *reinterpret_cast<float4*>(from + i) = {0.0f, 0.0f, 0.0f, 0.0f};
    }
};

// Loads the steps of all units of the block. Each block of a cluster loads a share of A and sends
// it to all blocks (multicast). The steps that first fill its stages it loads by itself: the other
// blocks may not have begun.
__device__ __forceinline__ void produce(const Product& p, unsigned base, unsigned full,
                                        unsigned empty) {
    const unsigned rank = CLUSTER > 1 ? block_in_cluster() : 0;
    const LoadExtents extents(p);
    Ring ring{0, 1};
    unsigned alone = CLUSTER > 1 ? STAGES : 0;  // steps that are still loaded without multicast
    for_each_unit(p, [&](const Unit& u) {
        const unsigned matrix_a = u.matrix * p.batched_a * TERMS;
        const unsigned matrix_b = u.matrix * p.batched_b * TERMS;
        for (unsigned step = u.part; step < u.steps; step += SPLIT, ring.advance()) {
            const unsigned tile = base + ring.stage * STAGE_BYTES, filled = full + 8 * ring.stage;
            const auto fetch_a = [&](unsigned target, int x, int y, int z) {
                if (CLUSTER == 1 || alone > 0)
                    tma_load(target, p.a, filled, x, y, z);
                else if constexpr (CLUSTER > 1)
                    tma_load(target, p.a, filled, x, y, z, (1 << CLUSTER) - 1);
            };
            mbarrier_wait(empty + 8 * ring.stage, ring.parity);
            mbarrier_expect_tx(filled, extents.bytes());
            for (unsigned share = alone > 0 ? 0 : rank; share < (alone > 0 ? CLUSTER : rank + 1);
                 share++) {
                const unsigned first = share * LoadExtents::SHARE;
                if constexpr (TRANSPOSES_A) {
#pragma unroll 1
                    for (unsigned x = 0; x < K_BOXES; x++)
#pragma unroll 1
                        for (unsigned i = first; i < first + extents.a; i += 32)
                            fetch_a(tile + (x * MB + i) * ROW, u.row + i, step * KB + x * BOX,
                                    matrix_a);
                } else {
#pragma unroll 1
                    for (unsigned x = 0; x < TERMS * K_BOXES; x++)
                        fetch_a(tile + (x * MB + first) * ROW, step * KB + x % K_BOXES * BOX,
                                u.row + first, matrix_a + x / K_BOXES);
                }
            }
            const unsigned b = tile + TERMS * A_BYTES;
            if constexpr (BOTH_K_MAJOR) {
#pragma unroll 1
                for (unsigned x = 0; x < TERMS * K_BOXES; x++)
                    tma_load(b + x * NB * ROW, p.b, filled, step * KB + x % K_BOXES * BOX, u.column,
                             matrix_b + x / K_BOXES);
            } else {
#pragma unroll 1
                for (unsigned x = 0; x < extents.b; x += 32)
                    tma_load(b + x * (KB * 4), p.b, filled, u.column + x, step * KB, matrix_b);
            }
            if (CLUSTER > 1 && alone > 0 && --alone == 0) cluster_wait();
        }
    });
}
