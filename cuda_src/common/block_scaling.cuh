// Sums of a step along k, times the powers of two that their elements were divided by
// (common/block_scaling_repack.cuh). The kernel defines ROWS (pieces of 64 rows) and TB (columns of
// a warpgroup).

using Sums = float[ROWS][TB / 2];

// A power of two, 2^-126 to 2^113, as two: one from 2^-63 to 2^63, and what is left. Of two powers
// the product of the first halves and that of the second are normal numbers, on the same side of
// 1: a sum times both in turn is infinite or zero on the way only if it is at the end.
struct Power {
    float near, far;
    __device__ __forceinline__ explicit Power(float x)
        : near(fminf(fmaxf(fabsf(x), 0x1p-63f), 0x1p63f)),
          far(fabsf(x) * __uint_as_float((254u << 23) - __float_as_uint(near))) {}
};

// Every sum times the powers of its row and its column; `across` is for the thread's first column.
__device__ __forceinline__ void scale(Sums& step_sum, const float* rows, const float* across) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        const Power row[2] = {Power(rows[u * 64]), Power(rows[u * 64 + 8])};
#pragma unroll
        for (int j = 0; j < TB / 8; j++) {
            const float2 both = *reinterpret_cast<const float2*>(across + j * 8);
            const Power column[2] = {Power(both.x), Power(both.y)};
            float* const n = step_sum[u] + j * 4;
#pragma unroll
            for (int e = 0; e < 4; e++) n[e] *= row[e / 2].near * column[e % 2].near;
            if (row[0].far == 1.0f && row[1].far == 1.0f && column[0].far == 1.0f &&
                column[1].far == 1.0f)
                continue;
#pragma unroll
            for (int e = 0; e < 4; e++) n[e] *= row[e / 2].far * column[e % 2].far;
        }
    }
}

// Whether the product of two powers is neither zero nor infinite, or there are no two: behind the
// end of C they are zero.
__device__ __forceinline__ bool is_factor(float row, float column) {
    const float product = fabsf(row * column);
    return product < INFINITY && (product > 0.0f || row == 0.0f || column == 0.0f);
}
__device__ __forceinline__ bool are_factors(const float* rows, const float* columns) {
    bool all = true;
#pragma unroll
    for (int j = 0; j < TB / 64; j++) {
        all &= columns[j * 64] <= 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS * 2; i++)
            all &= is_factor(rows[i / 2 * 64 + i % 2 * 8], columns[j * 64]);
    }
    return all;
}

// sum += step_sum times the powers of rows and columns. One power for 64 columns takes no
// instruction of its own: it is in the factor of a multiply-add, if that is neither zero nor
// infinite.
__device__ __forceinline__ void add_scaled(Sums& sum, Sums& step_sum, const float* of_rows,
                                           const float* of_columns) {
    const float* const rows = of_rows + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float factors[ROWS][2][TB / 64];
    bool usual = true;
#pragma unroll
    for (int j = 0; j < TB / 64; j++) {
        const float column = of_columns[j * 64];
        usual &= column <= 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS * 2; i++) {
            const float factor = fabsf(rows[i / 2 * 64 + i % 2 * 8] * column);
            usual &= factor > 0.0f && factor < INFINITY;
            factors[i / 2][i % 2][j] = factor;
        }
    }
    if (!usual && !are_factors(rows, of_columns)) {
        scale(step_sum, rows, of_columns + threadIdx.x % 4 * 2);
#pragma unroll
        for (int f = 0; f < ROWS * 2 * (TB / 64); f++)
            factors[f / (TB / 32)][f / (TB / 64) % 2][f % (TB / 64)] = 1.0f;
    }
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int e = 0; e < TB / 2; e++)
            sum[u][e] += step_sum[u][e] * factors[u][e / 2 % 2][e / 32];
}
