"""What the launch cache and the backends share: which CUDA context is current, asked at every call
with operands on a GPU; and when scratch memory was released, so that cached launches release it,
too.
"""

from __future__ import annotations

from collections.abc import Callable


class Current:
    """`context()` is the number of the context that this thread has current: one that no other
    context of this process ever has, destroyed ones included; 0 if there is none; None while no GPU
    is open. The backend of a GPU replaces the function, and gives the addresses of the driver's
    functions that say the same: cuCtxGetCurrent, cuCtxGetId. `forget` holds the functions that
    `scratch_dropped` calls.
    """

    context: Callable[[], int | None]
    functions: tuple[int, int] | None = None

    def __init__(self) -> None:
        self.context = lambda: None
        self.forget: list[Callable[[], None]] = []

    def scratch_dropped(self) -> None:
        """Have every launch cache drop its launches."""
        for forget in self.forget:
            forget()


current = Current()
