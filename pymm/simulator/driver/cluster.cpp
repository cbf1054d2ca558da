// Clusters: the barrier of all their threads, and what a block may do in another's shared memory.
#include "worker.hpp"

namespace pymm_sim {
namespace {

// One thread more that has arrived or returned. The last one ends the phase: PTX waits for "all
// non-exited threads of the cluster" (PTX ISA, barrier.cluster).
void come(Worker& w) {
    if (--w.cluster_left) return;
    w.cluster_phase++;
    w.cluster_left = w.alive;
    races_cluster_complete(w);
    for (unsigned i = 0; i < w.threads; i++)
        if (w.fibers[i].state == State::cluster) w.fibers[i].state = State::ready;
}

}  // namespace

void leave_cluster(Worker& w) {
    if (w.me().cluster_arrival != w.cluster_phase + 1) come(w);
}

void cluster_arrive(bool releases, const char*, int line) {
    Worker& w = *this_worker;
    Fiber& me = w.me();
    if (me.cluster_arrival)
        abandon(w, launch_failed, nullptr,
                "arrives at the cluster's barrier in line " + std::to_string(line) +
                    " for a second time: a thread arrives once, then it waits");
    me.cluster_arrival = w.cluster_phase + 1;
    races_cluster_arrive(w, releases);
    come(w);
}

void cluster_wait(const char* file, int line) {
    Worker& w = *this_worker;
    Fiber& me = w.me();
    if (!me.cluster_arrival)
        abandon(w, launch_failed, nullptr,
                "waits at the cluster's barrier in line " + std::to_string(line) +
                    ", where it has not arrived: it would wait for itself");
    if (me.cluster_arrival == w.cluster_phase + 1) suspend(w, State::cluster, file, line);
    me.cluster_arrival = 0;
    races_cluster_wait(w);
}

std::uintptr_t reach(std::uintptr_t barrier, unsigned rank, const char* does, const void* where) {
    Worker& w = *this_worker;
    const std::string what = std::string(does) + " of block " + std::to_string(rank) +
                             " of its cluster, ";
    const auto count = static_cast<unsigned>(w.blocks.size());
    if (rank >= count)
        abandon(w, launch_failed, where,
                what + "which has " + std::to_string(count) + (count == 1 ? " block" : " blocks") +
                    ", counted from 0");
    const Block& to = w.blocks[rank];
    if (!to.alive)
        abandon(w, launch_failed, where,
                what + "which has ended: its shared memory is no longer its own");
    const std::uintptr_t away = to.shared_begin - w.my_block().shared_begin;
    const Region* r = shared_region(w, barrier + away);
    if (r && !is_written(*r, barrier + away - r->begin, 1))
        abandon(w, launch_failed, where,
                what + "which has not made it yet: whoever makes barriers arrives at the cluster's "
                       "barrier (cluster_arrive), whoever uses them waits there (cluster_wait)");
    return away;
}

std::string name_of(const Block& block) {
    const dim3 at = block.index;
    return "(" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) +
           ")";
}

// What is said of something in a block that is not the running thread's own.
std::string elsewhere(Worker& w, const Block& block) {
    return &block == &w.my_block() ? "" : " of block " + name_of(block);
}

}  // namespace pymm_sim
