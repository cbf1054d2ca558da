// What only Hopper (sm_90a) has: TMA, mbarriers, clusters, setmaxnreg, wgmma.
// The simulator puts its own twin in the place of this file
// (pymm/simulator/device/hopper.hpp).

#include "common/half_types.cuh"

// What cuTensorMapEncodeTiled makes: where a matrix lies, how it is cut into boxes.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// Have the map read before the first copy needs it.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Addresses of shared memory are 32 bits wide from here on.
__device__ __forceinline__ unsigned address_of_shared(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Barriers in shared memory, which count arrivals of threads and bytes of copies. A phase ends when
// both counts are reached; `wait` returns when the phase of that parity has ended.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;");
}
__device__ __forceinline__ void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; "
        "bra W; D: }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// Arrive at the same barrier of a block of this cluster. Without `.release.cluster`, which costs a
// fence of the whole GPU: what is released are reads, and those have ended.
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier, unsigned block) {
    asm volatile(
        "{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(barrier),
        "r"(block)
        : "memory");
}
// Arrive at a barrier of this block.
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ unsigned block_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// All threads of the cluster arrive; those that use what another block initialized wait.
// Relaxed: orders no reads and writes, which would take a fence. On an H100 it takes 0.65 us.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Registers of each thread of a warpgroup from here on.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// A barrier of the 128 threads of one warpgroup.
__device__ __forceinline__ void warpgroup_sync(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// Copy the box at (x, y, z) to shared memory, of this block or of all blocks of the cluster in
// `blocks`; its bytes count at the barrier of every block that gets it.
__device__ __forceinline__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}
__device__ __forceinline__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z, unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
        : "memory");
}
// Copy a box from shared memory; elements outside the matrix are left out.
__device__ __forceinline__ void tma_store(const TensorMap* map, unsigned source, int x, int y,
                                          int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], "
        "[%1];" ::"l"(map),
        "r"(source), "r"(x), "r"(y), "r"(z)
        : "memory");
}
__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;"); }
// All but the LATEST groups of them.
template <int LATEST = 0>
__device__ __forceinline__ void bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LATEST) : "memory");
}
__device__ __forceinline__ void bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// What threads wrote to shared memory is there for `tma_store` after a barrier.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void stmatrix_x4(unsigned row, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// wgmma reads both operands from shared memory by descriptors (PTX ISA 9.0, "Matrix Descriptor").
// Here: 128-byte swizzle, 1024 bytes from 8 rows of 128 bytes to the next 8, and 8192 from 64
// columns to the next 64 where the operand does not are K-major. One added moves 16 bytes on.
__device__ __forceinline__ unsigned long long describe(unsigned address) {
    return (address & 0x3FFFFu) >> 4 | (8192ull >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// d = a b, or d += a b if `add`: 64 x N += 64 x 16 times 16 x N. Lane 4 g + t of warp w holds
// d[4 j + 2 h + e] = D(16 w + g + 8 h, 8 j + 2 t + e).
#define REGISTERS_8(r) \
    "+f"(d[r]), "+f"(d[r + 1]), "+f"(d[r + 2]), "+f"(d[r + 3]), "+f"(d[r + 4]), "+f"(d[r + 5]), \
        "+f"(d[r + 6]), "+f"(d[r + 7])
#define REGISTERS_32(r) REGISTERS_8(r), REGISTERS_8(r + 8), REGISTERS_8(r + 16), REGISTERS_8(r + 24)
#define NAMES_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
    "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
    "%124, %125, %126, %127"

#define WGMMA(N, TYPE, NAME, NAMES, A, B, ADD, MN_MAJOR_A, MN_MAJOR_B, ...) \
    template <bool K_MAJOR_A, bool K_MAJOR_B> \
    __device__ __forceinline__ void wgmma(TYPE, float (&d)[N / 2], unsigned long long a, \
                                          unsigned long long b, bool add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD \
                     ", 0; " \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES \
                     "}, " A ", " B ", p, 1, 1, " MN_MAJOR_A ", " MN_MAJOR_B "; }" \
                     : __VA_ARGS__ \
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(!K_MAJOR_A), \
                       "n"(!K_MAJOR_B)); \
    }
#define WGMMA_OF(TYPE, NAME) \
    WGMMA(64, TYPE, NAME, NAMES_0, "%32", "%33", "%34", "%35", "%36", REGISTERS_32(0)) \
    WGMMA(128, TYPE, NAME, NAMES_0 NAMES_32, "%64", "%65", "%66", "%67", "%68", REGISTERS_32(0), \
          REGISTERS_32(32)) \
    WGMMA(192, TYPE, NAME, NAMES_0 NAMES_32 NAMES_64, "%96", "%97", "%98", "%99", "%100", \
          REGISTERS_32(0), REGISTERS_32(32), REGISTERS_32(64)) \
    WGMMA(256, TYPE, NAME, NAMES_0 NAMES_32 NAMES_64 NAMES_96, "%128", "%129", "%130", "%131", \
          "%132", REGISTERS_32(0), REGISTERS_32(32), REGISTERS_32(64), REGISTERS_32(96))

WGMMA_OF(F16, "f16")
WGMMA_OF(BF16, "bf16")

// Rounded to nearest, ties away from zero, as the tensor cores' tf32: the lower 13 bits are zeros.
__device__ __forceinline__ unsigned round_tf32(float x) {
    unsigned result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(x));
    return result;
}

// d = a b, or d += a b if `add`, in tf32: 64 x N += 64 x 8 times 8 x N, d as above. The lower 13
// bits of an operand are ignored. Both are K-major in shared memory, or a is in registers: lane
// 4 g + t of warp w holds a[2 x + h] = A(16 w + g + 8 h, t + 4 x).
#define REGISTERS_16(r) REGISTERS_8(r), REGISTERS_8(r + 8)
#define NAMES_OF_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_OF_16 NAMES_OF_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HALF_NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HALF_NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HALF_NAMES_96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
    "%110, %111"

#define WGMMA_TF32(N, NAMES, P, Q, R, S, T, U, ...) \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[N / 2], unsigned long long a, \
                                               unsigned long long b, bool add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " R \
                     ", 0; " \
                     "wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 " \
                     "{" NAMES "}, " P ", " Q ", p, 1, 1; }" \
                     : __VA_ARGS__ \
                     : "l"(a), "l"(b), "r"(static_cast<int>(add))); \
    } \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[N / 2], const unsigned (&a)[4], \
                                               unsigned long long b, bool add) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " U \
                     ", 0; " \
                     "wgmma.mma_async.sync.aligned.m64n" #N \
                     "k8.f32.tf32.tf32 " \
                     "{" NAMES "}, {" P ", " Q ", " R ", " S "}, " T ", p, 1, 1; }" \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), \
                       "r"(static_cast<int>(add))); \
    }
WGMMA_TF32(16, NAMES_OF_8, "%8", "%9", "%10", "%11", "%12", "%13", REGISTERS_8(0))
WGMMA_TF32(32, NAMES_OF_16, "%16", "%17", "%18", "%19", "%20", "%21", REGISTERS_16(0))
WGMMA_TF32(64, NAMES_0, "%32", "%33", "%34", "%35", "%36", "%37", REGISTERS_32(0))
WGMMA_TF32(96, NAMES_0 HALF_NAMES_32, "%48", "%49", "%50", "%51", "%52", "%53", REGISTERS_32(0),
           REGISTERS_16(32))
WGMMA_TF32(128, NAMES_0 NAMES_32, "%64", "%65", "%66", "%67", "%68", "%69", REGISTERS_32(0),
           REGISTERS_32(32))
WGMMA_TF32(160, NAMES_0 NAMES_32 HALF_NAMES_64, "%80", "%81", "%82", "%83", "%84", "%85",
           REGISTERS_32(0), REGISTERS_32(32), REGISTERS_16(64))
WGMMA_TF32(192, NAMES_0 NAMES_32 NAMES_64, "%96", "%97", "%98", "%99", "%100", "%101",
           REGISTERS_32(0), REGISTERS_32(32), REGISTERS_32(64))
WGMMA_TF32(224, NAMES_0 NAMES_32 NAMES_64 HALF_NAMES_96, "%112", "%113", "%114", "%115", "%116",
           "%117", REGISTERS_32(0), REGISTERS_32(32), REGISTERS_32(64), REGISTERS_16(96))
WGMMA_TF32(256, NAMES_0 NAMES_32 NAMES_64 NAMES_96, "%128", "%129", "%130", "%131", "%132", "%133",
           REGISTERS_32(0), REGISTERS_32(32), REGISTERS_32(64), REGISTERS_32(96))

// Two floats to an address of shared memory.
__device__ __forceinline__ void store_shared_pair(unsigned to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// A barrier of COUNT threads, whole warps.
template <int COUNT>
__device__ __forceinline__ void named_barrier_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}

// Elements in shared memory by their 32-bit addresses. Reads keep their order, and that alone.
__device__ __forceinline__ double load_shared(unsigned address) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address));
    return x;
}
__device__ __forceinline__ double2 load_shared_2(unsigned address) {
    double2 x;
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
                 : "=d"(x.x), "=d"(x.y)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ __forceinline__ void store_shared(unsigned address, double2 x) {
    asm volatile("st.shared.v2.f64 [%0], {%1, %2};" ::"r"(address), "d"(x.x), "d"(x.y) : "memory");
}

// Descriptors of operands of 16 bits in rows of 16, 32 or 64 elements and swizzled as wide: 8 rows
// are 16 COLUMNS bytes. One that is MN-major is a pile of such, each of DOWN rows.
template <int COLUMNS, int DOWN>
__device__ __forceinline__ unsigned long long mn_major_descriptor(unsigned address) {
    constexpr unsigned long long SWIZZLE = COLUMNS == 64 ? 1 : COLUMNS == 32 ? 2 : 3;
    return (address & 0x3FFFFu) >> 4 | (2ull * DOWN * COLUMNS >> 4) << 16 |
           (16ull * COLUMNS >> 4) << 32 | SWIZZLE << 62;
}
template <int COLUMNS>
__device__ __forceinline__ unsigned long long k_major_descriptor(unsigned address) {
    return mn_major_descriptor<COLUMNS, 64>(address);
}

// Nothing is known of x from here on: what would be computed again is kept, what would be kept is
// computed again.
__device__ __forceinline__ void make_opaque(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void make_opaque(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void make_opaque(double*& x) { asm volatile("" : "+l"(x)); }
// threadIdx.x, read anew.
__device__ __forceinline__ unsigned read_thread_index() {
    unsigned x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
