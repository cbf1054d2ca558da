// The end of a product whose k was split: C = alpha (sum of the parts) + beta C.

#include "common/triangle.cuh"
#include "common/half_types.cuh"
#include "common/epilogue.cuh"
#include "common/dependent_launch.cuh"
#include "common/split_check.cuh"

#ifndef TILE_WAS_SPLIT
#define TILE_WAS_SPLIT(m, n, batch, row, column) \
    true  // whether this place has parts; rows of all matrices
#endif

#if SPLIT > 1
namespace combine_details {
constexpr int WIDE = 16 / sizeof(SUM);        // sums that are read at a time
constexpr int AHEAD = SPLIT < 8 ? SPLIT : 8;  // of these that a thread waits for at a time

struct alignas(16) Sums {
    SUM x[WIDE];
    __device__ __forceinline__ void add(const Sums& other) {
#pragma unroll
        for (int i = 0; i < WIDE; i++) x[i] += other.x[i];
    }
};
struct alignas(WIDE * sizeof(OUT)) Results {
    OUT x[WIDE];
};
}  // namespace combine_details

// A part is a batch of `batch` matrices of m rows, n rounded up to a multiple of 4 sums apart. A
// thread has WIDE columns of one row; blockDim.y threads share its parts where there are many, for
// a small C has few threads. Added up in an order that depends on nothing but the two elements.
extern "C" __global__ void __launch_bounds__(256, 4)
    combine(const SUM* parts, OUT* C, long long ldc, long long batch_c, SUM alpha, SUM beta, int m,
            int n, int batch EPILOGUE_PARAMETER GATE_PARAMETER) {
    using namespace combine_details;
    __shared__ Sums totals[256];
    const unsigned across = (n + 3) / 4 * (4 / WIDE);
    const long long size = 1ll * batch * m * across;
    const long long id = 1ll * blockIdx.x * blockDim.x + threadIdx.x;
    const long long row = id / across;
    const unsigned column = static_cast<unsigned>(id % across) * WIDE;
    griddepcontrol_wait<!GATE && FILL != 0>();
    RETURN_IF_CLOSED
    const bool is_split = id < size && TILE_WAS_SPLIT(m, n, batch, row, column) &&
                          any_stored(FILL == 0 ? 0 : row % m, column, 1, WIDE);
    Sums sum = {};
    if (is_split) {
        const Sums* const from = reinterpret_cast<const Sums*>(parts) + id;
        for (unsigned first = threadIdx.y; first < SPLIT; first += AHEAD * blockDim.y) {
            Sums next[AHEAD];  // all are loaded before the first is added
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const unsigned part = first + i * blockDim.y;
                next[i] = part < SPLIT ? from[part * size] : Sums{};
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) sum.add(next[i]);
        }
    }
    if (blockDim.y > 1) {
        totals[threadIdx.y * blockDim.x + threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y > 0) return;
        for (unsigned y = 1; y < blockDim.y; y++) sum.add(totals[y * blockDim.x + threadIdx.x]);
    }
    if (!is_split) return;
    OUT* const to = C + row / m * batch_c + row % m * ldc + column;
    const bool whole = column + WIDE <= n && reinterpret_cast<size_t>(to) % sizeof(Results) == 0 &&
                       !partly_stored(FILL == 0 ? 0 : row % m, column, 1, WIDE);
    Results result;
    if (beta != 0 && whole) result = *reinterpret_cast<const Results*>(to);
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        if (column + i >= n) break;
        if (FILL != 0 && !is_stored(row % m, column + i)) continue;
        SUM x = alpha * sum.x[i];
        if (beta != 0) x += beta * widen(whole ? result.x[i] : to[i]);
        put(result.x[i], FINISHED(x, row % m, column + i));
        if (!whole) to[i] = result.x[i];
    }
    if (whole) *reinterpret_cast<Results*>(to) = result;
}
#endif
