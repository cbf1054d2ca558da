// What PyCUDA links to, or a caller may look for, and the simulator does not have: each says so.
#include "driver.hpp"

#define UNSUPPORTED(name)                      \
    CU_EXPORT CUresult name() {                \
        CUresult e = pymm_sim::guard_alive();  \
        return e ? e : not_supported;          \
    }

// Arrays, textures and surfaces
UNSUPPORTED(cuArray3DCreate_v2)
UNSUPPORTED(cuArray3DGetDescriptor_v2)
UNSUPPORTED(cuArrayCreate_v2)
UNSUPPORTED(cuArrayDestroy)
UNSUPPORTED(cuArrayGetDescriptor_v2)
UNSUPPORTED(cuMemcpyAtoA_v2)
UNSUPPORTED(cuMemcpyAtoD_v2)
UNSUPPORTED(cuMemcpyAtoH_v2)
UNSUPPORTED(cuMemcpyDtoA_v2)
UNSUPPORTED(cuMemcpyHtoA_v2)
UNSUPPORTED(cuModuleGetSurfRef)
UNSUPPORTED(cuModuleGetTexRef)
UNSUPPORTED(cuParamSetTexRef)
UNSUPPORTED(cuSurfRefGetArray)
UNSUPPORTED(cuSurfRefSetArray)
UNSUPPORTED(cuTexRefCreate)
UNSUPPORTED(cuTexRefDestroy)
UNSUPPORTED(cuTexRefGetAddressMode)
UNSUPPORTED(cuTexRefGetAddress_v2)
UNSUPPORTED(cuTexRefGetArray)
UNSUPPORTED(cuTexRefGetFilterMode)
UNSUPPORTED(cuTexRefGetFlags)
UNSUPPORTED(cuTexRefGetFormat)
UNSUPPORTED(cuTexRefSetAddress2D_v3)
UNSUPPORTED(cuTexRefSetAddressMode)
UNSUPPORTED(cuTexRefSetAddress_v2)
UNSUPPORTED(cuTexRefSetArray)
UNSUPPORTED(cuTexRefSetFilterMode)
UNSUPPORTED(cuTexRefSetFlags)
UNSUPPORTED(cuTexRefSetFormat)

// Other processes, and arrays of other devices
UNSUPPORTED(cuIpcCloseMemHandle)
UNSUPPORTED(cuIpcGetEventHandle)
UNSUPPORTED(cuIpcGetMemHandle)
UNSUPPORTED(cuIpcOpenEventHandle)
UNSUPPORTED(cuIpcOpenMemHandle_v2)
UNSUPPORTED(cuMemcpy3DPeer)
UNSUPPORTED(cuMemcpy3DPeerAsync)

// The linker
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkAddFile_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuLinkDestroy)

// The launch interface of CUDA 3, by parts
UNSUPPORTED(cuLaunch)
UNSUPPORTED(cuLaunchGrid)
UNSUPPORTED(cuLaunchGridAsync)
UNSUPPORTED(cuParamSetSize)
UNSUPPORTED(cuParamSetf)
UNSUPPORTED(cuParamSeti)
UNSUPPORTED(cuParamSetv)

// Profiler, memory pools
UNSUPPORTED(cuProfilerInitialize)
UNSUPPORTED(cuProfilerStart)
UNSUPPORTED(cuProfilerStop)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuMemAllocAsync)
UNSUPPORTED(cuMemFreeAsync)
