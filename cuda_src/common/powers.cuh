// Sums of a step along k, times the powers of two that their numbers were divided by
// (common/scaled.cuh). The kernel says ROWS (pieces of 64 rows) and TB (columns of a warpgroup).

using Sums = float[ROWS][TB / 2];

// Every sum times the powers of its row and its column; `across` is for the thread's first column.
__device__ __forceinline__ void scale(Sums& news, const float* rows, const float* across) {
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int j = 0; j < TB / 8; j++) {
            const float2 column = *reinterpret_cast<const float2*>(across + j * 8);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float row = rows[u * 64 + h * 8];
                float* const n = news[u] + j * 4 + h * 2;
                n[0] *= fabsf(row * column.x), n[1] *= fabsf(row * column.y);
            }
        }
}

// sum += news times the powers of rows and columns. One power for 64 columns takes no instruction
// of its own: it is in the factor of a multiply-add. Columns behind the end of C have none.
__device__ __forceinline__ void add_scaled(Sums& sum, Sums& news, const float* of_rows,
                                           const float* of_columns) {
    const float* const rows = of_rows + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float factors[ROWS][2][TB / 64];
    bool alike = true;
#pragma unroll
    for (int j = 0; j < TB / 64; j++) {
        const float column = of_columns[j * 64];
        alike &= column <= 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS * 2; i++)
            factors[i / 2][i % 2][j] = fabsf(rows[i / 2 * 64 + i % 2 * 8] * column);
    }
    if (!alike) {
        scale(news, rows, of_columns + threadIdx.x % 4 * 2);
#pragma unroll
        for (int f = 0; f < ROWS * 2 * (TB / 64); f++)
            factors[f / (TB / 32)][f / (TB / 64) % 2][f % (TB / 64)] = 1.0f;
    }
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int e = 0; e < TB / 2; e++)
            sum[u][e] += news[u][e] * factors[u][e / 2 % 2][e / 32];
}
