// Warp operations. Values travel as 64-bit words.
#pragma once

namespace pymm_sim {

template <std::size_t BYTES>
using Unsigned = std::conditional_t<
    BYTES == 1, std::uint8_t,
    std::conditional_t<BYTES == 2, std::uint16_t,
                       std::conditional_t<BYTES == 4, std::uint32_t, std::uint64_t>>>;

// Not by `memcpy`: a module's own checks every byte, and most bits here are in registers.
template <class Value>
std::uint64_t to_word(Value value) {
    static_assert(sizeof(Value) <= 8, "warp operations take values of at most 8 bytes");
    return __builtin_bit_cast(Unsigned<sizeof(Value)>, value);
}

template <class Value>
Value from_word(std::uint64_t word) {
    return __builtin_bit_cast(Value, static_cast<Unsigned<sizeof(Value)>>(word));
}

template <class Value>
Value shuffle(unsigned mask, Value value, unsigned lane, const char* file, int line) {
    return from_word<Value>(self().calls->shuffle(mask, to_word(value), lane, file, line));
}

// Where each of the 32 lanes has its `mine`. They stay there until the lanes meet again, so a
// __syncwarp follows the reading. Without the lanes past the end of a block.
template <class Value>
const Value* const* of_every_lane(const Value& mine, PYMM_SIM_HERE) {
    return reinterpret_cast<const Value* const*>(self().calls->gather(
        reinterpret_cast<std::uintptr_t>(&mine), file, line));
}

inline std::uint64_t vote(Vote what, unsigned mask, std::uint64_t word, const char* file,
                          int line) {
    return self().calls->vote(what, mask, word, file, line);
}

}  // namespace pymm_sim

inline void __syncwarp(unsigned mask = 0xffffffffu, PYMM_SIM_HERE) {
    pymm_sim::self().calls->warp_sync(mask, file, line);
}

// A lane outside its segment of `width` lanes gets its own value back.
template <class Value>
Value __shfl_sync(unsigned mask, Value value, int source, int width = 32, PYMM_SIM_HERE) {
    unsigned lane = pymm_sim::self().lane, segment = lane & ~(width - 1u);
    return pymm_sim::shuffle(mask, value, segment + (source & (width - 1)), file, line);
}

template <class Value>
Value __shfl_up_sync(unsigned mask, Value value, unsigned delta, int width = 32, PYMM_SIM_HERE) {
    unsigned lane = pymm_sim::self().lane, inside = lane & (width - 1u);
    return pymm_sim::shuffle(mask, value, delta <= inside ? lane - delta : lane, file, line);
}

template <class Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned delta, int width = 32, PYMM_SIM_HERE) {
    unsigned lane = pymm_sim::self().lane, inside = lane & (width - 1u);
    bool stays = delta >= static_cast<unsigned>(width) - inside;
    return pymm_sim::shuffle(mask, value, stays ? lane : lane + delta, file, line);
}

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int lanes, int width = 32, PYMM_SIM_HERE) {
    unsigned lane = pymm_sim::self().lane, other = lane ^ static_cast<unsigned>(lanes);
    bool stays = other >= (lane & ~(width - 1u)) + static_cast<unsigned>(width);
    return pymm_sim::shuffle(mask, value, stays ? lane : other, file, line);
}

inline int __all_sync(unsigned mask, int predicate, PYMM_SIM_HERE) {
    return static_cast<int>(pymm_sim::vote(pymm_sim::Vote::all, mask, predicate != 0, file, line));
}
inline int __any_sync(unsigned mask, int predicate, PYMM_SIM_HERE) {
    return static_cast<int>(pymm_sim::vote(pymm_sim::Vote::any, mask, predicate != 0, file, line));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, PYMM_SIM_HERE) {
    return static_cast<unsigned>(
        pymm_sim::vote(pymm_sim::Vote::ballot, mask, predicate != 0, file, line));
}
template <class Value>
unsigned __match_any_sync(unsigned mask, Value value, PYMM_SIM_HERE) {
    return static_cast<unsigned>(pymm_sim::vote(pymm_sim::Vote::match_any, mask,
                                                pymm_sim::to_word(value), file, line));
}
template <class Value>
unsigned __match_all_sync(unsigned mask, Value value, int* all_equal, PYMM_SIM_HERE) {
    auto equal = static_cast<unsigned>(pymm_sim::vote(pymm_sim::Vote::match_all, mask,
                                                      pymm_sim::to_word(value), file, line));
    *all_equal = equal != 0;
    return equal;
}
inline unsigned __activemask() { return pymm_sim::self().calls->active_mask(); }

#define PYMM_SIM_REDUCE(name, Value, step)                                          \
    inline Value __reduce_##name##_sync(unsigned mask, Value value, PYMM_SIM_HERE) { \
        Value total = value;                                                        \
        bool first = true;                                                          \
        for (int lane = 0; lane < 32; lane++) {                                     \
            if (!(mask >> lane & 1)) continue;                                      \
            Value other = pymm_sim::shuffle(mask, value, lane, file, line);         \
            total = first ? other : (step);                                         \
            first = false;                                                          \
        }                                                                           \
        return total;                                                               \
    }
PYMM_SIM_REDUCE(add, unsigned, total + other)
PYMM_SIM_REDUCE(add, int, total + other)
PYMM_SIM_REDUCE(min, unsigned, other < total ? other : total)
PYMM_SIM_REDUCE(min, int, other < total ? other : total)
PYMM_SIM_REDUCE(max, unsigned, other > total ? other : total)
PYMM_SIM_REDUCE(max, int, other > total ? other : total)
PYMM_SIM_REDUCE(and, unsigned, total & other)
PYMM_SIM_REDUCE(or, unsigned, total | other)
PYMM_SIM_REDUCE(xor, unsigned, total ^ other)
#undef PYMM_SIM_REDUCE
