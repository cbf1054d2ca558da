"""Kernel 9: its geometry; on a Hopper GPU, products of any size, layout, stride and stack."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fed_products import HOPPER, check_on_gpu

from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.kernel import parts_bytes
from pymm.kernels.source import render

TMA_F64 = find_kernel("tma_f64")
SLUGS = tuple(
    f"tma_f64-{slug}"
    for slug in (
        "MB128-NB128-KB16-TA64-TB32-TK16-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP16-SPLIT1",
        "MB128-NB128-KB32-TA64-TB32-TK32-KI8-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT2",
        "MB64-NB128-KB16-TA64-TB32-TK16-KI8-DEPTHS1-STAGES4-BLOCKS2-GROUP8-SPLIT4",
        "MB64-NB64-KB32-TA32-TB32-TK16-KI4-DEPTHS2-STAGES5-BLOCKS1-GROUP4-SPLIT3",
        "MB32-NB16-KB128-TA16-TB16-TK32-KI8-DEPTHS2-STAGES2-BLOCKS1-GROUP8-SPLIT1",
        "MB16-NB64-KB64-TA16-TB16-TK64-KI8-DEPTHS1-STAGES5-BLOCKS1-GROUP8-SPLIT2",
        "MB48-NB64-KB16-TA48-TB16-TK16-KI4-DEPTHS1-STAGES2-BLOCKS3-GROUP1-SPLIT1",
        "MB64-NB56-KB32-TA16-TB56-TK16-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP8-SPLIT1",
        "MB48-NB40-KB32-TA16-TB40-TK8-KI4-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT2",
        "MB80-NB40-KB64-TA16-TB40-TK16-KI8-DEPTHS1-STAGES2-BLOCKS1-GROUP8-SPLIT1",
        "MB128-NB64-KB32-TA32-TB32-TK32-KI16-DEPTHS2-STAGES4-BLOCKS1-GROUP8-SPLIT1",
        "MB64-NB64-KB16-TA32-TB32-TK16-KI8-DEPTHS1-STAGES4-BLOCKS3-GROUP8-SPLIT1-STORE2",
        "MB48-NB40-KB32-TA16-TB40-TK8-KI4-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT2-STORE2",
    )
)


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay_and_share_all_units(slug):
    config = parse_slug(slug)
    for problem in (Problem(1, 1, 999, "f64"), Problem(129, 4097, 640, "f64", True, True, 7)):
        assert not TMA_F64.violations(config, problem, HOPPER)
        units = TMA_F64.units(config, problem)
        assert units * config.MB * config.NB >= config.SPLIT * problem.m * problem.n * problem.batch
        for sms in (1, 2, 132):
            assert TMA_F64.grid(config, problem, sms) == (min(units, sms * config.BLOCKS), 1, 1)


@pytest.mark.parametrize("n", [1, 256, 1000, 1024, 2048, 3200, 4096, 10000])
def test_the_default_obeys_the_rules_of_every_hopper(n):
    problem = Problem(n, n, n, "f64")
    little = replace(HOPPER, sms=114, shared_per_block=99 * 1024, shared_per_sm=100 * 1024)
    for device in (HOPPER, little):
        assert TMA_F64 in kernels_for(problem, device)
        config = TMA_F64.default_for(problem, device)
        assert not TMA_F64.violations(config, problem, device)


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_all_sizes_of_a_layout_run_one_text(trans):
    config = parse_slug(SLUGS[0])
    texts = {
        render(config, Problem(n, n, n, "f64", *trans), alignment).key
        for n, alignment in ((1, 8), (4096, 16))
    }
    assert len(texts) == 1


def row_of(along_k: bool, half: int, g: int) -> int:
    """Row of a group of 16 that lane group g reads in a half, by the kernel's own formulas."""
    if along_k:
        return (g if g % 2 == 0 else 8 + ((g - 1) ^ 4)) + half
    return g % 2 + g // 2 % 2 * 8 + g // 4 * 2 + 4 * half


@pytest.mark.parametrize("along_k", [False, True])
def test_fragments_take_every_row_once_and_meet_no_bank_conflict(along_k):
    """Of 16 lanes that are served together each reads 8 bytes from another pair of the 32 banks;
    TMA puts piece c of 16 bytes of line l at c ^ l % 8.
    """
    taken = [row_of(along_k, h, g) for h in range(2) for g in range(8)]
    assert sorted(taken) == list(range(16))
    for h in range(2):
        for depth in range(0, 16, 4):
            for served in (range(4), range(4, 8)):
                pairs = set()
                for g in served:
                    for k in range(depth, depth + 4):
                        row = row_of(along_k, h, g)
                        line, at = (row, k) if along_k else (k, row)
                        pairs.add((at // 2 ^ line % 8) * 2 + at % 2)
                assert len(pairs) == 16


def test_a_last_group_of_8_rows_is_taken_once_and_stored_in_pairs():
    """Along k nothing meets in a bank; a lane's second number and its neighbour's, two lanes away,
    change places, so that each lane has two columns side by side.
    """
    along = [(g if g % 2 == 0 else ((g - 1) ^ 4) + 1) for g in range(8)]
    assert sorted(along) == list(range(8))
    for t in range(4):
        assert (along[2 * t], along[2 * (t ^ 2) + 1]) == (2 * t, 2 * t + 1)
    for served in (range(4), range(4, 8)):
        pairs = {((k // 2) ^ along[g]) * 2 + k % 2 for g in served for k in range(4)}
        assert len(pairs) == 16


class Shares:
    """How the blocks of a launch share tiles, by the formulas of common/stream_k.cuh."""

    def __init__(self, tiles: int, steps: int, blocks: int, split: int) -> None:
        left = tiles % blocks
        self.rest = 0 if 8 * left >= 7 * blocks else left
        self.steps, self.blocks, fit = steps, blocks, blocks // max(self.rest, 1)
        each = split if split <= fit else fit if 8 * fit * self.rest >= 7 * blocks else 0
        self.sharers = each * self.rest if each else blocks
        self.group = each or blocks
        self.run = steps if each else self.rest * steps

    def first(self, share: int) -> int:
        runs, number = divmod(share, self.group)
        piece, more = divmod(self.run, self.group)
        return runs * self.run + piece * number + min(number, more)

    def sharer(self, step: int) -> int:
        piece, more = divmod(self.run, self.group)
        before, within = step // self.run * self.group, step % self.run
        if within < more * (piece + 1):
            return before + within // (piece + 1)
        return before + more + (within - more * (piece + 1)) // piece

    def share_of(self, block: int) -> int:
        each = self.sharers // self.rest
        if block >= each * self.rest:
            return block
        return block % self.rest * each + block // self.rest


def test_shares_are_all_steps_once_in_slots_that_lie_together():
    draw = random.Random(1)
    for _ in range(300):
        blocks, split = draw.choice((4, 114, 132, 264)), draw.choice((2, 3, 8, 33, 132))
        steps = split + draw.choice((0, 1, draw.randint(0, 900)))
        shares = Shares(draw.randint(1, 3 * blocks), steps, blocks, split)
        if not shares.rest:
            continue
        assert sorted(map(shares.share_of, range(blocks))) == list(range(blocks))
        assert shares.sharers <= blocks and shares.first(shares.sharers) == shares.rest * steps
        slots: dict[int, int] = {}
        for share in range(shares.sharers):
            first, last = shares.first(share), shares.first(share + 1) - 1
            assert first <= last < first + steps  # so that they lie in two tiles at most
            assert shares.sharer(first) == shares.sharer(last) == share
            for tile in range(first // steps, last // steps + 1):
                assert slots.setdefault(share + tile, tile) == tile
        for tile in range(shares.rest):
            own = range(
                shares.sharer(tile * steps) + tile, shares.sharer((tile + 1) * steps - 1) + tile + 1
            )
            assert [slot for slot, of in slots.items() if of == tile] == list(own)


def test_slots_take_no_more_than_two_tiles_of_each_block():
    config = TMA_F64.config(parse_slug(SLUGS[0]).as_dict() | dict(SPLIT=33))
    sizes = [parts_bytes(config, Problem(n, n, 8192, "f64")) for n in (1, 256, 8192, 65536)]
    assert sizes == sorted(sizes) and sizes[-1] <= 2 * 144 * 128 * 128 * 8 + 128


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, ("f64",))
