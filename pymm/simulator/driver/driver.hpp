// Inside of the stand-in libcuda.so.1: the declarations that its parts share.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../device/abi.hpp"

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;

// The driver API's own numbers (cuda.h, CUDA 13.0).
enum : CUresult {
    success = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3,
    invalid_device = 101, invalid_image = 200, invalid_context = 201, no_binary = 209,
    unsupported_limit = 215,
    peer_access_unsupported = 217, file_not_found = 301, operating_system = 304,
    invalid_handle = 400, not_found = 500, launch_out_of_resources = 701,
    peer_access_already_enabled = 704, peer_access_not_enabled = 705, primary_context_active = 708,
    host_memory_already_registered = 712, host_memory_not_registered = 713, not_ready = 600,
    not_supported = 801,
    capture_unsupported = 900, capture_invalidated = 901, capture_unmatched = 903,
    capture_isolation = 905, capture_implicit = 906,
    invalid_cluster_size = 912,
};

#define CU_EXPORT extern "C" __attribute__((visibility("default")))

namespace pymm_sim {

// The invented device. Limits are those of compute capability 9.0 (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability"); it has few multiprocessors.
namespace device {
constexpr int multiprocessors = 4;
constexpr int warp_size = 32;
constexpr unsigned max_threads = 1024;
constexpr unsigned max_block[3] = {1024, 1024, 64};
constexpr unsigned max_grid[3] = {2147483647, 65535, 65535};
constexpr std::size_t shared_static = 48 << 10;         // without opt-in
constexpr std::size_t shared_optin = 227 << 10;
constexpr std::size_t shared_multiprocessor = 228 << 10;
constexpr std::size_t shared_reserved = 1 << 10;        // per block, taken by the system
constexpr int registers = 65536;
constexpr int registers_per_thread = 32;                // invented: g++ counts none
constexpr int threads_per_multiprocessor = 2048;
constexpr int blocks_per_multiprocessor = 32;
constexpr unsigned cluster_blocks = 8;                  // the most that are portable
constexpr std::size_t alignment = 512;                  // of cuMemAlloc and of pitches
std::size_t memory_bytes();                             // PYMM_SIMULATOR_MEMORY, else 8 GiB
constexpr int most_devices = 16;
int count();                                            // PYMM_SIMULATOR_DEVICES, else 1
}  // namespace device

// --- memory.cpp: device memory and the shadow that says what of it may be read ----------------

enum class Space { global, host, shared };

struct Region {
    std::uintptr_t begin;
    std::size_t bytes;
    Space space;
    int device;                              // whose memory it is
    unsigned serial;                         // "allocation 3", counted from 1
    std::unique_ptr<std::uint8_t[], void (*)(void*)> written;  // one bit per byte
    const SharedVariable* variable;          // of a shared region; null: the dynamic one
    std::uintptr_t end() const { return begin + bytes; }
    bool contains(std::uintptr_t p, std::size_t n) const {
        return p >= begin && n <= bytes && p - begin <= bytes - n;
    }
};

bool start_memory(std::string& why_not);
Region* allocate(std::size_t bytes, Space space);       // null: out of memory
bool release(std::uintptr_t begin, Space space);
Region* find(std::uintptr_t address);                   // the region that holds it, or null
Region* nearest(std::uintptr_t address);                // the one that ends or begins closest
std::size_t free_bytes();                               // of the current context's device

void* reserve_window(std::size_t bytes);                // a stretch of the arena, all forbidden
void commit_window(void* begin, std::size_t bytes);     // readable and writable by the driver
void make_region(Region& region, std::uintptr_t begin, std::size_t bytes, Space space);
void forbid(std::uintptr_t begin, std::size_t bytes);   // poison: no kernel may touch it
void forget_writes(Region& region);                     // everything uninitialised again
void allow(const void* begin, std::size_t bytes);       // opens memory outside the arena
bool in_shadow(std::uintptr_t address);
std::uintptr_t meant_by(std::uintptr_t shadow_address);  // the address whose shadow it is

void mark_written(Region& region, std::size_t offset, std::size_t bytes);
bool is_written(const Region& region, std::size_t offset, std::size_t bytes);
void copy_state(Region& to, std::size_t to_offset, const Region& from, std::size_t from_offset,
                std::size_t bytes);

// --- module.cpp: loaded kernels -----------------------------------------------------------------

struct Function;
struct LoadedModule {
    void* library = nullptr;
    int file = -1;                           // the memory file it was loaded from
    std::uint64_t context = 0;               // the serial of the one it was loaded into
    std::uintptr_t base = 0;
    std::vector<std::pair<std::uintptr_t, std::size_t>> segments;
    const Module* contents = nullptr;
    std::vector<std::unique_ptr<Function>> functions;
};

struct Function {
    const Kernel* kernel;
    LoadedModule* module;
    std::size_t static_shared;
    std::size_t dynamic_limit;               // MAX_DYNAMIC_SHARED_SIZE_BYTES
    int max_threads;
    unsigned block[3] = {0, 0, 0};           // cuFuncSetBlockShape
    int carveout = -1;
};

Function* function_of(void* handle);         // null: not a live function
bool in_module(std::uintptr_t address, std::size_t bytes);
std::string source_line(const void* code);   // "kernel.cu:12", or the offset in the module

// --- functions.cpp: launches ---------------------------------------------------------------------

struct alignas(64) Line { char bytes[64]; };  // as tensor maps are aligned

struct Prepared {
    const Function* function;
    dim3 grid, block, cluster;
    std::size_t dynamic;
    std::vector<Line> arguments;
};

// `cluster`: what the launch says of it, or null.
CUresult prepare(Prepared& made, void* handle, dim3 grid, dim3 block, std::size_t dynamic,
                 void** parameters, void** extra, const dim3* cluster = nullptr);
CUresult launch(const Prepared& prepared, bool early);

// --- block.cpp: the fibers of one cluster of blocks ----------------------------------------------

// By default blocks take turns among three orders of their threads, so that a missing barrier
// shows whichever way the data flows.
struct Order {
    enum { rotate, forward, backward, random } kind = rotate;
    std::uint64_t seed = 1;
};
bool read_order(Order& order);               // PYMM_SIMULATOR_ORDER; false: not understood

struct Launch {
    Order order;
    const Function* function;
    dim3 grid, block, cluster;
    std::size_t dynamic_bytes;
    bool early;                              // may begin before the launch before it has ended
    const char* arguments;
    unsigned serial;
    std::atomic<std::uint64_t> next_cluster{0};
    std::atomic<int> fault{0};

    unsigned block_threads() const { return block.x * block.y * block.z; }
    unsigned cluster_blocks() const { return cluster.x * cluster.y * cluster.z; }
    std::uint64_t clusters() const {
        return std::uint64_t{grid.x / cluster.x} * (grid.y / cluster.y) * (grid.z / cluster.z);
    }
};

Worker* new_worker();
void run_clusters(Worker& worker, Launch& launch);      // until none is left or one failed
void report(Worker& worker, Fault fault, const void* where, const std::string& text);
Region* shared_region(Worker& worker, std::uintptr_t address);
std::string element(const Region& region, std::uintptr_t address);  // fault.cpp: "As[3][17]"
void kernel_load(std::uintptr_t address, std::size_t bytes, const void* where);
void kernel_store(std::uintptr_t address, std::size_t bytes, const void* where);
extern const Calls calls;

// --- launch.cpp ----------------------------------------------------------------------------------

int run(Launch& launch);                                 // 0 or the fault

// --- streams.cpp: the order of work -------------------------------------------------------------

using Work = std::function<CUresult()>;
struct Capture;

// Work for a stream: done at once, queued (PYMM_SIMULATOR_STREAMS), or recorded where the stream is
// being captured.
CUresult in_stream(void* stream, Work work);
CUresult settle();               // does all that is queued, as what waits for the device
CUresult settle_default();       // the same of what the legacy default stream waits for
CUresult guard_unsafe();         // guard(), and not while a graph is captured, unless relaxed
std::shared_ptr<Capture> capture_of(void* stream);
std::shared_ptr<Capture> begin_capture(void* stream, int mode);
std::shared_ptr<Capture> end_capture(void* stream);

// --- graphs.cpp ----------------------------------------------------------------------------------

struct Capture {
    std::uint64_t number;
    int mode;
    void *origin, *graph;        // the graph that its work goes to
    bool invalid;
};
void record(Capture& capture, Work work);
void* new_graph();

// --- context.cpp: state of the process -----------------------------------------------------------

CUresult guard();                // not initialised, poisoned, or no context current
CUresult guard_alive();          // the same without the context
void poison(int fault);
int poisoned();
std::uint64_t context_serial();  // of the current context: contexts are counted from 1
int current_device();            // that of the current context; 0 without one
bool live_stream(void* stream);
bool launches_here(void* stream);  // whether it belongs to the current context's device

}  // namespace pymm_sim
