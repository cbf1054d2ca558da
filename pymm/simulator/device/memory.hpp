// Loads and stores with a cache policy (which a CPU ignores), always inlined, so that a fault is
// told by the line of the kernel. Copies, which are checked, are in runtime.cpp.
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

inline std::size_t __cvta_generic_to_shared(const void* address) {
    return reinterpret_cast<std::size_t>(address);
}
inline std::size_t __cvta_generic_to_global(const void* address) {
    return reinterpret_cast<std::size_t>(address);
}
