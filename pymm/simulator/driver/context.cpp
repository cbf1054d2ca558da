// The process: initialisation, contexts and their stacks, access to peers, the sticky error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <pthread.h>

#include "driver.hpp"

namespace pymm_sim {
namespace {

struct Context_ {
    bool primary;
    unsigned flags;
    std::uint64_t serial;
    int device;
    std::set<int> peers;  // devices whose memory it may use
};

std::atomic<bool> initialized{false};
std::atomic<bool> forked{false};       // from a process that had initialised the driver
std::atomic<int> sticky{0};
std::mutex mutex;
std::set<Context_*> contexts;
std::vector<Context_*> destroyed;      // their handles are given out again, the last one first
std::uint64_t created = 0;
Context_* primary[device::most_devices];
int primary_uses[device::most_devices];
std::map<int, std::size_t> limits = {{0, 1024}, {1, 1 << 20}, {2, 8 << 20}, {3, 2}, {4, 2048},
                                     {5, 64}, {6, 0}};
thread_local std::vector<Context_*> stack;

bool live(void* context) {
    std::lock_guard lock(mutex);
    return contexts.count(static_cast<Context_*>(context)) != 0;
}

Context_* current() {
    return stack.empty() || !live(stack.back()) ? nullptr : stack.back();
}

bool is_device(CUdevice d) { return 0 <= d && d < device::count(); }

Context_* create(bool is_primary, unsigned flags, int device) {
    std::lock_guard lock(mutex);
    Context_* c = destroyed.empty() ? new Context_ : destroyed.back();
    if (!destroyed.empty()) destroyed.pop_back();
    *c = {is_primary, flags, ++created, device, {}};
    contexts.insert(c);
    return c;
}

CUresult destroy(Context_* c) {
    std::lock_guard lock(mutex);
    if (!contexts.erase(c)) return invalid_context;
    if (!stack.empty() && stack.back() == c) stack.pop_back();
    destroyed.push_back(c);
    return success;
}

}  // namespace

CUresult guard_alive() { return !initialized ? not_initialized : sticky.load(); }

CUresult guard() {
    if (CUresult e = guard_alive()) return e;
    return current() ? success : invalid_context;
}

void poison(int fault) {
    int none = 0;
    sticky.compare_exchange_strong(none, fault);
}

int poisoned() { return sticky; }

std::uint64_t context_serial() {
    const Context_* c = current();
    return c ? c->serial : 0;
}

int current_device() {
    const Context_* c = current();
    return c ? c->device : 0;
}

}  // namespace pymm_sim

using namespace pymm_sim;

CU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);

// As the real driver: what a process has initialised does not work in its forked children, nor can
// they initialise it again ("CUDA_ERROR_NOT_INITIALIZED").
CU_EXPORT CUresult cuInit(unsigned flags) {
    if (flags) return invalid_value;
    if (forked) return not_initialized;
    static const int registered = pthread_atfork(nullptr, nullptr, [] {
        forked = initialized.load();
        initialized = false;
    });
    if (registered) return operating_system;
    static std::string why_not;
    static const bool ok = start_memory(why_not);
    if (!ok) {
        std::fprintf(stderr, "pymm simulator: %s\n", why_not.c_str());
        return operating_system;
    }
    initialized = true;
    return success;
}

CU_EXPORT CUresult cuDriverGetVersion(int* version) {
    if (!version) return invalid_value;
    *version = 13000;
    return success;
}

CU_EXPORT CUresult cuCtxCreate_v2(void** out, unsigned flags, CUdevice d) {
    if (CUresult e = guard_alive()) return e;
    if (!out) return invalid_value;
    if (!is_device(d)) return invalid_device;
    stack.push_back(create(false, flags, d));
    *out = stack.back();
    return success;
}

CU_EXPORT CUresult cuCtxCreate_v4(void** out, void* parameters, unsigned flags, CUdevice d) {
    return parameters ? not_supported : cuCtxCreate_v2(out, flags, d);
}

CU_EXPORT CUresult cuCtxDestroy_v2(void* context) {
    if (!initialized) return not_initialized;
    if (!live(context) || static_cast<Context_*>(context)->primary) return invalid_context;
    return destroy(static_cast<Context_*>(context));
}

// Counts down the uses of a context. PyCUDA's destructor gives the primary one back this way.
CU_EXPORT CUresult cuCtxDetach(void* context) {
    const auto* c = static_cast<Context_*>(context);
    return live(context) && c->primary ? cuDevicePrimaryCtxRelease_v2(c->device)
                                       : cuCtxDestroy_v2(context);
}

CU_EXPORT CUresult cuCtxAttach(void** out, unsigned) {
    if (CUresult e = guard()) return e;
    if (!out) return invalid_value;
    *out = current();
    return success;
}

// The stack of contexts works in a poisoned process too: Python unwinds through it.
CU_EXPORT CUresult cuCtxPushCurrent_v2(void* context) {
    if (!initialized) return not_initialized;
    if (!live(context)) return invalid_context;
    stack.push_back(static_cast<Context_*>(context));
    return success;
}

CU_EXPORT CUresult cuCtxPopCurrent_v2(void** out) {
    if (!initialized) return not_initialized;
    if (stack.empty()) return invalid_context;
    if (out) *out = stack.back();
    stack.pop_back();
    return success;
}

CU_EXPORT CUresult cuCtxGetCurrent(void** out) {
    if (!initialized) return not_initialized;
    if (!out) return invalid_value;
    *out = current();
    return success;
}

CU_EXPORT CUresult cuCtxGetId(void* context, unsigned long long* out) {
    if (CUresult e = guard_alive()) return e;
    if (context ? !live(context) : !current()) return invalid_context;
    if (!out) return invalid_value;
    *out = (context ? static_cast<Context_*>(context) : current())->serial;
    return success;
}

CU_EXPORT CUresult cuCtxSetCurrent(void* context) {
    if (!initialized) return not_initialized;
    if (context && !live(context)) return invalid_context;
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(static_cast<Context_*>(context));
    return success;
}

CU_EXPORT CUresult cuCtxGetDevice(CUdevice* d) {
    if (!initialized) return not_initialized;
    if (!current()) return invalid_context;
    if (!d) return invalid_value;
    *d = current_device();
    return success;
}

CU_EXPORT CUresult cuCtxGetApiVersion(void* context, unsigned* version) {
    if (CUresult e = guard_alive()) return e;
    if (context ? !live(context) : !current()) return invalid_context;
    if (!version) return invalid_value;
    *version = 3020;
    return success;
}

CU_EXPORT CUresult cuCtxGetLimit(std::size_t* value, int limit) {
    if (CUresult e = guard()) return e;
    if (!value) return invalid_value;
    std::lock_guard lock(mutex);
    if (!limits.count(limit)) return unsupported_limit;
    *value = limits[limit];
    return success;
}

CU_EXPORT CUresult cuCtxSetLimit(int limit, std::size_t value) {
    if (CUresult e = guard()) return e;
    std::lock_guard lock(mutex);
    if (!limits.count(limit)) return unsupported_limit;
    limits[limit] = value;
    return success;
}

// Hints to a cache and to memory banks that a CPU lacks: kept, and without effect, as on devices
// where they are fixed.
CU_EXPORT CUresult cuCtxGetCacheConfig(int* value) {
    if (CUresult e = guard()) return e;
    if (!value) return invalid_value;
    *value = 0;
    return success;
}

CU_EXPORT CUresult cuCtxSetCacheConfig(int) { return guard(); }

CU_EXPORT CUresult cuCtxGetSharedMemConfig(int* value) {
    if (CUresult e = guard()) return e;
    if (!value) return invalid_value;
    *value = 1;  // banks of 4 bytes
    return success;
}

CU_EXPORT CUresult cuCtxSetSharedMemConfig(int) { return guard(); }

CU_EXPORT CUresult cuDevicePrimaryCtxRetain(void** out, CUdevice d) {
    if (CUresult e = guard_alive()) return e;
    if (!out) return invalid_value;
    if (!is_device(d)) return invalid_device;
    if (!primary[d]) primary[d] = create(true, 0, d);
    primary_uses[d]++;
    *out = primary[d];
    return success;
}

CU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
    if (!initialized) return not_initialized;
    if (!is_device(d)) return invalid_device;
    if (!primary_uses[d]) return invalid_context;
    if (--primary_uses[d] == 0) {
        destroy(primary[d]);
        primary[d] = nullptr;
    }
    return success;
}

CU_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned* flags, int* active) {
    if (!initialized) return not_initialized;
    if (!is_device(d)) return invalid_device;
    if (flags) *flags = 0;
    if (active) *active = primary[d] != nullptr;
    return success;
}

CU_EXPORT CUresult cuCtxEnablePeerAccess(void* peer, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (!live(peer)) return invalid_context;
    if (flags) return invalid_value;
    Context_* own = current();
    int other = static_cast<Context_*>(peer)->device;
    if (other == own->device) return peer_access_unsupported;
    return own->peers.insert(other).second ? success : peer_access_already_enabled;
}

CU_EXPORT CUresult cuCtxDisablePeerAccess(void* peer) {
    if (CUresult e = guard()) return e;
    if (!live(peer)) return invalid_context;
    int other = static_cast<Context_*>(peer)->device;
    return current()->peers.erase(other) ? success : peer_access_not_enabled;
}
