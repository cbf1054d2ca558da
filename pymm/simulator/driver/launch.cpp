// A launch: clusters of blocks spread over the CPU's cores.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "driver.hpp"
#include "signals.hpp"

namespace pymm_sim {
namespace {

constexpr std::size_t alternate_bytes = 256 << 10;  // reports are written on it

// Signals of this OS thread go to a stack of their own: a kernel may have used up its fiber's.
class AlternateStack {
public:
    AlternateStack() {
        void* memory = mmap(nullptr, alternate_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) std::abort();
        stack_t mine;
        std::memset(&mine, 0, sizeof mine);
        mine.ss_sp = memory_ = memory;
        mine.ss_size = alternate_bytes;
        sigaltstack(&mine, &before_);
    }
    ~AlternateStack() {
        sigaltstack(&before_, nullptr);
        munmap(memory_, alternate_bytes);
    }
    AlternateStack(const AlternateStack&) = delete;

private:
    void* memory_;
    stack_t before_;
};

std::size_t threads_wanted() {
    const char* text = std::getenv("PYMM_SIMULATOR_THREADS");
    long n = text ? std::atol(text) : 0;
    if (n <= 0) n = static_cast<long>(std::thread::hardware_concurrency());
    return static_cast<std::size_t>(std::clamp(n, 1L, 16L));
}

// How many workers have room. A guarded stack takes two mappings, of which a process may have
// 65530, and is kept: 16 workers have 1024 each, and the larger a cluster the fewer the workers
// that ever run one, so that all stay below 27400 stacks.
std::size_t workers_for(const Launch& launch) {
    const unsigned threads = launch.block_threads() * launch.cluster_blocks();
    return threads <= device::max_threads ? 16 : std::max(6 * device::max_threads / threads, 1u);
}

}  // namespace

int run(Launch& launch) {
    static std::mutex one_launch_at_a_time;
    static std::vector<Worker*> workers;
    std::lock_guard lock(one_launch_at_a_time);
    std::size_t count = std::min<std::uint64_t>(launch.clusters(), threads_wanted());
    count = std::min(count, workers_for(launch));
    while (workers.size() < count) workers.push_back(new_worker());

    catch_signals();
    auto work = [&launch](Worker* worker) {
        AlternateStack stack;
        run_clusters(*worker, launch);
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < count; i++) others.emplace_back(work, workers[i]);
    work(workers[0]);
    for (std::thread& t : others) t.join();
    release_signals();
    std::fflush(stdout);  // what kernels printed comes before what Python prints next
    return launch.fault;
}

}  // namespace pymm_sim
