// How a thread stores its TA x TB sums: vectors of VECTOR elements of a row, LANES_N vectors apart,
// in groups of VECTOR rows, LANES groups apart.

// Where C, or one part of its sums, goes.
struct Output {
    float* to;
    long long ld;
    unsigned m, n;
    float alpha, beta;

    // Four sums of a row, or fewer at its end.
    __device__ __forceinline__ void store(const float (&sum)[TB], int j, unsigned row,
                                          unsigned column) const {
        if (row >= m || column >= n) return;
        float* const c = to + row * ld + column;
        float result[VECTOR];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) result[e] = alpha * sum[j + e];
        const bool all = is_stored(row, column) && is_stored(row, column + VECTOR - 1);
        if (all && column + VECTOR <= n && reinterpret_cast<unsigned long long>(c) % 16 == 0) {
            float4* const whole = reinterpret_cast<float4*>(c);
            if (beta != 0.0f) {
                const float4 old = *whole;
                result[0] += beta * old.x, result[1] += beta * old.y;
                result[2] += beta * old.z, result[3] += beta * old.w;
            }
            *whole = {result[0], result[1], result[2], result[3]};
        } else {
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                if (column + e < n && is_stored(row, column + e))
                    c[e] = result[e] + (beta != 0.0f ? beta * c[e] : 0.0f);
        }
    }
    __device__ __forceinline__ void store(const float (&sum)[TA][TB], unsigned i0,
                                          unsigned j0) const {
#pragma unroll
        for (int i = 0; i < TA; i++)
#pragma unroll
            for (int j = 0; j < TB; j += VECTOR)
                store(sum[i], j, i0 + i / VECTOR * LANES * VECTOR + i % VECTOR, j0 + j * LANES_N);
    }
};

// The sums of a warp's tile to C by way of `slot`, 16 bytes of a row for each lane; TMA stores them
// while the warp goes on with the next tile.
__device__ __forceinline__ void store_warp(const float (&sum)[TA][TB], const TensorMap* map,
                                           unsigned slot, unsigned row, unsigned column,
                                           unsigned matrix, float alpha) {
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) bulk_wait_group_read<0>();
    __syncwarp();
    const unsigned to = slot + (lane / LANES_N * VECTOR * WIDE + lane % LANES_N * VECTOR) * 4;
#pragma unroll
    for (int i = 0; i < TA; i++)
#pragma unroll
        for (int j = 0; j < TB; j += VECTOR) {
            const int at = (i / VECTOR * LANES * VECTOR + i % VECTOR) * WIDE + j * LANES_N;
            *static_cast<float4*>(__cvta_shared_to_generic(to + at * 4)) = {
                alpha * sum[i][j], alpha * sum[i][j + 1], alpha * sum[i][j + 2],
                alpha * sum[i][j + 3]};
        }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) tma_store(map, slot, column, row, matrix), bulk_commit_group();
}
