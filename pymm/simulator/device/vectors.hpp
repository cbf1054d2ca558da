// float2, int4 and the like, with CUDA's alignments.
#pragma once

#define PYMM_SIM_VECTORS(name, Element)                                                          \
    struct name##1 { Element x; };                                                               \
    struct alignas(2 * sizeof(Element)) name##2 { Element x, y; };                               \
    struct name##3 { Element x, y, z; };                                                         \
    struct alignas(sizeof(Element) > 4 ? 16 : 4 * sizeof(Element)) name##4 {                     \
        Element x, y, z, w;                                                                      \
    };                                                                                           \
    inline name##1 make_##name##1(Element x) { return {x}; }                                     \
    inline name##2 make_##name##2(Element x, Element y) { return {x, y}; }                       \
    inline name##3 make_##name##3(Element x, Element y, Element z) { return {x, y, z}; }         \
    inline name##4 make_##name##4(Element x, Element y, Element z, Element w) {                  \
        return {x, y, z, w};                                                                     \
    }
PYMM_SIM_VECTORS(char, signed char)
PYMM_SIM_VECTORS(uchar, unsigned char)
PYMM_SIM_VECTORS(short, short)
PYMM_SIM_VECTORS(ushort, unsigned short)
PYMM_SIM_VECTORS(int, int)
PYMM_SIM_VECTORS(long, long)
PYMM_SIM_VECTORS(ulong, unsigned long)
PYMM_SIM_VECTORS(longlong, long long)
PYMM_SIM_VECTORS(ulonglong, unsigned long long)
PYMM_SIM_VECTORS(float, float)
PYMM_SIM_VECTORS(double, double)
#undef PYMM_SIM_VECTORS

struct uint1 { unsigned x; };                // uint3 stands in abi.hpp: threadIdx is one
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint1 make_uint1(unsigned x) { return {x}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
