// Tensor maps, within the driver's limits (CUDA driver API, "cuTensorMapEncodeTiled").
#include <cstring>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

// Bytes of an element, by CUtensorMapDataType; 11 and 12 are float32 that is rounded to tf32.
constexpr unsigned sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
constexpr unsigned swizzles[] = {0, 32, 64, 128};

}  // namespace

CU_EXPORT CUresult cuTensorMapEncodeTiled(void* map, unsigned kind, unsigned rank, void* address,
                                          const std::uint64_t* extents,
                                          const std::uint64_t* strides, const unsigned* box,
                                          const unsigned* steps, int interleave, unsigned swizzle,
                                          int /*promotion*/, int fill) {
    if (CUresult e = guard()) return e;
    if (!map || !extents || !strides || !box || !steps || kind > 12 || swizzle > 3)
        return invalid_value;
    if (rank != 3 || interleave || fill) return not_supported;
    TensorDescription d{};
    d.address = reinterpret_cast<std::uintptr_t>(address);
    d.size = sizes[kind];
    d.swizzle = swizzles[swizzle];
    d.rounded = kind > 10;
    bool right = d.address % 16 == 0 && reinterpret_cast<std::uintptr_t>(map) % 64 == 0;
    for (unsigned i = 0; i < 3; i++) {
        right &= extents[i] > 0 && extents[i] <= std::uint64_t{1} << 32 && box[i] > 0 &&
                 box[i] <= 256 && steps[i] == 1;
        d.extents[i] = extents[i];
        d.box[i] = box[i];
    }
    for (unsigned i = 0; i < 2; i++) {
        right &= strides[i] % 16 == 0 && strides[i] < std::uint64_t{1} << 40;
        d.strides[i] = strides[i];
    }
    const unsigned row = box[0] * d.size;
    if (!right || row % 16 || (d.swizzle && row > d.swizzle)) return invalid_value;
    std::memset(map, 0, 128);
    std::memcpy(map, &d, sizeof d);
    return success;
}

CU_EXPORT CUresult cuTensorMapReplaceAddress(void* map, void* address) {
    if (CUresult e = guard()) return e;
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    if (!map || place % 16 || reinterpret_cast<std::uintptr_t>(map) % 64) return invalid_value;
    TensorDescription d;
    std::memcpy(&d, map, sizeof d);
    d.address = place;
    std::memcpy(map, &d, sizeof d);
    return success;
}
