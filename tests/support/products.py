"""Products to try an interface on: shapes that NumPy multiplies, arrays laid out in odd ways, small
integers, so that every result is exact.
"""

import numpy as np
from hypothesis import strategies as st


def integers(shape, dtype=np.float64, seed=0):
    """Small integers: every product and sum is exact, in any order and in float32 too."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


@st.composite
def laid_out(draw, shape, dtype=np.float64, seed=0):
    """An array of this shape: axes in any order in memory, lines apart, reversed, repeated."""
    shape = tuple(shape)
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    extents = [shape[axis] * abs(steps[axis]) for axis in order]
    base = integers(extents, dtype, seed).transpose(np.argsort(order))
    array = base[(*(slice(None, None, step) for step in steps), ...)]
    assert array.shape == shape
    if shape and draw(st.integers(0, 9)) == 0:
        array = np.broadcast_to(array[:1], shape)
    return array


EXTENT = st.sampled_from([0, 1, 1, 2, 3, 5, 7])


@st.composite
def products(draw):
    """Shapes that numpy.matmul multiplies, laid out."""
    m, n, k = draw(EXTENT), draw(EXTENT), draw(EXTENT)
    stack = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))
    shapes = []
    for matrix in ((m, k), (k, n)):
        if draw(st.integers(0, 5)) == 0:
            shapes.append((k,))
            continue
        own = stack[draw(st.integers(0, len(stack))) :]
        shapes.append((*(draw(st.sampled_from([1, e])) for e in own), *matrix))
    dtype = st.sampled_from([np.float32, np.float64])
    return [draw(laid_out(shape, draw(dtype), seed)) for seed, shape in enumerate(shapes)]
