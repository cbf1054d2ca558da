// The other half of a symmetric C: what a product has left below the diagonal, written above it.

#include "common/dependent_launch.cuh"

#ifndef MIRRORED
#define MIRRORED unsigned  // a type with as many bytes as an element of C has: bits are copied
#endif

// A block has one of the squares on and below the diagonal, of `squares` to a side. The grid is a
// rectangle: its row y has the squares of two rows of the half, the long row squares / 2 + y and
// then the short row squares / 2 - 1 - y, which are 2 (squares / 2) + 1 together.
extern "C" __global__ void __launch_bounds__(256)
    mirror(MIRRORED* C, long long ldc, long long batch_c, int n) {
    constexpr unsigned side = 64, lines = 256 / side;  // of a square, and that move at once
    // Neither rows nor columns of the square meet in a bank.
    constexpr unsigned pitch = side + (sizeof(MIRRORED) < 4 ? 4 / sizeof(MIRRORED) : 1);
    __shared__ MIRRORED square[side][pitch];
    const unsigned squares = (n + side - 1u) / side, half = squares / 2;
    unsigned i = half + blockIdx.y, j = blockIdx.x;
    if (j > i) j -= i + 1, i = half - 1 - blockIdx.y;
    const unsigned x = threadIdx.x % side, first = threadIdx.x / side;
    const unsigned i0 = i * side, j0 = j * side, down = n - i0, across = n - j0;
    C += blockIdx.z * batch_c;
    griddepcontrol_wait<false>();
    const MIRRORED* const from = C + i0 * ldc + j0 + x;
    MIRRORED pieces[side / lines];  // all are loaded before the first is needed
#pragma unroll
    for (unsigned s = 0; s < side / lines; s++) {
        const unsigned y = first + s * lines;
        const bool wanted = y < down && x < across && (i > j || y > x);
        pieces[s] = wanted ? from[y * ldc] : static_cast<MIRRORED>(0);
    }
    __syncwarp();  // no store is put between the loads
#pragma unroll
    for (unsigned s = 0; s < side / lines; s++) square[first + s * lines][x] = pieces[s];
    __syncthreads();
    MIRRORED* const to = C + j0 * ldc + i0 + x;
#pragma unroll
    for (unsigned s = 0; s < side / lines; s++) {
        const unsigned y = first + s * lines;
        if (y < across && x < down && (i > j || y < x)) to[y * ldc] = square[x][y];
    }
}
