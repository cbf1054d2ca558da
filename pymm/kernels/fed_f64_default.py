"""What kernel 9 runs where nothing is tuned: the form that a few measured times expect most of."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.device import Device
from pymm.kernels.declaration import Kernel
from pymm.kernels.split import tiles_in
from pymm.problem import Problem


def form(mb: int, nb: int, ta: int, tb: int, stages: int, **more: int) -> dict[str, int]:
    """Parameters of a block; all of k at once and one block on a multiprocessor unless said."""
    given = dict(MB=mb, NB=nb, KB=16, TA=ta, TB=tb, TK=16, KI=8, DEPTHS=2, STAGES=stages)
    return given | dict(BLOCKS=1, GROUP=8, SPLIT=1) | more


#: Forms and their multiply-adds in a clock of a multiprocessor, of 128 (one H200:
#: benchmarks/LOG.md).
FORMS = (
    (form(128, 128, 64, 32, 6), 125),
    (form(128, 128, 64, 32, 6, KI=16, DEPTHS=1), 125.5),  # for shallow products
    (form(128, 128, 64, 32, 3, KB=32, TK=32, DEPTHS=1), 124),  # leaves registers
    (form(128, 64, 32, 16, 2, KB=64, TK=64, KI=16, DEPTHS=1), 125),  # for deep ones
    (form(64, 128, 32, 32, 8), 123),
    (form(128, 64, 32, 32, 4, KB=32, TK=32, KI=16), 122.5),
    (form(128, 64, 32, 32, 4, KB=32, TK=32, KI=16, DEPTHS=1), 123),
    (form(64, 64, 32, 32, 6, BLOCKS=2), 109),
    (form(64, 64, 32, 32, 4, DEPTHS=1, BLOCKS=3), 113),
    (form(32, 128, 32, 32, 4, DEPTHS=1, BLOCKS=2), 110),
    (form(128, 32, 32, 32, 3, DEPTHS=1, BLOCKS=3), 106),
    (form(32, 64, 32, 32, 4, KB=32, DEPTHS=1, BLOCKS=2), 102),
    (form(64, 32, 32, 16, 3, DEPTHS=1, BLOCKS=3), 98),
    (form(64, 64, 32, 16, 6, KB=32, TK=32), 121),
    (form(64, 56, 16, 56, 6, KB=32), 108),
    (form(80, 40, 16, 40, 2, KB=64, KI=16, DEPTHS=1), 103),  # one round of 640 x 640
    (form(80, 40, 16, 40, 2, KB=64, DEPTHS=1), 97),  # where registers for that are missing
    (form(96, 48, 16, 48, 5, KB=32, DEPTHS=1), 110),  # of half of 1000 x 1000 and 1024 x 1024
    (form(32, 96, 16, 48, 6, KB=32), 105),  # three of half of 1500 x 1500
    (form(48, 32, 16, 16, 6, KB=32), 96),  # of half of 500 x 500
    (form(32, 64, 16, 32, 6, KB=32), 99),  # of half of 640 x 640
    (form(32, 32, 16, 16, 3, KB=64, TK=64, DEPTHS=1, BLOCKS=2), 91),
    (form(32, 32, 16, 16, 6, KB=64, TK=32, DEPTHS=1), 84),
    (form(64, 32, 32, 32, 3, KB=64, KI=16, DEPTHS=1), 96),
    (form(64, 32, 32, 16, 4, KB=64, TK=32), 107),
    (form(64, 16, 16, 16, 5, KB=64, TK=64), 64),
    (form(16, 64, 16, 32, 5, KB=64, TK=32), 70),
    (form(32, 16, 16, 16, 4, KB=128, TK=32), 59),
    (form(16, 16, 16, 16, 8, KB=64, DEPTHS=1), 22),
)

#: Fits wherever TMA is.
SMALLEST = form(64, 64, 32, 32, 4)

#: Clocks of a microsecond under load; microseconds of a tile besides its multiply-adds, and of each
#: of its elements where rows of C start at multiples of 16 bytes and where they start anywhere
#: (7725 x 2661 x 73 is 8 us of storing for each round of 128 x 128); microseconds of sharing;
#: bytes of a microsecond.
_CLOCKS, _TILE, _STORED, _SHARING, _MEMORY = 1900, 0.1, (4.3e-5, 5e-4), 8.5, 4.0e6


def suggested(kernel: Kernel, p: Problem, d: Device) -> dict[str, int]:
    """The form with the least expected time, and whether its last round is shared."""
    options = [(given | dict(SPLIT=s), rate) for given, rate in FORMS for s in _parts(given, p, d)]
    for option, _ in sorted(options, key=lambda option: _microseconds(*option, p, d)):
        if not kernel.violations(kernel.config(option), p, d):
            return option
    return SMALLEST


def _parts(given: dict[str, int], p: Problem, d: Device) -> Iterator[int]:
    """One, and where tiles are left for a last round the blocks that each can have, two at least;
    none of a form that is not for products of this depth.
    """
    if given["DEPTHS"] == 1 and given["MB"] == 128:
        if given["NB"] == 128 and given["KI"] == 16 and p.k > 256:
            return
        if given["KB"] == 64 and p.k < 2048:
            return
    yield 1
    _, left, blocks = _rounds(given, p, d)
    if 0 < 8 * left < 7 * blocks:
        yield max(2, blocks // left)


def _rounds(given: dict[str, int], p: Problem, d: Device) -> tuple[int, int, int]:
    """Rounds of whole tiles, tiles of the last one, and blocks."""
    blocks = d.sms * given["BLOCKS"]
    return *divmod(tiles_in(p, given["MB"], given["NB"]) * p.batch, blocks), blocks


def _microseconds(given: dict[str, int], rate: float, p: Problem, d: Device) -> float:
    """Arithmetic and memory, of which the lesser hides for the most part. Of blocks that share a
    multiprocessor one stores while others multiply: b store in b^(2/3) of the time of one, and q
    of b multiply in (q / b)^(1/3) of the time of all.
    """
    rounds, left, blocks = _rounds(given, p, d)
    area, together = given["MB"] * given["NB"], given["BLOCKS"]
    each = area * -(-p.k // given["KB"]) * given["KB"] / (rate * _CLOCKS)
    storing = _TILE + area * _STORED[p.n % 2]
    size = 8 * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
    sums = rounds * (together * each + together ** (2 / 3) * storing)
    if given["SPLIT"] > 1:  # as common/shares.cuh has it
        sharers = min(left * given["SPLIT"], blocks)
        size += 16 * (sharers + left) * area
        sums += left / sharers * together * each + together ** (2 / 3) * storing
        sums += storing + _SHARING
    elif left:
        busy = -(-left // d.sms)
        sums += busy ** (1 / 3) * together ** (2 / 3) * each + busy ** (2 / 3) * storing
    memory = size / _MEMORY
    return max(sums, memory) + 0.2 * min(sums, memory)
