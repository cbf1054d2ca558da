"""The order of tiles (cuda_src/common/schedule.cuh), compiled for the host: whichever part of C is
kept, its tiles are visited once each.
"""

import os
import subprocess

import pytest

from pymm.kernels.source import kernel_text

#: MB, NB, GROUP: square and oblong, one a multiple of the other or neither, groups that do not end
#: with a step of the stair, a group of a row.
TILES = [(4, 4, 2), (4, 8, 2), (8, 4, 3), (6, 4, 8), (4, 6, 8), (5, 7, 4), (16, 3, 8), (1, 9, 2)]
TILES += [(2, 2, 1), (1, 1, 8), (48, 48, 8), (128, 256, 8), (256, 160, 8)]

_CHECK = """
int check(unsigned size) {
    const unsigned down = (size + MB - 1) / MB, across = (size + NB - 1) / NB;
    const auto last = [&](unsigned tile, unsigned extent) {
        return (tile + 1) * extent < size ? (tile + 1) * extent - 1 : size - 1;
    };
    std::vector<char> seen(down * across, 1);
    unsigned wanted = 0;
    for (unsigned i = 0; i < down; i++)
        for (unsigned j = 0; j < across; j++) {
            const bool low = is_stored(last(i, MB), j * NB), high = is_stored(i * MB, last(j, NB));
            const unsigned rows = last(i, MB) - i * MB + 1, columns = last(j, NB) - j * NB + 1;
            if (any_stored(i * MB, j * NB, rows, columns) != (low || high)) return __LINE__;
            const bool all = is_stored(i * MB, last(j, NB)) && is_stored(last(i, MB), j * NB);
            if (partly_stored(i * MB, j * NB, rows, columns) == all) return __LINE__;
            seen[i * across + j] = !low && !high;
            wanted += low || high;
        }
    if (tiles_in(down, across) != wanted) return __LINE__;
    for (unsigned id = 0; id < wanted; id++) {
        unsigned i = ~0u, j = ~0u;
        tile_of(id, down, across, i, j);
        if (i >= down || j >= across || seen[i * across + j]++) return __LINE__;
        if (id_of(i, j, down, across) != id) return __LINE__;
    }
    return 0;
}
"""

_MAIN = """
int main() {
    for (unsigned size = 0; size < 40 * (MB < NB ? MB : NB); size += size < 70 ? 1 : MB + NB - 1)
        if (const int line = check(size)) return std::printf("%u: line %d\\n", size, line);
    for (unsigned i = 0; i < 9; i++)
        for (unsigned j = 0; j < 9; j++)
            if (is_stored(i, j) != (FILL == 0 || FILL == 1 && i >= j || FILL == 2 && i <= j))
                return 1;
}
"""


@pytest.mark.parametrize("fill", [0, 1, 2])
@pytest.mark.parametrize("mb, nb, group", TILES)
def test_every_tile_that_has_something_to_keep_is_visited_once(mb, nb, group, fill, tmp_path):
    compiler = os.environ.get("CXX", "g++")
    header = kernel_text("cuda", "common/schedule.cuh")
    defines = {"MB": mb, "NB": nb, "GROUP": group, "FILL": fill}
    defines |= {"__device__": "", "__forceinline__": "inline"}
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    text = f"#include <cstdio>\n#include <vector>\n{head}{header}{_CHECK}{_MAIN}"
    (tmp_path / "schedule.cpp").write_text(text)
    build = [compiler, "-O1", "-std=c++17", "-o", str(tmp_path / "schedule")]
    subprocess.run([*build, str(tmp_path / "schedule.cpp")], check=True)
    done = subprocess.run([str(tmp_path / "schedule")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
