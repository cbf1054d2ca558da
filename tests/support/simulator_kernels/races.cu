// Kernels with a race in shared memory, one each, and the same without it. All take 1024 floats and
// run with one block of 16 x 16 threads; markers name the lines that race.

#include "common/hopper.cuh"

#define KERNEL(name) extern "C" __global__ void name(float* out, const float* in)
#define TILE 16

__device__ float product(const float* in, float* shared, bool first, bool second) {
    float(*As)[TILE] = reinterpret_cast<float(*)[TILE]>(shared);
    float(*Bs)[TILE] = As + TILE;
    const int x = threadIdx.x, y = threadIdx.y;
    float sum = 0;
    for (int phase = 0; phase < 2; phase++) {
        As[y][x] = in[phase * 256 + y * TILE + x];  // line:fills
        Bs[y][x] = in[512 + phase * 256 + y * TILE + x];
        if (first) __syncthreads();
        for (int p = 0; p < TILE; p++) sum += As[y][p] * Bs[p][x];  // line:uses
        if (second) __syncthreads();
    }
    return sum;
}

KERNEL(tiles) {
    __shared__ float tiles[2 * TILE * TILE];
    out[threadIdx.y * TILE + threadIdx.x] = product(in, tiles, true, true);
}
KERNEL(no_first_barrier) {
    __shared__ float tiles[2 * TILE * TILE];
    out[threadIdx.y * TILE + threadIdx.x] = product(in, tiles, false, true);
}
KERNEL(no_second_barrier) {
    __shared__ float tiles[2 * TILE * TILE];
    out[threadIdx.y * TILE + threadIdx.x] = product(in, tiles, true, false);
}

// The tile has one column too few: the last of each row is the first of the next.
KERNEL(tile_too_narrow) {
    __shared__ float tile[TILE * TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    tile[y * (TILE - 1) + x] = in[y * TILE + x];  // line:tile_too_narrow
    __syncthreads();
    out[y * TILE + x] = tile[y * (TILE - 1) + x];
}
KERNEL(tile_wide_enough) {
    __shared__ float tile[TILE * TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    tile[y * TILE + x] = in[y * TILE + x];
    __syncthreads();
    out[y * TILE + x] = tile[y * TILE + x];
}

// One barrier a step is enough for two buffers, if the next step fills the one that nobody reads.
__device__ float buffered(const float* in, float (*tile)[256], int ahead) {
    const int me = threadIdx.y * TILE + threadIdx.x;
    float sum = 0;
    tile[0][me] = in[me];
    for (int step = 0; step < 3; step++) {
        __syncthreads();
        tile[(step + ahead) % 2][me] = in[(step + 1) * 256 + me];  // line:refills
        sum += tile[step % 2][255 - me];                           // line:still_reads
    }
    return sum;
}
KERNEL(two_buffers) {
    __shared__ float tile[2][256];
    out[threadIdx.y * TILE + threadIdx.x] = buffered(in, tile, 1);
}
KERNEL(buffer_too_early) {
    __shared__ float tile[2][256];
    tile[1][threadIdx.y * TILE + threadIdx.x] = 0;
    out[threadIdx.y * TILE + threadIdx.x] = buffered(in, tile, 0);
}

__device__ void reduce(float* out, const float* in, float* sums, bool barrier) {
    const int me = threadIdx.y * TILE + threadIdx.x;
    sums[me] = in[me];
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (me < half) sums[me] += sums[me + half];  // line:reduction
        if (barrier) __syncthreads();
    }
    if (me == 0) out[0] = sums[0];
}
KERNEL(reduction) {
    __shared__ float sums[256];
    reduce(out, in, sums, true);
}
KERNEL(reduction_without_barrier) {
    __shared__ float sums[256];
    reduce(out, in, sums, false);
}

__device__ void exchange(float* out, const float* in, float* row, bool sync) {
    const int me = threadIdx.y * TILE + threadIdx.x;
    row[me] = in[me];  // line:gives
    if (sync) __syncwarp();
    out[me] = row[me ^ 1];  // line:takes
}
KERNEL(warp_exchange) {
    __shared__ float row[256];
    exchange(out, in, row, true);
}
KERNEL(warp_exchange_without_sync) {
    __shared__ float row[256];
    exchange(out, in, row, false);
}
// A shuffle makes the lanes meet, and orders no memory.
KERNEL(warp_exchange_by_shuffle) {
    __shared__ float row[256];
    const int me = threadIdx.y * TILE + threadIdx.x;
    row[me] = in[me];  // line:gives_by_shuffle
    const float zero = __shfl_sync(~0u, 0.0f, 0);
    out[me] = row[me ^ 1] + zero;  // line:takes_by_shuffle
}
// Only the threads of a warp wait for each other.
KERNEL(warp_sync_across_warps) {
    __shared__ float row[256];
    const int me = threadIdx.y * TILE + threadIdx.x;
    row[me] = in[me];  // line:gives_across
    __syncwarp();
    out[me] = row[me ^ 32];  // line:takes_across
}

__device__ void turn(float* out, const float* in, float (*tile)[TILE], bool turned) {
    const int x = threadIdx.x, y = threadIdx.y;
    tile[y][x] = in[y * TILE + x];
    __syncthreads();
    const float mine = turned ? tile[x][y] : tile[y][x];  // line:reads_turned
    tile[y][x] = 2 * mine;                                // line:writes_in_place
    __syncthreads();
    out[y * TILE + x] = tile[y][x];
}
KERNEL(in_place) {
    __shared__ float tile[TILE][TILE];
    turn(out, in, tile, false);
}
KERNEL(transposed_in_place) {
    __shared__ float tile[TILE][TILE];
    turn(out, in, tile, true);
}

// All threads write one word; that they write the same does not make it right.
KERNEL(everybody_writes) {
    __shared__ float one;
    one = in[0];  // line:everybody_writes
    __syncthreads();
    out[0] = one;
}
KERNEL(atomics) {
    __shared__ int count;
    if (threadIdx.x + threadIdx.y == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.x + threadIdx.y == 0) out[0] = count;
}
KERNEL(atomics_read_too_early) {
    __shared__ int count;
    if (threadIdx.x + threadIdx.y == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);                                // line:adds
    if (threadIdx.x + threadIdx.y == 0) out[0] = count;  // line:reads_the_count
}
// Neighbours write different bytes of one word.
KERNEL(bytes) {
    __shared__ unsigned char row[256];
    const int me = threadIdx.y * TILE + threadIdx.x;
    row[me] = static_cast<unsigned char>(me);
    __syncthreads();
    out[me] = row[255 - me];
}

// Warps 0 and 1 fill for warps 2 and 3, which wait at barrier 1; the others have nothing to do.
__device__ void hand_over(float* out, const float* in, float* row, unsigned id) {
    const int me = threadIdx.y * TILE + threadIdx.x;
    if (me < 64) {
        row[me] = in[me];  // line:hands_over
        pymm_sim::barrier_arrive(1, 128);
    } else if (me < 128) {
        pymm_sim::barrier_sync(id, id == 1 ? 128 : 64);
        out[me] = row[me - 64];  // line:is_handed
    }
}
KERNEL(named_barrier) {
    __shared__ float row[64];
    hand_over(out, in, row, 1);
}
KERNEL(other_named_barrier) {
    __shared__ float row[64];
    hand_over(out, in, row, 2);
}

// One thread arrives at an mbarrier when it has written; all wait for it, or look only.
__device__ void pass_by_mbarrier(float* out, const float* in, unsigned long long* barrier,
                                 float* word, bool waits) {
    using namespace pymm_sim::hopper;
    const int me = threadIdx.y * TILE + threadIdx.x;
    const unsigned at = address_of_shared(barrier);
    if (me == 0) mbarrier_init(at, 1);
    __syncthreads();
    if (me == 77) {
        *word = in[0];  // line:arrives
        mbarrier_arrive(at);
    }
    if (waits) mbarrier_wait(at, 0);
    else if (me != 77) return;
    out[me] = *word;
}
KERNEL(by_mbarrier) {
    extern __shared__ unsigned long long memory[];
    pass_by_mbarrier(out, in, memory, reinterpret_cast<float*>(memory + 1), true);
}
// The barrier is used while another thread still makes it.
KERNEL(mbarrier_made_too_late) {
    using namespace pymm_sim::hopper;
    extern __shared__ unsigned long long memory[];
    const int me = threadIdx.y * TILE + threadIdx.x;
    if (me == 0) mbarrier_init(address_of_shared(memory), 256);  // line:mbarrier_made_too_late
    __syncwarp();
    mbarrier_arrive(address_of_shared(memory));  // line:mbarrier_used
    __syncthreads();
    out[me] = in[me];
}

KERNEL(banks) {
    __shared__ float tile[TILE][TILE], padded[TILE][TILE + 1];
    __shared__ float4 wide[8 * 256];
    const int x = threadIdx.x, y = threadIdx.y, me = y * TILE + x;
    tile[y][x] = in[me];  // line:bank_row
    padded[y][x] = in[me];
    for (int i = 0; i < 8; i++) wide[i * 256 + me] = float4{in[0], in[1], in[2], in[3]};
    __syncthreads();
    float sum = tile[x][y];      // line:bank_column
    sum += padded[x][y];         // line:bank_padded
    sum += tile[3][5];           // line:bank_all_one
    float4 four = wide[me];      // line:bank_wide
    float4 apart = wide[8 * me]; // line:bank_wide_apart
    if (me == 0) sum += tile[1][1];  // line:bank_few
    out[me] = sum + four.x + four.y + four.z + four.w + apart.x + apart.y + apart.z + apart.w;
}
