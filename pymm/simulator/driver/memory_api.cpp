// Allocation, page-locked host memory, and what may be asked about both.
#include <cstdlib>
#include <map>
#include <mutex>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

std::mutex mutex;
std::map<std::uintptr_t, std::pair<std::size_t, unsigned>> registered;  // bytes, flags
std::map<std::uintptr_t, unsigned> host_flags;

CUresult allocate_global(CUdeviceptr* out, std::size_t bytes) {
    if (!out || !bytes) return invalid_value;
    Region* r = allocate(bytes, Space::global);
    if (!r) return out_of_memory;
    *out = r->begin;
    return success;
}

// The host range that holds an address: allocated here or registered. 0: none.
std::uintptr_t host_range(std::uintptr_t address, std::size_t* bytes) {
    if (Region* r = find(address); r && r->space == Space::host) {
        *bytes = r->bytes;
        return r->begin;
    }
    auto it = registered.upper_bound(address);
    if (it == registered.begin()) return 0;
    --it;
    if (address - it->first >= it->second.first) return 0;
    *bytes = it->second.first;
    return it->first;
}

}  // namespace

CU_EXPORT CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    if (CUresult e = guard()) return e;
    if (free) *free = free_bytes();
    if (total) *total = device::memory_bytes();
    return success;
}

CU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t bytes) {
    CUresult e = guard_unsafe();
    return e ? e : allocate_global(out, bytes);
}

CU_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element) {
    if (CUresult e = guard()) return e;
    if (!out || !pitch || !width || !height) return invalid_value;
    if (element != 4 && element != 8 && element != 16) return invalid_value;
    std::size_t row = (width + device::alignment - 1) / device::alignment * device::alignment;
    if (row < width || height > device::memory_bytes() / row) return out_of_memory;
    *pitch = row;
    return allocate_global(out, row * height);
}

// The host may write managed memory unseen, so all of it counts as written.
CU_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* out, std::size_t bytes, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (flags != 1 && flags != 2) return invalid_value;
    CUresult e = allocate_global(out, bytes);
    if (e == success) mark_written(*find(*out), 0, bytes);
    return e;
}

// Waits for all work on the device, as the real one does.
CU_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    if (CUresult e = guard_unsafe()) return e;
    if (CUresult e = settle()) return e;
    return address == 0 || release(address, Space::global) ? success : invalid_value;
}

CU_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, std::size_t* bytes,
                                           CUdeviceptr address) {
    if (CUresult e = guard()) return e;
    Region* r = find(address);
    if (!r || r->space != Space::global) return not_found;
    if (begin) *begin = r->begin;
    if (bytes) *bytes = r->bytes;
    return success;
}

CU_EXPORT CUresult cuMemHostAlloc(void** out, std::size_t bytes, unsigned flags) {
    if (CUresult e = guard_unsafe()) return e;
    if (!out || !bytes || flags > 7) return invalid_value;
    Region* r = allocate(bytes, Space::host);
    if (!r) return out_of_memory;
    std::lock_guard lock(mutex);
    host_flags[r->begin] = flags;
    *out = reinterpret_cast<void*>(r->begin);
    return success;
}

CU_EXPORT CUresult cuMemFreeHost(void* address) {
    if (CUresult e = guard_unsafe()) return e;
    if (CUresult e = settle()) return e;
    std::lock_guard lock(mutex);
    auto begin = reinterpret_cast<std::uintptr_t>(address);
    host_flags.erase(begin);
    return release(begin, Space::host) ? success : invalid_value;
}

CU_EXPORT CUresult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (!address || !bytes || flags > 15) return invalid_value;
    std::lock_guard lock(mutex);
    auto begin = reinterpret_cast<std::uintptr_t>(address);
    std::size_t other = 0;
    if (host_range(begin, &other) || host_range(begin + bytes - 1, &other))
        return host_memory_already_registered;
    registered[begin] = {bytes, flags};
    allow(address, bytes);
    return success;
}

CU_EXPORT CUresult cuMemHostUnregister(void* address) {
    if (CUresult e = guard()) return e;
    std::lock_guard lock(mutex);
    bool was = registered.erase(reinterpret_cast<std::uintptr_t>(address)) != 0;
    return was ? success : host_memory_not_registered;
}

CU_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (!out || flags) return invalid_value;
    std::lock_guard lock(mutex);
    std::size_t bytes = 0;
    if (!host_range(reinterpret_cast<std::uintptr_t>(address), &bytes)) return invalid_value;
    *out = reinterpret_cast<CUdeviceptr>(address);
    return success;
}

// Of what may be asked about an address only which memory it is in.
CU_EXPORT CUresult cuPointerGetAttribute(void* out, int attribute, CUdeviceptr address) {
    if (CUresult e = guard()) return e;
    constexpr int memory_type = 2, host = 1, on_device = 2;
    if (!out) return invalid_value;
    if (attribute != memory_type) return not_supported;
    Region* r = find(address);
    std::lock_guard lock(mutex);
    std::size_t bytes = 0;
    if (r && r->space == Space::global)
        *static_cast<unsigned*>(out) = on_device;
    else if (host_range(address, &bytes))
        *static_cast<unsigned*>(out) = host;
    else
        return invalid_value;
    return success;
}

CU_EXPORT CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
    if (CUresult e = guard()) return e;
    if (!flags) return invalid_value;
    std::lock_guard lock(mutex);
    auto at = reinterpret_cast<std::uintptr_t>(address);
    std::size_t bytes = 0;
    std::uintptr_t begin = host_range(at, &bytes);
    if (!begin) return invalid_value;
    auto it = registered.find(begin);
    *flags = it != registered.end() ? it->second.second : host_flags[begin];
    return success;
}
