// Numbers that count what is done with them. A kernel compiled with REAL = pymm_sim::Counted<float>
// computes the same, and pymm_counts says how many operations that took and how often a number was
// read from or written to global and shared memory. Registers and arguments do not count.
#pragma once

extern "C" {
// Where A, B and C lie (begin, end): written by the host before the launch.
__attribute__((visibility("default"), used)) inline std::uintptr_t pymm_matrices[3][2]{};
// Operations, loads and stores of global memory, loads and stores of shared memory.
__attribute__((visibility("default"), used)) inline unsigned long long pymm_counts[5]{};
}

namespace pymm_sim {

PYMM_SIM_UNCHECKED inline bool is_shared(std::uintptr_t address) {
    const Thread& thread = self();
    auto inside = [address](const void* begin, std::size_t bytes) {
        return address - reinterpret_cast<std::uintptr_t>(begin) < bytes;
    };
    for (const SharedVariable* v = pymm_module.shared; v; v = v->next)
        if (inside(thread.shared[v->index], v->bytes)) return true;
    return inside(thread.dynamic_shared, thread.dynamic_bytes);
}

// Whether it counts.
PYMM_SIM_UNCHECKED inline bool count_access(const void* address, int stored) {
    auto place = reinterpret_cast<std::uintptr_t>(address);
    int first = is_shared(place) ? 3 : 0;
    for (auto& matrix : pymm_matrices)
        if (matrix[0] <= place && place < matrix[1]) first = 1;
    if (first) __atomic_fetch_add(&pymm_counts[first + stored], 1, __ATOMIC_RELAXED);
    return first;
}

PYMM_SIM_UNCHECKED inline void count_operation() {
    __atomic_fetch_add(&pymm_counts[0], 1, __ATOMIC_RELAXED);
}

// Arguments lie where no kernel may read by itself.
template <class Real>
PYMM_SIM_UNCHECKED Real unchecked(const Real& value) { return value; }

template <class Real>
struct Counted {
    Real value;

    Counted() : value() {}
    Counted(Real given) : value(given) {}
    Counted(const Counted& other) : value(other.read()) {}
    Counted& operator=(const Counted& other) {
        write(other.read());
        return *this;
    }
    Counted& operator+=(const Counted& other) {
        count_operation();
        write(read() + other.read());
        return *this;
    }
    friend Counted operator*(const Counted& a, const Counted& b) {
        count_operation();
        return a.read() * b.read();
    }
    friend Counted operator+(const Counted& a, const Counted& b) {
        count_operation();
        return a.read() + b.read();
    }
    friend bool operator==(const Counted& a, const Counted& b) { return a.read() == b.read(); }

private:
    Real read() const {
        return count_access(this, 0) ? value : unchecked(value);
    }
    void write(Real given) {
        count_access(this, 1);
        value = given;
    }
};

}  // namespace pymm_sim
