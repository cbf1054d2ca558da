// Who a thread is, and where it meets the others of its block.
#pragma once

#define threadIdx (pymm_sim::self().thread_index)
#define blockIdx (pymm_sim::self().block_index)
#define blockDim (pymm_sim::self().block_size)
#define gridDim (pymm_sim::self().grid_size)
static constexpr int warpSize = 32;

#define PYMM_SIM_HERE const char* file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(PYMM_SIM_HERE) { pymm_sim::self().calls->barrier(file, line); }

inline int __syncthreads_count(int predicate, PYMM_SIM_HERE) {
    return pymm_sim::self().calls->barrier_reduce(pymm_sim::Reduce::count, predicate, file, line);
}

inline int __syncthreads_and(int predicate, PYMM_SIM_HERE) {
    return pymm_sim::self().calls->barrier_reduce(pymm_sim::Reduce::all, predicate, file, line);
}

inline int __syncthreads_or(int predicate, PYMM_SIM_HERE) {
    return pymm_sim::self().calls->barrier_reduce(pymm_sim::Reduce::any, predicate, file, line);
}

namespace pymm_sim {

// `bar.sync id, threads` and `bar.arrive id, threads`.
inline void barrier_sync(unsigned id, unsigned threads, PYMM_SIM_HERE) {
    self().calls->named_barrier(id, threads, true, file, line);
}
inline void barrier_arrive(unsigned id, unsigned threads, PYMM_SIM_HERE) {
    self().calls->named_barrier(id, threads, false, file, line);
}

// Lets the other threads of the block run: for loops that wait for them.
inline void yield() { self().calls->yield(); }

}  // namespace pymm_sim

// Threads of a block run one at a time on one core; blocks on several cores need the real fence.
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { pymm_sim::self().calls->yield(); }

inline long long clock64() {
#if defined(__x86_64__)
    return static_cast<long long>(__builtin_ia32_rdtsc());
#else
    long long ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}
inline int clock() { return static_cast<int>(clock64()); }

inline __attribute__((always_inline, noreturn)) void __trap() {
    pymm_sim::self().calls->fail(pymm_sim::launch_failed, nullptr, "__trap()");
    __builtin_unreachable();
}

#undef assert
#define assert(condition)                                                                       \
    ((condition) ? void(0)                                                                      \
                 : pymm_sim::self().calls->fail(pymm_sim::assertion, nullptr,                   \
                                                __FILE__ ": assertion `" #condition "` failed"))
