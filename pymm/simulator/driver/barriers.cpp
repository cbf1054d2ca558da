// __syncthreads and its relatives.
#include <cstring>

#include "worker.hpp"

namespace pymm_sim {

void release_barrier(Worker& w, Block& block) {
    interval_ends(w, block);
    const unsigned end = block.first + w.block_threads;
    int total = 0;
    for (unsigned i = block.first; i < end; i++) total += w.fibers[i].predicate != 0;
    for (unsigned i = block.first; i < end; i++) {
        Fiber& f = w.fibers[i];
        int n = static_cast<int>(w.block_threads);
        f.result = static_cast<std::uint64_t>(f.reduce == Reduce::all   ? total == n
                                              : f.reduce == Reduce::any ? total > 0
                                                                        : total);
        f.state = State::ready;
    }
    block.at_barrier = 0;
    if (w.shuffled) shuffle(w);
}

namespace {

void barrier_arrive(Worker& w, Reduce reduce, int predicate, const char* file, int line) {
    Block& block = w.my_block();
    for (unsigned i = block.first; block.at_barrier && i < block.first + w.block_threads; i++) {
        const Fiber& f = w.fibers[i];
        if (f.state != State::barrier) continue;
        if (f.line != line || std::strcmp(f.file, file))
            abandon(w, launch_failed, nullptr,
                    "comes to the __syncthreads of line " + std::to_string(line) + ", but thread " +
                        name_of(w, i) + " of its block waits at that of line " +
                        std::to_string(f.line) + " (every thread must come to the same one)");
        break;
    }
    w.me().reduce = reduce;
    w.me().predicate = predicate;
    block.at_barrier++;
    suspend(w, State::barrier, file, line);
}

}  // namespace

void barrier(const char* file, int line) {
    barrier_arrive(*this_worker, Reduce::none, 0, file, line);
}

int barrier_reduce(Reduce what, int predicate, const char* file, int line) {
    Worker& w = *this_worker;
    barrier_arrive(w, what, predicate, file, line);
    return static_cast<int>(w.me().result);
}

void named_barrier(unsigned id, unsigned threads, bool wait, const char* file, int line) {
    Worker& w = *this_worker;
    Fiber& me = w.me();
    Block& block = w.my_block();
    if (id >= named_barriers || threads == 0 || threads % 32 || threads > w.block_threads)
        abandon(w, launch_failed, nullptr, "barrier " + std::to_string(id) + " of " +
                std::to_string(threads) + " threads: ids go to 15, threads are a multiple of 32 "
                "and at most the block's " + std::to_string(w.block_threads));
    unsigned& arrived = block.arrived[id];
    me.barrier_id = id;
    const bool orders = id < 16;  // the others make the twin's wgmma wait for each other
    if (orders) races_come(w, id);
    if (++arrived == threads) {
        arrived = 0;
        if (orders) races_named_complete(w, id);
        for (unsigned i = block.first; i < block.first + w.block_threads; i++) {
            Fiber& f = w.fibers[i];
            if (f.state != State::named_barrier || f.barrier_id != id) continue;
            f.state = State::ready;
            if (orders) races_leave(w, id, i);
        }
        if (orders && wait) races_leave(w, id, w.current);
    } else if (wait) {
        suspend(w, State::named_barrier, file, line);
    }
}

}  // namespace pymm_sim
