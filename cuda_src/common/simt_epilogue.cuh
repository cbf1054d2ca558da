// How a thread stores its TA x TB sums: vectors of VECTOR elements of a row, LANES_N vectors apart,
// in groups of VECTOR rows, LANES groups apart.

#if EPILOGUE
// The epilogue of C; a part of its sums has none.
struct OutputEpilogue {
    const Epilogue* of;
    __device__ __forceinline__ float operator()(float x, unsigned row, unsigned column) const {
        return of ? (*of)(x, row, column) : x;
    }
};
#endif

// Where C, or one part of its sums, goes.
struct Output {
    float* to;
    long long ld;
    unsigned m, n;
    float alpha, beta;
#if EPILOGUE
    OutputEpilogue epilogue;
#endif

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
            *whole = {FINISHED(result[0], row, column), FINISHED(result[1], row, column + 1),
                      FINISHED(result[2], row, column + 2), FINISHED(result[3], row, column + 3)};
        } else {
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                if (column + e < n && is_stored(row, column + e))
                    c[e] = FINISHED(result[e] + (beta != 0.0f ? beta * c[e] : 0.0f), row,
                                    column + e);
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
    // The sums of a warp's tile at (i0, j0), for rows of C that start anywhere: one row of each
    // lane at a time goes to `buffer` in shared memory, and from there the lanes store neighbours.
    // From registers one instruction would write every fourth element.
    __device__ __forceinline__ void store_rows(const float (&sum)[TA][TB], unsigned buffer,
                                               unsigned i0, unsigned j0) const {
        const unsigned lane = threadIdx.x % 32;
        float* const rows = static_cast<float*>(__cvta_shared_to_generic(buffer));
        float* const own = rows + lane / LANES_N * WIDE + lane % LANES_N * VECTOR;
#pragma unroll
        for (int i = 0; i < TA; i++) {
#pragma unroll
            for (int j = 0; j < TB; j += VECTOR)
                *reinterpret_cast<float4*>(own + j * LANES_N) = {
                    alpha * sum[i][j], alpha * sum[i][j + 1], alpha * sum[i][j + 2],
                    alpha * sum[i][j + 3]};
            __syncwarp();
#pragma unroll
            for (int e = 0; e < LANES * WIDE; e += 32) {
                const unsigned row = i0 + (i / VECTOR * LANES + e / WIDE) * VECTOR + i % VECTOR;
                const unsigned column = j0 + e % WIDE + lane;
                if (row >= m || column >= n || !is_stored(row, column)) continue;
                float* const c = to + row * ld + column;
                const float x = rows[e + lane] + (beta != 0.0f ? beta * *c : 0.0f);
                *c = FINISHED(x, row, column);
            }
            __syncwarp();
        }
    }
};

// The sums of a warp's tile to C by way of `slot`, 16 bytes of a row for each lane; TMA stores them
// while the warp goes on with the next tile.
__device__ __forceinline__ void store_warp(const float (&sum)[TA][TB], const TensorMap* map,
                                           unsigned slot, unsigned row, unsigned column,
                                           unsigned matrix, float alpha EPILOGUE_PARAMETER) {
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) bulk_wait_group_read<0>();
    __syncwarp();
    const unsigned to = slot + (lane / LANES_N * VECTOR * WIDE + lane % LANES_N * VECTOR) * 4;
#pragma unroll
    for (int i = 0; i < TA; i++)
#pragma unroll
        for (int j = 0; j < TB; j += VECTOR) {
            const int at = (i / VECTOR * LANES * VECTOR + i % VECTOR) * WIDE + j * LANES_N;
#if EPILOGUE
            const unsigned y = row + lane / LANES_N * VECTOR + i / VECTOR * LANES * VECTOR +
                               i % VECTOR;
            const unsigned x = column + lane % LANES_N * VECTOR + j * LANES_N;
#endif
            *static_cast<float4*>(__cvta_shared_to_generic(to + at * 4)) = {
                FINISHED(alpha * sum[i][j], y, x), FINISHED(alpha * sum[i][j + 1], y, x + 1),
                FINISHED(alpha * sum[i][j + 2], y, x + 2),
                FINISHED(alpha * sum[i][j + 3], y, x + 3)};
        }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) tma_store(map, slot, column, row, matrix), bulk_commit_group();
}
