// Functions: attributes, occupancy, launches with the real driver's refusals.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

enum Attribute {
    max_threads_per_block = 0, shared_bytes = 1, constant_bytes = 2, local_bytes = 3,
    registers = 4, ptx_version = 5, binary_version = 6, cache_mode = 7, dynamic_shared_limit = 8,
    carveout = 9, cluster_must_be_set = 10, cluster_width = 11, cluster_depth = 13,
};

// CUlaunchConfig and CUlaunchAttribute (cuda.h).
constexpr int cluster_dimension = 4, programmatic_serialization = 6;
struct LaunchAttribute {
    int id, unused, value, rest[15];
};
struct LaunchConfig {
    unsigned grid[3], block[3], dynamic;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "as in cuda.h");

dim3 cluster_of(const LaunchAttribute& a) {
    return {static_cast<unsigned>(a.value), static_cast<unsigned>(a.rest[0]),
            static_cast<unsigned>(a.rest[1])};
}

bool launch_blocking() {
    static const char* text = std::getenv("CUDA_LAUNCH_BLOCKING");
    return text && *text && std::strcmp(text, "0");
}

CUresult check_sizes(const Function& f, dim3 grid, dim3 block, std::size_t dynamic) {
    const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
    std::uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!g[i] || g[i] > device::max_grid[i] || !b[i] || b[i] > device::max_block[i])
            return invalid_value;
        threads *= b[i];
    }
    if (threads > device::max_threads) return invalid_value;
    if (threads > static_cast<unsigned>(f.max_threads)) return launch_out_of_resources;
    if (dynamic > f.dynamic_limit) return invalid_value;
    return success;
}

// The clusters that a launch comes in: as the kernel says, else as the launch does, else one block.
CUresult choose_cluster(const Function& f, const dim3* wanted, dim3& chosen) {
    const unsigned* const own = f.kernel->cluster;
    if (own[0]) chosen = dim3(own[0], own[1], own[2]);
    else if (wanted) chosen = *wanted;
    const bool differs = wanted && (wanted->x != chosen.x || wanted->y != chosen.y ||
                                    wanted->z != chosen.z);
    const std::uint64_t across = std::uint64_t{chosen.x} * chosen.y;
    const bool fits = across <= device::cluster_blocks &&
                      across * chosen.z <= device::cluster_blocks && across * chosen.z > 0;
    return fits && !differs ? success : invalid_cluster_size;
}

CUresult check_cluster(const Function& f, dim3 grid, dim3 block, dim3 cluster) {
    if (grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z) return invalid_cluster_size;
    const unsigned threads = block.x * block.y * block.z;
    if (cluster.x * cluster.y * cluster.z == 1 || threads % device::warp_size == 0) return success;
    std::fprintf(stderr, "pymm simulator: kernel %s: blocks of %u threads cannot be simulated in "
                 "clusters: make that a multiple of 32\n", f.kernel->name, threads);
    return not_supported;
}

// Arguments in one buffer, each at its own offset. False: not enough of them.
bool gather(const Kernel& k, void** parameters, void** extra, std::vector<Line>& lines) {
    lines.assign(k.argument_bytes / sizeof(Line) + 1, Line{});
    char* out = lines[0].bytes;
    if (parameters) {
        for (unsigned i = 0; i < k.parameter_count; i++) {
            if (!parameters[i]) return false;
            std::memcpy(out + k.parameters[i].offset, parameters[i], k.parameters[i].bytes);
        }
        return true;
    }
    const void* buffer = nullptr;
    std::size_t bytes = 0;
    for (; extra && *extra; extra += 2) {  // CU_LAUNCH_PARAM_BUFFER_POINTER 1, _SIZE 2
        auto what = reinterpret_cast<std::uintptr_t>(extra[0]);
        if (what == 1) buffer = extra[1];
        else if (what == 2) bytes = *static_cast<std::size_t*>(extra[1]);
        else return false;
    }
    if (k.parameter_count == 0) return true;
    if (!buffer || bytes < k.argument_bytes) return false;
    std::memcpy(out, buffer, k.argument_bytes);
    return true;
}

}  // namespace

CUresult pymm_sim::prepare(Prepared& made, void* handle, dim3 grid, dim3 block,
                           std::size_t dynamic, void** parameters, void** extra,
                           const dim3* wanted) {
    Function* f = function_of(handle);
    if (!f || f->module->context != context_serial()) return invalid_handle;
    if (CUresult e = check_sizes(*f, grid, block, dynamic)) return e;
    dim3 cluster;
    if (CUresult e = choose_cluster(*f, wanted, cluster)) return e;
    if (CUresult e = check_cluster(*f, grid, block, cluster)) return e;
    made = {f, grid, block, cluster, dynamic, {}};
    const bool once = !(parameters && extra);
    return once && gather(*f->kernel, parameters, extra, made.arguments) ? success : invalid_value;
}

CUresult pymm_sim::launch(const Prepared& prepared, bool early) {
    static std::atomic<unsigned> serials{0};
    Launch l;
    if (!read_order(l.order)) return invalid_value;
    l.function = prepared.function;
    l.grid = prepared.grid;
    l.block = prepared.block;
    l.cluster = prepared.cluster;
    l.dynamic_bytes = prepared.dynamic;
    l.early = early;
    l.arguments = prepared.arguments[0].bytes;
    l.serial = serials++;
    int fault = run(l);
    if (fault) poison(fault);
    // A real launch returns before the kernel runs: its fault shows at the next call.
    return launch_blocking() ? fault : success;
}

CU_EXPORT CUresult cuFuncGetAttribute(int* value, int attribute, void* handle) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (!value) return invalid_value;
    switch (attribute) {
        case max_threads_per_block: *value = f->max_threads; break;
        case shared_bytes: *value = static_cast<int>(f->static_shared); break;
        case constant_bytes: case local_bytes: case cache_mode: *value = 0; break;
        case registers: *value = device::registers_per_thread; break;
        case ptx_version: case binary_version: *value = 90; break;
        case dynamic_shared_limit: *value = static_cast<int>(f->dynamic_limit); break;
        case carveout: *value = f->carveout; break;
        case cluster_must_be_set: *value = f->kernel->cluster[0] > 0; break;
        default: {
            if (attribute < 0 || attribute > 15) return invalid_value;
            const bool size = attribute >= cluster_width && attribute <= cluster_depth;
            *value = size ? static_cast<int>(f->kernel->cluster[attribute - cluster_width]) : 0;
        }
    }
    return success;
}

CU_EXPORT CUresult cuFuncSetAttribute(void* handle, int attribute, int value) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (attribute == dynamic_shared_limit) {
        if (value < 0 || f->static_shared + static_cast<std::size_t>(value) > device::shared_optin)
            return invalid_value;
        f->dynamic_limit = static_cast<std::size_t>(value);
        return success;
    }
    if (attribute == carveout) {
        if (value < -1 || value > 100) return invalid_value;
        f->carveout = value;
        return success;
    }
    return attribute > carveout && attribute <= 15 ? not_supported : invalid_value;
}

CU_EXPORT CUresult cuFuncSetCacheConfig(void* handle, int) {
    if (CUresult e = guard()) return e;
    return function_of(handle) ? success : invalid_handle;  // a hint, and no such cache here
}

CU_EXPORT CUresult cuFuncSetSharedMemConfig(void* handle, int config) {
    return cuFuncSetCacheConfig(handle, config);
}

CU_EXPORT CUresult cuFuncGetParamInfo(void* handle, std::size_t index, std::size_t* offset,
                                      std::size_t* bytes) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (!offset || index >= f->kernel->parameter_count) return invalid_value;
    *offset = f->kernel->parameters[index].offset;
    if (bytes) *bytes = f->kernel->parameters[index].bytes;
    return success;
}

CU_EXPORT CUresult cuFuncGetName(const char** name, void* handle) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (!name) return invalid_value;
    *name = f->kernel->name;
    return success;
}

CU_EXPORT CUresult cuFuncSetBlockShape(void* handle, int x, int y, int z) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (x <= 0 || y <= 0 || z <= 0) return invalid_value;
    std::uint64_t threads = std::uint64_t(x) * std::uint64_t(y) * std::uint64_t(z);
    if (threads > device::max_threads) return invalid_value;
    const int sizes[] = {x, y, z};
    for (int i = 0; i < 3; i++) f->block[i] = static_cast<unsigned>(sizes[i]);
    return success;
}

CU_EXPORT CUresult cuFuncSetSharedSize(void* handle, unsigned bytes) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    return bytes <= f->dynamic_limit ? success : invalid_value;
}

CU_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, void* handle, int threads,
                                                               std::size_t dynamic) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (!out || threads <= 0) return invalid_value;
    if (threads > f->max_threads || dynamic > f->dynamic_limit) return *out = 0, success;
    int warps = (threads + device::warp_size - 1) / device::warp_size;
    std::size_t shared = f->static_shared + dynamic + device::shared_reserved;
    int by_threads = device::threads_per_multiprocessor / (warps * device::warp_size);
    int by_shared = static_cast<int>(device::shared_multiprocessor / shared);
    int by_registers = device::registers / (warps * 32 * device::registers_per_thread);
    *out = std::min({by_threads, by_shared, by_registers, device::blocks_per_multiprocessor});
    return success;
}

// Any multiprocessors make room for a cluster here.
CU_EXPORT CUresult cuOccupancyMaxActiveClusters(int* out, void* handle, const LaunchConfig* c) {
    if (CUresult e = guard()) return e;
    Function* f = function_of(handle);
    if (!f) return invalid_handle;
    if (!out || !c || (c->attribute_count && !c->attributes)) return invalid_value;
    dim3 cluster, given;
    const dim3* wanted = nullptr;
    for (unsigned i = 0; i < c->attribute_count; i++)
        if (c->attributes[i].id == cluster_dimension)
            given = cluster_of(c->attributes[i]), wanted = &given;
    if (CUresult e = choose_cluster(*f, wanted, cluster)) return e;
    const auto threads = static_cast<int>(c->block[0] * c->block[1] * c->block[2]);
    if (CUresult e = cuOccupancyMaxActiveBlocksPerMultiprocessor(out, handle, threads, c->dynamic))
        return e;
    *out = *out * device::multiprocessors / static_cast<int>(cluster.x * cluster.y * cluster.z);
    return success;
}

CU_EXPORT CUresult cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                  unsigned by, unsigned bz, unsigned dynamic, void* stream,
                                  void** parameters, void** extra) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream) || !launches_here(stream)) return invalid_handle;
    Prepared p;
    const dim3 grid(gx, gy, gz), block(bx, by, bz);
    if (CUresult e = prepare(p, handle, grid, block, dynamic, parameters, extra)) return e;
    return in_stream(stream, [p = std::move(p)] { return launch(p, false); });
}

CU_EXPORT CUresult cuLaunchKernelEx(const LaunchConfig* c, void* handle, void** parameters,
                                    void** extra) {
    if (CUresult e = guard()) return e;
    if (!c || (c->attribute_count && !c->attributes)) return invalid_value;
    bool early = false;
    dim3 cluster;
    const dim3* wanted = nullptr;
    for (unsigned i = 0; i < c->attribute_count; i++) {
        const LaunchAttribute& a = c->attributes[i];
        if (a.id == programmatic_serialization) early = a.value != 0;
        else if (a.id == cluster_dimension) cluster = cluster_of(a), wanted = &cluster;
        else return not_supported;
    }
    if (!live_stream(c->stream) || !launches_here(c->stream)) return invalid_handle;
    Prepared p;
    const dim3 grid(c->grid[0], c->grid[1], c->grid[2]);
    const dim3 block(c->block[0], c->block[1], c->block[2]);
    if (CUresult e = prepare(p, handle, grid, block, c->dynamic, parameters, extra, wanted))
        return e;
    return in_stream(c->stream, [p = std::move(p), early] { return launch(p, early); });
}
