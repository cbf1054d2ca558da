// Kernels of blocks in clusters: right ones, ones with a fault each, and ones with a race. All take
// 4 rows of 32 floats and write 64 for each block; they run with 4 blocks of 64 threads and 1024
// bytes of dynamic shared memory.

#include "common/hopper.cuh"

#define KERNEL(name) \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) name(float* out, const float* rows)

// Two rows of 32 floats, which copies fill, and barriers.
struct Memory {
    float tile[2][32];
    unsigned long long full, empty;
    __device__ unsigned place(unsigned row) { return address_of_shared(tile[row]); }
    __device__ unsigned filled() { return address_of_shared(&full); }
    __device__ unsigned emptied() { return address_of_shared(&empty); }
};

// The map of the rows, as the driver would make it: boxes are rows.
__device__ TensorMap map_of(const float* rows) {
    const auto address = reinterpret_cast<unsigned long long>(rows);
    const pymm_sim::TensorDescription d{address, {32, 4, 1}, {128, 512}, {32, 1, 1}, 4, 0, false};
    TensorMap map = {};
    memcpy(&map, &d, sizeof d);
    return map;
}

__device__ void make_barriers(Memory& memory, unsigned empty_arrivals) {
    if (threadIdx.x) return;
    mbarrier_init(memory.filled(), 1);
    mbarrier_init(memory.emptied(), empty_arrivals);
}
__device__ void wait_a_while() {
    for (int i = 0; i < 10; i++) __nanosleep(1);
}

// Each block sends its row of `step` to both blocks, which add up what they get. Two steps through
// one tile: before the second, both blocks have given the tile back, at as many barriers as `given`
// says.
__device__ void exchange(float* out, const float* rows, Memory& memory, unsigned given) {
    const unsigned rank = block_in_cluster(), me = threadIdx.x;
    const TensorMap map = map_of(rows);
    make_barriers(memory, given);
    fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    float sum = 0;
    for (unsigned step = 0; step < 2; step++) {
        if (me == 0) {
            if (step > 0) mbarrier_wait(memory.emptied(), 0);
            mbarrier_expect_tx(memory.filled(), 256);
            const unsigned row = (blockIdx.x + 2 * step) % 4, to = memory.place(rank);
            tma_load(to, &map, memory.filled(), 0, row, 0, 3);  // line:sends_too_early
        }
        mbarrier_wait(memory.filled(), step);
        sum = sum * 100 + memory.tile[me / 32][me % 32];
        __syncthreads();
        if (step == 0 && me < given) mbarrier_arrive(memory.emptied(), given == 2 ? me : rank);
    }
    out[blockIdx.x * 64 + me] = sum;
}
KERNEL(exchanges) {
    __shared__ Memory memory;
    exchange(out, rows, memory, 2);
}
// The other block may still read the tile.
KERNEL(sends_too_early) {
    __shared__ Memory memory;
    exchange(out, rows, memory, 1);
}

// A thread that has begun a copy writes a word for the others: that is not the copy's doing.
KERNEL(writes_behind_a_copy) {
    __shared__ Memory memory;
    __shared__ float word;
    const TensorMap map = map_of(rows);
    make_barriers(memory, 1);
    fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x == 0) {
        mbarrier_expect_tx(memory.filled(), 128);
        tma_load(memory.place(0), &map, memory.filled(), 0, blockIdx.x, 0);
        word = rows[5];
        mbarrier_arrive(memory.emptied());
    }
    mbarrier_wait(memory.emptied(), 0);
    const float given = word;
    mbarrier_wait(memory.filled(), 0);
    out[blockIdx.x * 64 + threadIdx.x] = given * 1000 + memory.tile[0][threadIdx.x % 32];
}

// Coordinates and the number in the cluster. Threads of a block meet four times, which changes a
// random order of them, then blocks of each cluster three times; some threads return on the way.
extern "C" __global__ void __launch_bounds__(64) __cluster_dims__(2, 1, 2)
    positions(float* out, const float* rows) {
    for (int i = 0; i < 4; i++) __syncthreads();
    cluster_arrive();
    if (threadIdx.x == 7) return;
    cluster_wait();
    if (threadIdx.x == 9) return;
    cluster_arrive();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
    const unsigned block = blockIdx.x + 2 * blockIdx.z;
    out[block * 64 + threadIdx.x] = 100 * block_in_cluster() + 10 * blockIdx.z + 5;
}

// Block 0 arrives at barriers of all eight, which then go on.
extern "C" __global__ void __cluster_dims__(8) eight(float* out, const float* rows) {
    __shared__ Memory memory;
    make_barriers(memory, 1);
    fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    if (block_in_cluster() == 0 && threadIdx.x < 8) mbarrier_arrive(memory.filled(), threadIdx.x);
    mbarrier_wait(memory.filled(), 0);
    out[blockIdx.x % 4 * 64 + threadIdx.x] = 1;
}

// --- faults --------------------------------------------------------------------------------------

__device__ void reach_ended(Memory& memory, const float* rows, bool copies) {
    make_barriers(memory, 1);
    fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    if (block_in_cluster() == 1) return;
    wait_a_while();
    const TensorMap map = map_of(rows);
    if (threadIdx.x) return;
    if (copies)
        tma_load(memory.place(0), &map, memory.filled(), 0, 0, 0, 3);  // line:copies_to_ended
    else
        mbarrier_arrive(memory.filled(), 1);  // line:arrives_at_ended
}
KERNEL(arrives_at_ended) {
    __shared__ Memory memory;
    reach_ended(memory, rows, false);
}
KERNEL(copies_to_ended) {
    __shared__ Memory memory;
    reach_ended(memory, rows, true);
}
// Nobody has waited for the cluster.
KERNEL(arrives_too_early) {
    __shared__ Memory memory;
    make_barriers(memory, 1);
    __syncthreads();
    const unsigned other = 1 - block_in_cluster();
    if (threadIdx.x == 0) mbarrier_arrive(memory.filled(), other);  // line:arrives_too_early
    mbarrier_wait(memory.filled(), 0);
}
KERNEL(copies_too_early) {
    __shared__ Memory memory;
    const TensorMap map = map_of(rows);
    make_barriers(memory, 1);
    __syncthreads();
    const unsigned to = memory.place(block_in_cluster());
    if (threadIdx.x) return;
    tma_load(to, &map, memory.filled(), 0, 0, 0, 3);  // line:copies_too_early
    mbarrier_expect_tx(memory.filled(), 256);
    mbarrier_wait(memory.filled(), 0);
}
KERNEL(no_such_block) {
    __shared__ Memory memory;
    make_barriers(memory, 1);
    if (threadIdx.x == 0) mbarrier_arrive(memory.filled(), 2);  // line:no_such_block
}
KERNEL(mask_of_no_block) {
    __shared__ Memory memory;
    const TensorMap map = map_of(rows);
    make_barriers(memory, 1);
    if (threadIdx.x == 0) tma_load(memory.place(0), &map, memory.filled(), 0, 0, 0, 0);
}
KERNEL(mask_too_large) {
    __shared__ Memory memory;
    const TensorMap map = map_of(rows);
    make_barriers(memory, 1);
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x) return;
    tma_load(memory.place(0), &map, memory.filled(), 0, 0, 0, 5);  // line:mask_too_large
}
KERNEL(waits_only) {
    cluster_wait();  // line:waits_only
}
KERNEL(arrives_twice) {
    cluster_arrive();
    cluster_arrive();  // line:arrives_twice
}
// A thread of block 1 waits elsewhere.
KERNEL(one_stays_away) {
    if (block_in_cluster() == 1 && threadIdx.x == 3) __syncthreads();  // line:one_stays_away
    cluster_arrive();
    cluster_wait();
}

// --- races ---------------------------------------------------------------------------------------

// Block 1 does not wait for the arrival, which comes before its end by chance.
KERNEL(may_have_ended) {
    __shared__ Memory memory;
    make_barriers(memory, 1);
    fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    if (block_in_cluster() == 1) return wait_a_while();
    if (threadIdx.x == 0) mbarrier_arrive(memory.filled(), 1);  // line:may_have_ended
}
// The same with a copy.
KERNEL(copy_may_come_late) {
    __shared__ Memory memory;
    const TensorMap map = map_of(rows);
    make_barriers(memory, 1);
    fence_mbarrier_init();
    cluster_arrive();
    cluster_wait();
    if (block_in_cluster() == 1) return wait_a_while();
    if (threadIdx.x) return;
    tma_load(memory.place(0), &map, memory.filled(), 0, 0, 0, 2);  // line:copy_may_come_late
}
KERNEL(no_fence) {
    __shared__ Memory memory;
    make_barriers(memory, 1);
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    const unsigned other = 1 - block_in_cluster();
    if (threadIdx.x == 0) mbarrier_arrive(memory.filled(), other);  // line:no_fence
    mbarrier_wait(memory.filled(), 0);
}
// A tile is written before the other block copies to it: the cluster's barrier has to release that,
// and __syncthreads is the block's own.
__device__ void copy_over(float* out, const float* rows, Memory& memory, bool releases) {
    const TensorMap map = map_of(rows);
    make_barriers(memory, 1);
    fence_mbarrier_init();
    memory.tile[threadIdx.x / 32][threadIdx.x % 32] = 1;
    __syncthreads();
    cluster_arrive(releases);
    cluster_wait();
    const unsigned short other = block_in_cluster() ? 1 : 2;
    if (threadIdx.x == 0) {
        mbarrier_expect_tx(memory.filled(), 128);
        tma_load(memory.place(0), &map, memory.filled(), 0, 0, 0, other);  // line:relaxed_barrier
    }
    mbarrier_wait(memory.filled(), 0);
    out[blockIdx.x * 64 + threadIdx.x] = memory.tile[0][threadIdx.x % 32];
}
KERNEL(relaxed_barrier) {
    __shared__ Memory memory;
    copy_over(out, rows, memory, false);
}
KERNEL(releasing_barrier) {
    __shared__ Memory memory;
    copy_over(out, rows, memory, true);
}
