// The multiply-adds of one row of a tile: TA elements of a column of A, TB of a row of B. The
// kernel says TA, TB and STRIDE.

// sum += a b^T, back and forth along the longer side, or along n (ACROSS), every STRIDE-th of its
// elements first: which registers stand side by side is then such that few multiply-adds read two
// of one bank.
template <bool ACROSS = false>
__device__ __forceinline__ void add_outer_product(REAL (&sum)[TA][TB], const REAL (&a)[TA],
                                                  const REAL (&b)[TB]) {
    constexpr bool DOWN = !ACROSS && TA > TB;
    constexpr int INNER = DOWN ? TA : TB, OUTER = DOWN ? TB : TA;
#pragma unroll
    for (int o = 0; o < OUTER; o++)
#pragma unroll
        for (int l = 0; l < INNER; l++) {
            const int turned = o % 2 ? INNER - 1 - l : l;
            const int x = turned % (INNER / STRIDE) * STRIDE + turned / (INNER / STRIDE);
            const int i = DOWN ? x : o, j = DOWN ? o : x;
            sum[i][j] += a[i] * b[j];
        }
}
