// What the stand-in driver and a compiled kernel module share. Both include this file; its hash
// is part of every cache key, so the two never disagree.
#pragma once
#include <cstddef>
#include <cstdint>

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

namespace pymm_sim {

// Every CUDA thread is a fiber on a stack of this size, aligned to it, with its Thread record at
// the top. So code finds its own record from the frame address, without thread-local storage.
constexpr std::size_t stack_bytes = 64 << 10;
constexpr std::size_t record_bytes = 256;

// Addresses of the shared memory of a worker, that of all blocks of a cluster, with red zones.
constexpr std::size_t shared_window_bytes = 8 << 20;

// Barriers that threads name: 16 that a kernel has, and one for each of 8 warpgroups.
constexpr unsigned named_barriers = 16 + 8;

enum class Vote { all, any, ballot, match_any, match_all };
enum class Reduce { none, count, all, any };

// A failure of a kernel; the values are the driver's error codes.
enum Fault : int {
    illegal_address = 700,
    assertion = 710,
    illegal_instruction = 715,
    misaligned_address = 716,
    launch_failed = 719,
};

// For modules that are watched for races (races.hpp): what an access does, who makes it, and what
// orders accesses besides barriers of threads.
enum class Access : unsigned char { load, store, atomic };
enum class Actor : unsigned char {
    thread,
    barrier,  // an mbarrier at work: its own bytes are read and written atomically
    maker,    // what makes an mbarrier
    fetch,    // a copy by TMA into shared memory, until its mbarrier is complete
    send,     // a copy by TMA out of it, until its group has been read
    product,  // wgmma, until its group is complete
};
enum class Sync : unsigned char {
    make,        // an mbarrier, `key` is its address; so of the next three
    arrive,
    complete,    // a phase of it
    pass,        // a thread that waited goes on
    fence_made,  // others of the cluster will know of mbarriers that the thread has made
    commit_product, commit_send,
    wait_product, wait_send,  // until at most `key` groups are under way
};

// Functions of the driver that kernels call.
struct Calls {
    void (*barrier)(const char* file, int line);
    int (*barrier_reduce)(Reduce what, int predicate, const char* file, int line);
    void (*warp_sync)(unsigned mask, const char* file, int line);
    std::uint64_t (*shuffle)(unsigned mask, std::uint64_t value, unsigned lane, const char* file,
                             int line);
    std::uint64_t (*vote)(Vote what, unsigned mask, std::uint64_t value, const char* file,
                          int line);
    // The words of all 32 lanes, until they meet again.
    const std::uint64_t* (*gather)(std::uint64_t value, const char* file, int line);
    unsigned (*active_mask)();
    void (*named_barrier)(unsigned id, unsigned threads, bool wait, const char* file, int line);
    void (*yield)();
    void (*wait_for_launch)();
    void (*load)(std::uintptr_t address, std::size_t bytes, const void* where);
    void (*store)(std::uintptr_t address, std::size_t bytes, const void* where);
    void (*fail)(Fault fault, const void* where, const char* text);
    void* (*scratch)(std::size_t bytes);  // kept by the worker, zero at first; always as many bytes
    void (*cluster_arrive)(bool releases, const char* file, int line);
    void (*cluster_wait)(const char* file, int line);
    // How far the shared memory of block `rank` of the cluster lies behind the caller's own. Only
    // for what goes to a barrier there; `barrier` is its address in the caller's block.
    std::uintptr_t (*reach)(std::uintptr_t barrier, unsigned rank, const char* does,
                            const void* where);
    // Of modules that are watched for races.
    void (*touch)(std::uintptr_t address, std::size_t bytes, Access access, const void* where);
    void (*order)(Sync event, std::uintptr_t key);
};

struct Worker;  // one per CPU core, private to the driver

struct Thread {
    uint3 thread_index, block_index;
    dim3 block_size, grid_size;
    unsigned lane, linear;        // lane in its warp; number in its block, x fastest
    unsigned rank;                // number of the block in its cluster
    unsigned dynamic_bytes;       // of extern __shared__
    void* dynamic_shared;
    void* const* shared;          // address of each SharedVariable, by its index
    const Calls* calls;
    Worker* worker;
    std::uint64_t run;            // of a block: differs from that of every other run in the process
    std::uintptr_t shared_window;  // where the addresses of shared memory begin
    Actor actor;                  // for whom the thread accesses memory now
    std::uintptr_t actor_key;     // of a fetch and its bytes' count: the address of its mbarrier
    const void* actor_where;      // the place in the kernel, if it calls an instruction's twin
    const void* where;            // of the access that is being checked, in watched modules
};
static_assert(sizeof(Thread) <= record_bytes, "a Thread record outgrew its place on the stack");

// What cuTensorMapEncodeTiled makes here: where a stack of matrices lies, and its boxes.
struct TensorDescription {
    std::uint64_t address, extents[3], strides[2];  // extents innermost first, strides in bytes
    unsigned box[3], size, swizzle;                 // bytes of an element, of a swizzled row or 0
    bool rounded;                                   // to tf32
};
static_assert(sizeof(TensorDescription) <= 128, "a tensor map has 128 bytes");

// One `__shared__` declaration (of one template instance).
struct SharedVariable {
    const char* name;
    const void* owner;            // the __global__ function around it, null in a __device__ one
    std::size_t bytes, alignment, element;
    unsigned rank, extents[4];
    int index;
    SharedVariable* next;
};

struct Parameter { std::size_t offset, bytes; };

// One `__global__` function.
struct Kernel {
    const char* name;
    const void* function;
    void (*invoke)(const Kernel&, const char* arguments);
    const Parameter* parameters;
    unsigned parameter_count, argument_bytes;
    int max_threads;              // from __launch_bounds__, 0 where there is none
    unsigned cluster[3];          // from __cluster_dims__, 0 where there is none
    Kernel* next;
};

// What a module exports, as the symbol `pymm_module`.
struct Module {
    Kernel* kernels;
    SharedVariable* shared;
    int shared_count;
    int architecture;             // 900 for sm_90
    bool watched;                 // compiled to be watched for races
    bool loaded;                  // set by the driver: its code runs on fibers from now on
};

// Static shared memory of a kernel as the assembler would count it: its own variables, and those
// of every __device__ function of the module (which of them it calls is not known here).
__attribute__((no_sanitize("kernel-address", "thread"))) inline std::size_t static_shared(
    const Module& module, const Kernel& kernel) {
    std::size_t bytes = 0;
    for (const SharedVariable* v = module.shared; v; v = v->next)
        if (!v->owner || v->owner == kernel.function)
            bytes = (bytes + v->alignment - 1) / v->alignment * v->alignment + v->bytes;
    return bytes;
}

}  // namespace pymm_sim
