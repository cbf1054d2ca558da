"""The time between two events around a call, and whether the host queued it in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pymm.backends.base import TimedCall

#: Samples that are queued at a time. If hundreds are, what the host has queued for a short call is
#: no longer in the device's caches when its turn comes, and times vary more (one H200, bf16 at 256:
#: 6.1 us instead of 5.2, cuBLAS's 6.2 instead of 5.3; the lower quartile 5 % below, not 1).
TOGETHER = 4


def timed(
    calls: Sequence[Callable[[], object]],
    keep_busy: Callable[[], None],
    event: Callable[[], Any],
    synchronize: Callable[[], None],
    check: bool = True,
) -> list[float]:
    """Seconds of each call between two events of the default stream, NaN where the sample is void.

    `keep_busy` gives the device something to do before each call. The device must not reach the
    first event before the host has queued the second: else it may wait for the host between the
    two, and that wait would count (cuBLAS at 256 beside 15 compilers: 83 us instead of 12). So with
    `check` a sample is void if its first event is over when its second has been queued. With
    `check` the host also queues no more than `TOGETHER` samples ahead of the device.
    """
    events = []
    for one in map(TimedCall.of, calls):
        one.prepare()
        keep_busy()
        start, end = event(), event()
        start.record()
        one.call()
        end.record()
        late = check and start.query()
        events.append((start, end, late))
        if check and len(events) % TOGETHER == 0:
            synchronize()
    synchronize()
    return [math.nan if late else start.time_till(end) * 1e-3 for start, end, late in events]
