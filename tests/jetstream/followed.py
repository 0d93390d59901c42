"""A Jetstream followed in process as the daemon follows one: source, follower and intake, with signals to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from indexer.jetstream_intake import JetstreamIntake
from indexer.outbound import fetched_once
from indexer.simulator.jetstream import Jetstream
from indexer.sources.address import JetstreamAddress, parse_source_url
from indexer.sources.base import Status
from indexer.sources.follow import Follower
from indexer.sources.jetstream import MAX_FRAME_BYTES, JetstreamSource
from indexer.trust import Trust
from tests.daemon_process import PATIENCE
from tests.indexing import LETTA, Indexing


def source_of(
    host: Jetstream,
    query: str = "",
    *,
    collections: Sequence[str] = (LETTA,),
    packed: bool = False,
    limit: int = MAX_FRAME_BYTES,
) -> JetstreamSource:
    """What ``--source jetstream+ws://…`` makes; ``packed``: compressed if the host can."""
    address = parse_source_url(f"jetstream+{host.url}{query}")
    assert isinstance(address, JetstreamAddress)
    fetch = fetched_once if packed else None
    return JetstreamSource(address, collections, fetch=fetch, max_frame_bytes=limit)


@dataclass(slots=True)
class Following:
    """A source being followed; ``statuses`` is what the follower reported."""

    intake: JetstreamIntake
    statuses: list[Status] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self, position: int) -> None:
        """Wait until this position has been taken in."""
        await self.until(lambda: (self.intake.position or 0) >= position)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, which is looked at after every item and every change of state."""
        async with asyncio.timeout(PATIENCE):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    @property
    def lost(self) -> list[str]:
        """Why connections were lost."""
        return [status.reason.value for status in self.statuses if status.reason is not None]

    async def follow(self, source: JetstreamSource) -> None:
        """Take in what the source gives until cancelled, without pauses between connections."""

        async def no_pause(_: float) -> None:
            await asyncio.sleep(0)

        def note(status: Status) -> None:
            self.statuses.append(status)
            self.changed.set()

        follower = Follower(source, resume_from=lambda: self.intake.position, on_status=note, sleep=no_pause)
        self.intake.restart = lambda cursor, reason: follower.restart(cursor, reason=reason)
        async with aclosing(follower.items()) as items:
            async for item in items:
                await self.intake.take(item)
                self.changed.set()


@asynccontextmanager
async def following(
    index: Indexing, source: JetstreamSource, trust: Trust, position: int | None = 0
) -> AsyncIterator[Following]:
    """Follow a source into an index, from all that its host keeps on unless said otherwise."""
    made = Following(JetstreamIntake(index.pipeline, source, trust, position))
    task = asyncio.ensure_future(made.follow(source))
    try:
        yield made
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert ended is None or isinstance(ended, asyncio.CancelledError), ended
