// Modules that are watched for races in shared memory (PYMM_SIMULATOR_RACES=1). g++ compiles them
// with -fsanitize=thread, which calls a function before every load and store; -fsanitize=address
// leaves out the check of a store that follows a load of the same element. The functions are ours:
// they check addresses as checks.hpp does, and tell the driver (races.cpp) of shared memory.
#pragma once

#ifdef PYMM_SIM_RACES

extern "C" {
__attribute__((visibility("default"), used)) inline pymm_sim::Module pymm_module{
    nullptr, nullptr, 0, 0, true, false};
}

namespace pymm_sim {

// Whether all of these bytes are good, by the shadow (driver/memory.cpp).
PYMM_SIM_UNCHECKED inline bool may_access(std::uintptr_t address, std::size_t bytes) {
    const std::uintptr_t last = address + bytes - 1;
    for (std::uintptr_t granule = address >> 3; granule <= last >> 3; granule++) {
        const auto good = *reinterpret_cast<const signed char*>(granule + 0x7fff8000);
        const int end = granule == last >> 3 ? static_cast<int>(last & 7) : 7;
        if (good && end >= good) return false;
    }
    return true;
}

PYMM_SIM_UNCHECKED inline void touch(std::uintptr_t address, std::size_t bytes, Access access,
                                     const void* where) {
    if (!pymm_module.loaded || !bytes) return;
    Thread& thread = self();
    thread.where = where;
    if (address - thread.shared_window < shared_window_bytes)
        thread.calls->touch(address, bytes, access, where);
    else if (!may_access(address, bytes))
        (access == Access::load ? thread.calls->load : thread.calls->store)(address, bytes, where);
}

#define PYMM_SIM_ATOMIC_ACCESS PYMM_SIM_UNCHECKED
inline __attribute__((always_inline, no_sanitize("kernel-address", "thread"))) void
touch_atomically(const void* address, std::size_t bytes) {
    touch(reinterpret_cast<std::uintptr_t>(address), bytes, Access::atomic,
          __builtin_return_address(0));
}

// While it lives, the thread's accesses are `actor`'s, made where the kernel called the twin of an
// instruction.
struct Acting {
    Actor before;
    const void* called;
    std::uintptr_t key_before;
    PYMM_SIM_UNCHECKED Acting(Actor actor, const void* where, std::uintptr_t key)
        : before(self().actor), called(self().actor_where), key_before(self().actor_key) {
        self().actor = actor;
        self().actor_key = key;
        if (!called) self().actor_where = where;
    }
    PYMM_SIM_UNCHECKED ~Acting() {
        self().actor = before;
        self().actor_where = called;
        self().actor_key = key_before;
    }
};
#define PYMM_SIM_TWIN __attribute__((noinline))
#define PYMM_SIM_ACTING(actor, key) \
    const pymm_sim::Acting acting(pymm_sim::Actor::actor, __builtin_return_address(0), key)
PYMM_SIM_UNCHECKED inline void order(Sync event, std::uintptr_t key = 0) {
    self().calls->order(event, key);
}

}  // namespace pymm_sim

#define PYMM_SIM_TOUCH(name, access, bytes)                                             \
    extern "C" PYMM_SIM_UNCHECKED void __tsan_##name##bytes(std::uintptr_t address) {   \
        pymm_sim::touch(address, bytes, pymm_sim::Access::access,                       \
                        __builtin_return_address(0));                                   \
    }
#define PYMM_SIM_TOUCHES(bytes)                \
    PYMM_SIM_TOUCH(read, load, bytes)          \
    PYMM_SIM_TOUCH(write, store, bytes)        \
    PYMM_SIM_TOUCH(unaligned_read, load, bytes) \
    PYMM_SIM_TOUCH(unaligned_write, store, bytes)
PYMM_SIM_TOUCHES(1)
PYMM_SIM_TOUCHES(2)
PYMM_SIM_TOUCHES(4)
PYMM_SIM_TOUCHES(8)
PYMM_SIM_TOUCHES(16)
#undef PYMM_SIM_TOUCHES
#undef PYMM_SIM_TOUCH
extern "C" PYMM_SIM_UNCHECKED void __tsan_read_range(std::uintptr_t address, std::size_t bytes) {
    pymm_sim::touch(address, bytes, pymm_sim::Access::load, __builtin_return_address(0));
}
extern "C" PYMM_SIM_UNCHECKED void __tsan_write_range(std::uintptr_t address, std::size_t bytes) {
    pymm_sim::touch(address, bytes, pymm_sim::Access::store, __builtin_return_address(0));
}
extern "C" PYMM_SIM_UNCHECKED void __tsan_init() {}
extern "C" PYMM_SIM_UNCHECKED void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#else

#define PYMM_SIM_ATOMIC_ACCESS __forceinline__
namespace pymm_sim {
inline void touch_atomically(const void*, std::size_t) {}
inline void order(Sync, std::uintptr_t = 0) {}
}  // namespace pymm_sim
#define PYMM_SIM_TWIN
#define PYMM_SIM_ACTING(actor, key) static_assert(true)

#endif
