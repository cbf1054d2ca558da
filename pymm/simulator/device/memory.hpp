// Loads and stores with a cache policy (which a CPU ignores), always inlined, so that a fault is
// told by the line of the kernel; and copies that are checked.
#pragma once

#define PYMM_SIM_LOAD(name) \
    template <class Value>  \
    __forceinline__ Value name(const Value* address) { return *address; }
PYMM_SIM_LOAD(__ldg)
PYMM_SIM_LOAD(__ldca)
PYMM_SIM_LOAD(__ldcg)
PYMM_SIM_LOAD(__ldcs)
PYMM_SIM_LOAD(__ldlu)
PYMM_SIM_LOAD(__ldcv)
#undef PYMM_SIM_LOAD

#define PYMM_SIM_STORE(name)                                                      \
    template <class Value>                                                        \
    __forceinline__ void name(Value* address, std::common_type_t<Value> value) {  \
        *address = value;                                                         \
    }
PYMM_SIM_STORE(__stwb)
PYMM_SIM_STORE(__stcg)
PYMM_SIM_STORE(__stcs)
PYMM_SIM_STORE(__stwt)
#undef PYMM_SIM_STORE

// g++ does not check what its memcpy and memset do, nor the large assignments it makes of them: a
// module has its own, which touch every byte under the checks.
extern "C" __attribute__((noinline, used)) void* memcpy(
    void* to, const void* from, std::size_t bytes) {
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

extern "C" __attribute__((noinline, used)) void* memset(
    void* to, int value, std::size_t bytes) {
    auto* t = static_cast<char*>(to);
    std::size_t i = 0;
    std::uint64_t word = 0x0101010101010101u * static_cast<unsigned char>(value);
    if ((reinterpret_cast<std::uintptr_t>(t) & 7) == 0)
        for (; i + 8 <= bytes; i += 8) *reinterpret_cast<std::uint64_t*>(t + i) = word;
    for (; i < bytes; i++) t[i] = static_cast<char>(value);
    return to;
}

inline std::size_t __cvta_generic_to_shared(const void* address) {
    return reinterpret_cast<std::size_t>(address);
}
inline std::size_t __cvta_generic_to_global(const void* address) {
    return reinterpret_cast<std::size_t>(address);
}
