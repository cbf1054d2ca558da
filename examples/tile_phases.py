"""P = M N by tiles, phase by phase: which element each thread brings to shared memory, and its sum
so far. The kernel itself writes that down.

python examples/tile_phases.py [--width 4] [--tile 2]      (a GPU)
python -m pymm.simulator examples/tile_phases.py           (none)
"""

import argparse

import numpy as np
import pycuda.autoprimaryctx  # noqa: F401  (makes the device ready)
import pycuda.driver as cuda
from pycuda.compiler import SourceModule

SOURCE = """
extern "C" __global__ void product(int width, const int* M, const int* N, int* P, int* brought,
                                   int* sums) {
    __shared__ int Mds[TILE][TILE], Nds[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x, sum = 0;
    int phases = (width + TILE - 1) / TILE;
    int block = blockIdx.y * gridDim.x + blockIdx.x, thread = y * TILE + x;
    for (int phase = 0; phase < phases; phase++) {
        int i = phase * TILE + x, j = phase * TILE + y;
        bool of_m = row < width && i < width, of_n = j < width && column < width;
        Mds[y][x] = of_m ? M[row * width + i] : 0;
        Nds[y][x] = of_n ? N[j * width + column] : 0;
        __syncthreads();  // both tiles are complete
        for (int p = 0; p < TILE; p++) sum += Mds[y][p] * Nds[p][x];
        __syncthreads();  // nobody needs them any more

        int at = (block * phases + phase) * TILE * TILE + thread;
        brought[2 * at] = of_m ? row * width + i : -1;
        brought[2 * at + 1] = of_n ? j * width + column : -1;
        sums[at] = sum;
    }
    if (row < width && column < width) P[row * width + column] = sum;
}
"""

options = argparse.ArgumentParser()
options.add_argument("--width", type=int, default=4, help="rows and columns (default: 4)")
options.add_argument("--tile", type=int, default=2, help="of a tile and a block (default: 2)")
given = options.parse_args()
if not (1 <= given.tile <= 8 and 1 <= given.width <= 64):
    options.error("--tile is from 1 to 8 and --width from 1 to 64: the tables are to be read")
width, tile = given.width, given.tile
blocks = -(-width // tile)

random = np.random.default_rng(1)
M, N = random.integers(0, 10, (2, width, width), dtype=np.int32)
P = np.empty_like(M)
brought = np.empty((blocks * blocks, blocks, tile, tile, 2), np.int32)
sums = np.empty((blocks * blocks, blocks, tile, tile), np.int32)

kernel = SourceModule(f"#define TILE {tile}\n{SOURCE}", no_extern_c=True).get_function("product")
arrays = [cuda.In(M), cuda.In(N), cuda.Out(P), cuda.Out(brought), cuda.Out(sums)]
kernel(np.int32(width), *arrays, block=(tile, tile, 1), grid=(blocks, blocks))


def element(matrix: str, index: int) -> str:
    """An element's name, or the zero that stands for one outside of the matrix."""
    return "0" if index < 0 else f"{matrix}[{index // width},{index % width}]"


print(f"block (0, 0), {tile} x {tile} threads; each row one thread, (y, x)")
heads = [f"phase {phase}: Mds, Nds, sum".ljust(27) for phase in range(blocks)]
print("thread  " + "".join(heads))
for y, x in np.ndindex(tile, tile):
    cells = [
        f"{element('M', m)}, {element('N', n)}, {sums[0, phase, y, x]}".ljust(27)
        for phase, (m, n) in enumerate(brought[0, :, y, x])
    ]
    print(f"({y}, {x})  " + "".join(cells))
each = int((brought[..., 0] >= 0).sum()) / (width * width)
print(f"each element of M is read {each:g} times from global memory; without tiles {width} times")
print(f"P is M N: {np.array_equal(P, M @ N)}")
