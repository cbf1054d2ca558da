// 09 tma_f64: rung 06 fed by TMA. One warp fetches, the others multiply, blocks stay.
//
// The tiles of rung 06 come by the tensor memory accelerator into a ring, as in rung 07; fragments
// are read and multiplied as in rung 06. What this rung adds:
//
// - No thread that multiplies computes an address in device memory, checks an index or waits for
//   the whole block: a warp waits for a tile ("full"), reads it, and says so ("empty").
// - Blocks go from tile to tile without draining the ring: the first fragments of a tile are read
//   before the tile before it is stored, and with two blocks on a multiprocessor one multiplies
//   while the other stores. That is what k = 32 needs, where storing takes longer than multiplying.
// - TMA swizzles what it brings, 128 bytes at a time, and cannot pad. Which row of a tile a lane
//   takes is free as long as C is stored accordingly: `Side` permutes groups of 16 so that 16 lanes
//   read from 16 different pairs of banks, whichever way the tile lies.
// - TK < KB: several warps share a tile of C, each with its part of every step, and add up at the
//   end. For tiles so small that one warp each would leave tensor cores waiting.
// - A warp whose tile lies outside the matrix only passes the ring on.

#ifndef TRANS_A
#define TRANS_A 0  // 1: A is stored as k x m, so op(A) = A^T
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B is stored as n x k, so op(B) = B^T
#endif
#ifndef REAL
#define REAL double
#endif
#ifndef MB
#define MB 128  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // depth of a tile
#endif
#ifndef TA
#define TA 64  // rows of C that one warp computes
#endif
#ifndef TB
#define TB 32  // columns of C that one warp computes
#endif
#ifndef TK
#define TK 16  // depth of a tile that one warp takes
#endif
#ifndef KI
#define KI 8  // depth of one mma: 4, 8 or 16
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 1  // blocks that one multiprocessor is to hold
#endif
#ifndef SPLIT
#define SPLIT 1  // parts of k that different blocks compute
#endif
#ifndef DEPTHS
#define DEPTHS 2  // 2: fragments are read while others are multiplied, 1: warps take turns
#endif

#ifndef SUM
#define SUM double
#endif
#ifndef OUT
#define OUT double
#endif

#include "common/combine.cuh"
#include "common/hopper.cuh"
#include "common/ptx.cuh"
#include "common/repack.cuh"
#include "common/schedule.cuh"

constexpr int WARPS_N = NB / TB, WARPS_MN = MB / TA * WARPS_N, WARPS = WARPS_MN * (KB / TK);
constexpr int GROUPS = WARPS / 4, THREADS = 128 * (GROUPS + 1);
constexpr int ROWS = TA / 16, COLUMNS = TB / 8;  // mma of a warp along m and n
constexpr int LINE = 16;                         // doubles in the 128 bytes of a swizzle
constexpr int A_BYTES = MB * KB * 8, STAGE_BYTES = A_BYTES + NB * KB * 8;
constexpr int SHARED_BYTES = (KB / TK - 1) * MB * NB * 8;  // sums of warps that share a tile
// Registers of a thread: sums, the fragments of two depths, and the rest. Where the block is launched
// with fewer, the warpgroup that fetches leaves all but FEW of its own to those that multiply.
constexpr int NUMBERS = 2 * (TA * TB / 32 + (TA + TB) * KI / 32 * DEPTHS);
constexpr int EACH = 65536 / BLOCKS / THREADS / 8 * 8, LAUNCHED = EACH < 248 ? EACH : 248;
constexpr bool MOVED = NUMBERS + 48 > LAUNCHED;
constexpr int most(int few) { return ((GROUPS + 1) * LAUNCHED - few) / GROUPS / 8 * 8; }
constexpr bool TIGHT = most(40) < NUMBERS + 40;
constexpr int FEW = most(40) < NUMBERS + 40 ? 24 : 40, MANY = most(FEW) < 248 ? most(FEW) : 248;

static_assert(MB % TA == 0 && NB % TB == 0 && TA % 16 == 0 && TB % 16 == 0 && WARPS % 4 == 0,
              "warps tile the block evenly, in pieces of 16 x 16, and are a multiple of 4");
static_assert(KB % TK == 0 && TK % 16 == 0 && TK % (DEPTHS * KI) == 0,
              "KI is the depth of an instruction, 4, 8 or 16; 16 and DEPTHS * KI divide TK, TK KB");
static_assert(DEPTHS == 1 || DEPTHS == 2, "DEPTHS is 1 or 2");
static_assert(STAGES >= 2, "a tile is fetched while another is used: STAGES >= 2");
static_assert(MB <= 256 && NB <= 256 && KB <= 256,
              "a box has at most 256 lines: MB, NB, KB <= 256");

struct Maps {
    TensorMap a, b, c;
};
struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
struct Unit {
    unsigned i0, j0, begin, end, matrix, part;
};
struct Product {
    unsigned batch, steps, tiles_m, tiles_n;
    __device__ __forceinline__ unsigned units() const { return tiles_m * tiles_n * SPLIT * batch; }
    __device__ __forceinline__ Unit unit(unsigned u) const {
        const unsigned tiles = tiles_m * tiles_n, rest = u / tiles, part = rest % SPLIT;
        unsigned tile_m, tile_n;
        tile_of(u % tiles, tiles_m, tiles_n, tile_m, tile_n);
        const unsigned begin = static_cast<unsigned long long>(steps) * part / SPLIT;
        const unsigned end = static_cast<unsigned long long>(steps) * (part + 1) / SPLIT;
        return {tile_m * MB, tile_n * NB, begin, end, rest / SPLIT, part};
    }
};

// A tile of OUTER x KB numbers of op(A) (or of op(B)^T) in shared memory, swizzled: piece c of 16
// bytes of line l lies at c ^ l % 8. ALONG_K: lines are 16 numbers of a row, KB / 16 times OUTER of
// them; else 16 numbers of a column, OUTER / 16 times KB.
//
// Number g of a fragment's 8 rows, in half h of a group of 16, is row `row(g) + h * HALF`. A lane
// 4 g + t reads depth q * 4 + t; of 16 lanes g takes 4 values of the same half of 8. ALONG_K: those 4
// rows differ in bits 1 and 2, which move pieces of 16 bytes by pairs. Else: 4 lines move pieces
// within fours, so rows must differ in bit 0 (within a piece) and in bit 3 (between fours).
template <bool ALONG_K, int OUTER>
struct Side {
    static constexpr int HALF = ALONG_K ? 1 : 4;
    static __device__ __forceinline__ unsigned row(unsigned g) {
        if (ALONG_K) return g % 2 == 0 ? g : 8 + (g - 1 ^ 4);
        return g % 2 + g / 2 % 2 * 8 + g / 4 * 2;
    }
    // Where a lane's first number lies in the part of the tile from row `first` and depth `deep` on.
    static __device__ __forceinline__ unsigned base(unsigned first, unsigned deep, unsigned lane) {
        const unsigned r = row(lane / 4), t = lane % 4;
        if (ALONG_K)
            return deep / LINE * OUTER * 128 + (first + r) * 128 + ((t / 2 ^ r % 8) << 4) + t % 2 * 8;
        return (first / LINE * KB + deep + t) * 128 + ((r / 2 ^ t) << 4) + r % 2 * 8;
    }
    // From there to group i, half h and depth 4 q.
    static __device__ __forceinline__ unsigned at(unsigned base, int i, int h, int q) {
        if (ALONG_K)
            return (base ^ (q % 4 * 32 | h * 144)) + q / 4 * OUTER * 128 + i * LINE * 128;
        return (base ^ (q % 2 * 64 | h * 32)) + q * 512 + i * KB * 128;
    }
    static __device__ __forceinline__ void fetch(unsigned tile, const TensorMap* map, unsigned full,
                                                 unsigned outer, unsigned k0, unsigned matrix) {
        if (ALONG_K) {
#pragma unroll
            for (int x = 0; x < KB / LINE; x++)
                fetch_box(tile + x * OUTER * 128, map, full, k0 + x * LINE, outer, matrix);
        } else {
#pragma unroll
            for (int i = 0; i < OUTER / LINE; i++)
                fetch_box(tile + i * KB * 128, map, full, outer + i * LINE, k0, matrix);
        }
    }
};
using SideA = Side<!TRANS_A, MB>;
using SideB = Side<TRANS_B, NB>;

__device__ __forceinline__ double load_shared(unsigned address) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address));
    return x;
}
__device__ __forceinline__ double2 load_shared_2(unsigned address) {
    double2 x;
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(x.x), "=d"(x.y) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ void store_shared_2(unsigned address, double x, double y) {
    asm volatile("st.shared.v2.f64 [%0], {%1, %2};" ::"r"(address), "d"(x), "d"(y) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// What a lane holds of KI columns of the warp's rows of A and of KI rows of its columns of B.
struct Fragments {
    double a[ROWS][KI / 2], b[COLUMNS][KI / 4];

    __device__ __forceinline__ void read(unsigned from_a, unsigned from_b, int p) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int x = 0; x < KI / 4; x++)
                b[j][x] = load_shared(SideB::at(from_b, j / 2, j % 2, p / 4 + x));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int x = 0; x < KI / 2; x++)
                a[i][x] = load_shared(SideA::at(from_a, i, x % 2, p / 4 + x / 2));
    }
};
__device__ __forceinline__ void multiply(double (&sum)[ROWS * COLUMNS][4], const Fragments& f) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) mma<KI>(sum[i * COLUMNS + j], f.a[i], f.b[j]);
}

__device__ __forceinline__ void produce(const Maps& maps, const Product& p, unsigned base,
                                        unsigned full, unsigned empty, int stack_a, int stack_b) {
    Ring ring{0, 1};
    for (unsigned u = blockIdx.x; u < p.units(); u += gridDim.x) {
        const Unit unit = p.unit(u);
#pragma unroll 1
        for (unsigned step = unit.begin; step < unit.end; step++, ring.advance()) {
            const unsigned tile = base + ring.stage * STAGE_BYTES, filled = full + 8 * ring.stage;
            barrier_wait(empty + 8 * ring.stage, ring.parity);
            barrier_expect(filled, STAGE_BYTES);
            SideA::fetch(tile, &maps.a, filled, unit.i0, step * KB, unit.matrix * stack_a);
            SideB::fetch(tile + A_BYTES, &maps.b, filled, unit.j0, step * KB, unit.matrix * stack_b);
        }
    }
}

struct Result {
    double *C, *parts;
    long long ld, batch;
    unsigned m, n, matrices;
    double alpha, beta;
    bool boxed;

    // Two neighbouring numbers of a warp's tile: in group i and half h of the rows, group j of the
    // columns; u counts the pairs of a lane there.
    static __device__ __forceinline__ unsigned row(unsigned lane, int i, int h) {
        return i * 16 + SideA::row(lane / 4) + h * SideA::HALF;
    }
    static __device__ __forceinline__ unsigned column(unsigned lane, int j, int u) {
        if (TRANS_B) return j * 16 + SideB::row(lane % 4 * 2 + u);
        return j * 16 + SideB::row(lane % 4 * 2) + u * SideB::HALF;
    }
    static __device__ __forceinline__ double2 pair(const double (&sum)[ROWS * COLUMNS][4], int i,
                                                   int h, int j, int u) {
        const int s = i * COLUMNS + j * 2;
        if (TRANS_B) return {sum[s][2 * h + u], sum[s + 1][2 * h + u]};
        return {sum[s + u][2 * h], sum[s + u][2 * h + 1]};
    }
    // Runs `use(row, line, column, two)` of every pair of a lane: `line` is where the row begins.
    template <class Use>
    static __device__ __forceinline__ void each(const double (&sum)[ROWS * COLUMNS][4],
                                                double* first, long long pitch, unsigned lane,
                                                Use use) {
        double* line = first + SideA::row(lane / 4) * pitch;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int j = 0; j < COLUMNS / 2; j++)
#pragma unroll
                    for (int u = 0; u < 2; u++)
                        use(row(lane, i, h), line, column(lane, j, u), pair(sum, i, h, j, u));
                line += (h == 0 ? SideA::HALF : 16 - SideA::HALF) * pitch;
                asm volatile("" : "+l"(line));  // one after the other: 16 at once do not fit
            }
    }

    __device__ __forceinline__ void store_part(const double (&sum)[ROWS * COLUMNS][4], unsigned i0,
                                               unsigned j0, unsigned matrix, unsigned part,
                                               unsigned lane) const {
        const unsigned pitch = (n + 3) / 4 * 4;
        double* const to = parts + ((static_cast<size_t>(part) * matrices + matrix) * m + i0) * pitch;
        each(sum, to, pitch, lane, [&](unsigned row, double* line, unsigned column, double2 x) {
            if (i0 + row < m && j0 + column < n)
                *reinterpret_cast<double2*>(line + j0 + column) = x;
        });
    }
    __device__ __forceinline__ void store(double (&sum)[ROWS * COLUMNS][4], unsigned i0,
                                          unsigned j0, unsigned matrix,
                                          unsigned lane) const {
#pragma unroll
        for (int s = 0; s < ROWS * COLUMNS * 4; s++) sum[s / 4][s % 4] *= alpha;
        double* const to = C + matrix * batch + i0 * ld + j0;
        if (boxed && beta == 0.0 && i0 + TA <= m && j0 + TB <= n) {
            each(sum, to, ld, lane, [&](unsigned, double* line, unsigned column, double2 x) {
                *reinterpret_cast<double2*>(line + column) = x;
            });
        } else {
            each(sum, to, ld, lane, [&](unsigned row, double* line, unsigned column, double2 x) {
                const bool one = i0 + row < m && j0 + column < n, two = one && j0 + column + 1 < n;
                double* const c = line + column;
                if (beta != 0.0) {
                    if (one) x.x += beta * c[0];
                    if (two) x.y += beta * c[1];
                }
                if (one) c[0] = x.x;
                if (two) c[1] = x.y;
            });
        }
    }
};

__device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
}
// Sums of the warps that share a tile go to the first of them.
__device__ __forceinline__ void share(double (&sum)[ROWS * COLUMNS][4], unsigned scratch,
                                      unsigned thread) {
    const unsigned lane = thread % 32, part = thread / 32 / WARPS_MN, tile = thread / 32 % WARPS_MN;
    consumers_sync();
    if (part > 0) {
#pragma unroll
        for (int s = 0; s < ROWS * COLUMNS * 2; s++)
            store_shared_2(scratch + ((part - 1) * WARPS_MN + tile) * TA * TB * 8 + (s * 32 + lane) * 16,
                           sum[s / 2][s % 2 * 2], sum[s / 2][s % 2 * 2 + 1]);
    }
    consumers_sync();
    if (part > 0) return;
#pragma unroll
    for (int other = 0; other < KB / TK - 1; other++)
#pragma unroll
        for (int s = 0; s < ROWS * COLUMNS * 2; s++) {
            const double2 x = load_shared_2(scratch + (other * WARPS_MN + tile) * TA * TB * 8 +
                                            (s * 32 + lane) * 16);
            sum[s / 2][s % 2 * 2] += x.x, sum[s / 2][s % 2 * 2 + 1] += x.y;
        }
}

__device__ __forceinline__ void consume(const Product& p, const Result& result, unsigned base,
                                        unsigned scratch, unsigned full, unsigned empty,
                                        unsigned warp) {
    const unsigned lane = threadIdx.x % 32, tile = warp % WARPS_MN;
    const unsigned y = tile / WARPS_N * TA, x = tile % WARPS_N * TB, deep = warp / WARPS_MN * TK;
    unsigned base_a = base + SideA::base(y, deep, lane);
    unsigned base_b = base + A_BYTES + SideB::base(x, deep, lane);
    asm volatile("" : "+r"(base_a), "+r"(base_b));  // kept: not computed anew in each step
    const unsigned units = p.units();
    Ring ring;
#pragma unroll 1
    for (unsigned u = blockIdx.x; u < units; u += gridDim.x) {
        Unit unit = p.unit(u);
        unsigned left = unit.end - unit.begin;
        if (unit.i0 + y >= result.m || unit.j0 + x >= result.n) {  // nothing to do for this warp
            for (; left > 0; left--, ring.advance()) {
                barrier_wait(full + 8 * ring.stage, ring.parity);
                if (lane == 0) arrive(empty + 8 * ring.stage);
            }
            if (KB > TK) consumers_sync(), consumers_sync();
            continue;
        }
        double sum[ROWS * COLUMNS][4] = {};
        Fragments now, next;
        unsigned here = ring.stage * STAGE_BYTES;
        if (DEPTHS == 1) {
#pragma unroll 1
            for (; left > 0; left--) {
                barrier_wait(full + 8 * ring.stage, ring.parity);
                here = ring.stage * STAGE_BYTES;
#pragma unroll
                for (int d = 0; d < TK; d += KI) {
                    now.read(base_a + here, base_b + here, d);
                    if (d + KI == TK) {
                        __syncwarp();
                        if (lane == 0) arrive(empty + 8 * ring.stage);
                    }
                    multiply(sum, now);
                }
                ring.advance();
            }
        } else {
        if (left > 0) {
                barrier_wait(full + 8 * ring.stage, ring.parity);
                now.read(base_a + here, base_b + here, 0);
            }
#pragma unroll 1
            for (; left > 0; left--) {
#pragma unroll
                for (int d = 0; d < TK; d += 2 * KI) {
                    next.read(base_a + here, base_b + here, d + KI);
                    multiply(sum, now);
                    const unsigned leaving = empty + 8 * ring.stage;
                    if (d + 2 * KI == TK) {
                        ring.advance();
                        if (left > 1) {  // else the beginning of this tile is read again, for nothing
                            here = ring.stage * STAGE_BYTES;
                            barrier_wait(full + 8 * ring.stage, ring.parity);
                        }
                    }
                    now.read(base_a + here, base_b + here, (d + 2 * KI) % TK);
                    if (d + 2 * KI == TK) {
                        __syncwarp();
                        if (lane == 0) arrive(leaving);
                    }
                    multiply(sum, next);
                }
            }
        }
        // Where the sums go is computed anew: kept, it would take registers from the loop.
        asm volatile("" : "+r"(u));
        unsigned thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        unit = p.unit(u);
        if (KB > TK) {
            share(sum, scratch, thread);
            if (thread >= WARPS_MN * 32) continue;
        }
        const unsigned w = thread / 32, i0 = unit.i0 + w / WARPS_N * TA, j0 = unit.j0 + w % WARPS_N * TB;
        if (SPLIT > 1)
            result.store_part(sum, i0, j0, unit.matrix, unit.part, thread % 32);
        else
            result.store(sum, i0, j0, unit.matrix, thread % 32);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, double alpha,
         double beta, int stack_a, int stack_b, int boxed, double* C, long long ldc,
         long long batch_c, double* parts) {
    extern __shared__ __align__(1024) unsigned char shared[];  // the swizzle counts from there
    const unsigned base = address_of_shared(shared);
    const unsigned scratch = base + STAGES * STAGE_BYTES;
    const unsigned full = scratch + SHARED_BYTES, empty = full + 8 * STAGES;
    const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        if (k > 0) prefetch(&maps.a), prefetch(&maps.b);
        for (int s = 0; s < STAGES; s++) {
            barrier_make(full + 8 * s, 1);
            barrier_make(empty + 8 * s, WARPS);
        }
        barriers_made();
    }
    __syncthreads();
    const Product p{unsigned(batch), (k + KB - 1u) / KB, (m + MB - 1u) / MB, (n + NB - 1u) / NB};
    if (warp >= WARPS) {
        if (MOVED) leave_registers<FEW>();
        if (!TIGHT) asm volatile("" : "+r"(m), "+r"(n), "+r"(k));
        if (threadIdx.x == WARPS * 32)
            produce(maps,
                    {unsigned(batch), (k + KB - 1u) / KB, (m + MB - 1u) / MB, (n + NB - 1u) / NB},
                    base, full, empty, stack_a, stack_b);
    } else {
        if (MOVED) take_registers<MANY>();
        consume(p,
                {C, parts, ldc, batch_c, unsigned(m), unsigned(n), unsigned(batch), alpha,
                 beta, boxed != 0},
                base, scratch, full, empty, warp);
    }
}
