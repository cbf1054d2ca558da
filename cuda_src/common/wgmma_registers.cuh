// wgmma whose first operand comes from registers, for 16-bit elements: lane 4 g + t of warp w holds
// a[2 x + h] = A(16 w + g + 8 h, 2 t + 8 x) and the element behind it along k, in the upper half.

#ifndef PYMM_SIMULATOR

#define WGMMA_FROM_REGISTERS(N, TYPE, NAME, NAMES, P, Q, R, S, T, U, V, ...) \
    template <bool K_MAJOR_B> \
    __device__ __forceinline__ void wgmma(TYPE, float (&d)[N / 2], const unsigned (&a)[4], \
                                          unsigned long long b, bool add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " U \
                     ", 0; " \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES \
                     "}, {" P ", " Q ", " R ", " S "}, " T ", p, 1, 1, " V "; }" \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), \
                       "r"(static_cast<int>(add)), "n"(!K_MAJOR_B)); \
    }
#define WGMMA_FROM_REGISTERS_OF(TYPE, NAME) \
    WGMMA_FROM_REGISTERS(64, TYPE, NAME, NAMES_0, "%32", "%33", "%34", "%35", "%36", "%37", "%38", \
                         REGISTERS_32(0)) \
    WGMMA_FROM_REGISTERS(128, TYPE, NAME, NAMES_0 NAMES_32, "%64", "%65", "%66", "%67", "%68", \
                         "%69", "%70", REGISTERS_32(0), REGISTERS_32(32)) \
    WGMMA_FROM_REGISTERS(192, TYPE, NAME, NAMES_0 NAMES_32 NAMES_64, "%96", "%97", "%98", "%99", \
                         "%100", "%101", "%102", REGISTERS_32(0), REGISTERS_32(32), \
                         REGISTERS_32(64)) \
    WGMMA_FROM_REGISTERS(256, TYPE, NAME, NAMES_0 NAMES_32 NAMES_64 NAMES_96, "%128", "%129", \
                         "%130", "%131", "%132", "%133", "%134", REGISTERS_32(0), \
                         REGISTERS_32(32), REGISTERS_32(64), REGISTERS_32(96))

WGMMA_FROM_REGISTERS_OF(F16, "f16")
WGMMA_FROM_REGISTERS_OF(BF16, "bf16")

#endif
