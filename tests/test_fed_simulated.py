"""Kernels fed by TMA in the simulator: products of any size, layout, stride, start and stack; what
the twins of tensor maps, barriers and wgmma refuse.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pymm import reference
from pymm.backends.cuda.driver import Driver, DriverError
from pymm.device import Device
from pymm.fields import NUMBER, POISON, Field, normal
from pymm.kernels import parse_slug
from pymm.launch import executable
from pymm.problem import Problem
from pymm.verify import compare

pytestmark = pytest.mark.simulator

HOPPER = Device("hopper", "cuda", capability=(9, 0), sms=132, shared_per_block=232448,
                shared_per_sm=233472)  # fmt: skip

#: A configuration, its type, and the layouts that it is compiled for.
CASES = [
    ("tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1",
     "f32", ("NN", "NT", "TN", "TT")),
    ("tma_f32-MB32-NB64-KB64-ROWS2-EARLY1-STRIDE2-TA8-TB8-SLICES8-STAGES3-BLOCKS1-GROUP1-SPLIT3",
     "f32", ("NN", "TT")),
    ("tma_f64-MB64-NB64-KB32-TA32-TB32-TK16-KI4-DEPTHS2-STAGES5-BLOCKS1-GROUP4-SPLIT3",
     "f64", ("TN",)),
    ("wgmma-MB64-NB192-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "f16", ("NN",)),
    ("wgmma-MB64-NB128-KB128-TA64-TB128-STAGES3-CLUSTER1-GROUP4-SPLIT1-SLOTS3",
     "bf16_f32", ("TT",)),
    ("wgmma_tf32-MB64-NB128-KB32-TA64-TB128-STAGES4-CLUSTER1-GROUP8-SPLIT1", "tf32", ("TT",)),
    ("wgmma_tf32-MB64-NB128-KB32-TA32-TB64-STAGES2-CLUSTER1-GROUP8-SPLIT3", "tf32", ("NN",)),
    ("wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1",
     "tf32x3", ("NN", "TN")),
]  # fmt: skip


class Placed:
    """A stack of matrices in a field with further columns before and after: it starts anywhere."""

    def __init__(self, backend, values: np.ndarray, before: int, gap: int, around: int) -> None:
        batch, rows, columns = values.shape
        self.before, self.around = before, around
        self.field = Field(backend, values.dtype, (batch, rows, columns + before), gap, around)
        image = np.full((batch, rows, (columns + before) * values.itemsize), around, np.uint8)
        whole = image.view(values.dtype)
        whole[..., before:] = values
        self.field.write(whole)
        address = self.field.matrix.address + before * values.itemsize
        self.matrix = replace(self.field.matrix, address=address)

    def read(self) -> tuple[np.ndarray, str]:
        """The elements, and what was written beside them."""
        values, touched = self.field.read()
        outside = np.ascontiguousarray(values[..., : self.before]).view(np.uint8)
        if (outside != self.around).any():
            touched += " before its rows"
        return values[..., self.before :], touched


def hurting(seed: int, dtype: str, layouts: tuple[str, ...]) -> Problem:
    """A small problem that leaves parts of tiles, of every kind."""
    draw = random.Random(f"{seed}{dtype}")
    edges = (1, 2, 7, 63, 64, 65, 16 * draw.randint(1, 8), draw.randint(1, 200))
    m, n = draw.choice(edges), draw.choice(edges)
    k = draw.choice((0, 1, 8, 31, 33, 64, 128, draw.randint(1, 300)))
    layout = draw.choice(layouts)
    return Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", draw.choice((1, 1, 2, 5)))


@pytest.mark.parametrize("slug, dtype, layouts", CASES, ids=[case[0] for case in CASES])
def test_any_size_layout_stride_start_and_stack(cuda, slug, dtype, layouts):
    config = parse_slug(slug)
    for seed in range(16):
        draw, problem = random.Random(seed), hurting(seed, dtype, layouts)
        if config.kernel.violations(config, problem, HOPPER):
            problem = replace(problem, k=config.SPLIT * config.KB + seed)
        assert not config.kernel.violations(config, problem, HOPPER)
        alpha, beta = draw.choice(((1.0, 0.0), (-1.25, 0.75), (0.5, 1.0)))
        values = list(normal(problem, seed))
        placed, where = [], []
        for x, around in zip(values, (POISON, POISON, NUMBER), strict=True):
            before, width = draw.choice((0, 0, 1, 4)), x.shape[2]
            where.append((before, draw.choice((0, 3, 8, -(before + width) % 8))))
            placed.append(Placed(cuda, x, *where[-1], around))
        a, b, c = (one.matrix for one in placed)
        if problem.batch > 1 and draw.random() < 0.5:
            b, values[1] = replace(b, batch_stride=0), values[1][:1].repeat(problem.batch, axis=0)
        executable(cuda, config, problem).bind(problem, alpha, a, b, beta, c)()
        cuda.synchronize()
        got, touched = placed[2].read()
        judged = (problem, *values, alpha, beta)
        finding = compare(got, reference.product(*judged), reference.error_bound(*judged))
        assert not touched and finding.right, (problem.slug, where, touched, finding.detail)


#: kind, address, extents, strides, box, swizzle of a map that the driver makes: 7 is float32.
GOOD = (7, 4096, (64, 5, 2), (256, 1280), (32, 16, 1), 128)


@pytest.mark.parametrize(
    "place, value",
    [
        (0, 13),  # no such type
        (1, 4100),  # no multiple of 16
        (2, (64, 0, 2)),  # nothing to map
        (3, (252, 1280)),  # rows at no multiple of 16
        (4, (32, 257, 1)),  # more than 256 rows
        (4, (3, 16, 1)),  # 12 bytes
        (4, (64, 16, 1)),  # a row longer than its swizzle
    ],
)
def test_tensor_maps_have_the_driver_s_limits(cuda, place, value):
    driver = Driver()
    assert len(driver.tensor_map(*GOOD)) == 128
    with pytest.raises(DriverError, match="invalid"):
        driver.tensor_map(*GOOD[:place], value, *GOOD[place + 1 :])
