"""What the caches of launches share with the backends: which context a thread has current, asked at
every call of a product whose operands are on a GPU; and when scratch memory was given up, so that
cached launches let go of it, too.
"""

from __future__ import annotations

from collections.abc import Callable


class Current:
    """`context()` says which context of a GPU this thread has current: a number that no other
    context of this process ever has, destroyed ones included; 0 if it has none; None while no GPU
    is open. The backend of a GPU puts its driver's question here. `forget` are the caches' answers
    to `scratch_dropped`.
    """

    context: Callable[[], int | None]

    def __init__(self) -> None:
        self.context = lambda: None
        self.forget: list[Callable[[], None]] = []

    def scratch_dropped(self) -> None:
        """Have every cache of launches forget them."""
        for forget in self.forget:
            forget()


current = Current()
