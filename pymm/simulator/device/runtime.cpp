// What every module needs and no kernel changes: compiled once and linked with each of them.
#include "cuda.hpp"

#ifdef PYMM_SIM_RACES
constexpr bool watched = true;
#else
constexpr bool watched = false;
#endif

extern "C" pymm_sim::Module pymm_module{nullptr, nullptr, 0, 0, watched, false};

// --- what translate.py writes into the text -----------------------------------------------------

namespace pymm_sim {

PYMM_SIM_UNCHECKED SetArchitecture::SetArchitecture(int architecture) {
    pymm_module.architecture = architecture;
}

PYMM_SIM_UNCHECKED AddShared::AddShared(SharedVariable v) : variable(v) {
    variable.index = pymm_module.shared_count++;
    SharedVariable** last = &pymm_module.shared;
    while (*last) last = &(*last)->next;
    *last = &variable;
}

PYMM_SIM_UNCHECKED AddKernel::AddKernel(Kernel k) : kernel(k) {
    kernel.next = pymm_module.kernels;
    pymm_module.kernels = &kernel;
}

}  // namespace pymm_sim

// For the stand-in nvcc: name and static shared memory of kernel `number`, null past the last.
extern "C" PYMM_SIM_UNCHECKED __attribute__((visibility("default"))) const char*
pymm_kernel_shared(int number, std::size_t* bytes) {
    const pymm_sim::Kernel* k = pymm_module.kernels;
    while (k && number-- > 0) k = k->next;
    if (!k) return nullptr;
    *bytes = pymm_sim::static_shared(pymm_module, *k);
    return k->name;
}

// --- what g++ calls -----------------------------------------------------------------------------

#ifdef PYMM_SIM_RACES

namespace pymm_sim {

// Whether all of these bytes are good, by the shadow (driver/memory.cpp).
PYMM_SIM_UNCHECKED static bool may_access(std::uintptr_t address, std::size_t bytes) {
    const std::uintptr_t last = address + bytes - 1;
    for (std::uintptr_t granule = address >> 3; granule <= last >> 3; granule++) {
        const auto good = *reinterpret_cast<const signed char*>(granule + 0x7fff8000);
        const int end = granule == last >> 3 ? static_cast<int>(last & 7) : 7;
        if (good && end >= good) return false;
    }
    return true;
}

PYMM_SIM_UNCHECKED void touch(std::uintptr_t address, std::size_t bytes, Access access,
                              const void* where) {
    if (!pymm_module.loaded || !bytes) return;
    Thread& thread = self();
    thread.where = where;
    if (address - thread.shared_window < shared_window_bytes)
        thread.calls->touch(address, bytes, access, where);
    else if (!may_access(address, bytes))
        (access == Access::load ? thread.calls->load : thread.calls->store)(address, bytes, where);
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

// g++ does not check what its memcpy and memset do, nor the large assignments it makes of them: a
// module has its own, which touch every byte under the checks.
extern "C" void* memcpy(void* to, const void* from, std::size_t bytes) {
    auto* t = static_cast<char*>(to);
    auto* f = static_cast<const char*>(from);
    std::size_t i = 0;
    if (((reinterpret_cast<std::uintptr_t>(t) | reinterpret_cast<std::uintptr_t>(f)) & 7) == 0)
        for (; i + 8 <= bytes; i += 8)
            *reinterpret_cast<std::uint64_t*>(t + i) =
                *reinterpret_cast<const std::uint64_t*>(f + i);
    for (; i < bytes; i++) t[i] = f[i];
    return to;
}

extern "C" void* memset(void* to, int value, std::size_t bytes) {
    auto* t = static_cast<char*>(to);
    std::size_t i = 0;
    std::uint64_t word = 0x0101010101010101u * static_cast<unsigned char>(value);
    if ((reinterpret_cast<std::uintptr_t>(t) & 7) == 0)
        for (; i + 8 <= bytes; i += 8) *reinterpret_cast<std::uint64_t*>(t + i) = word;
    for (; i < bytes; i++) t[i] = static_cast<char>(value);
    return to;
}

// --- wgmma --------------------------------------------------------------------------------------

namespace pymm_sim::hopper {

PYMM_SIM_UNCHECKED bool same_bytes(const void* a, const void* b, std::size_t bytes) {
    return __builtin_memcmp(a, b, bytes) == 0;
}
// Word by word: a module's own `memcpy` checks what it copies.
PYMM_SIM_UNCHECKED void copy_words(void* to, const void* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes / 8; i++)
        static_cast<std::uint64_t*>(to)[i] = static_cast<const std::uint64_t*>(from)[i];
}

PYMM_SIM_UNCHECKED void add_products(float* d, unsigned count, const float* a,
                                     const float* b, unsigned depth) {
    for (unsigned j = 0; j < count; j += 4, d += 4, b += 8) {
        float sums[4] = {d[0], d[1], d[2], d[3]};
        for (unsigned p = 0; p < depth; p++) {
            const float upper = a[p * 2], lower = a[p * 2 + 1];
            const float left = b[p * count * 2], right = b[p * count * 2 + 1];
            sums[0] += upper * left;
            sums[1] += upper * right;
            sums[2] += lower * left;
            sums[3] += lower * right;
        }
        for (unsigned e = 0; e < 4; e++) d[e] = sums[e];
    }
}

}  // namespace pymm_sim::hopper
