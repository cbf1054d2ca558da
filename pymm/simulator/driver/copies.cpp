// Copies and fills. Those without a stream are done at once, behind all that they wait for.
#include <cstring>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

// One end of a copy: host memory, a device allocation, or a module's __device__ variable.
struct Place {
    char* address = nullptr;
    Region* region = nullptr;      // with a record of what was written
    std::size_t offset() const { return reinterpret_cast<std::uintptr_t>(address) - region->begin; }
};

bool device_place(Place& place, CUdeviceptr address, std::size_t bytes) {
    place.address = reinterpret_cast<char*>(address);
    place.region = find(address);
    if (place.region) return place.region->contains(address, bytes);
    return bytes == 0 || in_module(address, bytes);
}

// What was never written arrives as 0xFF bytes (a NaN), not as the zeros that the CPU's memory
// happens to hold: on a device it would be anything.
void copy_row(const Place& to, const Place& from, std::size_t bytes) {
    std::memmove(to.address, from.address, bytes);
    if (from.region && to.region)
        copy_state(*to.region, to.offset(), *from.region, from.offset(), bytes);
    else if (to.region)
        mark_written(*to.region, to.offset(), bytes);
    else if (from.region && !is_written(*from.region, from.offset(), bytes))
        for (std::size_t i = 0; i < bytes; i++)
            if (!is_written(*from.region, from.offset() + i, 1)) to.address[i] = '\xFF';
}

CUresult to_device(CUdeviceptr to, const void* from, std::size_t bytes) {
    if (CUresult e = guard()) return e;
    Place t, f;
    if (!device_place(t, to, bytes) || (!from && bytes)) return invalid_value;
    f.address = static_cast<char*>(const_cast<void*>(from));
    copy_row(t, f, bytes);
    return success;
}

CUresult to_host(void* to, CUdeviceptr from, std::size_t bytes) {
    if (CUresult e = guard()) return e;
    Place t, f;
    if (!device_place(f, from, bytes) || (!to && bytes)) return invalid_value;
    t.address = static_cast<char*>(to);
    copy_row(t, f, bytes);
    return success;
}

CUresult on_device(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    if (CUresult e = guard()) return e;
    Place t, f;
    if (!device_place(t, to, bytes) || !device_place(f, from, bytes)) return invalid_value;
    copy_row(t, f, bytes);
    return success;
}

// CUDA_MEMCPY2D and CUDA_MEMCPY3D of cuda.h.
enum MemoryType : unsigned { host = 1, on_gpu = 2, array = 3, unified = 4 };

struct Copy2D {
    std::size_t from_x, from_y;
    MemoryType from_type;
    const void* from_host;
    CUdeviceptr from_device;
    void* from_array;
    std::size_t from_pitch;
    std::size_t to_x, to_y;
    MemoryType to_type;
    void* to_host;
    CUdeviceptr to_device;
    void* to_array;
    std::size_t to_pitch;
    std::size_t width, height;
};

struct Copy3D {
    std::size_t from_x, from_y, from_z, from_lod;
    MemoryType from_type;
    const void* from_host;
    CUdeviceptr from_device;
    void* from_array;
    void* reserved0;
    std::size_t from_pitch, from_height;
    std::size_t to_x, to_y, to_z, to_lod;
    MemoryType to_type;
    void* to_host;
    CUdeviceptr to_device;
    void* to_array;
    void* reserved1;
    std::size_t to_pitch, to_height;
    std::size_t width, height, depth;
};

// One end of a pitched copy: rows of `width` bytes, `pitch` apart, planes `plane` apart.
struct Pitched {
    MemoryType type;
    std::uintptr_t base;
    std::size_t pitch, plane;
};

bool row_place(Place& place, const Pitched& p, std::size_t y, std::size_t z, std::size_t width) {
    std::uintptr_t address = p.base + y * p.pitch + z * p.plane;
    if (p.type == host) {
        place.address = reinterpret_cast<char*>(address);
        place.region = nullptr;
        return true;
    }
    return device_place(place, address, width);
}

CUresult copy_pitched(const Pitched& to, const Pitched& from, std::size_t width,
                      std::size_t height, std::size_t depth) {
    if (!width || !height || !depth) return success;
    for (const Pitched* p : {&to, &from}) {
        if (p->type == array) return not_supported;
        if (p->type != host && p->type != on_gpu && p->type != unified) return invalid_value;
        if (!p->base || (height > 1 && p->pitch < width)) return invalid_value;
    }
    Place t, f;  // first see that every row is good, then copy
    for (bool copying : {false, true})
        for (std::size_t z = 0; z < depth; z++)
            for (std::size_t y = 0; y < height; y++) {
                if (!row_place(t, to, y, z, width) || !row_place(f, from, y, z, width))
                    return invalid_value;
                if (copying) copy_row(t, f, width);
            }
    return success;
}

CUresult copy_2d(const Copy2D* c) {
    if (CUresult e = guard()) return e;
    if (!c) return invalid_value;
    auto base = [](MemoryType type, const void* host_address, CUdeviceptr device_address) {
        return type == host ? reinterpret_cast<std::uintptr_t>(host_address)
                            : static_cast<std::uintptr_t>(device_address);
    };
    std::uintptr_t to = base(c->to_type, c->to_host, c->to_device);
    std::uintptr_t from = base(c->from_type, c->from_host, c->from_device);
    std::size_t to_pitch = c->to_pitch ? c->to_pitch : c->to_x + c->width;
    std::size_t from_pitch = c->from_pitch ? c->from_pitch : c->from_x + c->width;
    Pitched t{c->to_type, to ? to + c->to_y * to_pitch + c->to_x : 0, to_pitch, 0};
    Pitched f{c->from_type, from ? from + c->from_y * from_pitch + c->from_x : 0, from_pitch, 0};
    return copy_pitched(t, f, c->width, c->height, 1);
}

CUresult copy_3d(const Copy3D* c) {
    if (CUresult e = guard()) return e;
    if (!c) return invalid_value;
    auto end = [](MemoryType type, const void* host_address, CUdeviceptr device_address,
                  std::size_t x, std::size_t y, std::size_t z, std::size_t pitch,
                  std::size_t plane) {
        auto base = type == host ? reinterpret_cast<std::uintptr_t>(host_address)
                                 : static_cast<std::uintptr_t>(device_address);
        return Pitched{type, base ? base + z * plane + y * pitch + x : 0, pitch, plane};
    };
    Pitched t = end(c->to_type, c->to_host, c->to_device, c->to_x, c->to_y, c->to_z, c->to_pitch,
                    c->to_pitch * c->to_height);
    Pitched f = end(c->from_type, c->from_host, c->from_device, c->from_x, c->from_y, c->from_z,
                    c->from_pitch, c->from_pitch * c->from_height);
    return copy_pitched(t, f, c->width, c->height, c->depth);
}

template <class Value>
CUresult fill(CUdeviceptr to, std::size_t pitch, Value value, std::size_t width,
              std::size_t height) {
    if (CUresult e = guard()) return e;
    std::size_t row = width * sizeof(Value);
    if (to % sizeof(Value) || (height > 1 && pitch < row)) return invalid_value;
    for (bool writing : {false, true})
        for (std::size_t y = 0; y < height; y++) {
            Place t;
            if (!device_place(t, to + y * pitch, row)) return invalid_value;
            if (!writing) continue;
            for (std::size_t i = 0; i < width; i++)
                std::memcpy(t.address + i * sizeof(Value), &value, sizeof(Value));
            if (t.region) mark_written(*t.region, t.offset(), row);
        }
    return success;
}

}  // namespace

#define IN_STREAM(stream, call)                                      \
    do {                                                             \
        if (CUresult e = guard()) return e;                          \
        if (!live_stream(stream)) return invalid_handle;             \
        return in_stream(stream, [=]() -> CUresult { return call; }); \
    } while (0)

// What the host waits for: not while a graph is captured.
#define AT_ONCE(call)                                  \
    do {                                               \
        if (CUresult e = guard_unsafe()) return e;     \
        if (CUresult e = settle_default()) return e;   \
        return call;                                   \
    } while (0)

CU_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
    AT_ONCE(to_device(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
    AT_ONCE(to_host(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    AT_ONCE(on_device(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                                        void* stream) {
    IN_STREAM(stream, to_device(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes,
                                        void* stream) {
    IN_STREAM(stream, to_host(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                        void* stream) {
    IN_STREAM(stream, on_device(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpy2D_v2(const Copy2D* copy) { AT_ONCE(copy_2d(copy)); }
CU_EXPORT CUresult cuMemcpy2DUnaligned_v2(const Copy2D* copy) { AT_ONCE(copy_2d(copy)); }
CU_EXPORT CUresult cuMemcpy2DAsync_v2(const Copy2D* copy, void* stream) {
    if (!copy) return invalid_value;
    const Copy2D own = *copy;
    IN_STREAM(stream, copy_2d(&own));
}
CU_EXPORT CUresult cuMemcpy3D_v2(const Copy3D* copy) { AT_ONCE(copy_3d(copy)); }
CU_EXPORT CUresult cuMemcpy3DAsync_v2(const Copy3D* copy, void* stream) {
    if (!copy) return invalid_value;
    const Copy3D own = *copy;
    IN_STREAM(stream, copy_3d(&own));
}

// Contexts only say where the two addresses are: with unified addresses the addresses do.
CU_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, void*, CUdeviceptr from, void*,
                                std::size_t bytes) {
    AT_ONCE(on_device(to, from, bytes));
}
CU_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, void*, CUdeviceptr from, void*,
                                     std::size_t bytes, void* stream) {
    IN_STREAM(stream, on_device(to, from, bytes));
}

#define FILL(bits, Value)                                                                       \
    CU_EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, Value value, std::size_t n) {       \
        AT_ONCE(fill<Value>(to, 0, value, n, 1));                                               \
    }                                                                                           \
    CU_EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, Value value, std::size_t n,       \
                                              void* stream) {                                   \
        IN_STREAM(stream, fill<Value>(to, 0, value, n, 1));                                     \
    }                                                                                           \
    CU_EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, std::size_t pitch, Value value,   \
                                              std::size_t width, std::size_t height) {          \
        AT_ONCE(fill<Value>(to, pitch, value, width, height));                                  \
    }                                                                                           \
    CU_EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, std::size_t pitch, Value value, \
                                                std::size_t width, std::size_t height,          \
                                                void* stream) {                                 \
        IN_STREAM(stream, fill<Value>(to, pitch, value, width, height));                        \
    }

FILL(8, std::uint8_t)
FILL(16, std::uint16_t)
FILL(32, std::uint32_t)
