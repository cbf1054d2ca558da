// Every line of inline PTX of the project, each with a plain C++ twin for the simulator.

#ifndef PYMM_SIMULATOR

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Copies from global to shared memory that go on while the thread computes (cp.async, sm_80). The
// thread calls `commit` to close a group of copies; `wait<N>` returns when at most the N newest
// groups are still under way. The data of other threads is there after a barrier.
struct AsyncCopies {
    // BYTES (4, 8 or 16) from `source`, or zeros where `inside` is false: nothing is read then.
    template <int BYTES>
    __device__ __forceinline__ void copy(void* target, const void* source, bool inside) {
        const int bytes = inside ? BYTES : 0;
        if constexpr (BYTES == 16)  // through L2 only: no other block of this SM wants the line
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             shared_address(target)),
                         "l"(source), "r"(bytes));
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                             shared_address(target)),
                         "l"(source), "n"(BYTES), "r"(bytes));
    }
    __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
    template <int N>
    __device__ __forceinline__ void wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    }
};

#else

// The twin moves nothing before `wait`: who reads too early finds what was there before.
struct AsyncCopies {
    struct Piece {
        void* target;
        const void* source;
        int bytes;
        bool inside;
    };
    static constexpr int MOST = 512;
    Piece pieces[MOST];
    int ends[MOST], first = 0, count = 0, groups = 0;

    template <int BYTES>
    __device__ void copy(void* target, const void* source, bool inside) {
        pieces[count++ % MOST] = {target, source, BYTES, inside};
    }
    __device__ void commit() { ends[groups++ % MOST] = count; }
    template <int N>
    __device__ void wait() {
        const int end = groups > N ? ends[(groups - 1 - N) % MOST] : 0;
        for (; first < end; first++) {
            const Piece& piece = pieces[first % MOST];
            for (int i = 0; i < piece.bytes / 4; i++)
                static_cast<unsigned*>(piece.target)[i] =
                    piece.inside ? static_cast<const unsigned*>(piece.source)[i] : 0u;
        }
    }
};

#endif
