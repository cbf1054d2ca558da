// How L2 keeps what TMA fetches, sm_90. Lines that `leave_first` make room for each other: what L2
// held before stays there, and what of that has been written need not go to memory now.
// 64 x 64 x 262144 behind a kernel that has filled L2: 27 us, not 30; 16 x 8192 x 8192: 39, not 43.

#include "common/hopper.cuh"

#ifndef PYMM_SIMULATOR

struct Policy {
    unsigned long long bits;
};
// The others leave in their turn, by CUTLASS's number for that (CacheHintSm90): the policy that
// `createpolicy` makes of `evict_normal` takes 2 to 8 us more where many blocks read the same.
__device__ __forceinline__ Policy policy_of(bool leave_first) {
    unsigned long long bits;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(bits));
    return {leave_first ? bits : 0x1000000000000000ull};
}
__device__ __forceinline__ void fetch_box(unsigned target, const TensorMap* map, unsigned barrier,
                                          int x, int y, int z, Policy policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy.bits)
        : "memory");
}
__device__ __forceinline__ void fetch_box(unsigned target, const TensorMap* map, unsigned barrier,
                                          int x, int y, int z, unsigned short blocks,
                                          Policy policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(policy.bits)
        : "memory");
}

#else

struct Policy {};
__device__ Policy policy_of(bool) { return {}; }
__device__ void fetch_box(unsigned target, const TensorMap* map, unsigned barrier, int x, int y,
                          int z, Policy) {
    fetch_box(target, map, barrier, x, y, z);
}
__device__ void fetch_box(unsigned target, const TensorMap* map, unsigned barrier, int x, int y,
                          int z, unsigned short blocks, Policy) {
    fetch_box(target, map, barrier, x, y, z, blocks);
}

#endif
