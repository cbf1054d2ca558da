// What the checks before loads and stores call, and the signals of what they cannot foresee.
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstring>

#include "signals.hpp"
#include "worker.hpp"

namespace pymm_sim {
namespace {

std::string hex(std::uintptr_t n) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
    return text;
}

std::string bytes(std::uintptr_t n) {
    return std::to_string(n) + (n == 1 ? " byte" : " bytes");
}

std::string describe(const Region& r) {
    if (r.space == Space::shared)
        return r.variable ? std::string("__shared__ ") + r.variable->name + " (" +
                                bytes(r.bytes) + ")"
                          : "the dynamic shared memory (" + bytes(r.bytes) + ")";
    return (r.space == Space::host ? "page-locked host allocation " : "allocation ") +
           std::to_string(r.serial) + " (" + bytes(r.bytes) + " at " + hex(r.begin) + ")";
}

// Where an address that belongs to nothing lies.
std::string beside(Worker& w, std::uintptr_t address) {
    if (address < 4096) return "a null pointer";
    const Region* closest = nearest(address);
    auto distance = [&](const Region& r) {
        return address < r.begin ? r.begin - address : address - r.end();
    };
    for (const Block& block : w.blocks)
        for (const Region& r : block.shared)
            if (r.bytes && (!closest || distance(r) < distance(*closest))) closest = &r;
    if (!closest || distance(*closest) > std::uintptr_t{1} << 32)
        return "no device memory is near (a host pointer, or a wild one)";
    if (address < closest->begin)
        return bytes(closest->begin - address) + " before the start of " + describe(*closest);
    std::uintptr_t past = address - closest->end();
    return (past ? bytes(past) : "right") + " past the end of " + describe(*closest);
}

void outside(Worker& w, const char* verb, std::uintptr_t address, std::size_t size,
             const void* where) {
    std::string what = std::string(verb) + " " + bytes(size) + " at " + hex(address) + ": ";
    Region* r = shared_region(w, address);
    if (!r) r = find(address);
    if (r)
        what += "the last " + bytes(address + size - r->end()) + " of them past the end of " +
                describe(*r);
    else
        what += beside(w, address);
    abandon(w, illegal_address, where, what);
}

Region* holder(Worker& w, std::uintptr_t address, std::size_t size) {
    Region* r = shared_region(w, address);
    if (!r) r = find(address);
    return r && r->contains(address, size) ? r : nullptr;
}

struct sigaction before[3];
constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE};

const void* program_counter(void* context) {
    auto* c = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
    return reinterpret_cast<const void*>(c->uc_mcontext.gregs[REG_RIP] + 1);
#else
    return reinterpret_cast<const void*>(c->uc_mcontext.pc + 1);
#endif
}

std::uintptr_t stack_pointer(void* context) {
    auto* c = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(c->uc_mcontext.gregs[REG_RSP]);
#else
    return c->uc_mcontext.sp;
#endif
}

void on_signal(int signal, siginfo_t* info, void* context) {
    Worker* w = this_worker;
    if (!w) {  // not a kernel's: give it back to whoever had the signal
        for (int i = 0; i < 3; i++)
            if (signals[i] == signal) sigaction(signal, &before[i], nullptr);
        return;
    }
    auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    const void* checked = w->races ? w->thread(w->current).where : nullptr;
    const void* where = checked && in_shadow(address) ? checked : program_counter(context);
    if (signal == SIGFPE)
        abandon(*w, launch_failed, where,
                "divides an integer by zero (a GPU gives an unspecified value instead)");
    auto stack = reinterpret_cast<std::uintptr_t>(w->stack(w->current));
    if (stack_pointer(context) - stack - 4096 >= stack_bytes - 4096 || address - stack < 4096)
        abandon(*w, launch_failed, where,
                "needs more than " + bytes(stack_bytes) + " of stack in the simulator");
    if (info->si_code == SI_KERNEL)
        abandon(*w, illegal_address, where, "follows a pointer that is no address at all");
    std::uintptr_t at = in_shadow(address) ? meant_by(address) : address;
    abandon(*w, illegal_address, where, "accesses memory at " + hex(at) + ": " + beside(*w, at));
}

}  // namespace

// "As[3][17]" for an address inside a shared array, else "allocation 2 (...), byte 68".
std::string element(const Region& r, std::uintptr_t address) {
    std::size_t offset = address - r.begin;
    if (!r.variable) return "byte " + std::to_string(offset) + " of " + describe(r);
    std::size_t number = offset / r.variable->element;
    std::string indices;
    for (unsigned i = r.variable->rank; i-- > 0;) {
        indices = "[" + std::to_string(number % r.variable->extents[i]) + "]" + indices;
        number /= r.variable->extents[i];
    }
    return r.variable->name + indices;
}

void kernel_load(std::uintptr_t address, std::size_t size, const void* where) {
    Worker& w = *this_worker;
    Region* r = holder(w, address, size);
    if (!r) return outside(w, "reads", address, size, where);
    if (is_written(*r, address - r->begin, size)) return;
    std::uintptr_t first = address;
    while (is_written(*r, first - r->begin, 1)) first++;
    abandon(w, launch_failed, where,
            "reads " + element(*r, first) + ", which was never written (" + bytes(size) + " at " +
                hex(address) + ")");
}

void kernel_store(std::uintptr_t address, std::size_t size, const void* where) {
    Worker& w = *this_worker;
    Region* r = holder(w, address, size);
    if (!r) return outside(w, "writes", address, size, where);
    mark_written(*r, address - r->begin, size);
}

void kernel_fail(Fault fault, const void* where, const char* text) {
    abandon(*this_worker, fault, where, text);
}

void catch_signals() {
    struct sigaction action;
    std::memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &action, &before[i]);
}

void release_signals() {
    for (int i = 0; i < 3; i++) sigaction(signals[i], &before[i], nullptr);
}

}  // namespace pymm_sim
