// Float32 in plain multiply-adds: the geometry of a block, and its ring of stages. Four warps bring
// MN-major tiles into shared memory, the others multiply.
//
// The kernel defines the parameters that cuda_src/08_tma_f32.cu explains, and PRODUCER_REGISTERS of
// a thread that brings tiles.

#include "common/hopper.cuh"
#include "common/last_wave_schedule.cuh"
#include "common/combine.cuh"

constexpr int VECTOR = 4;                              // floats that are read and stored at a time
constexpr int LANES = 4, LANES_N = 8;                  // threads of a warp along m and along n
constexpr int HIGH = TA * LANES, WIDE = TB * LANES_N;  // of a warp's tile of C
constexpr int WARPS_N = NB / (TB * LANES_N), WARPS_MN = MB / (TA * LANES) * WARPS_N;
constexpr int WARPS = WARPS_MN * SLICES, SLICE_ROWS = KB / SLICES;  // rows of a tile for one warp
constexpr int THREADS = 32 * WARPS + 128;
// Registers of a thread: of those that fetch, and of those that multiply. All together they must
// not pass what the blocks are launched with, or they wait for ever.
constexpr int LAUNCHED = 65536 / (BLOCKS * THREADS) / 8 * 8;
constexpr int ROOM =
    ((WARPS + 4) * (LAUNCHED < 255 ? LAUNCHED : 248) - 4 * PRODUCER_REGISTERS) / WARPS / 8 * 8;
constexpr int CONSUMER_REGISTERS = ROOM < 255 ? ROOM : 248;
constexpr int A_BYTES = KB * MB * 4, STAGE_BYTES = A_BYTES + KB * NB * 4;
constexpr int RING_BYTES = (STAGES * (STAGE_BYTES + 16) + 127) / 128 * 128;  // and its barriers
constexpr int SCRATCH_BYTES = (SLICES - 1) * MB * NB * 4;  // sums of all slices but the first
static_assert(MB % (TA * LANES) == 0 && NB % (TB * LANES_N) == 0,
              "warps of 4 x 8 threads tile the block evenly: 4 TA divides MB and 8 TB divides NB");
static_assert(TA % VECTOR == 0 && TB % VECTOR == 0, "fragments are made of 16-byte vectors");
static_assert(MB <= 256 && NB <= 256 && KB <= 256, "a tile is one box: MB, NB, KB <= 256");
static_assert((EARLY == 1 || EARLY == 2) && ROWS % (2 * EARLY) == 0 && KB % (ROWS * SLICES) == 0,
              "passes are whole: EARLY is 1 or 2, 2 EARLY divides ROWS, ROWS * SLICES divides KB");
static_assert(STRIDE == 1 || STRIDE == 2 || STRIDE == 4, "STRIDE is 1, 2 or 4");
static_assert(STORE == 1 || STORE == 3 || (STORE == 2 && TB * LANES_N <= 256),
              "C is stored from registers (STORE 1), by TMA (2: 256 columns at most), by rows (3)");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(WARPS % 4 == 0, "registers change hands between warpgroups: 4 warps or a multiple");
static_assert(TA * TB + (EARLY + 1) * (TA + TB) + (SLICES > 1 ? 32 : 16) <= CONSUMER_REGISTERS,
              "sums, fragments and 16 more, 32 with SLICES, fit in the registers of a thread");

#include "common/simt_epilogue.cuh"
#include "common/outer_product.cuh"

// Where the ring stands: the stage's first byte, its barrier "full", the parity of its phase; the
// barrier "empty" of the stage before, as long as a warp has not given that back.
struct Ring {
    unsigned tile, full, parity, to_release = 0;
    __device__ __forceinline__ unsigned empty() const { return full + 8 * STAGES; }
    __device__ __forceinline__ void advance(unsigned base) {
        tile += STAGE_BYTES;
        full += 8;
        if (tile != base + STAGES * STAGE_BYTES) return;
        tile -= STAGES * STAGE_BYTES;
        full -= 8 * STAGES;
        parity ^= 1;
    }
    __device__ __forceinline__ void release_stage() {
        if (to_release == 0) return;
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(to_release);
        to_release = 0;
    }
};
