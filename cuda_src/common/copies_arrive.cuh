// An arrival at a barrier (mbarrier) that copies by threads (AsyncCopies) make by themselves.

#include "common/hopper.cuh"
#include "common/ptx.cuh"

#ifndef PYMM_SIMULATOR
// Arrives as soon as all elements are there that this thread has asked for.
__device__ __forceinline__ void arrive_after(AsyncCopies&, unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
#else
// What was asked for comes now.
inline void arrive_after(AsyncCopies& copies, unsigned barrier) {
    copies.commit();
    copies.wait<0>();
    mbarrier_arrive(barrier);
}
#endif
