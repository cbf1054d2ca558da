// The running thread's own record, and the mark of functions that are not checked. What g++ calls
// for an address whose shadow is not 0 (see driver/memory.cpp) is in runtime.cpp.
#pragma once

namespace pymm_sim {

inline __attribute__((always_inline)) Thread& self() {
    auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    return *reinterpret_cast<Thread*>((frame | (stack_bytes - 1)) + 1 - record_bytes);
}

}  // namespace pymm_sim

#define PYMM_SIM_UNCHECKED \
    __attribute__((no_sanitize("kernel-address", "thread"), noinline))
