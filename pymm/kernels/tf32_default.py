"""What kernels 10 and 13 run where nothing is tuned: the form that a few measured times expect most
of.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pymm.device import Device
from pymm.kernels.declaration import STAGES_FIT, Kernel
from pymm.problem import Problem


class Form(NamedTuple):
    """A block's tile and ring, and the microseconds of 32 of k and of the rest of a tile: measured
    on an H200 (benchmarks/LOG.md).
    """

    MB: int
    NB: int
    KB: int
    STAGES: int
    step: float
    rest: float


FORMS = (
    Form(256, 128, 32, 4, 0.59, 7.4),
    Form(224, 128, 32, 4, 0.54, 5.3),
    Form(160, 128, 32, 5, 0.44, 5.0),
    Form(128, 128, 32, 6, 0.39, 2.5),
    Form(128, 64, 64, 4, 0.32, 2.4),
    Form(64, 128, 64, 4, 0.34, 2.4),
    Form(64, 64, 64, 6, 0.23, 1.7),
    Form(32, 64, 64, 8, 0.20, 1.2),
    Form(16, 64, 64, 8, 0.19, 1.0),
)
FORMS_X3 = (
    Form(128, 128, 32, 3, 0.95, 2.0),
    Form(64, 128, 32, 4, 0.53, 2.5),
    Form(64, 64, 32, 6, 0.37, 2.0),
    Form(32, 64, 32, 7, 0.30, 1.6),
)

#: Up to this k storing C takes longest, which 128 x 128 row by row does best. Where A and B change
#: their parts, a row of C is a column of tiles, and so many of them are 8192 columns of C.
_SHALLOW, _WHOLE_ROWS = 64, 64

#: Microseconds: a second launch, and each part that it adds up; bytes of a microsecond.
_COMBINING, _PART, _MEMORY = 3.0, 0.04, 4e6


def suggested(kernel: Kernel, forms: tuple[Form, ...], p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least expected time. Small tiles that are turned round
    have two slices: one turns while the other multiplies.
    """
    options = []
    received = kernel.hopper.received(p)
    turned = received.trans_a and not received.trans_b
    by_rows = _WHOLE_ROWS if received.trans_a and received.trans_b else 1
    for form in forms:
        given = dict(kernel.default, MB=form.MB, NB=form.NB, KB=form.KB, TA=form.MB)
        given |= dict(STAGES=form.STAGES, GROUP=by_rows if p.k <= _SHALLOW else 8)
        slices = 1 + (turned and form.MB * form.NB <= 64 * 64)
        if slices > 1:
            given["SLICES"] = slices
        while given["STAGES"] > 2 and not STAGES_FIT.holds(kernel.config(given), p, d):
            given["STAGES"] -= slices
        tiles = kernel.units(kernel.config(given), p)
        most = p.k // (4 * form.KB * slices)
        for parts in {1, *(min(most, full * d.sms // max(tiles, 1)) for full in (1, 2))} - {0}:
            split = dict(given, SPLIT=parts)
            if not kernel.violations(kernel.config(split), p, d):
                options.append((_microseconds(form, tiles, parts, p, d), len(options), split))
    return min(options)[2] if options else dict(kernel.default)


def _microseconds(form: Form, tiles: int, parts: int, p: Problem, d: Device) -> float:
    waves = -(-tiles * parts // d.sms)
    if p.k <= _SHALLOW and tiles > d.sms:
        return abs(form.MB * form.NB - 128 * 128)
    busy = waves * (math.ceil(p.k / 32 / parts) * form.step + form.rest)
    sums = 4 * p.m * p.n * p.batch * parts if parts > 1 else 0
    adding = _COMBINING + _PART * parts + 2 * sums / _MEMORY if parts > 1 else 0.0
    fetched = p.bytes / (_MEMORY * min(1.0, tiles * parts / d.sms or 1.0))
    return max(busy, fetched) + 0.1 * min(busy, fetched) + adding
