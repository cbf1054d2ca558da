// 08 tma_f32: plain multiply-adds, loaded by Hopper's tensor memory accelerator.
//
// Kernel 05 waits: its warps meet at a barrier after every tile, and every thread computes where to
// fetch what. Here four warps do nothing but fetch, and no warp waits for another:
//
//     one thread  | wait: 1 empty? fetch 4  |  wait: 2 empty? fetch 5  | ...
//     every warp  | wait: 2 full? | multiply-adds of tile 2 | 2 is empty | wait: 3 full? | ...
//
// - Tiles come by TMA: no thread computes an address, checks an index or carries a number into
//   shared memory. Beyond the end of a matrix there are zeros, so that every size runs this source.
// - Both tiles are MN-major, so that fragments are read 16 bytes at a time from different banks.
//   Operands that are stored K-major are transposed before (common/repack.cuh: 1.8 % at 4096).
// - Barriers "full" and "empty" for each stage: warps drift apart, and while one waits for its
//   fragments another multiplies. Those that fetch give their registers to those that multiply.
// - The main loop is a pass of ROWS rows, not a whole tile: 17 KB of instructions for 16 x 8. With
//   35 KB the multiprocessor waits for instructions, with 69 KB it is 12 % slower.
// - Where k ends within a tile, whole passes past its end are left out (STORE 3).
// - SLICES of a tile, for small products: warps that share a tile of C take different rows of k.
// - SPLIT divides k where the tiles of the last wave are too few for all blocks.
// - STORE 2: sums go to shared memory and from there by TMA, while their warps multiply the next
//   tile. For products of little k, which wait for C to be written: k = 32 in 105 us, not 123.
//
// What limits it is the register file. It has two banks, of even and of odd registers, and each
// gives one number for a multiply-add in a clock: loops of nothing else ran at 97 % of peak where
// each read one number, at 66 % where half of them read two from one bank; the operand cache holds
// a number only for the next instruction. So sums and the elements that change with each
// instruction must sit in different banks, and the number that stays must change seldom. STRIDE is
// all that the source can do for that: of 1024 multiply-adds in 1098 instructions 4 to 6 %
// conflict.

#ifndef MB
#define MB 256  // rows of C that one block computes
#endif
#ifndef NB
#define NB 128  // columns of C that one block computes
#endif
#ifndef KB
#define KB 16  // depth of a tile
#endif
#ifndef ROWS
#define ROWS 8  // rows of a tile that one pass of the main loop multiplies
#endif
#ifndef EARLY
#define EARLY 1  // rows whose fragments are read ahead
#endif
#ifndef STRIDE
#define STRIDE 2  // the multiply-adds go through every STRIDE-th number of a fragment first
#endif
#ifndef TA
#define TA 16  // rows of C that one thread computes
#endif
#ifndef TB
#define TB 8  // columns of C that one thread computes
#endif
#ifndef SLICES
#define SLICES 1  // warps that share a thread tile's place, each with its own rows of every tile
#endif
#ifndef STAGES
#define STAGES 4  // tiles in shared memory
#endif
#ifndef BLOCKS
#define BLOCKS 1  // persistent blocks on a multiprocessor: bounds the registers of a thread
#endif
#ifndef SPLIT
#define SPLIT 1  // parts of k, for tiles that do not make up a whole wave of all blocks
#endif
#ifndef STORE
// 2: C is stored by TMA, from shared memory that is kept for it. 3: rows of C that start anywhere
// are stored by way of shared memory, one after the other.
#define STORE 1
#endif

#include "common/hopper.cuh"
#include "common/repack.cuh"

constexpr int PRODUCER_REGISTERS = 24;

#include "common/tma_f32_ring.cuh"

struct Maps {
    TensorMap a, b, c;
};
// Fetches what the block's units need.
__device__ __forceinline__ void produce(const Maps& maps, const Product& p, unsigned base,
                                        int batched_a, int batched_b) {
    Ring ring{base, base + STAGES * STAGE_BYTES, 1};
    griddepcontrol_wait();
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        const Unit unit(p, id);
        for (unsigned step = unit.begin; step < unit.end; step++, ring.advance(base)) {
            mbarrier_wait(ring.empty(), ring.parity);
            mbarrier_expect_tx(ring.full, STAGE_BYTES);
            tma_load(ring.tile, &maps.a, ring.full, unit.i0, step * KB, unit.matrix * batched_a);
            tma_load(ring.tile + A_BYTES, &maps.b, ring.full, unit.j0, step * KB,
                     unit.matrix * batched_b);
        }
    }
}

#define FULL_ARRIVALS 1  // TMA's
#define LOADING_PARAMETERS
#define PREPARE_LOADING \
    if (k > 0) prefetch_tensormap(&maps.a), prefetch_tensormap(&maps.b)
#define LOAD \
    if (threadIdx.x == WARPS * 32) produce(maps, p, base, batched_a, batched_b)

#include "common/tma_f32.cuh"
