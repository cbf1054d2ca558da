// Atomics: the CPU's own, since blocks run on several cores. Always inlined, so that a fault is
// told by the line of the kernel.
#pragma once

namespace pymm_sim {

// Any update of 4 or 8 bytes as a compare-and-swap loop; returns what was there before.
template <class Value, class Update>
PYMM_SIM_ATOMIC_ACCESS Value update(Value* address, Update f) {
    using Word = std::conditional_t<sizeof(Value) == 8, std::uint64_t, std::uint32_t>;
    static_assert(sizeof(Value) == sizeof(Word), "atomics work on 4 or 8 bytes");
    auto* word = reinterpret_cast<Word*>(address);
    touch_atomically(address, sizeof(Word));
    Word before = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        Value old;
        std::memcpy(&old, &before, sizeof old);
        Value now = f(old);
        Word after;
        std::memcpy(&after, &now, sizeof after);
        if (__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return old;
    }
}

}  // namespace pymm_sim

#define PYMM_SIM_ATOMIC(name, expression)                                                       \
    template <class Value>                                                                      \
    __forceinline__ Value name(Value* address, std::common_type_t<Value> value) {               \
        return pymm_sim::update(address, [=](Value old) -> Value { return expression; });       \
    }                                                                                           \
    template <class Value>                                                                      \
    __forceinline__ Value name##_block(Value* address, std::common_type_t<Value> value) {       \
        return name(address, value);                                                            \
    }                                                                                           \
    template <class Value>                                                                      \
    __forceinline__ Value name##_system(Value* address, std::common_type_t<Value> value) {      \
        return name(address, value);                                                            \
    }
PYMM_SIM_ATOMIC(atomicAdd, old + value)
PYMM_SIM_ATOMIC(atomicSub, old - value)
PYMM_SIM_ATOMIC(atomicExch, (static_cast<void>(old), value))
PYMM_SIM_ATOMIC(atomicMin, value < old ? value : old)
PYMM_SIM_ATOMIC(atomicMax, old < value ? value : old)
PYMM_SIM_ATOMIC(atomicAnd, old & value)
PYMM_SIM_ATOMIC(atomicOr, old | value)
PYMM_SIM_ATOMIC(atomicXor, old ^ value)
PYMM_SIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
PYMM_SIM_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef PYMM_SIM_ATOMIC

// Compares bits, as the hardware does.
template <class Value>
__forceinline__ Value atomicCAS(Value* address, std::common_type_t<Value> expected,
                                std::common_type_t<Value> value) {
    return pymm_sim::update(address, [=](Value old) -> Value {
        return std::memcmp(&old, &expected, sizeof old) == 0 ? value : old;
    });
}
