// The 16-bit types, and what rounds to them. CUDA's own names for these need an include.

struct F16 {
    unsigned short bits;
};
struct BF16 {
    unsigned short bits;
};

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(BF16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

#ifndef PYMM_SIMULATOR

__device__ __forceinline__ float widen(F16 x) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
}
// Two elements rounded to nearest, the first in the lower half.
__device__ __forceinline__ unsigned narrow(F16, float low, float high) {
    unsigned result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}
__device__ __forceinline__ unsigned narrow(BF16, float low, float high) {
    unsigned result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

#else

// The simulator rounds in software, ties to even. A product with a power of two is exact
// and puts the elements of F16, its subnormals too, where float keeps those of the same bits.
__device__ float widen(F16 x) {
    const float size = __uint_as_float((x.bits & 0x7FFFu) << 13) * 0x1p112f;
    const unsigned kind = x.bits & 0x7FFFu;
    const unsigned bits = kind > 0x7C00u    ? 0x7FC00000u
                          : kind == 0x7C00u ? 0x7F800000u
                                            : __float_as_uint(size);
    return __uint_as_float(bits | (x.bits & 0x8000u) << 16);
}
__device__ unsigned narrow(F16, float x) {
    const unsigned bits = __float_as_uint(x), size = bits & 0x7FFFFFFFu;
    const unsigned sign = bits >> 16 & 0x8000u;
    if (size > 0x7F800000u) return sign | 0x7FFFu;
    if (size >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and more
    if (size < 0x38800000u)  // adding 1/2 puts the last bit of a subnormal where float's is
        return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000u);
    return sign | (size - 0x38000000u + 0xFFFu + (size >> 13 & 1)) >> 13;
}
__device__ unsigned narrow(BF16, float x) {
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFFu;
    return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
}
template <class HALF>
__device__ unsigned narrow(HALF half, float low, float high) {
    return narrow(half, low) | narrow(half, high) << 16;
}

#endif

// One number rounded to the type of C.
__device__ __forceinline__ void put(float& to, float x) { to = x; }
__device__ __forceinline__ void put(double& to, double x) { to = x; }
template <class HALF>
__device__ __forceinline__ void put(HALF& to, float x) {
    to.bits = static_cast<unsigned short>(narrow(HALF{}, x, 0.0f));
}
