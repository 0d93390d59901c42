"""How often a host is polled: soon after something happened, ever less while nothing does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

SHORTEST: Final = 1.0
LONGEST: Final = 60.0
_GROWTH: Final = 1.5
_JITTER: Final = 0.25


class Pace:
    """Waits between polls of one repository, in seconds.

    They grow from ``shortest`` to ``longest`` while polls bring nothing, and start over when one brings something.
    Each is up to a quarter shorter by chance, so that many repositories don't keep step. ``rng`` gives numbers in
    [0, 1).
    """

    def __init__(
        self, *, shortest: float = SHORTEST, longest: float = LONGEST, rng: Callable[[], float] = random.random
    ) -> None:
        self._shortest = shortest
        self._longest = longest
        self._rng = rng
        self._wait = shortest

    def busy(self) -> float:
        """The wait after a poll that brought something."""
        self._wait = self._shortest
        return self._jittered()

    def quiet(self) -> float:
        """The wait after a poll that brought nothing; the one after it may be half as long again."""
        wait = self._jittered()
        self._wait = min(self._longest, self._wait * _GROWTH)
        return wait

    def failed(self, retry_after: float | None = None) -> float:
        """The wait after a poll that failed: as after a quiet one, and not before the host wants to be asked again."""
        return max(self.quiet(), retry_after or 0.0)

    def _jittered(self) -> float:
        return max(self._shortest, self._wait * (1 - _JITTER * self._rng()))
