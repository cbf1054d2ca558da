"""Rows of C that start anywhere, stored from shared memory 8 bytes at a time
(cuda_src/common/unaligned_rows.cuh): every element, and nothing beside them.
"""

# ruff: noqa: F811  (a fixture is imported by its name)

from __future__ import annotations

import itertools

import numpy as np
import pytest
from simulator_fixtures import drv  # noqa: F401

from pymm.kernels.source import kernel_text

pytestmark = pytest.mark.simulator

#: One warp, whose rows in shared memory are 16 bytes longer than they need to be.
KERNEL = """
using T = %s;
constexpr int ROWS = %d, COLUMNS = %d, MOST = %d, PITCH = (COLUMNS * sizeof(T) + 23) / 8 * 8;

struct Staged {
    const unsigned char* rows;
    __device__ unsigned place(unsigned row, unsigned i) const { return row * PITCH + i * 8; }
    __device__ const unsigned char* word(unsigned place, int r) const {
        return rows + place + r * PITCH;
    }
};

extern "C" __global__ void store(const T* from, T* C, long long ld, unsigned rows,
                                 unsigned columns) {
    __shared__ __align__(16) unsigned char staged[ROWS * PITCH];
    for (int e = threadIdx.x; e < ROWS * COLUMNS; e += 32)
        reinterpret_cast<T*>(staged + e / COLUMNS * PITCH)[e %% COLUMNS] = from[e];
    __syncwarp();
    store_unaligned_rows<ROWS, COLUMNS, MOST>(C, ld, rows, columns, Staged{staged});
}
"""

#: Rows and columns of a warp, the type and its bytes, and words that a lane reads ahead.
FORMS = (
    (16, 128, "unsigned short", 2, 4),
    (16, 64, "unsigned short", 2, 4),
    (16, 64, "unsigned short", 2, 2),
    (8, 128, "unsigned short", 2, 4),
    (8, 32, "unsigned short", 2, 4),
    (16, 64, "float", 4, 2),
    (16, 32, "float", 4, 4),
    (16, 16, "float", 4, 4),
    (8, 64, "float", 4, 4),
    (4, 64, "float", 4, 4),
)


@pytest.fixture(scope="module")
def load(drv):
    from pycuda.compiler import SourceModule

    def load(rows: int, columns: int, name: str, ahead: int):
        text = kernel_text("cuda", "common/unaligned_rows.cuh") + KERNEL % (
            name,
            rows,
            columns,
            ahead,
        )
        return SourceModule(text, no_extern_c=True, arch="sm_90").get_function("store")

    return load


@pytest.mark.parametrize("most_rows, most_columns, name, size, ahead", FORMS)
def test_every_element_is_stored(drv, load, most_rows, most_columns, name, size, ahead):
    store, dtype = load(most_rows, most_columns, name, ahead), np.dtype(f"u{size}")
    source = np.arange(1, most_rows * most_columns + 1, dtype=dtype).reshape(most_rows, -1)
    given = drv.to_device(source)
    each = 8 // size
    columns = {0, 1, 2, 3, each, each + 1, most_columns - 1, most_columns, most_columns + 5}
    rows = {0, 1, 2, most_rows - 1, most_rows, most_rows + 3}
    gaps = range(each + 1)
    draw = np.random.default_rng(most_columns)
    for gap, m, n in itertools.product(gaps, sorted(rows), sorted(columns)):
        start, ld = each * 2 + int(draw.integers(0, each)), n + gap
        memory = np.zeros(start + (m + 2) * ld + 2 * each, dtype)
        target = drv.to_device(memory)
        first = np.intp(int(target) + start * size)
        store(given, first, np.int64(ld), np.uint32(m), np.uint32(n), block=(32, 1, 1))
        drv.memcpy_dtoh(found := np.empty_like(memory), target)
        stored = source[:m, :n]
        expected = memory.copy()
        for y, row in enumerate(stored):
            expected[start + y * ld :][: row.size] = row
        np.testing.assert_array_equal(found, expected, f"{m} x {n}, ld {ld}, start {start}")
