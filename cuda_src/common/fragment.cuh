// Fragments of a row of a tile in shared memory, for kernels whose threads multiply by themselves.

#include "common/vector.cuh"

// The T elements of one lane: 16-byte vectors, SPAN vectors apart.
template <int T, int SPAN>
__device__ __forceinline__ void read_fragment(REAL (&fragment)[T], const REAL* row) {
#pragma unroll
    for (int i = 0; i < T; i += VECTOR) {
        const Vector v = *reinterpret_cast<const Vector*>(row + i * SPAN);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) fragment[i + e] = v.x[e];
    }
}
