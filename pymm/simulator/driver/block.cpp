// One block at a time on one worker: a fiber per CUDA thread, run in turn from barrier to barrier.
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
    suspend(w, State::done, nullptr, 0);
    std::abort();
}

void lay_out_shared(Worker& w) {
    const Launch& launch = *w.launch;
    const Module& module = *launch.function->module->contents;
    if (!w.shared_begin) {
        w.shared_begin = reinterpret_cast<std::uintptr_t>(reserve_window(window_bytes));
        commit_window(reinterpret_cast<void*>(w.shared_begin), window_bytes);
    }
    std::uintptr_t place = w.shared_begin;
    for (Region& r : w.shared) forbid(r.begin, r.bytes);
    w.shared.clear();
    w.addresses.assign(static_cast<std::size_t>(module.shared_count), nullptr);
    auto add = [&](std::size_t bytes, std::size_t alignment, const SharedVariable* variable) {
        place = round_up(place + red_zone, alignment);
        if (place + bytes + red_zone > w.shared_begin + window_bytes) std::abort();
        Region r{0, 0, Space::shared, 0, 0, {nullptr, std::free}, variable};
        make_region(r, place, bytes, Space::shared);
        w.shared.push_back(std::move(r));
        place += bytes;
        return reinterpret_cast<void*>(place - bytes);
    };
    for (const SharedVariable* v = module.shared; v; v = v->next)
        if (!v->owner || v->owner == launch.function->kernel->function)
            w.addresses[static_cast<std::size_t>(v->index)] =
                add(v->bytes, v->alignment > 16 ? v->alignment : 16, v);
    void* dynamic = add(launch.dynamic_bytes, 1024, nullptr);
    for (unsigned i = 0; i < w.threads; i++) {
        Thread& t = w.thread(i);
        t = Thread{{i % launch.block.x, i / launch.block.x % launch.block.y,
                    i / (launch.block.x * launch.block.y)},
                   {0, 0, 0}, launch.block, launch.grid, i % 32, i,
                   static_cast<unsigned>(launch.dynamic_bytes), dynamic, w.addresses.data(), &calls,
                   &w, 0, w.shared_begin, Actor::thread, 0, nullptr, nullptr};
    }
}

// No thread can go on: some wait for others that will not come.
[[noreturn]] void stalled(Worker& w) {
    unsigned first = 0;
    while (w.fibers[first].state == State::done) first++;
    w.current = first;
    abandon(w, launch_failed, nullptr,
            "the block is stuck: not every thread comes to where others wait" + places(w));
}

void run_block(Worker& w, std::uint64_t number) {
    const Launch& launch = *w.launch;
    w.block_index = dim3(static_cast<unsigned>(number % launch.grid.x),
                         static_cast<unsigned>(number / launch.grid.x % launch.grid.y),
                         static_cast<unsigned>(number / launch.grid.x / launch.grid.y));
    static std::atomic<std::uint64_t> begun{0};
    const std::uint64_t run = ++begun;
    for (Region& r : w.shared) forget_writes(r);
    for (unsigned i = 0; i < w.threads; i++) {
        w.thread(i).block_index = w.block_index;
        w.thread(i).run = run;
        // Stacks are a power of two apart: stagger what they hold over the cache's sets.
        char* top = w.stack(i) + stack_bytes - record_bytes - i % 32 * 192;
        start_context(w.fibers[i].context, w.stack(i), top, body);
        w.fibers[i].state = State::ready;
        w.fibers[i].gathers = false;
    }
    begin_races(w);
    w.alive = w.threads;
    w.at_barrier = 0;
    w.waited = false;
    std::memset(w.waiting, 0, sizeof w.waiting);
    std::memset(w.arrived, 0, sizeof w.arrived);
    choose_order(w, number);
    while (w.alive) {
        bool moved = false;
        for (unsigned i = 0; i < w.threads; i++) {
            unsigned next = w.order[i];
            if (w.fibers[next].state != State::ready) continue;
            moved = true;
            w.current = next;
            switch_context(w.scheduler, w.fibers[next].context);
        }
        if (w.at_barrier == w.threads) release_barrier(w);
        else if (!moved) stalled(w);
    }
    end_races(w);
    if (launch.early && !w.waited)
        abandon(w, launch_failed, nullptr, "the launch may begin before the one before it has "
                "ended, and no thread of the block waits for that one");
}

void yield() {
    Worker& w = *this_worker;
    suspend(w, State::ready, w.me().file, w.me().line);
}

void wait_for_launch() { this_worker->waited = true; }

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

Worker* new_worker() {
    auto* w = new Worker;
    std::size_t bytes = device::max_threads * stack_bytes;
    void* got = mmap(nullptr, bytes + 2 * stack_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) std::abort();
    auto begin = round_up(reinterpret_cast<std::uintptr_t>(got), stack_bytes);
    w->stacks = reinterpret_cast<char*>(begin);
    w->gathered = reinterpret_cast<std::uint64_t(*)[32]>(w->stacks + bytes);
    allow(w->stacks, bytes + stack_bytes);
    allow(&calls, sizeof calls);
    w->fibers.resize(device::max_threads);
    w->order.resize(device::max_threads);
    return w;
}

void run_blocks(Worker& w, Launch& launch) {
    w.launch = &launch;
    w.threads = launch.block.x * launch.block.y * launch.block.z;
    for (; w.guarded < w.threads; w.guarded++) mprotect(w.stack(w.guarded), 4096, PROT_NONE);
    lay_out_shared(w);
    std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    this_worker = &w;
    if (!sigsetjmp(w.escape, 0))
        while (!launch.fault) {
            std::uint64_t number = launch.next_block++;
            if (number >= blocks) break;
            run_block(w, number);
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
    dim3 b = w.block_index;
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
    for (Region& r : w.shared)
        if (r.contains(address, 1)) return &r;
    return nullptr;
}

std::string name_of(const Worker& w, unsigned i) {
    dim3 b = w.launch->block;
    return "(" + std::to_string(i % b.x) + "," + std::to_string(i / b.x % b.y) + "," +
           std::to_string(i / (b.x * b.y)) + ")";
}

std::string places(Worker& w) {
    static const char* const names[] = {"ready", "at __syncthreads", "at a named barrier",
                                        "in a warp operation", "returned"};
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

const Calls calls = {barrier,       barrier_reduce, warp_sync,        warp_shuffle,
                     warp_vote,     warp_gather,    warp_active_mask, named_barrier,
                     yield,         wait_for_launch, kernel_load,     kernel_store,
                     kernel_fail,   scratch,        shared_touch,     shared_order};

}  // namespace pymm_sim
