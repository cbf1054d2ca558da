// How L2 keeps what TMA fetches, sm_90. Lines that `evict_first` make room for each other: what L2
// held before stays there, and what of that has been written need not go to memory now.
// 64 x 64 x 262144 behind a kernel that has filled L2: 27 us, not 30; 16 x 8192 x 8192: 39, not 43.

#include "common/hopper.cuh"

#ifndef PYMM_SIMULATOR

struct L2Policy {
    unsigned long long bits;
};
// The others leave in their turn, by CUTLASS's number for that (CacheHintSm90): the policy that
// `createpolicy` makes of `evict_normal` takes 2 to 8 us more where many blocks read the same.
__device__ __forceinline__ L2Policy l2_policy(bool evict_first) {
    unsigned long long bits;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(bits));
    return {evict_first ? bits : 0x1000000000000000ull};
}
__device__ __forceinline__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z, L2Policy l2_hint) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(l2_hint.bits)
        : "memory");
}
__device__ __forceinline__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z, unsigned short blocks,
                                         L2Policy l2_hint) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(l2_hint.bits)
        : "memory");
}

#else

struct L2Policy {};
__device__ L2Policy l2_policy(bool) { return {}; }
__device__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier, int x, int y,
                         int z, L2Policy) {
    tma_load(target, map, barrier, x, y, z);
}
__device__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier, int x, int y,
                         int z, unsigned short blocks, L2Policy) {
    tma_load(target, map, barrier, x, y, z, blocks);
}

#endif
