// The threads of all CPU kernels of a process. Pieces of work are taken, not given: whoever is free
// takes the next one.
//
// The calling thread takes pieces like all others, and at the end waits only for pieces that others
// have taken. A worker that the system does not run takes none, and nobody waits for it: with as
// many threads as cores, any other program on one of them would otherwise hold up every product.
//
// A job is a place in a table. Its `ticket` holds the number of the job that has the place, and how
// many of its pieces nobody has taken. Taking one is a compare-and-swap of both, which fails if the
// job has ended meanwhile: so nobody has to ask for the job to stay. Several calling threads have a
// place each, and workers help all of them.
//
// Idle workers look for work for `SPIN` after they had some, because waking a thread takes about as
// long as a product of 128 x 128 x 128. Then they sleep.
//
// A forked child has none of these threads: it starts with a new pool.
//
// Compile: g++ -O3 -march=native -std=c++17 -pthread -shared -fPIC
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <system_error>
#include <thread>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "call.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds SPIN(50);     // of an idle worker
constexpr microseconds PATIENCE(50);  // of a caller, before it sleeps until the others are ready
constexpr int CHECKS = 32;            // looks between two at the clock
constexpr int JOBS = 64;              // calling threads at a time; further ones work alone
constexpr int WORKERS = 1024;         // at most

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// Waits until `ready()`, at most for `most`. It does not yield: a thread that yields to one that
// looks for work for another library gets the processor back at the end of that one's slice,
// milliseconds later; one that sleeps gets it when it is woken.
template <class Ready>
bool spin(Ready ready, microseconds most) {
    const auto end = Clock::now() + most;
    do {
        for (int i = 0; i < CHECKS; i++) {
            if (ready()) return true;
            pause();
        }
    } while (Clock::now() < end);
    return ready();
}

// Asks for the shortest slices of the processor, 0.1 ms. A thread that is woken then runs before
// one that looks for work for another library, instead of after that one's slice of milliseconds.
// Kernels of Linux before 6.12 take no notice.
void ask_for_short_slices() {
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
    struct {  // struct sched_attr of sched_setattr(2)
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } given{};
    if (syscall(SYS_sched_getattr, 0, &given, sizeof given, 0)) return;
    if (given.policy != SCHED_OTHER) return;
    given.size = sizeof given;
    given.runtime = 100000;
    syscall(SYS_sched_setattr, 0, &given, 0);
#endif
}

struct alignas(64) Job {
    std::atomic<bool> taken{false};  // by a calling thread
    std::atomic<uint64_t> ticket{0};
    std::atomic<Work> work{nullptr};
    std::atomic<void*> data{nullptr};
    std::atomic<int> pieces{0}, workers{0}, done{0};
};

struct Pool {
    Job jobs[JOBS];
    std::atomic<int> used{0};         // no job was ever at a higher place
    std::atomic<uint32_t> posted{0};  // jobs so far
    std::atomic<int> sleeping{0}, threads{0}, avoided{-1};
    pthread_t handles[WORKERS];
    std::mutex mutex;
    std::condition_variable wake, finished;

    // Takes and does a piece of `job`. False if there is none for this worker.
    bool help(Job& job, int worker) {
        uint64_t ticket = job.ticket.load(std::memory_order_acquire);
        while (uint32_t(ticket)) {
            const Work work = job.work.load(std::memory_order_relaxed);
            void* const data = job.data.load(std::memory_order_relaxed);
            const int pieces = job.pieces.load(std::memory_order_relaxed);
            if (worker > job.workers.load(std::memory_order_relaxed)) return false;
            if (!job.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                                  std::memory_order_acquire))
                continue;
            work(data, pieces - int(uint32_t(ticket)), worker);
            if (job.done.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces && worker) {
                { std::lock_guard<std::mutex> lock(mutex); }
                finished.notify_all();
            }
            return true;
        }
        return false;
    }

    bool help_any(int worker) {
        bool helped = false;
        for (int i = 0; i < used.load(std::memory_order_acquire); i++)
            while (help(jobs[i], worker)) helped = true;
        return helped;
    }

    void serve(int worker) {
        ask_for_short_slices();
        for (;;) {
            const uint32_t seen = posted.load(std::memory_order_acquire);
            if (help_any(worker)) continue;
            const auto news = [&] { return posted.load(std::memory_order_acquire) != seen; };
            if (spin(news, SPIN)) continue;
            std::unique_lock<std::mutex> lock(mutex);
            sleeping.fetch_add(1);
            while (posted.load() == seen) wake.wait(lock);
            sleeping.fetch_sub(1);
        }
    }

    // Starts workers until there are `wanted`, or as many as the system allows. They handle no
    // signals: those are for the program's own threads.
    void grow(int wanted) {
        if (wanted > WORKERS) wanted = WORKERS;
        std::lock_guard<std::mutex> lock(mutex);
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            while (threads.load() < wanted) {
                const int worker = threads.load() + 1;
                std::thread started([this, worker] { serve(worker); });
                handles[worker - 1] = started.native_handle();
                started.detach();
                avoided.store(-1);
                threads.store(worker);
            }
        } catch (const std::system_error&) {
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // Keeps the workers off the processor of the calling thread. A thread that is woken is put
    // there if all others look busy, as they do while idle threads of another library look for
    // work, and then waits for the very thread that it is to help.
    void avoid_caller() {
#if defined(__linux__)
        const int here = sched_getcpu();
        if (here < 0 || avoided.exchange(here) == here) return;
        cpu_set_t allowed;
        if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed)) return;
        if (CPU_COUNT(&allowed) < 2 || !CPU_ISSET(here, &allowed)) return;
        CPU_CLR(here, &allowed);
        std::lock_guard<std::mutex> lock(mutex);
        for (int i = 0; i < threads.load(); i++)
            pthread_setaffinity_np(handles[i], sizeof allowed, &allowed);
#endif
    }

    Job* claim() {
        for (int i = 0; i < JOBS; i++)
            if (!jobs[i].taken.exchange(true, std::memory_order_acquire)) {
                int highest = used.load();
                while (highest <= i && !used.compare_exchange_weak(highest, i + 1)) {}
                return &jobs[i];
            }
        return nullptr;
    }

    void run(Job& job, Work work, void* data, int pieces, int workers) {
        if (threads.load(std::memory_order_relaxed) < workers) grow(workers);
        job.work.store(work, std::memory_order_relaxed);
        job.data.store(data, std::memory_order_relaxed);
        job.pieces.store(pieces, std::memory_order_relaxed);
        job.workers.store(workers, std::memory_order_relaxed);
        job.done.store(0, std::memory_order_relaxed);
        const uint64_t number = (job.ticket.load(std::memory_order_relaxed) >> 32) + 1;
        job.ticket.store(number << 32 | uint32_t(pieces), std::memory_order_release);
        posted.fetch_add(1);
        if (sleeping.load()) {
            avoid_caller();
            { std::lock_guard<std::mutex> lock(mutex); }
            wake.notify_all();
        }
        while (help(job, 0)) {}
        const auto ready = [&] { return job.done.load(std::memory_order_acquire) == pieces; };
        if (!spin(ready, PATIENCE)) {
            std::unique_lock<std::mutex> lock(mutex);
            while (!ready()) finished.wait(lock);
        }
        job.taken.store(false, std::memory_order_release);
    }
};

std::atomic<Pool*> pool{nullptr};  // never freed: workers use it until the process has ended

void forget() { pool.store(nullptr); }

Pool* shared() {
    Pool* found = pool.load(std::memory_order_acquire);
    if (found) return found;
    Pool* made = new (std::nothrow) Pool;
    if (!made || pool.compare_exchange_strong(found, made)) return made;
    delete made;
    return found;
}

}  // namespace

extern "C" void run(Work work, void* data, int pieces, int threads) {
    static const int registered = pthread_atfork(nullptr, nullptr, forget);
    if (threads > pieces) threads = pieces;
    Pool* const workers = threads > 1 && !registered ? shared() : nullptr;
    Job* const job = workers ? workers->claim() : nullptr;
    if (job)
        workers->run(*job, work, data, pieces, threads - 1);
    else
        for (int piece = 0; piece < pieces; piece++) work(data, piece, 0);
}

// Has the workers awake for as long as they look for work, so that what is timed next does not wait
// for them.
extern "C" void wake(int threads) {
    const Work look = [](void*, int, int) { spin([] { return false; }, microseconds(20)); };
    run(look, nullptr, threads, threads);
}
