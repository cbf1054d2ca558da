// The simulator's driver under the sanitizers: allocations, copies, modules, launches of translated
// kernels, from several threads; then, if asked for, a launch that faults.
//
//     simulator MODULE bx by gx gy [fault]
//
// MODULE has a kernel `gemm` that takes what pymm's kernels take: 67 x 65 x 66, float, N N. With
// `fault` A is too small by its last row: the driver has to say so.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

using Address = unsigned long long;
extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuModuleLoad(void**, const char*);
int cuModuleGetFunction(void**, void*, const char*);
int cuModuleUnload(void*);
int cuMemAlloc_v2(Address*, std::size_t);
int cuMemFree_v2(Address);
int cuMemcpyHtoD_v2(Address, const void*, std::size_t);
int cuMemcpyDtoH_v2(void*, Address, std::size_t);
int cuMemcpyDtoD_v2(Address, Address, std::size_t);
int cuMemsetD8_v2(Address, unsigned char, std::size_t);
int cuStreamCreate(void**, unsigned);
int cuStreamSynchronize(void*);
int cuStreamDestroy_v2(void*);
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cuEventDestroy_v2(void*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**);
}

namespace {

constexpr int m = 67, n = 65, k = 66;
void* context;

void must(int error, const char* what) {
    if (!error) return;
    std::printf("%s: error %d\n", what, error);
    std::exit(1);
}
#define MUST(call) must(call, #call)

struct Memory {
    Address at = 0;
    explicit Memory(std::size_t bytes) { MUST(cuMemAlloc_v2(&at, bytes)); }
    ~Memory() { cuMemFree_v2(at); }
    Memory(const Memory&) = delete;
};

int product(void* function, char** numbers, int missing) {
    std::vector<float> a(m * k), b(k * n), c(m * n), got(m * n);
    for (int i = 0; i < m * k; i++) a[static_cast<std::size_t>(i)] = float(i * 7919 % 17 - 8);
    for (int i = 0; i < k * n; i++) b[static_cast<std::size_t>(i)] = float(i * 104729 % 13 - 6);
    const std::size_t some = (m * k - std::size_t(missing)) * 4;
    Memory on_a(some), on_b(b.size() * 4), first(c.size() * 4), on_c(c.size() * 4);
    MUST(cuMemcpyHtoD_v2(on_a.at, a.data(), some));
    MUST(cuMemcpyHtoD_v2(on_b.at, b.data(), b.size() * 4));
    MUST(cuMemsetD8_v2(first.at, 0xff, c.size() * 4));
    MUST(cuMemcpyDtoD_v2(on_c.at, first.at, c.size() * 4));
    int extents[] = {m, n, k};
    float alpha = 2, beta = 0;
    long long lda = k, ldb = n, none = 0;
    void* arguments[] = {&extents[0], &extents[1], &extents[2], &alpha, &on_a.at, &lda, &none,
                         &on_b.at, &ldb, &none, &beta, &on_c.at, &ldb, &none};
    unsigned size[4];
    for (int i = 0; i < 4; i++) size[i] = unsigned(std::atoi(numbers[i]));
    void *stream = nullptr, *event = nullptr;
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuEventCreate(&event, 0));
    MUST(cuLaunchKernel(function, size[2], size[3], 1, size[0], size[1], 1, 0, stream, arguments,
                        nullptr));
    if (missing) return cuCtxSynchronize() ? 0 : 1;  // the fault is known at the next call
    MUST(cuEventRecord(event, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH_v2(got.data(), on_c.at, got.size() * 4));
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(stream));
    int wrong = 0;
    for (std::size_t i = 0; i < m; i++)
        for (std::size_t j = 0; j < n; j++) {
            float sum = 0;
            for (std::size_t p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
            wrong += got[i * n + j] != 2 * sum;
        }
    return wrong;
}

int work(const char* path, char** numbers, int missing) {
    MUST(cuCtxSetCurrent(context));
    void *module = nullptr, *function = nullptr;
    MUST(cuModuleLoad(&module, path));
    MUST(cuModuleGetFunction(&function, module, "gemm"));
    int wrong = product(function, numbers, missing);
    if (!missing) MUST(cuModuleUnload(module));
    return wrong;
}

}  // namespace

int main(int count, char** words) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    int found[3] = {};
    for (int turn = 0; turn < 3; turn++) found[0] += work(words[1], words + 2, 0);
    std::vector<std::thread> others;
    for (int i = 0; i < 3; i++)
        others.emplace_back([&found, i, words] {
            for (int turn = 0; turn < 2; turn++) found[i] += work(words[1], words + 2, 0);
        });
    for (std::thread& other : others) other.join();
    if (count > 6) found[0] += work(words[1], words + 2, k);
    std::printf("%d wrong\n", found[0] + found[1] + found[2]);
    return found[0] + found[1] + found[2] ? 1 : 0;
}
