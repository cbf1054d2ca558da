// Warp operations: every lane of the mask brings its value, the last to come works out the results.
#include "worker.hpp"

namespace pymm_sim {
namespace {

const char* name_of_operation(Operation o) {
    static const char* const names[] = {"__syncwarp", "a shuffle", "a vote", "an mma"};
    return names[static_cast<int>(o)];
}

std::uint64_t vote_result(const Worker& w, unsigned base, const Fiber& f) {
    unsigned ballot = 0, equal = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(f.mask >> lane & 1)) continue;
        const Fiber& g = w.fibers[base + lane];
        ballot |= (g.value != 0 ? 1u : 0u) << lane;
        equal |= (g.value == f.value ? 1u : 0u) << lane;
    }
    switch (f.vote) {
        case Vote::all: return ballot == f.mask;
        case Vote::any: return ballot != 0;
        case Vote::ballot: return ballot;
        case Vote::match_any: return equal;
        case Vote::match_all: return equal == f.mask ? f.mask : 0;
    }
    return 0;
}

void complete(Worker& w, unsigned base, unsigned mask) {
    const Fiber& last = w.me();
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        const Fiber& f = w.fibers[base + lane];
        if (f.mask != mask || f.operation != last.operation)
            abandon(w, launch_failed, nullptr,
                    "is in " + std::string(name_of_operation(last.operation)) + " of line " +
                        std::to_string(last.line) + ", but thread " + name_of(w, base + lane) +
                        " of its mask is in " + name_of_operation(f.operation) + " of line " +
                        std::to_string(f.line) + " with another mask or operation");
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        Fiber& f = w.fibers[base + lane];
        if (f.operation == Operation::vote) f.result = vote_result(w, base, f);
        if (f.operation == Operation::gather) w.gathered[base / 32][lane] = f.value;
        if (f.operation != Operation::shuffle) continue;
        if (!(mask >> f.source & 1))
            abandon(w, launch_failed, nullptr,
                    "the shuffle of line " + std::to_string(f.line) + " reads lane " +
                        std::to_string(f.source) + ", which is not in its mask");
        f.result = w.fibers[base + f.source].value;
    }
    if (last.operation == Operation::sync && !last.gathers) races_meet_warp(w, base, mask);
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        w.fibers[base + lane].state = State::ready;
        w.fibers[base + lane].gathers = last.operation == Operation::gather;
    }
    w.waiting[base / 32] &= ~mask;
}

// Waits for the other lanes of the mask. Lanes past the end of the block do not exist and are not
// waited for; the hardware ignores them too.
void meet(Operation operation, unsigned mask, const char* file, int line) {
    Worker& w = *this_worker;
    Fiber& me = w.me();
    unsigned base = w.current / 32 * 32, lane = w.current % 32;
    if (w.threads - base < 32) mask &= (1u << (w.threads - base)) - 1;
    if (!(mask >> lane & 1))
        abandon(w, launch_failed, nullptr,
                "the warp operation of line " + std::to_string(line) +
                    " has a mask without the thread's own lane " + std::to_string(lane));
    me.operation = operation;
    me.mask = mask;
    me.file = file;
    me.line = line;
    unsigned& waiting = w.waiting[base / 32];
    waiting |= 1u << lane;
    if ((waiting & mask) == mask) {
        complete(w, base, mask);
    } else {
        suspend(w, State::warp, file, line);
    }
}

}  // namespace

void warp_sync(unsigned mask, const char* file, int line) {
    meet(Operation::sync, mask, file, line);
}

std::uint64_t warp_shuffle(unsigned mask, std::uint64_t value, unsigned lane, const char* file,
                           int line) {
    Fiber& me = this_worker->me();
    me.value = value;
    me.source = lane;
    meet(Operation::shuffle, mask, file, line);
    return me.result;
}

std::uint64_t warp_vote(Vote what, unsigned mask, std::uint64_t value, const char* file,
                        int line) {
    Fiber& me = this_worker->me();
    me.value = value;
    me.vote = what;
    meet(Operation::vote, mask, file, line);
    return me.result;
}

const std::uint64_t* warp_gather(std::uint64_t value, const char* file, int line) {
    Worker& w = *this_worker;
    w.me().value = value;
    meet(Operation::gather, ~0u, file, line);
    return w.gathered[w.current / 32];
}

unsigned warp_active_mask() {  // fibers of a warp never run in step: each is alone
    return 1u << this_worker->current % 32;
}

}  // namespace pymm_sim
