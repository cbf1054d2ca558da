// A CPU kernel (the file KERNEL) on products that have every kind of edge, for the sanitizers: each
// matrix is a block of its own, so that one element beside it is one too many.
//
// The kernel's parameters are macros, as in pymm. Exit status 1: a wrong product; the sanitizers
// have their own.
#include KERNEL
#include "pool.cpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

struct Shape { int m, n, k, batch, gap; REAL alpha, beta; };

REAL value(long long i) { return static_cast<REAL>(i * 7919 % 17 - 8); }

// rows x columns, rows `gap` elements further apart than needed; ends with the last row's last.
struct Block {
    long long ld, stride;
    std::unique_ptr<REAL[]> data;
    Block(long long batch, long long rows, long long columns, long long gap)
        : ld(columns + gap), stride(rows * ld) {
        const long long count = rows && columns ? batch * stride - gap : 0;
        data.reset(new REAL[count]);
        for (long long i = 0; i < count; i++) data[i] = value(i);
    }
};

bool right(const Shape& s, int threads) {
    Block a(s.batch, TRANS_A ? s.k : s.m, TRANS_A ? s.m : s.k, s.gap);
    Block b(s.batch, TRANS_B ? s.n : s.k, TRANS_B ? s.k : s.n, s.gap);
    Block c(s.batch, s.m, s.n, s.gap), before(s.batch, s.m, s.n, s.gap);
    if (s.beta == 0)
        for (long long i = 0; i < c.stride * s.batch - s.gap; i++) c.data[i] = NAN;
    const Call call{s.m,          s.n,  s.k,      s.batch,      s.alpha, s.beta,
                    a.data.get(), a.ld, a.stride, b.data.get(), b.ld,    b.stride,
                    c.data.get(), c.ld, c.stride, nullptr,      1,       threads,
                    run};
    if (gemm(&call)) return false;
    for (long long z = 0; z < s.batch; z++)
        for (long long i = 0; i < s.m; i++)
            for (long long j = 0; j < s.n; j++) {
                const REAL *x = a.data.get() + z * a.stride, *y = b.data.get() + z * b.stride;
                REAL sum = 0;  // of small integers: exact
                for (long long p = 0; p < s.k; p++)
                    sum += x[TRANS_A ? p * a.ld + i : i * a.ld + p] *
                           y[TRANS_B ? j * b.ld + p : p * b.ld + j];
                const long long at = z * c.stride + i * c.ld + j;
                const REAL wanted = s.alpha * sum + (s.beta == 0 ? 0 : s.beta * before.data[at]);
                if (c.data[at] != wanted) {
                    std::printf("%d x %d x %d: C[%lld, %lld] is %g instead of %g\n", s.m, s.n, s.k,
                                i, j, double(c.data[at]), double(wanted));
                    return false;
                }
            }
    return true;
}

// Tiles of 24 x 48 (reordered) or 2 x 16 in blocks of 24 x 192 (blocked), depth 40.
constexpr Shape shapes[] = {
    {1, 1, 1, 1, 0, 1, 0},     {1, 1, 0, 1, 0, 1, 0},    {5, 3, 0, 2, 1, 2, -1},
    {1, 193, 3, 1, 0, 1, 0},   {191, 1, 41, 1, 2, 1, 1}, {23, 191, 39, 1, 0, 2, 0},
    {24, 192, 40, 1, 0, 1, 2}, {25, 193, 41, 1, 3, 1, 0}, {37, 53, 83, 1, 5, -1, 0.5},
    {31, 17, 13, 3, 0, 1, 0},  {7, 11, 5, 9, 1, 0, 2},   {2, 16, 1, 1, 7, 0, 0},
};

}  // namespace

int main() {
    int wrong = 0;
    for (const Shape& shape : shapes)
        for (int threads : {1, 2, 3, 5}) wrong += !right(shape, threads);
    std::vector<std::thread> callers;  // several at once share the memory that is kept
    std::vector<int> found(3);
    for (std::size_t i = 0; i < found.size(); i++)
        callers.emplace_back([&, i] {
            for (int turn = 0; turn < 4; turn++)
                found[i] += !right(shapes[(i + 5 + static_cast<std::size_t>(turn)) % 12], 2);
        });
    for (std::thread& caller : callers) caller.join();
    for (int more : found) wrong += more;
    return wrong ? 1 : 0;
}
