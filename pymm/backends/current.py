"""Which context a thread has current: asked at every call of a product whose operands are on a GPU,
before anything else is known of it.
"""

from __future__ import annotations

from collections.abc import Callable


class Current:
    """`context()` says which context of a GPU this thread has current: a number that no other
    context of this process ever has, destroyed ones included; 0 if it has none; None while no GPU
    is open. The backend of a GPU puts its driver's question here.
    """

    context: Callable[[], int | None]

    def __init__(self) -> None:
        self.context = lambda: None


current = Current()
