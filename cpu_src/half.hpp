// float16 and bfloat16 as they are stored, and their way to float and back.
//
// Integer arithmetic without branches, so that a compiler makes vectors of it on every processor.
// Both ways keep NaN, infinity, subnormal numbers and the sign of zero. `narrow` rounds to the
// nearest, ties to even.
#include <cstring>

struct F16 { unsigned short bits; };
struct BF16 { unsigned short bits; };

// The type that products of elements of a type are summed in.
template <class T> struct SumOf { typedef T type; };
template <> struct SumOf<F16> { typedef float type; };
template <> struct SumOf<BF16> { typedef float type; };

static inline unsigned bits_of(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

static inline float of_bits(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static inline float widen(float x) { return x; }
static inline double widen(double x) { return x; }
static inline float widen(BF16 x) { return of_bits(unsigned(x.bits) << 16); }

// The 15 bits below the sign, read as a float's, are the number times 2^-112, subnormal or not: the
// bias of the exponent is 15 instead of 127. The largest exponent stands for infinity and NaN.
static inline float widen(F16 x) {
    const unsigned sign = (x.bits & 0x8000u) << 16, rest = (x.bits & 0x7fffu) << 13;
    const float scaled = of_bits(rest) * 0x1p112f;
    const unsigned special = rest >= 0x0f800000u ? 0x7f800000u : 0u;
    return of_bits(bits_of(scaled) | special | sign);
}

static inline void narrow(float x, float& to) { to = x; }
static inline void narrow(double x, double& to) { to = x; }

static inline void narrow(float x, BF16& to) {
    const unsigned bits = bits_of(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to.bits = (unsigned short)((nan ? bits | 0x400000u : rounded) >> 16);
}

// Below 2^-14 numbers of F16 are multiples of 2^-24, the last place of a float in [1/2, 1): adding
// 1/2 rounds to one. From 65520 on they are infinite.
static inline void narrow(float x, F16& to) {
    const unsigned bits = bits_of(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    const unsigned normal = (rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13;
    const unsigned small = bits_of(of_bits(rest) + 0.5f) - bits_of(0.5f);
    unsigned rounded = rest < 113u << 23 ? small : normal;
    rounded = rest >= 0x477ff000u ? 0x7c00u : rounded;
    rounded = rest > 0x7f800000u ? 0x7e00u : rounded;
    to.bits = (unsigned short)(rounded | sign);
}
