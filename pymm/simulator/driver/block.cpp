// One cluster at a time on one worker, mostly of one block: a fiber per CUDA thread, run in turn
// from barrier to barrier.
#include "worker.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace pymm_sim {

thread_local Worker* this_worker = nullptr;

namespace {

constexpr std::size_t window_bytes = shared_window_bytes;
constexpr std::size_t red_zone = 128;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

void body() {  // of every fiber
    Worker& w = *this_worker;
    const Kernel& kernel = *w.launch->function->kernel;
    kernel.invoke(kernel, w.launch->arguments);
    w.alive--;
    if (--w.my_block().alive == 0) races_block_ends(w, w.my_block());
    leave_cluster(w);
    suspend(w, State::done, nullptr, 0);
    std::abort();
}

// The shared memory of one block, from its `shared_begin` on. Returns where it ends.
std::uintptr_t lay_out_block(Worker& w, Block& block) {
    const Launch& launch = *w.launch;
    const Module& module = *launch.function->module->contents;
    std::uintptr_t place = block.shared_begin;
    block.addresses.assign(static_cast<std::size_t>(module.shared_count), nullptr);
    auto add = [&](std::size_t bytes, std::size_t alignment, const SharedVariable* variable) {
        place = round_up(place + red_zone, alignment);
        if (place + bytes + red_zone > w.shared_begin + window_bytes) std::abort();
        Region r{0, 0, Space::shared, 0, 0, {nullptr, std::free}, variable};
        make_region(r, place, bytes, Space::shared);
        block.shared.push_back(std::move(r));
        place += bytes;
        return reinterpret_cast<void*>(place - bytes);
    };
    for (const SharedVariable* v = module.shared; v; v = v->next)
        if (!v->owner || v->owner == launch.function->kernel->function)
            block.addresses[static_cast<std::size_t>(v->index)] =
                add(v->bytes, v->alignment > 16 ? v->alignment : 16, v);
    void* dynamic = add(launch.dynamic_bytes, 1024, nullptr);
    const auto rank = static_cast<unsigned>(&block - w.blocks.data());
    for (unsigned i = 0; i < w.block_threads; i++) {
        Thread& t = w.thread(block.first + i);
        t = Thread{{i % launch.block.x, i / launch.block.x % launch.block.y,
                    i / (launch.block.x * launch.block.y)},
                   {0, 0, 0}, launch.block, launch.grid, i % 32, i, rank,
                   static_cast<unsigned>(launch.dynamic_bytes), dynamic, block.addresses.data(),
                   &calls, &w, 0, w.shared_begin, Actor::thread, 0, nullptr, nullptr};
    }
    return place;
}

// The blocks of a cluster have the same layout one after the other, so that an offset means the
// same in each.
void lay_out_shared(Worker& w) {
    if (!w.shared_begin) {
        w.shared_begin = reinterpret_cast<std::uintptr_t>(reserve_window(window_bytes));
        commit_window(reinterpret_cast<void*>(w.shared_begin), window_bytes);
    }
    for (Block& block : w.blocks)
        for (Region& r : block.shared) forbid(r.begin, r.bytes);
    w.blocks.clear();
    w.blocks.resize(w.launch->cluster_blocks());
    std::size_t unit = 1024;
    const SharedVariable* v = w.launch->function->module->contents->shared;
    for (; v; v = v->next) unit = v->alignment > unit ? v->alignment : unit;
    std::uintptr_t begin = w.shared_begin;
    for (Block& block : w.blocks) {
        block.first = static_cast<unsigned>(&block - w.blocks.data()) * w.block_threads;
        block.shared_begin = begin;
        w.shared_pitch = round_up(lay_out_block(w, block) + red_zone - begin, unit);
        begin += w.shared_pitch;
    }
}

// No thread can go on: some wait for others that will not come.
[[noreturn]] void stalled(Worker& w) {
    unsigned first = 0;
    while (w.fibers[first].state == State::done) first++;
    w.current = first;
    abandon(w, launch_failed, nullptr,
            std::string(w.blocks.size() > 1 ? "the cluster" : "the block") +
                " is stuck: not every thread comes to where others wait" + places(w));
}

dim3 index_of(const Launch& launch, std::uint64_t cluster, unsigned rank) {
    const dim3 size = launch.cluster;
    const unsigned across = launch.grid.x / size.x, down = launch.grid.y / size.y;
    return {static_cast<unsigned>(cluster % across) * size.x + rank % size.x,
            static_cast<unsigned>(cluster / across % down) * size.y + rank / size.x % size.y,
            static_cast<unsigned>(cluster / across / down) * size.z + rank / (size.x * size.y)};
}

void begin_block(Worker& w, Block& block, dim3 index) {
    static std::atomic<std::uint64_t> begun{0};
    const std::uint64_t run = ++begun;
    block.index = index;
    block.alive = w.block_threads;
    block.at_barrier = 0;
    block.waited = false;
    std::memset(block.arrived, 0, sizeof block.arrived);
    for (Region& r : block.shared) forget_writes(r);
    for (unsigned i = block.first; i < block.first + w.block_threads; i++) {
        w.thread(i).block_index = index;
        w.thread(i).run = run;
        // Stacks are a power of two apart: stagger what they hold over the cache's sets.
        char* top = w.stack(i) + stack_bytes - record_bytes - i % 32 * 192;
        start_context(w.fibers[i].context, w.stack(i), top, body);
        w.fibers[i].state = State::later;
        w.fibers[i].gathers = false;
        w.fibers[i].cluster_arrival = 0;
    }
}

// Blocks of a cluster begin one after the other, so many turns of their threads apart: what reaches
// a block before it is known to have begun comes too early.
constexpr unsigned turns_apart = 8;

void start_block(Worker& w, std::size_t rank) {
    const Block& block = w.blocks[rank % w.blocks.size()];
    for (unsigned i = 0; i < w.block_threads; i++) w.fibers[block.first + i].state = State::ready;
}

void run_cluster(Worker& w, std::uint64_t number) {
    const Launch& launch = *w.launch;
    for (Block& block : w.blocks)
        begin_block(w, block,
                    index_of(launch, number, static_cast<unsigned>(&block - w.blocks.data())));
    begin_races(w);
    w.alive = w.cluster_left = w.threads;
    w.cluster_phase = 0;
    std::memset(w.waiting, 0, (w.threads + 31) / 32 * sizeof *w.waiting);
    choose_order(w, number);
    const unsigned first = w.order[0] / w.block_threads;
    unsigned started = 0;
    for (unsigned turn = 0; w.alive; turn++) {
        bool moved = started < w.blocks.size() && turn % turns_apart == 0;
        if (moved) start_block(w, first + started++);
        for (unsigned i = 0; i < w.threads; i++) {
            unsigned next = w.order[i];
            if (w.fibers[next].state != State::ready) continue;
            moved = true;
            w.current = next;
            switch_context(w.scheduler, w.fibers[next].context);
        }
        for (Block& block : w.blocks) {
            if (block.at_barrier != w.block_threads) continue;
            release_barrier(w, block);
            moved = true;
        }
        if (!moved && started == w.blocks.size()) stalled(w);
    }
    end_races(w);
    for (const Block& block : w.blocks) {
        if (!launch.early || block.waited) continue;
        w.current = block.first;
        abandon(w, launch_failed, nullptr, "the launch may begin before the one before it has "
                "ended, and no thread of the block waits for that one");
    }
}

void yield() {
    Worker& w = *this_worker;
    suspend(w, State::ready, w.me().file, w.me().line);
}

void wait_for_launch() { this_worker->my_block().waited = true; }

void* scratch(std::size_t bytes) {
    Worker& w = *this_worker;
    if (!w.scratch) {
        w.scratch = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
        if (w.scratch == MAP_FAILED) std::abort();
        allow(w.scratch, bytes);
    }
    return w.scratch;
}

}  // namespace

// Addresses for the stacks of the largest cluster: `open_stacks` makes them memory. Behind them is
// `gathered`, 256 bytes for each warp.
Worker* new_worker() {
    auto* w = new Worker;
    std::size_t bytes = device::cluster_blocks * device::max_threads * stack_bytes;
    void* got = mmap(nullptr, bytes + 2 * stack_bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) std::abort();
    auto begin = round_up(reinterpret_cast<std::uintptr_t>(got), stack_bytes);
    w->stacks = reinterpret_cast<char*>(begin);
    w->gathered = reinterpret_cast<std::uint64_t(*)[32]>(w->stacks + bytes);
    if (mprotect(w->gathered, stack_bytes, PROT_READ | PROT_WRITE)) std::abort();
    allow(w->gathered, stack_bytes);
    allow(&calls, sizeof calls);
    return w;
}

void open_stacks(Worker& w) {
    if (w.guarded >= w.threads) return;
    allow(w.stack(w.guarded), (w.threads - w.guarded) * stack_bytes);
    for (; w.guarded < w.threads; w.guarded++)  // all but the first page
        if (mprotect(w.stack(w.guarded) + 4096, stack_bytes - 4096, PROT_READ | PROT_WRITE))
            std::abort();
    w.fibers.resize(w.threads);
    w.order.resize(w.threads);
}

void run_clusters(Worker& w, Launch& launch) {
    w.launch = &launch;
    w.block_threads = launch.block_threads();
    w.threads = w.block_threads * launch.cluster_blocks();
    open_stacks(w);
    lay_out_shared(w);
    this_worker = &w;
    if (!sigsetjmp(w.escape, 0))
        while (!launch.fault) {
            std::uint64_t number = launch.next_cluster++;
            if (number >= launch.clusters()) break;
            run_cluster(w, number);
        }
    this_worker = nullptr;
}

void suspend(Worker& w, State state, const char* file, int line) {
    Fiber& me = w.me();
    me.state = state;
    me.file = file;
    me.line = line;
    switch_context(me.context, w.scheduler);
}

void report(Worker& w, Fault fault, const void* where, const std::string& text) {
    static std::mutex once;
    std::lock_guard lock(once);
    int none = 0;
    if (!w.launch->fault.compare_exchange_strong(none, fault)) return;  // the first one speaks
    dim3 b = w.my_block().index;
    std::string place = where ? source_line(where) + ": " : "";
    std::fprintf(stderr, "pymm simulator: kernel %s, block (%u,%u,%u), thread %s: %s%s\n",
                 w.launch->function->kernel->name, b.x, b.y, b.z, name_of(w, w.current).c_str(),
                 place.c_str(), text.c_str());
    std::fflush(stderr);
}

void abandon(Worker& w, Fault fault, const void* where, const std::string& text) {
    report_unwritten(w);  // which is why
    report(w, fault, where, text);
    siglongjmp(w.escape, 1);
}

Region* shared_region(Worker& w, std::uintptr_t address) {
    for (Block& block : w.blocks) {
        if (address - block.shared_begin >= w.shared_pitch) continue;
        for (Region& r : block.shared)
            if (r.contains(address, 1)) return &r;
    }
    return nullptr;
}

std::string name_of(Worker& w, unsigned thread) {
    const dim3 b = w.launch->block;
    const unsigned i = thread % w.block_threads;
    return "(" + std::to_string(i % b.x) + "," + std::to_string(i / b.x % b.y) + "," +
           std::to_string(i / (b.x * b.y)) + ")" + elsewhere(w, w.block_of(thread));
}

std::string places(Worker& w) {
    static const char* const names[] = {
        "not begun", "ready", "at __syncthreads", "at a named barrier", "in a warp operation",
        "at the cluster's barrier", "returned"};
    std::string text;
    std::vector<bool> told(w.threads);
    for (unsigned i = 0; i < w.threads; i++) {
        if (told[i]) continue;
        const Fiber& f = w.fibers[i];
        std::string who;
        unsigned count = 0;
        for (unsigned j = i; j < w.threads; j++) {
            const Fiber& g = w.fibers[j];
            if (told[j] || g.state != f.state || (f.state != State::done && g.line != f.line))
                continue;
            told[j] = true;
            if (++count <= 4) who += " " + name_of(w, j);
        }
        text += "\n    " + std::to_string(count) + (count == 1 ? " thread " : " threads ") +
                names[static_cast<int>(f.state)] +
                (f.state == State::done ? "" : ", line " + std::to_string(f.line)) + ":" + who +
                (count > 4 ? " ..." : "");
    }
    return text;
}

extern void barrier(const char*, int);
extern int barrier_reduce(Reduce, int, const char*, int);
extern void named_barrier(unsigned, unsigned, bool, const char*, int);
extern void kernel_fail(Fault, const void*, const char*);
extern void warp_sync(unsigned, const char*, int);
extern std::uint64_t warp_shuffle(unsigned, std::uint64_t, unsigned, const char*, int);
extern std::uint64_t warp_vote(Vote, unsigned, std::uint64_t, const char*, int);
extern const std::uint64_t* warp_gather(std::uint64_t, const char*, int);
extern unsigned warp_active_mask();
extern void cluster_arrive(bool, const char*, int);
extern void cluster_wait(const char*, int);
extern std::uintptr_t reach(std::uintptr_t, unsigned, const char*, const void*);

const Calls calls = {barrier,       barrier_reduce,  warp_sync,        warp_shuffle,
                     warp_vote,     warp_gather,     warp_active_mask, named_barrier,
                     yield,         wait_for_launch, kernel_load,      kernel_store,
                     kernel_fail,   scratch,         cluster_arrive,   cluster_wait,
                     reach,         shared_touch,    shared_order};

}  // namespace pymm_sim
