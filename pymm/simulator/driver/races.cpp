// See races.hpp. Everything here runs only for modules that are compiled to be watched.
#include "races.hpp"

#include <algorithm>
#include <mutex>

#include "worker.hpp"

namespace pymm_sim {
namespace {

void join(Clocks& to, const Clocks& from) {
    for (std::size_t i = 0; i < from.size(); i++) to[i] = std::max(to[i], from[i]);
}

unsigned warpgroup_of(const Worker& w, unsigned thread) {
    return thread / w.block_threads * Races::products + thread % w.block_threads / 128;
}
std::uint32_t product_actor(const Worker& w, unsigned thread) {
    return w.races->threads + warpgroup_of(w, thread);
}
std::uint32_t send_actor(const Races& r, unsigned thread) {
    return r.threads + r.blocks * Races::products + thread / 32;
}
std::uint32_t fetch_actor(const Races& r, unsigned slot) {
    return r.threads + r.blocks * (Races::products + Races::sends) + slot;
}
std::uint32_t maker_actor(const Races& r, unsigned thread) {
    return fetch_actor(r, r.blocks * Races::fetches) + thread / 32;
}

// Later accesses of the thread are not known to whoever knows it until now.
void tick(Races& r, unsigned thread) { r.clocks[thread][thread]++; }

Meeting& mbarrier(Races& r, std::uintptr_t key) {
    auto [found, isnew] = r.mbarriers.try_emplace(key);
    if (isnew) {
        found->second.slot = static_cast<unsigned>(r.mbarriers.size() - 1) %
                             (r.blocks * Races::fetches);
        found->second.coming.assign(r.width, 0);
        found->second.known.assign(r.width, 0);
    }
    return found->second;
}

Meeting& begun(Races& r, Meeting& meeting) {
    if (meeting.coming.size() != r.width) {
        meeting.coming.assign(r.width, 0);
        meeting.known.assign(r.width, 0);
    }
    return meeting;
}

Meeting& named(Worker& w, unsigned barrier) {
    Races& r = *w.races;
    return begun(r, r.named[w.current / w.block_threads * named_barriers + barrier]);
}

void complete(Meeting& meeting) {
    meeting.known = meeting.coming;
    std::fill(meeting.coming.begin(), meeting.coming.end(), 0);
}

// Who accesses memory, and how often that actor has released what it did.
void identify(Worker& w, const Thread& t, Touch& touch) {
    Races& r = *w.races;
    const unsigned me = w.current;
    touch.interval = r.interval;
    if (t.actor_where) touch.where = t.actor_where;
    std::uint32_t actor = me;
    touch.clock = r.clocks[me][me];
    if (t.actor == Actor::product) {
        actor = product_actor(w, me);
        touch.clock = r.committed_products[me] + 1;
    } else if (t.actor == Actor::send) {
        actor = send_actor(r, me);
        touch.clock = r.committed_sends[me] + 1;
    } else if (t.actor_key) {  // a copy, or its bytes counted at its mbarrier
        const unsigned slot = mbarrier(r, t.actor_key).slot;
        actor = fetch_actor(r, slot);
        touch.clock = r.fetched[slot] + 1;
    } else if (t.actor == Actor::maker && r.blocks > 1) {
        actor = maker_actor(r, me);
        touch.clock = r.made[me / 32] + 1;
    }
    touch.actor = static_cast<std::uint16_t>(actor);
    if (touch.actor >= r.threads) r.beside = true;
    if (t.actor == Actor::barrier) touch.access = Access::atomic;
}

// Whether `before` is ordered before an access of `now`, which `thread` makes or has asked for.
bool ordered(const Races& r, const Touch& before, const Touch& now, unsigned thread) {
    if (before.actor == now.actor && before.clock == now.clock) return true;
    if (before.actor < r.threads)
        return before.actor == thread || before.interval != r.interval ||
               r.clocks[thread][before.actor] >= before.clock;
    return r.clocks[thread][before.actor] >= before.clock;
}

std::string name_of_actor(Worker& w, unsigned actor) {
    const Races& r = *w.races;
    const unsigned warps = w.block_threads / 32;  // where there are several blocks
    const auto in = [&](unsigned rank) { return elsewhere(w, w.blocks[rank]); };
    if (actor < r.threads) return "thread " + name_of(w, actor);
    if (actor < send_actor(r, 0)) {
        const unsigned group = actor - r.threads;
        return "a wgmma of warpgroup " + std::to_string(group % Races::products) +
               in(group / Races::products);
    }
    if (actor < fetch_actor(r, 0)) {
        const unsigned warp = actor - send_actor(r, 0), rank = r.blocks > 1 ? warp / warps : 0;
        return "a copy by TMA that warp " + std::to_string(warp - rank * warps) + in(rank) +
               " began";
    }
    if (actor < maker_actor(r, 0)) return "a copy by TMA";
    const unsigned warp = actor - maker_actor(r, 0);
    return "mbarrier_init of warp " + std::to_string(warp % warps) + in(warp / warps);
}

const char* verb(const Touch& touch) {
    return touch.access == Access::load    ? "reads"
           : touch.access == Access::store ? "writes"
                                           : "updates atomically";
}

const char* noun(const Touch& touch) {
    return touch.access == Access::load ? "read" : "write";
}

// "As[3][17]", if need be with its block.
std::string what(Worker& w, const Region& region, std::uintptr_t address) {
    const std::size_t rank = (address - w.shared_begin) / w.shared_pitch;
    return element(region, address) + elsewhere(w, w.blocks[rank]);
}

[[noreturn]] void race(Worker& w, const Region& region, std::uintptr_t address,
                       const Touch& before, const Touch& now) {
    std::string text = "race: ";
    if (now.actor >= w.races->threads) text += name_of_actor(w, now.actor) + " ";
    text += std::string(verb(now)) + " " + what(w, region, address) + ", which " +
            name_of_actor(w, before.actor) + " " + verb(before) + " in " +
            source_line(before.where) + ", and nothing orders the two (" + noun(now) + " after " +
            noun(before) + ")";
    w.races->unwritten.clear();
    abandon(w, launch_failed, now.where, text);
}

// A thread that touches a word: a race with what others did, else one more of its touches. What is
// ordered before the new one and finds no more than it would is forgotten.
void touch_word(Worker& w, const Region& region, std::size_t word, Touch now) {
    Races& r = *w.races;
    std::vector<Touch>& before = r.words[word];
    if (before.empty()) r.touched.push_back(static_cast<std::uint32_t>(word));
    const unsigned thread = w.current;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < before.size(); i++) {
        const Touch old = before[i];
        const unsigned common = old.bytes & now.bytes;
        const bool both_read = old.access == Access::load && now.access == Access::load;
        const bool both_atomic = old.access == Access::atomic && now.access == Access::atomic;
        const bool before_now = ordered(r, old, now, thread);
        if (common && !both_read && !both_atomic && !before_now) {
            const auto byte = static_cast<unsigned>(__builtin_ctz(common));
            race(w, region, w.shared_begin + word * 4 + byte, old, now);
        }
        const bool finds_less = now.access == Access::store || old.access == now.access;
        if (before_now && finds_less && common == old.bytes) continue;
        before[kept++] = old;
    }
    before.resize(kept);
    before.push_back(now);
}

// Threads from `first` on meet, those of each warp that are in the mask: all know what any did.
void meet(Races& r, unsigned first, unsigned count, unsigned mask) {
    Clocks all(r.width, 0);
    for (unsigned i = 0; i < count; i++)
        if (mask >> i % 32 & 1) join(all, r.clocks[first + i]);
    for (unsigned i = 0; i < count; i++) {
        if (!(mask >> i % 32 & 1)) continue;
        r.clocks[first + i] = all;
        tick(r, first + i);
    }
}

// --- banks -------------------------------------------------------------------------------------

struct Count {
    std::uint64_t requests = 0, rounds = 0, fewest = 0;
    bool writes = false;
};
std::mutex counting;
std::map<const void*, Count> counted;        // by code
std::map<std::string, Count> settled;        // by "kernel.cu:12 write"

// Rounds that 32 banks of 4 bytes take. Requests of 8 bytes for each thread are served for half a
// warp at a time, of 16 bytes for a quarter; words that several threads ask for are read once.
void count_request(const Site& site, const Site::Request& request, Count& count) {
    const unsigned pieces = site.size > 8 ? 4 : site.size > 4 ? 2 : 1, lanes = 32 / pieces;
    const unsigned words = site.size > 4 ? site.size / 4 : 1;
    count.requests++;
    for (unsigned piece = 0; piece < pieces; piece++) {
        std::vector<std::uint32_t> wanted;
        for (unsigned lane = piece * lanes; lane < (piece + 1) * lanes; lane++)
            for (unsigned i = 0; i < words && request.lanes >> lane & 1; i++)
                wanted.push_back(request.words[lane] + i);
        if (wanted.empty()) continue;
        std::sort(wanted.begin(), wanted.end());
        wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
        unsigned in_bank[32] = {};
        for (std::uint32_t word : wanted) in_bank[word % 32]++;
        count.rounds += *std::max_element(in_bank, in_bank + 32);
        count.fewest++;
    }
}

void count_requests(Races& r) {
    std::lock_guard lock(counting);
    for (auto& warp : r.sites) {
        for (const auto& [where, site] : warp) {
            Count& count = counted[where];
            count.writes = site.writes;
            for (const Site::Request& request : site.requests) count_request(site, request, count);
        }
        warp.clear();
    }
}

void note_request(Races& r, const Thread& t, std::size_t word, std::size_t bytes,
                  const Touch& touch) {
    Site& site = r.sites[this_worker->current / 32][touch.where];
    site.writes = touch.access == Access::store;
    site.size = static_cast<std::uint8_t>(bytes);
    const std::uint32_t number = site.seen[t.lane]++;
    if (number >= site.requests.size()) site.requests.emplace_back();
    site.requests[number].words[t.lane] = static_cast<std::uint32_t>(word);
    site.requests[number].lanes |= 1u << t.lane;
}

void abandon_unwritten(Worker& w, const Block& block) {
    const Races& r = *w.races;
    if (!r.unwritten.empty() && &w.block_of(r.unwritten_thread) == &block)
        abandon(w, launch_failed, nullptr, "");
}

}  // namespace

void report_unwritten(Worker& w) {
    if (!w.races || w.races->unwritten.empty()) return;
    Races& r = *w.races;
    w.current = r.unwritten_thread;
    report(w, launch_failed, r.unwritten_where, r.unwritten);
    r.unwritten.clear();
}

void begin_races(Worker& w) {
    if (!w.launch->function->module->contents->watched) {
        w.races.reset();
        return;
    }
    if (!w.races) w.races = std::make_unique<Races>();
    Races& r = *w.races;
    r.threads = w.threads;
    r.blocks = static_cast<unsigned>(w.blocks.size());
    r.width = maker_actor(r, 0) + (r.blocks > 1 ? r.blocks * Races::makers : 0);
    r.interval = 0;
    r.beside = false;
    r.clocks.resize(w.threads);
    for (unsigned i = 0; i < w.threads; i++) {
        r.clocks[i].assign(r.width, 0);
        r.clocks[i][i] = 1;
    }
    r.committed_products.assign(w.threads, 0);
    r.committed_sends.assign(w.threads, 0);
    r.issued.assign(r.blocks * Races::products, {});
    r.fetched.assign(r.blocks * Races::fetches, 0);
    r.made.assign(r.blocks * Races::makers, 0);
    r.fenced.assign(w.threads, 0);
    for (std::uint32_t word : r.touched) r.words[word].clear();
    r.touched.clear();
    r.words.resize((w.blocks.back().shared.back().end() - w.shared_begin) / 4 + 1);
    r.mbarriers.clear();
    r.named.assign(r.blocks * named_barriers, {});
    r.cluster = Meeting{};
    r.sites.assign((w.threads + 31) / 32, {});
    r.unwritten.clear();
}

void interval_ends(Worker& w, const Block& block) {
    if (!w.races) return;
    Races& r = *w.races;
    abandon_unwritten(w, block);
    count_requests(r);
    if (r.blocks > 1) return meet(r, block.first, w.block_threads, ~0u);
    r.interval++;
    if (!r.beside) return;
    Clocks all(r.width, 0);  // what any thread knows of what goes on beside, all know now
    for (const Clocks& known : r.clocks) join(all, known);
    for (Clocks& known : r.clocks)
        std::copy(all.begin() + r.threads, all.end(), known.begin() + r.threads);
}

void end_races(Worker& w) {
    if (!w.races) return;
    for (const Block& block : w.blocks) abandon_unwritten(w, block);
    count_requests(*w.races);
}

void races_meet_warp(Worker& w, unsigned base, unsigned mask) {
    if (w.races) meet(*w.races, base, 32, mask);
}

void races_block_ends(Worker& w, const Block& block) {
    if (!w.races || w.races->blocks == 1) return;
    Races& r = *w.races;
    Clocks known(r.width, 0);
    for (unsigned i = 0; i < w.block_threads; i++) join(known, r.clocks[block.first + i]);
    const auto own = [&](unsigned actor) { return actor - block.first < w.block_threads; };
    for (std::uint32_t word : r.touched) {
        const std::uintptr_t address = w.shared_begin + word * std::uintptr_t{4};
        const Region* region = shared_region(w, address);
        if (!region || region->begin - block.shared_begin >= w.shared_pitch) continue;
        for (const Touch& touch : r.words[word]) {
            if (own(touch.actor) || known[touch.actor] >= touch.clock) continue;
            r.unwritten.clear();
            abandon(w, launch_failed, touch.where,
                    "race: " + name_of_actor(w, touch.actor) + " " + verb(touch) + " " +
                        what(w, *region, address + __builtin_ctz(touch.bytes)) +
                        ", and nothing orders that before the end of the block: it may have ended");
        }
    }
}

void races_cluster_arrive(Worker& w, bool releases) {
    if (!w.races || w.races->blocks == 1) return;
    Races& r = *w.races;
    const unsigned me = w.current;
    Clocks& coming = begun(r, r.cluster).coming;
    std::uint32_t& made = coming[maker_actor(r, me)];
    made = std::max(made, r.fenced[me]);
    if (!releases) return;
    join(coming, r.clocks[me]);
    tick(r, me);
}

void races_cluster_complete(Worker& w) {
    if (w.races) complete(begun(*w.races, w.races->cluster));
}

void races_cluster_wait(Worker& w) {
    if (w.races) join(w.races->clocks[w.current], begun(*w.races, w.races->cluster).known);
}

void races_come(Worker& w, unsigned barrier) {
    if (!w.races) return;
    Races& r = *w.races;
    join(named(w, barrier).coming, r.clocks[w.current]);
    tick(r, w.current);
}

void races_named_complete(Worker& w, unsigned barrier) {
    if (w.races) complete(named(w, barrier));
}

void races_leave(Worker& w, unsigned barrier, unsigned thread) {
    if (w.races) join(w.races->clocks[thread], named(w, barrier).known);
}

void shared_touch(std::uintptr_t address, std::size_t bytes, Access access, const void* where) {
    Worker& w = *this_worker;
    Region* region = shared_region(w, address);
    if (!region || !region->contains(address, bytes))  // says so
        return access == Access::load ? kernel_load(address, bytes, where)
                                      : kernel_store(address, bytes, where);
    const std::size_t offset = address - region->begin;
    Races& r = *w.races;
    if (access == Access::store) {
        mark_written(*region, offset, bytes);
    } else if (r.unwritten.empty() && !is_written(*region, offset, bytes)) {
        std::uintptr_t first = address;
        while (is_written(*region, first - region->begin, 1)) first++;
        r.unwritten = "reads " + element(*region, first) + ", which was never written";
        const void* const called = w.thread(w.current).actor_where;
        r.unwritten_where = called ? called : where;
        r.unwritten_thread = w.current;
    }
    const Thread& t = w.thread(w.current);
    Touch now{where, 0, 0, 0, 0, access};
    identify(w, t, now);
    const std::uintptr_t begin = address - w.shared_begin, end = begin + bytes;
    for (std::size_t word = begin / 4; word * 4 < end; word++) {
        const std::size_t first = std::max<std::size_t>(begin, word * 4) - word * 4;
        const std::size_t last = std::min<std::size_t>(end, word * 4 + 4) - word * 4;
        now.bytes = static_cast<std::uint8_t>((1u << last) - (1u << first));
        touch_word(w, *region, word, now);
    }
    if (!t.actor_where && now.access != Access::atomic)
        note_request(r, t, begin / 4, bytes, now);
}

void shared_order(Sync event, std::uintptr_t key) {
    Worker& w = *this_worker;
    Races& r = *w.races;
    const unsigned me = w.current;
    const auto reach = [&](unsigned actor, std::uint32_t committed) {
        const auto left = static_cast<std::uint32_t>(key);
        Clocks& known = r.clocks[me];
        known[actor] = std::max(known[actor], committed > left ? committed - left : 0);
    };
    switch (event) {
        case Sync::make:
            mbarrier(r, key);
            if (r.blocks > 1) r.clocks[me][maker_actor(r, me)] = ++r.made[me / 32];
            break;
        case Sync::fence_made:
            if (r.blocks > 1) r.fenced[me] = r.clocks[me][maker_actor(r, me)];
            break;
        case Sync::arrive:
            join(mbarrier(r, key).coming, r.clocks[me]);
            tick(r, me);
            break;
        case Sync::complete: {
            Meeting& meeting = mbarrier(r, key);
            meeting.known = meeting.coming;
            meeting.known[fetch_actor(r, meeting.slot)] = ++r.fetched[meeting.slot];
            break;
        }
        case Sync::pass: join(r.clocks[me], mbarrier(r, key).known); break;
        case Sync::commit_product: {
            std::vector<Clocks>& groups = r.issued[warpgroup_of(w, me)];
            const std::uint32_t number = r.committed_products[me]++;
            if (number >= groups.size()) groups.emplace_back(r.width, 0);
            join(groups[number], r.clocks[me]);
            tick(r, me);
            break;
        }
        case Sync::commit_send: r.committed_sends[me]++; break;
        case Sync::wait_product:
            reach(product_actor(w, me), r.committed_products[me]);
            if (r.committed_products[me] > key)
                join(r.clocks[me],
                     r.issued[warpgroup_of(w, me)][r.committed_products[me] - key - 1]);
            break;
        case Sync::wait_send: reach(send_actor(r, me), r.committed_sends[me]); break;
    }
}

void settle_conflicts(const LoadedModule* module) {
    std::lock_guard lock(counting);
    for (auto place = counted.begin(); place != counted.end();) {
        const auto code = reinterpret_cast<std::uintptr_t>(place->first);
        const auto holds = [code](auto segment) { return code - segment.first <= segment.second; };
        if (module && std::none_of(module->segments.begin(), module->segments.end(), holds)) {
            ++place;
            continue;
        }
        Count& count = settled[source_line(place->first) +
                               (place->second.writes ? "\twrite" : "\tread")];
        count.requests += place->second.requests;
        count.rounds += place->second.rounds;
        count.fewest += place->second.fewest;
        place = counted.erase(place);
    }
}

}  // namespace pymm_sim

// What was counted since this was last asked, a line for each line of a kernel's source: place,
// read or write, requests of a warp, the fewest rounds they could take, the rounds they took.
CU_EXPORT const char* pymm_simulator_bank_rounds() {
    using namespace pymm_sim;
    static std::string text;
    settle_conflicts(nullptr);
    std::lock_guard lock(counting);
    text.clear();
    for (const auto& [place, count] : settled)
        text += place + "\t" + std::to_string(count.requests) + "\t" +
                std::to_string(count.fewest) + "\t" + std::to_string(count.rounds) + "\n";
    settled.clear();
    return text.c_str();
}
