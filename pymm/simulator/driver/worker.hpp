// One CPU core that runs blocks: its fibers, its shared memory, its escape from a faulting kernel.
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

enum class State : std::uint8_t { ready, barrier, named_barrier, warp, done };
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
};

struct Worker {
    char* stacks = nullptr;
    unsigned guarded = 0;                    // stacks that end in a forbidden page
    std::uintptr_t shared_begin = 0;
    std::vector<Region> shared;              // static variables in module order, then dynamic
    std::vector<void*> addresses;            // of the static variables
    void* scratch = nullptr;                 // of the kernels' simulated instructions

    Context scheduler;
    sigjmp_buf escape;
    Launch* launch = nullptr;
    dim3 block_index;
    bool waited = false;                     // for the launch before
    unsigned threads = 0, current = 0, alive = 0, at_barrier = 0;
    unsigned waiting[32];                    // per warp: lanes inside a warp operation
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
};

extern thread_local Worker* this_worker;     // of this OS thread, while it runs a block

void suspend(Worker& worker, State state, const char* file, int line);
[[noreturn]] void abandon(Worker& worker, Fault fault, const void* where, const std::string& text);
std::string name_of(const Worker& worker, unsigned thread);     // "(3,0,0)"
std::string places(Worker& worker);          // where every thread of the block is

void choose_order(Worker& worker, std::uint64_t block);         // order.cpp
void shuffle(Worker& worker);
void release_barrier(Worker& worker);                           // barriers.cpp

}  // namespace pymm_sim
