// Kernels that are wrong, one way each. All take 32 floats, run with one block of 32 threads unless
// test_simulator_faults.py says otherwise, and line numbers matter to it only by their markers.

#include "common/hopper.cuh"

#define FAULT(name) extern "C" __global__ void name(float* a, int n)

FAULT(right) { a[threadIdx.x] = 2 * a[threadIdx.x]; }
FAULT(reads_past_the_end) { a[threadIdx.x] = a[threadIdx.x + 1]; }
FAULT(reads_before_the_start) { a[threadIdx.x] = a[static_cast<int>(threadIdx.x) - 1]; }
FAULT(writes_past_the_end) { a[threadIdx.x + 1] = 1; }
FAULT(writes_far_away) { a[threadIdx.x + (1ull << 40)] = 1; }
FAULT(follows_null) { reinterpret_cast<float*>(n - 32)[threadIdx.x] = 1; }
FAULT(half_of_a_vector) { reinterpret_cast<float4*>(a)[8] = float4{1, 2, 3, 4}; }
FAULT(last_vector_too_long) {
    struct Six { float x[6]; };
    Six six = {};
    if (n == 32) reinterpret_cast<Six*>(a)[5] = six;  // floats 30 to 35
}
FAULT(misaligned) { a[0] = reinterpret_cast<float4*>(a + 1)->x; }

FAULT(never_written_shared) {
    __shared__ float tile[4][8];
    if (threadIdx.x != 3) tile[threadIdx.x / 8][threadIdx.x % 8] = 1;
    __syncthreads();
    a[threadIdx.x] = tile[0][(threadIdx.x + 1) % 8];  // line:never_written_shared
}
FAULT(never_written_scalar) {
    __shared__ float total;
    if (threadIdx.x == 40) total = 1;
    __syncthreads();
    a[threadIdx.x] = total;
}
FAULT(past_a_shared_array) {
    __shared__ float first[32], second[32];
    first[threadIdx.x] = second[threadIdx.x] = 1;
    __syncthreads();
    a[threadIdx.x] = first[threadIdx.x + 1] + second[threadIdx.x];
}
FAULT(past_dynamic_shared) {  // 64 bytes of it
    extern __shared__ float dynamic[];
    dynamic[threadIdx.x] = 1;
    a[threadIdx.x] = dynamic[threadIdx.x];
}

FAULT(barrier_after_return) {
    if (threadIdx.x < 7) return;
    __syncthreads();
    a[threadIdx.x] = 1;
}
FAULT(two_barriers) {
    if (threadIdx.x < 7)
        __syncthreads();
    else
        __syncthreads();
    a[threadIdx.x] = 1;
}
FAULT(barrier_for_some) {
    if (threadIdx.x < 7) __syncthreads();
    else __syncwarp();
    a[threadIdx.x] = 1;
}
FAULT(shuffle_without_all) {
    if (threadIdx.x < 7) a[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
}
FAULT(shuffle_from_outside) {
    if (threadIdx.x < 8) a[threadIdx.x] = __shfl_sync(0xffu, 1.0f, 9);
}
FAULT(mask_without_self) { a[threadIdx.x] = static_cast<float>(__ballot_sync(0xffu, 1)); }

FAULT(traps) {
    if (threadIdx.x == 5) __trap();
}
FAULT(asserts) { assert(threadIdx.x < 31); }
FAULT(divides_by_zero) { a[0] = static_cast<float>(n / (n - 32)); }
FAULT(needs_much_stack) {
    volatile float large[40000];
    for (int i = 0; i < 40000; i++) large[i] = a[i % 32];
    a[0] = large[n];
}
FAULT(waits_for_nobody) {
    __shared__ unsigned long long barrier;
    const unsigned at = address_of_shared(&barrier);
    if (threadIdx.x == 0) mbarrier_init(at, 33);
    __syncthreads();
    mbarrier_arrive(at);
    mbarrier_wait(at, 0);
}
FAULT(fetches_without_a_map) {
    extern __shared__ __align__(128) unsigned char box[];
    TensorMap map = {};
    tma_load(address_of_shared(box), &map, address_of_shared(box), 0, 0, 0);
}
