// The multiply-adds of one row of a tile: TA elements of a column of A, TB of a row of B. The
// kernel says TA, TB and STRIDE.

// sum += a b^T, back and forth along the longer side, every STRIDE-th of its elements first: which
// registers stand side by side is then such that few multiply-adds read two of one bank.
__device__ __forceinline__ void add_outer_product(REAL (&sum)[TA][TB], const REAL (&a)[TA],
                                                  const REAL (&b)[TB]) {
    constexpr int LONG = TA > TB ? TA : TB, SHORT = TA > TB ? TB : TA;
#pragma unroll
    for (int s = 0; s < SHORT; s++)
#pragma unroll
        for (int l = 0; l < LONG; l++) {
            const int turned = s % 2 ? LONG - 1 - l : l;
            const int x = turned % (LONG / STRIDE) * STRIDE + turned / (LONG / STRIDE);
            const int i = TA > TB ? x : s, j = TA > TB ? s : x;
            sum[i][j] += a[i] * b[j];
        }
}
