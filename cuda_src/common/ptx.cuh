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
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
                "l"(source), "r"(bytes));
        else
            asm volatile(
                "cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(target)),
                "l"(source), "n"(BYTES), "r"(bytes));
    }
    // 16 bytes at a multiple of 16, of which the first `bytes` are read; zeros for the others.
    __device__ __forceinline__ void copy_first(void* target, const void* source, int bytes) {
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
            "l"(source), "r"(bytes));
    }
    // As `copy`, and L2 fetches the whole line of 128 bytes, for others who want the rest of it.
    template <int BYTES>
    __device__ __forceinline__ void copy_of_line(void* target, const void* source, bool inside) {
        const int bytes = inside ? BYTES : 0;
        if constexpr (BYTES == 16)
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                             shared_address(target)),
                         "l"(source), "r"(bytes));
        else
            asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(
                             shared_address(target)),
                         "l"(source), "n"(BYTES), "r"(bytes));
    }
    __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
    template <int N>
    __device__ __forceinline__ void wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    }
};

// c += a b by one warp, 16 x 8 += 16 x DEPTH times DEPTH x 8, in double precision on the tensor
// cores. Lane 4 g + t holds (PTX ISA 9.0, "Matrix Fragments for mma.m16n8k4" and on)
//     a[2 x + h] = A(g + 8 h, t + 4 x)    b[x] = B(t + 4 x, g)    c[2 h + e] = C(g + 8 h, 2 t + e)
// Up to sm_89 there is only 8 x 8 x 4, whose fragments are parts of these. sm_90 runs that one at
// half its rate, and its own, the deeper the cooler: 570 W for depth 4, 526 W for 16 (one H200).
template <int DEPTH>
__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[DEPTH / 2],
                                    const double (&b)[DEPTH / 4]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (DEPTH == 16)
        asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
            : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
            : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]),
              "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
    else if constexpr (DEPTH == 8)
        asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
            : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
            "{%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
            : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#else
#pragma unroll
    for (int x = 0; x < DEPTH / 4; x++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(c[2 * h]), "+d"(c[2 * h + 1])
                : "d"(a[2 * x + h]), "d"(b[x]));
#endif
}

#else

// The simulator copies nothing before `wait`: code that reads too early finds the old elements.
struct AsyncCopies {
    struct Piece {
        void* target;
        const void* source;
        int bytes, read;  // bytes to write, and how many of them to read
    };
    static constexpr int MOST = 512;
    Piece pieces[MOST];
    int ends[MOST], first = 0, count = 0, groups = 0;

    template <int BYTES>
    __device__ void copy(void* target, const void* source, bool inside) {
        pieces[count++ % MOST] = {target, source, BYTES, inside ? BYTES : 0};
    }
    __device__ void copy_first(void* target, const void* source, int bytes) {
        pieces[count++ % MOST] = {target, source, 16, bytes};
    }
    template <int BYTES>
    __device__ void copy_of_line(void* target, const void* source, bool inside) {
        copy<BYTES>(target, source, inside);
    }
    __device__ void commit() { ends[groups++ % MOST] = count; }
    template <int N>
    __device__ void wait() {
        const int end = groups > N ? ends[(groups - 1 - N) % MOST] : 0;
        for (; first < end; first++) {
            const Piece& piece = pieces[first % MOST];
            for (int i = 0; i < piece.bytes / 2; i++)
                static_cast<unsigned short*>(piece.target)[i] =
                    2 * i < piece.read ? static_cast<const unsigned short*>(piece.source)[i] : 0;
        }
    }
};

// The simulator reads each number where the lane that holds it has it.
template <int DEPTH>
__device__ void mma(double (&c)[4], const double (&a)[DEPTH / 2], const double (&b)[DEPTH / 4]) {
    struct Fragments {
        const double *a, *b;
    };
    const Fragments mine{a, b};
    const Fragments* const* const of = pymm_sim::of_every_lane(mine);
    const unsigned lane = threadIdx.x % 32;
    for (int p = 0; p < DEPTH; p++) {
        double left[2], right[2];
        for (int h = 0; h < 2; h++) left[h] = of[lane / 4 * 4 + p % 4]->a[p / 4 * 2 + h];
        for (int e = 0; e < 2; e++) right[e] = of[(lane % 4 * 2 + e) * 4 + p % 4]->b[p / 4];
        for (int i = 0; i < 4; i++) c[i] += left[i / 2] * right[i % 2];
    }
    __syncwarp();  // no lane's numbers change before all have been read
}

#endif
