// Modules that are watched for races in shared memory (PYMM_SIMULATOR_RACES=1). g++ compiles them
// with -fsanitize=thread, which calls a function before every load and store; -fsanitize=address
// leaves out the check of a store that follows a load of the same element. The functions are ours:
// they check addresses as checks.hpp does, and tell the driver (races.cpp) of shared memory.
#pragma once

#ifdef PYMM_SIM_RACES

namespace pymm_sim {

// Checks an access, and tells the driver of it.
void touch(std::uintptr_t address, std::size_t bytes, Access access, const void* where);

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

#else

#define PYMM_SIM_ATOMIC_ACCESS __forceinline__
namespace pymm_sim {
inline void touch_atomically(const void*, std::size_t) {}
inline void order(Sync, std::uintptr_t = 0) {}
}  // namespace pymm_sim
#define PYMM_SIM_TWIN
#define PYMM_SIM_ACTING(actor, key) static_assert(true)

#endif
