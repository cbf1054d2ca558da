// The invented devices, all alike, and what may be asked of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

constexpr char name[] = "pymm simulator";
constexpr int bus_id_bytes = 13;  // "0000:00:00.0" with its end

std::atomic<int> devices{0};

bool is_device(CUdevice d) { return 0 <= d && d < device::count(); }

// Numbers of CUdevice_attribute. Textures, arrays, IPC and memory pools are absent, so their
// attributes are 0.
const std::map<int, int> attributes = {
    {1, device::max_threads}, {2, device::max_block[0]}, {3, device::max_block[1]},
    {4, device::max_block[2]}, {5, device::max_grid[0]}, {6, device::max_grid[1]},
    {7, device::max_grid[2]}, {8, device::shared_static}, {9, 65536}, {10, device::warp_size},
    {11, 2147483647},          // largest pitch
    {12, device::registers},
    {13, 1000000},             // clock rate in kHz: invented
    {14, device::alignment}, {15, 1}, {16, device::multiprocessors}, {17, 0}, {18, 0}, {19, 1},
    {20, 0}, {30, device::alignment}, {31, 1}, {32, 0}, {33, 0}, {34, 0}, {35, 0},
    {36, 1000000},             // memory clock in kHz: invented
    {37, 128},                 // bus width in bits: invented
    {38, 4 << 20},             // L2 cache: invented, small, so that a flush of it is quick
    {39, device::threads_per_multiprocessor}, {40, 1}, {41, 1}, {50, 0}, {51, 32}, {75, 9},
    {76, 0}, {78, 1}, {79, 1}, {80, 1}, {81, device::shared_multiprocessor},
    {82, device::registers}, {83, 1}, {84, 0}, {85, 0}, {86, 0}, {87, 2}, {88, 0}, {89, 0},
    {90, 1}, {91, 1}, {95, 0}, {96, 0}, {97, device::shared_optin}, {99, 1}, {100, 0}, {101, 0},
    {106, device::blocks_per_multiprocessor}, {108, 0}, {109, 0}, {111, device::shared_reserved},
    {120, 1},                  // clusters
};

}  // namespace

int device::count() {
    if (!devices) {
        const char* text = std::getenv("PYMM_SIMULATOR_DEVICES");
        devices = std::clamp(text ? std::atoi(text) : 1, 1, most_devices);
    }
    return devices;
}

// For tests: how many devices there are from now on.
CU_EXPORT void pymm_simulator_set_devices(int count) {
    devices = std::clamp(count, 1, device::most_devices);
}

CU_EXPORT CUresult cuDeviceGetCount(int* count) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!count) return invalid_value;
    *count = device::count();
    return success;
}

CU_EXPORT CUresult cuDeviceGet(CUdevice* out, int ordinal) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!out) return invalid_value;
    if (!is_device(ordinal)) return invalid_device;
    *out = ordinal;
    return success;
}

CU_EXPORT CUresult cuDeviceGetName(char* out, int bytes, CUdevice d) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!out || bytes <= 0) return invalid_value;
    if (!is_device(d)) return invalid_device;
    std::snprintf(out, static_cast<std::size_t>(bytes), "%s", name);
    return success;
}

CU_EXPORT CUresult cuDeviceGetUuid_v2(char* out, CUdevice d) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!out) return invalid_value;
    if (!is_device(d)) return invalid_device;
    std::memcpy(out, "pymm simulator 0", 16);
    out[15] = static_cast<char>('0' + d);
    return success;
}

CU_EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice d) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!bytes) return invalid_value;
    if (!is_device(d)) return invalid_device;
    *bytes = device::memory_bytes();
    return success;
}

CU_EXPORT CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice d) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!major || !minor) return invalid_value;
    if (!is_device(d)) return invalid_device;
    *major = 9;
    *minor = 0;
    return success;
}

CU_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice d) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!value || attribute < 1 || attribute > 147) return invalid_value;
    if (!is_device(d)) return invalid_device;
    auto it = attributes.find(attribute);
    *value = it == attributes.end() ? 0 : it->second;
    return success;
}

CU_EXPORT CUresult cuDeviceGetPCIBusId(char* out, int bytes, CUdevice d) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!out || bytes < bus_id_bytes) return invalid_value;
    if (!is_device(d)) return invalid_device;
    std::snprintf(out, bus_id_bytes, "0000:%02x:00.0", d & 255);
    return success;
}

CU_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* out, const char* id) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!out || !id) return invalid_value;
    char known[bus_id_bytes];
    for (int d = 0; d < device::count(); d++) {
        std::snprintf(known, sizeof known, "0000:%02x:00.0", d & 255);
        if (!std::strcmp(id, known)) return *out = d, success;
    }
    return invalid_device;
}

CU_EXPORT CUresult cuDeviceCanAccessPeer(int* out, CUdevice a, CUdevice b) {
    if (guard_alive() == not_initialized) return not_initialized;
    if (!out) return invalid_value;
    if (!is_device(a) || !is_device(b)) return invalid_device;
    *out = a != b;  // a device is no peer of itself
    return success;
}
