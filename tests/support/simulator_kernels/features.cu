// Kernels that are right, for test_simulator.py: one per part of CUDA C++ that the simulator has.
#include <type_traits>

#define TILE 16

extern "C" {

__constant__ float weights[4] = {1, 2, 3, 4};
__device__ int counter;

__global__ void use_globals(float* out) {
    out[threadIdx.x] = weights[threadIdx.x % 4];
    atomicAdd(&counter, 1);
}

// 8 numbers of 32 lanes each, one row per operation.
__global__ void warp_operations(int* out, int n) {
    const int lane = threadIdx.x % 32, t = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned all = 0xffffffffu;
    out[0 * n + t] = __shfl_sync(all, 10 * lane, 3, 8);
    out[1 * n + t] = __shfl_up_sync(all, lane, 2, 16);
    out[2 * n + t] = __shfl_down_sync(all, lane, 5);
    out[3 * n + t] = __shfl_xor_sync(all, lane, 9);
    out[4 * n + t] = __ballot_sync(all, lane % 3 == 0);
    out[5 * n + t] = __any_sync(all, lane == 31) + 2 * __all_sync(all, lane < 31);
    out[6 * n + t] = __match_any_sync(all, lane / 5);
    out[7 * n + t] = lane % 2 ? __reduce_add_sync(0xaaaaaaaau, lane) : 0;
}

// A warp that is not full: lanes past the block's end are not waited for.
__global__ void partial_warp(int* out) {
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, static_cast<int>(threadIdx.x), 1);
}

__global__ void block_votes(int* out) {
    const int odd = threadIdx.x % 2;
    out[0] = __syncthreads_count(odd);
    out[1] = __syncthreads_and(odd);
    out[2] = __syncthreads_or(odd);
}

__global__ void atomics(int* i, unsigned long long* u, float* f, double* d) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&i[0], t);
    atomicMax(&i[1], t);
    atomicMin(&i[2], -t);
    atomicOr(&i[3], 1 << t % 31);
    for (int old = i[4];;) {
        const int seen = atomicCAS(&i[4], old, old + 2);
        if (seen == old) break;
        old = seen;
    }
    atomicAdd(u, 1ull << 33);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
}

__global__ void dynamic_shared(float* out, int n) {
    extern __shared__ __align__(16) float row[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = static_cast<float>(i);
    __syncthreads();
    out[threadIdx.x] = row[n - 1 - threadIdx.x];
}

// Without its second barrier, on purpose: what a thread sees of its neighbour depends on the order.
__global__ void missing_barrier(float* out) {
    __shared__ float row[64];
    row[threadIdx.x] = -1;
    __syncthreads();
    row[threadIdx.x] = static_cast<float>(threadIdx.x);
    out[threadIdx.x] = row[(threadIdx.x + 1) % 64];
}

__global__ void __launch_bounds__(2 * TILE, 4) bounded(float* out) { out[threadIdx.x] = 1; }

__global__ void vectors(const float4* in, double2* out) {
    const float4 v = __ldg(in + threadIdx.x);
    out[threadIdx.x] = make_double2(v.x + v.y, fma(v.z, v.w, 1.0));
}

__global__ void positions(int* out) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

}  // extern "C"

struct Pair {
    double first;
    char second;
};
extern "C" __global__ void parameters(char a, double b, Pair c, short d, double* out) {
    out[0] = a;
    out[1] = b;
    out[2] = c.first + c.second;
    out[3] = d;
}

// C++: a kernel template with shared arrays of its own, called for by explicit instantiation.
template <typename Number, int rows, int columns = rows>
__global__ void __launch_bounds__(rows * columns)
    transpose(const Number* in, Number* out) {
    __shared__ Number tile[rows][columns + 1];
    if constexpr (std::is_same_v<Number, float>)
        tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * columns + threadIdx.x];
    else
        tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * columns + threadIdx.x] + 1;
    __syncthreads();
    out[threadIdx.x * rows + threadIdx.y] = tile[threadIdx.y][threadIdx.x];
}
template __global__ void transpose<float, 4, 8>(const float*, float*);
template __global__ void transpose<double, 16>(const double*, double*);

extern __shared__ double everywhere[];

template <int count>
__device__ double sum_of(const double* in) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < count; i++) sum += (everywhere[i] = in[i]);
    return sum;
}

extern "C" __global__ void sums(const double* in, double* out) {
    if (threadIdx.x == 0) {
        out[0] = sum_of<3>(in);
        out[1] = sum_of<5>(in);
    }
}
