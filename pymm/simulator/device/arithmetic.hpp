// Arithmetic that CUDA has as functions of the language. <math.h>'s own are there already.
#pragma once

inline void sincos(float a, float* s, float* c) { sincosf(a, s, c); }

#define PYMM_SIM_BOTH(Left, Right)                                                             \
    inline std::common_type_t<Left, Right> min(Left a, Right b) {                              \
        using Common = std::common_type_t<Left, Right>;                                        \
        return static_cast<Common>(b) < static_cast<Common>(a) ? static_cast<Common>(b)        \
                                                               : static_cast<Common>(a);       \
    }                                                                                          \
    inline std::common_type_t<Left, Right> max(Left a, Right b) {                              \
        using Common = std::common_type_t<Left, Right>;                                        \
        return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(b)        \
                                                               : static_cast<Common>(a);       \
    }
#define PYMM_SIM_MIXED(Signed, Unsigned) \
    PYMM_SIM_BOTH(Signed, Signed)        \
    PYMM_SIM_BOTH(Signed, Unsigned)      \
    PYMM_SIM_BOTH(Unsigned, Signed)      \
    PYMM_SIM_BOTH(Unsigned, Unsigned)
PYMM_SIM_MIXED(int, unsigned)
PYMM_SIM_MIXED(long, unsigned long)
PYMM_SIM_MIXED(long long, unsigned long long)
#undef PYMM_SIM_MIXED
#undef PYMM_SIM_BOTH
inline float min(float a, float b) { return fminf(a, b); }   // IEEE: the number, not the NaN
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// Round to nearest, never contracted into another operation.
#define PYMM_SIM_RN(name, Value, expression)                                                \
    __attribute__((optimize("fp-contract=off"), noinline)) inline Value name(Value a, Value b) { \
        return expression;                                                                  \
    }
PYMM_SIM_RN(__fadd_rn, float, a + b)
PYMM_SIM_RN(__fsub_rn, float, a - b)
PYMM_SIM_RN(__fmul_rn, float, a * b)
PYMM_SIM_RN(__fdiv_rn, float, a / b)
PYMM_SIM_RN(__dadd_rn, double, a + b)
PYMM_SIM_RN(__dsub_rn, double, a - b)
PYMM_SIM_RN(__dmul_rn, double, a * b)
PYMM_SIM_RN(__ddiv_rn, double, a / b)
#undef PYMM_SIM_RN
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both >> bits % 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned bits) {
    return ((1ull * high << 32 | low) << bits % 32) >> 32;
}
inline float __saturatef(float a) { return a < 0 || a != a ? 0.0f : a > 1 ? 1.0f : a; }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }

// Bits
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(static_cast<unsigned>(a)) : 32; }
inline int __clzll(long long a) {
    return a ? __builtin_clzll(static_cast<unsigned long long>(a)) : 64;
}
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned __brev(unsigned a) {
    unsigned b = 0;
    for (int i = 0; i < 32; i++) b |= (a >> i & 1u) << (31 - i);
    return b;
}
inline int __mul24(int a, int b) {
    unsigned low = static_cast<unsigned>(a << 8 >> 8), high = static_cast<unsigned>(b << 8 >> 8);
    return static_cast<int>(low * high);
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// The same bits as another type
#define PYMM_SIM_BITS(name, From, To) \
    inline To name(From a) { return pymm_sim::from_word<To>(pymm_sim::to_word(a)); }
PYMM_SIM_BITS(__float_as_int, float, int)
PYMM_SIM_BITS(__float_as_uint, float, unsigned)
PYMM_SIM_BITS(__int_as_float, int, float)
PYMM_SIM_BITS(__uint_as_float, unsigned, float)
PYMM_SIM_BITS(__double_as_longlong, double, long long)
PYMM_SIM_BITS(__longlong_as_double, long long, double)
#undef PYMM_SIM_BITS
inline int __float2int_rn(float a) { return static_cast<int>(nearbyintf(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
