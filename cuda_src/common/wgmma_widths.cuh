// wgmma of 64 x N x 16 for the widths N between those of common/hopper.cuh: every multiple of 16
// from 80 to 240. The simulator's wgmma takes any width.

#ifndef PYMM_SIMULATOR

#define NAMES_40 NAMES_0 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_72 NAMES_0 NAMES_32 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_88 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_104 NAMES_0 NAMES_32 NAMES_64 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_112 NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_120 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"

#define REGISTERS_64(r) REGISTERS_32(r), REGISTERS_32(r + 32)
#define REGISTERS_96(r) REGISTERS_64(r), REGISTERS_32(r + 64)

#define WGMMA_WIDTHS_OF(TYPE, NAME) \
    WGMMA(80, TYPE, NAME, NAMES_40, "%40", "%41", "%42", "%43", "%44", REGISTERS_32(0), \
          REGISTERS_8(32)) \
    WGMMA(96, TYPE, NAME, NAMES_48, "%48", "%49", "%50", "%51", "%52", REGISTERS_32(0), \
          REGISTERS_16(32)) \
    WGMMA(112, TYPE, NAME, NAMES_56, "%56", "%57", "%58", "%59", "%60", REGISTERS_32(0), \
          REGISTERS_16(32), REGISTERS_8(48)) \
    WGMMA(144, TYPE, NAME, NAMES_72, "%72", "%73", "%74", "%75", "%76", REGISTERS_64(0), \
          REGISTERS_8(64)) \
    WGMMA(160, TYPE, NAME, NAMES_80, "%80", "%81", "%82", "%83", "%84", REGISTERS_64(0), \
          REGISTERS_16(64)) \
    WGMMA(176, TYPE, NAME, NAMES_88, "%88", "%89", "%90", "%91", "%92", REGISTERS_64(0), \
          REGISTERS_16(64), REGISTERS_8(80)) \
    WGMMA(208, TYPE, NAME, NAMES_104, "%104", "%105", "%106", "%107", "%108", REGISTERS_96(0), \
          REGISTERS_8(96)) \
    WGMMA(224, TYPE, NAME, NAMES_112, "%112", "%113", "%114", "%115", "%116", REGISTERS_96(0), \
          REGISTERS_16(96)) \
    WGMMA(240, TYPE, NAME, NAMES_120, "%120", "%121", "%122", "%123", "%124", REGISTERS_96(0), \
          REGISTERS_16(96), REGISTERS_8(112))

WGMMA_WIDTHS_OF(F16, "f16")
WGMMA_WIDTHS_OF(BF16, "bf16")

#endif
