// Switching between fibers: 2 ns by hand on x86-64, where swapcontext's two system calls take
// 300 ns. Elsewhere, or with -DPYMM_SIM_UCONTEXT, swapcontext it is.
#pragma once
#include <cstdint>

#if defined(__x86_64__) && !defined(PYMM_SIM_UCONTEXT)

namespace pymm_sim {

struct Context { void* stack = nullptr; };

// Saves what a called function must preserve, changes stacks, restores the same.
extern "C" void pymm_sim_switch(void** save, void* load);
asm(R"(
.text
.type pymm_sim_switch, @function
pymm_sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size pymm_sim_switch, .-pymm_sim_switch
)");

inline void start_context(Context& c, char*, char* top, void (*body)()) {
    auto slot = reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{15};
    auto* word = reinterpret_cast<void**>(slot) - 1;
    *word-- = nullptr;                            // body never returns
    *word = reinterpret_cast<void*>(body);
    c.stack = word - 6;                           // six registers, whatever they hold
}

inline void switch_context(Context& from, Context& to) {
    pymm_sim_switch(&from.stack, to.stack);
}

}  // namespace pymm_sim

#else
#include <ucontext.h>

namespace pymm_sim {

struct Context { ucontext_t state; };

inline void start_context(Context& c, char* bottom, char* top, void (*body)()) {
    getcontext(&c.state);
    c.state.uc_stack.ss_sp = bottom;
    c.state.uc_stack.ss_size = static_cast<std::size_t>(top - bottom);
    c.state.uc_link = nullptr;
    makecontext(&c.state, body, 0);
}

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

}  // namespace pymm_sim
#endif
