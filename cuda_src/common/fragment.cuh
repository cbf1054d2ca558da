// Fragments of a row of a tile in shared memory, for kernels whose threads multiply by themselves.

#include "common/vector.cuh"

// Elements of a fragment of T that lie side by side: as many as 16 bytes hold, or half as many if T
// is no multiple of that.
template <int T>
constexpr int SIDE_BY_SIDE = T % VECTOR == 0 ? VECTOR : VECTOR / 2;

// The T elements of one lane: vectors that lie SPAN vectors apart.
template <int T, int SPAN>
__device__ __forceinline__ void read_fragment(REAL (&fragment)[T], const REAL* row) {
    constexpr int WIDTH = SIDE_BY_SIDE<T>;
#pragma unroll
    for (int i = 0; i < T; i += WIDTH) {
        const auto v = *reinterpret_cast<const Elements<WIDTH>*>(row + i * SPAN);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) fragment[i + e] = v.x[e];
    }
}
