"""What a drill has indexed: a day of a simulated network, and its frames sent at a pace."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TypeAlias

from indexer.simulator import Relay, World
from indexer.simulator.clock import Clock
from indexer.simulator.events import seq_of
from indexer.simulator.oracle import Expected

# Small transactions: the more there are to be hit. What is told may be a day old.
OPTIONS = ("--trust", "relay", "--batch-rows", "50", "--max-lag", "172800")
TURN = 0.02  # seconds between two portions
DAY = timedelta(hours=24)
TICK = timedelta(milliseconds=1)  # that pass at each look at the clock

Publish: TypeAlias = Callable[[Iterable[bytes]], None]


class PastWorld(World):
    """A network that lives through the time (``span``) before now, in ``steps`` of equal length."""

    def __init__(self, seed: int, steps: int, span: timedelta = DAY, *, first_seq: int = 1) -> None:
        self.time = Clock(datetime.now(UTC) - span, TICK)
        super().__init__(seed=seed, accounts=8, clock=self.time, first_seq=first_seq)
        self._step = span / (steps + 1)

    def step(self) -> list[bytes]:
        """One thing happens, after a while in which nothing does."""
        self.time.present = min(self.time.present + self._step, datetime.now(UTC))
        return super().step()


@dataclass(frozen=True, slots=True, repr=False)
class Day:
    """A day that is over: everything that was emitted, and what there is in the end."""

    frames: list[bytes]
    truth: Expected

    def parts(self, count: int) -> list[list[bytes]]:
        """The frames in ``count`` parts of about equal length."""
        bounds = [len(self.frames) * number // count for number in range(count + 1)]
        return [self.frames[start:end] for start, end in itertools.pairwise(bounds)]


def lived(seed: int, steps: int, span: timedelta = DAY) -> Day:
    """A day, or another ``span``, in which so many things happened."""
    world = PastWorld(seed, steps, span)
    return Day([*world.take(), *world.run(steps)], world.expected())


class Flow:
    """Frames on their way: published by and by within ``seconds``."""

    def __init__(self, publish: Publish, frames: Sequence[bytes], seconds: float) -> None:
        self.seconds = seconds
        self._publish = publish
        self._frames = frames
        self._sent = 0
        self._task = asyncio.ensure_future(self._run())

    @property
    def next(self) -> int:
        """The sequence number of the event to be published next, or of the last one if all have been."""
        return seq_of(self._frames[min(self._sent, len(self._frames) - 1)]) or 0

    async def moment(self) -> None:
        """Wait for some moment in the midst of it."""
        await asyncio.sleep(self.seconds * random.uniform(0.2, 0.8))
        assert not self._task.done()

    async def done(self) -> None:
        """Wait until everything is published."""
        await self._task

    def cancel(self) -> None:
        """Publish no more."""
        self._task.cancel()

    async def _run(self) -> None:
        begun, count = monotonic(), len(self._frames)
        while self._sent < count:
            await asyncio.sleep(TURN)
            due = min(count, int(count * (monotonic() - begun) / self.seconds))
            self._publish(self._frames[self._sent : due])
            self._sent = due


@asynccontextmanager
async def flowing(publish: Publish, frames: Sequence[bytes], seconds: float) -> AsyncIterator[Flow]:
    """Frames that flow while the block runs; at its end all of them have been published."""
    flow = Flow(publish, frames, seconds)
    try:
        yield flow
        await flow.done()
    finally:
        flow.cancel()


def followed(relay: Relay) -> tuple[str, ...]:
    """The arguments that have a relay followed, as :data:`OPTIONS` say."""
    return "--source", relay.url, *OPTIONS
