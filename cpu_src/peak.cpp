// The most multiply-adds per second that this processor does: chains of them and nothing else.
//
// A matrix product is measured against the peak of the machine. Virtual machines often keep their
// clock to themselves, so the peak is not computed as cores x clock x lanes x 2, it is measured:
// every thread keeps CHAINS independent vectors, each a = a * b + c over and over, all in
// registers. A multiply-add takes about 4 clocks and two can start per clock, so that 8 chains
// keep the unit full; 12 leave room for the slower ones and still fit into 16 registers.
//
// Values: b is just below 1 and c just above 0, so that a neither overflows nor becomes denormal
// (denormal numbers would take a hundred times as long).
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 32  // width of the SIMD registers
#endif
#ifndef CHAINS
#define CHAINS 12
#endif

using Clock = std::chrono::steady_clock;

template <class Real>
using Vector [[gnu::vector_size(VECTOR_BYTES)]] = Real;

template <class Real>
static Real chains(long long steps) {
    Vector<Real> a[CHAINS], b = {}, c = {};
    for (unsigned lane = 0; lane < VECTOR_BYTES / sizeof(Real); lane++) {
        b[lane] = Real(0.9999);
        c[lane] = Real(0.0001);
    }
    for (int i = 0; i < CHAINS; i++) a[i] = b * Real(i + 1);
    for (long long step = 0; step < steps; step++) {
#pragma GCC unroll 32
        for (int i = 0; i < CHAINS; i++) a[i] = a[i] * b + c;
    }
    Real sum = 0;  // of all of them: what is not used is not computed
    for (int i = 0; i < CHAINS; i++)
        for (unsigned lane = 0; lane < VECTOR_BYTES / sizeof(Real); lane++) sum += a[i][lane];
    return sum;
}

// The most of `runs` timings of `steps` steps, because whatever disturbs a run only makes it
// longer. It begins when all `waiting` threads have come.
template <class Real>
static void measure(std::atomic<int>& waiting, int runs, long long steps, double& best) {
    const double work = 2.0 * CHAINS * (VECTOR_BYTES / sizeof(Real)) * double(steps);
    volatile Real sink = 0;
    waiting--;
    while (waiting > 0) std::this_thread::yield();
    for (int run = 0; run < runs; run++) {
        const auto start = Clock::now();
        sink = chains<Real>(steps);
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        if (work / seconds > best) best = work / seconds;
    }
    (void)sink;
}

// Operations per second (two for a multiply-add) of `threads` threads that work at the same time.
// Every thread looks at its own clock, so that none is charged for waiting for another.
template <class Real>
static double peak(int threads, int runs, long long steps) {
    std::atomic<int> waiting{threads};
    std::vector<double> best(threads);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; i++)
        others.emplace_back([&, i] { measure<Real>(waiting, runs, steps, best[i]); });
    measure<Real>(waiting, runs, steps, best[0]);
    for (std::thread& other : others) other.join();
    double total = 0;
    for (double one : best) total += one;
    return total;
}

extern "C" double peak_f32(int threads, int runs, long long steps) {
    return peak<float>(threads, runs, steps);
}

extern "C" double peak_f64(int threads, int runs, long long steps) {
    return peak<double>(threads, runs, steps);
}
