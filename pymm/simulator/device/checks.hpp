// What g++ calls when the shadow of an address is not 0 (see driver/memory.cpp), and the running
// thread's own record.
#pragma once

namespace pymm_sim {

inline __attribute__((always_inline)) Thread& self() {
    auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    return *reinterpret_cast<Thread*>((frame | (stack_bytes - 1)) + 1 - record_bytes);
}

}  // namespace pymm_sim

#define PYMM_SIM_UNCHECKED \
    __attribute__((no_sanitize("kernel-address", "thread"), noinline, used))

#ifndef PYMM_SIM_RACES
#define PYMM_SIM_REPORT(verb, bytes)                                                        \
    extern "C" PYMM_SIM_UNCHECKED void __asan_report_##verb##bytes##_noabort(               \
        std::uintptr_t address) {                                                           \
        pymm_sim::self().calls->verb(address, bytes, __builtin_return_address(0));          \
    }
#define PYMM_SIM_REPORT_N(verb)                                                             \
    extern "C" PYMM_SIM_UNCHECKED void __asan_report_##verb##_n_noabort(                    \
        std::uintptr_t address, std::size_t bytes) {                                        \
        pymm_sim::self().calls->verb(address, bytes, __builtin_return_address(0));          \
    }
PYMM_SIM_REPORT(load, 1)
PYMM_SIM_REPORT(load, 2)
PYMM_SIM_REPORT(load, 4)
PYMM_SIM_REPORT(load, 8)
PYMM_SIM_REPORT(load, 16)
PYMM_SIM_REPORT(store, 1)
PYMM_SIM_REPORT(store, 2)
PYMM_SIM_REPORT(store, 4)
PYMM_SIM_REPORT(store, 8)
PYMM_SIM_REPORT(store, 16)
PYMM_SIM_REPORT_N(load)
PYMM_SIM_REPORT_N(store)
#undef PYMM_SIM_REPORT
#undef PYMM_SIM_REPORT_N
#endif

// What g++ calls when an address is no multiple of its type's alignment (-fsanitize=alignment).
struct PymmSimMismatch {
    const char* file;
    unsigned line, column;
    const struct { std::uint16_t kind, info; char name[1]; }* type;
    unsigned char log_alignment, access;
};
extern "C" PYMM_SIM_UNCHECKED void __ubsan_handle_type_mismatch_v1(const PymmSimMismatch* found,
                                                                   std::uintptr_t address) {
    char text[200];
    snprintf(text, sizeof text, "accesses %.80s at 0x%llx, which is no multiple of %d",
             found->type->name, static_cast<unsigned long long>(address),
             1 << found->log_alignment);
    pymm_sim::self().calls->fail(pymm_sim::misaligned_address, __builtin_return_address(0), text);
}

// Hooks around the constructors of a module's own tables.
extern "C" PYMM_SIM_UNCHECKED void __asan_before_dynamic_init(const char*) {}
extern "C" PYMM_SIM_UNCHECKED void __asan_after_dynamic_init() {}
