// C <- alpha A B + beta C by tiles in shared memory, everything by rows: for test_simulator.py.
extern "C" __global__ void __launch_bounds__((MB / TA) * (NB / TB))
    product(int m, int n, int k, REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B,
            REAL beta, REAL* C) {
    __shared__ REAL As[KB][MB], Bs[KB][NB];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * blockDim.x + tx;
    const int threads = blockDim.x * blockDim.y, i0 = blockIdx.y * MB, j0 = blockIdx.x * NB;
    REAL sum[TA][TB] = {};
    for (int p0 = 0; p0 < k; p0 += KB) {
        for (int s = t; s < MB * KB; s += threads) {
            const int i = s / KB, p = s % KB;
            As[p][i] = i0 + i < m && p0 + p < k ? A[(i0 + i) * k + p0 + p] : 0;
        }
        for (int s = t; s < NB * KB; s += threads) {
            const int p = s / NB, j = s % NB;
            Bs[p][j] = p0 + p < k && j0 + j < n ? B[(p0 + p) * n + j0 + j] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < KB; p++)
#pragma unroll
            for (int i = 0; i < TA; i++)
#pragma unroll
                for (int j = 0; j < TB; j++) sum[i][j] += As[p][ty * TA + i] * Bs[p][tx * TB + j];
        __syncthreads();
    }
    for (int i = 0; i < TA; i++)
        for (int j = 0; j < TB; j++) {
            const int row = i0 + ty * TA + i, column = j0 + tx * TB + j;
            if (row >= m || column >= n) continue;
            REAL* c = &C[row * n + column];
            *c = alpha * sum[i][j] + (beta != 0 ? beta * *c : 0);
        }
}
