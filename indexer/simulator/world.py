"""A world: a network in which a Letta life goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from indexer.simulator.life import Life
from indexer.simulator.network import Network


class World(Network):
    """A seeded network with accounts that live.

    ``accounts`` is how many exist from the start; ``weights``, ``quirks`` and ``foreign`` go to
    :class:`~indexer.simulator.life.Life`, the rest to :class:`~indexer.simulator.network.Network`.

    >>> world = World(seed=7)
    >>> frames = world.run(100)
    >>> prompts = world.expected().prompts
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        accounts: int = 6,
        clock: Callable[[], datetime] | None = None,
        pds: str = "https://pds.example",
        first_seq: int = 1,
        p256: float = 0.0,
        legacy: float = 0.0,
        weights: Mapping[str, float] | None = None,
        quirks: float = 0.05,
        foreign: float = 0.2,
    ) -> None:
        super().__init__(seed, clock=clock, pds=pds, first_seq=first_seq, p256=p256, legacy=legacy)
        self.life = Life(self, weights=weights, quirks=quirks, foreign=foreign)
        for _ in range(accounts):
            self.create_account()

    def step(self) -> list[bytes]:
        """Let one thing happen; returns the frames emitted since the last :meth:`take`."""
        self.life.step()
        return self.take()

    def run(self, steps: int) -> list[bytes]:
        """Let ``steps`` things happen; returns all frames they emitted."""
        return [frame for _ in range(steps) for frame in self.step()]
