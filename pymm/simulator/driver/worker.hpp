// One CPU core that runs clusters of blocks, most of one block: its fibers, its shared memory, its
// escape from a faulting kernel.
#pragma once
#include <setjmp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "driver.hpp"
#include "fiber.hpp"
#include "races.hpp"

namespace pymm_sim {

enum class State : std::uint8_t { later, ready, barrier, named_barrier, warp, cluster, done };
enum class Operation : std::uint8_t { sync, shuffle, vote, gather };

// What a fiber waits for, and what it brings or takes away.
struct Fiber {
    Context context;
    State state;
    const char* file;
    int line;
    // barrier
    Reduce reduce;
    int predicate;
    unsigned barrier_id;
    // warp operation
    Operation operation;
    Vote vote;
    unsigned mask, source;
    std::uint64_t value, result;
    bool gathers;  // what the lanes brought has not been given back: no order of the kernel's own
    // cluster: 0, or the number, from 1, of the phase that the thread has come to without waiting
    std::uint64_t cluster_arrival;
};

// One block of the cluster that runs.
struct Block {
    dim3 index;
    std::uintptr_t shared_begin = 0;
    std::vector<Region> shared;              // static variables in module order, then dynamic
    std::vector<void*> addresses;            // of the static variables
    unsigned first = 0;                      // of its threads among those of the cluster
    unsigned alive = 0, at_barrier = 0;
    bool waited = false;                     // for the launch before
    unsigned arrived[named_barriers] = {};   // per named barrier
};

struct Worker {
    char* stacks = nullptr;
    unsigned guarded = 0;                    // stacks that end in a forbidden page
    std::uintptr_t shared_begin = 0;         // the shared memory of one block after the other
    std::size_t shared_pitch = 1;            // from a block's to the next one's
    void* scratch = nullptr;                 // of the kernels' simulated instructions

    Context scheduler;
    sigjmp_buf escape;
    Launch* launch = nullptr;
    std::vector<Block> blocks;               // of the cluster, by rank
    unsigned block_threads = 1;              // of each: whole warps, if there is more than one
    unsigned threads = 0, current = 0, alive = 0;  // of the cluster
    unsigned cluster_left = 0;               // threads that have still to come to its barrier
    std::uint64_t cluster_phase = 0;         // of that: how often all had come
    unsigned waiting[device::cluster_blocks * 32];  // per warp: lanes inside a warp operation
    std::uint64_t (*gathered)[32] = nullptr; // per warp: a word of each lane
    unsigned arrived[named_barriers];        // per named barrier
    std::vector<Fiber> fibers;
    std::vector<std::uint16_t> order;
    std::uint64_t random = 0;
    bool shuffled = false;
    std::unique_ptr<Races> races;            // null: the kernel is not watched

    char* stack(unsigned i) { return stacks + std::size_t{i} * stack_bytes; }
    Thread& thread(unsigned i) {
        return *reinterpret_cast<Thread*>(stack(i) + stack_bytes - record_bytes);
    }
    Fiber& me() { return fibers[current]; }
    Block& block_of(unsigned i) { return blocks[i / block_threads]; }
    Block& my_block() { return block_of(current); }
};

extern thread_local Worker* this_worker;     // of this OS thread, while it runs a block

void suspend(Worker& worker, State state, const char* file, int line);
[[noreturn]] void abandon(Worker& worker, Fault fault, const void* where, const std::string& text);
std::string name_of(Worker& worker, unsigned thread);           // "(3,0,0)", in another block too
std::string name_of(const Block& block);     // "(1,0,0)"
std::string elsewhere(Worker& worker, const Block& block);      // " of block (1,0,0)"
std::string places(Worker& worker);          // where every thread of the cluster is

void choose_order(Worker& worker, std::uint64_t cluster);       // order.cpp
void shuffle(Worker& worker);
void release_barrier(Worker& worker, Block& block);             // barriers.cpp
void leave_cluster(Worker& worker);                             // cluster.cpp: a thread returned

}  // namespace pymm_sim
