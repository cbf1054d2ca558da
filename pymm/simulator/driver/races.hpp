// Races between threads of a block, or a cluster of blocks, in shared memory, and conflicts of its
// banks.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver.hpp"

namespace pymm_sim {

using Clocks = std::vector<std::uint32_t>;

// One access to bytes of a word of 4 bytes.
struct Touch {
    const void* where;
    std::uint32_t clock, interval;
    std::uint16_t actor;
    std::uint8_t bytes;  // a bit each
    Access access;
};

// What meets at a named barrier or an mbarrier: what those who come know in the phase under way,
// and what all knew who came to the last complete one.
struct Meeting {
    Clocks coming, known;
    unsigned slot = 0;  // of the actor that fetches for an mbarrier
};

// What threads of one warp access by one instruction of the kernel, one request for each time.
struct Site {
    struct Request {
        std::array<std::uint32_t, 32> words;
        std::uint32_t lanes = 0;
    };
    std::uint8_t size = 0;
    bool writes = false;
    std::array<std::uint32_t, 32> seen{};
    std::vector<Request> requests;
};

// Accesses are ordered by happens-before with vector clocks (Lamport 1978; Mattern 1989): each
// actor counts its releases, and knows how far it has come to know the counts of the others.
// An access is ordered before a later one of an actor that knows its count, or if a __syncthreads
// lies between.
//
// Actors are the threads of the block, and what goes on beside them: products of each warpgroup,
// copies out of shared memory of each warp, copies into it for each mbarrier. Who has waited for
// a product knows what all threads of its warpgroup did before it: it takes all four warps.
//
// In a cluster, actors are those of all its blocks, and __syncthreads of one block says nothing of
// the others: instead of intervals, clocks tell what it orders. Who makes mbarriers has an actor of
// its own in each warp, for the cluster's barrier, which is relaxed, orders that and nothing else.
// And what others did in a block's shared memory has to be ordered before the block's end.
struct Races {
    // Of each block:
    static constexpr unsigned products = 8, sends = 32, fetches = 64, makers = 32;

    unsigned threads = 0, width = 0, blocks = 1;
    std::uint32_t interval = 0;              // __syncthreads passed, if there is one block
    bool beside = false;                     // whether anything has gone on beside the threads
    std::vector<Clocks> clocks;              // what each thread knows
    std::vector<std::uint32_t> committed_products, committed_sends;  // groups, by thread
    std::vector<std::vector<Clocks>> issued;  // by warpgroup and group: what was known then
    std::vector<std::uint32_t> made;         // mbarriers, by warp
    std::vector<std::uint32_t> fenced;       // how many of those others may know, by thread
    std::vector<std::uint32_t> fetched;      // phases complete, by slot
    std::vector<std::vector<Touch>> words;   // of shared memory
    std::vector<std::uint32_t> touched;      // words that have any
    std::unordered_map<std::uintptr_t, Meeting> mbarriers;
    std::vector<Meeting> named;              // by block and barrier
    Meeting cluster;
    std::vector<std::unordered_map<const void*, Site>> sites;  // by warp

    // The first read of what nobody had written: an error at the next barrier, if it is no race.
    std::string unwritten;
    const void* unwritten_where = nullptr;
    unsigned unwritten_thread = 0;
};

struct Block;

void begin_races(Worker& worker);                              // of a cluster
void interval_ends(Worker& worker, const Block& block);        // all its threads are at one barrier
void races_block_ends(Worker& worker, const Block& block);     // all its threads have returned
void end_races(Worker& worker);
void report_unwritten(Worker& worker);                          // what nobody had written, if read
void races_meet_warp(Worker& worker, unsigned base, unsigned mask);
void races_come(Worker& worker, unsigned barrier);             // to a named barrier
void races_leave(Worker& worker, unsigned barrier, unsigned thread);
void races_named_complete(Worker& worker, unsigned barrier);
void races_cluster_arrive(Worker& worker, bool releases);
void races_cluster_complete(Worker& worker);
void races_cluster_wait(Worker& worker);                       // its end
void shared_touch(std::uintptr_t address, std::size_t bytes, Access access, const void* where);
void shared_order(Sync event, std::uintptr_t key);
void settle_conflicts(const LoadedModule* module);             // before it is unloaded

}  // namespace pymm_sim
