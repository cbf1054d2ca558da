// A kernel with the signature of those fed by TMA, for test_tensor_maps.py: its maps are
// descriptions in plain numbers, made by the test. One thread for each element of a tile.

#include "common/combine.cuh"
#include "common/repack.cuh"

struct Map {
    const REAL* start;
    unsigned long long extents[3], strides[2], kind, box[2], swizzle, unused[6];

    __device__ SUM at(unsigned long long x, unsigned long long y, unsigned long long z) const {
        if (x >= extents[0] || y >= extents[1] || z >= extents[2])
            return __uint_as_float(0x7FC00000u);
        const size_t row = reinterpret_cast<size_t>(start) + z * strides[1] + y * strides[0];
        return widen(reinterpret_cast<const REAL*>(row)[x]);
    }
};
struct Maps {
    Map a, b, c;
};

__device__ SUM element(const Map& map, bool across, unsigned outer, unsigned p, unsigned matrix) {
    SUM x = 0;
    for (unsigned term = 0; term < TERMS; term++)
        x += map.at(across ? outer : p, across ? p : outer, matrix * TERMS + term);
    return x;
}

extern "C" __global__ void __launch_bounds__(MB * NB)
    gemm(const Maps maps, int m, int n, int k, int batch, SUM alpha, SUM beta, int batched_a,
         int batched_b, int boxed, OUT* C, long long ldc, long long batch_c, SUM* parts) {
    griddepcontrol_wait();
    const unsigned down = (m + MB - 1) / MB, across = (n + NB - 1) / NB, steps = (k + KB - 1) / KB;
    for (unsigned unit = blockIdx.x; unit < down * across * SPLIT * batch; unit += gridDim.x) {
        const unsigned i = unit / across % down * MB + threadIdx.x / NB;
        const unsigned j = unit % across * NB + threadIdx.x % NB;
        const unsigned part = unit / across / down % SPLIT, matrix = unit / across / down / SPLIT;
        if (i >= m || j >= n) continue;
        SUM sum = 0;
        const unsigned end = min((part + 1) * steps / SPLIT * KB, unsigned(k));
        for (unsigned p = part * steps / SPLIT * KB; p < end; p++)
            sum += element(maps.a, TRANS_A, i, p, matrix * batched_a) *
                   element(maps.b, !TRANS_B, j, p, matrix * batched_b);
        if (SPLIT > 1) {
            parts[((part * batch + matrix) * m + i) * ((n + 3) / 4 * 4) + j] = sum;
            continue;
        }
        OUT* to = C + matrix * batch_c + i * ldc + j;
        if (boxed)
            to = reinterpret_cast<OUT*>(reinterpret_cast<size_t>(maps.c.start) +
                                        matrix * maps.c.strides[1] + i * maps.c.strides[0]) + j;
        sum *= alpha;
        if (beta != 0) sum += beta * widen(*to);
        put(*to, sum);
    }
}
