"""How long to wait before the next try: exponential backoff with full jitter."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Waits drawn evenly from 0 to a limit that doubles from ``first`` to ``cap`` (seconds).

    Full jitter keeps many clients of one restarted host from coming back in step. ``rng`` gives numbers in [0, 1).
    """

    def __init__(self, *, first: float = 0.5, cap: float = 60.0, rng: Callable[[], float] = random.random) -> None:
        self._first = first
        self._cap = cap
        self._rng = rng
        self._limit = first

    def next(self) -> float:
        """The next wait in seconds; the one after it may be twice as long."""
        limit = self._limit
        self._limit = min(self._cap, limit * 2)
        return self._rng() * limit

    def reset(self) -> None:
        """Start over: what was tried has worked."""
        self._limit = self._first
