"""The one loop that connects to a source again: from where, when, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from indexer.errors import SourceBroken, SourceLost
from indexer.model import Reason
from indexer.sources.backoff import Backoff
from indexer.sources.base import Chunk, Dropped, Item, Opened, ReconnectReason, Source, State, Status

_MAX_STEP = 1024  # sequence numbers passed over at once, at most


def _ignore(_: Status) -> None:
    """Nobody listens."""


class Follower:
    """Follows one source through any number of connections.

    ``resume_from`` is asked at each connect for the position of the last frame *processed* (stored or not: what is
    processed and not yet stored is still in the consumer's hands); None: a firehose from now, a file from its start.
    ``on_status`` hears of every change of state. After ``max_attempts`` connections lost in a row without a single
    frame the source is broken; None: never. ``sleep`` takes seconds.
    """

    def __init__(
        self,
        source: Source,
        *,
        resume_from: Callable[[], int | None],
        on_status: Callable[[Status], None] = _ignore,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._resume_from = resume_from
        self._on_status = on_status
        self._max_attempts = max_attempts
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._failures = 0  # connections lost since a frame was last taken in
        self._step = 0  # sequence numbers passed over at the last oversized frame, since then
        self._override: tuple[int | None] | None = None  # where to connect until a frame is taken in
        self._restart: SourceLost | None = None

    def restart(self, cursor: int | None, *, reason: ReconnectReason) -> None:
        """Leave this connection and connect again after ``cursor``, as soon as the consumer asks for the next item.

        For whoever decodes the frames and finds an error frame or a sequence that fell back. The rest of the chunk
        at hand is the caller's to drop. The first restart in a row is immediate, the next ones wait as any failure
        does: a host that says ``FutureCursor`` to every cursor isn't hammered.
        """
        self._override = (cursor,)
        self._restart = SourceLost(f"{self._source.label}: connecting again ({reason.value})", reason=reason)

    async def items(self) -> AsyncGenerator[Item, None]:
        """Everything the source gives, through all reconnects; ends only where the source does.

        Close it (``contextlib.aclosing``) to close the connection. While the consumer takes no items, nothing is
        read beyond a bounded buffer.

        Raises:
            SourceBroken: the source gave up, or ``max_attempts`` was reached.
        """
        try:
            while True:
                self._restart = None
                self._on_status(Status(State.CONNECTING, self._failures))
                try:
                    async with aclosing(self._source.items(self._position())) as items:
                        async for item in items:
                            self._before(item)
                            yield item
                            self._after(item)
                    break
                except SourceLost as exc:
                    lost = exc
                dropped, delay = self._plan(lost)
                if dropped is not None:
                    yield dropped
                await self._sleep(delay)
        except SourceBroken as exc:
            self._on_status(Status(State.BROKEN, self._failures, detail=str(exc)))
            raise
        self._on_status(Status(State.ENDED))

    def _position(self) -> int | None:
        return self._resume_from() if self._override is None else self._override[0]

    def _before(self, item: Item) -> None:
        if isinstance(item, Opened):
            self._on_status(Status(State.LIVE, self._failures))

    def _after(self, item: Item) -> None:
        """A frame the consumer took without asking for a restart is what counts as success."""
        if self._restart is not None:
            raise self._restart
        if isinstance(item, Chunk):
            self._failures = self._step = 0
            self._override = None
            self._backoff.reset()

    def _plan(self, lost: SourceLost) -> tuple[Dropped | None, float]:
        """What follows from a lost connection: a frame given up, if any, and the pause in seconds."""
        self._failures += 1
        reason = ReconnectReason(lost.reason)
        restarted, self._restart = self._restart is lost, None
        if self._max_attempts is not None and self._failures >= self._max_attempts:
            raise SourceBroken(f"{lost} (gave up after {self._failures} tries)") from lost
        dropped = self._step_over() if reason is ReconnectReason.OVERSIZED else None
        at_once = reason is ReconnectReason.IDLE or (restarted and self._failures == 1)
        delay = 0.0 if at_once else self._backoff.next()
        self._on_status(Status(State.WAITING, self._failures, reason, delay, str(lost)))
        return dropped, delay

    def _step_over(self) -> Dropped:
        """Go on after an oversized frame, whose own number is unknown: it was never read.

        It is the one after the last frame processed, unless the host leaves gaps: then it comes again, and the step
        doubles. Whatever is passed over besides shows as a broken chain at its repository's next commit.
        """
        position = self._position()
        if position is None:
            return Dropped(Reason.OVERSIZED_FRAME, None, "a frame over the limit, at no known position")
        self._step = min(_MAX_STEP, self._step * 2) or 1
        self._override = (position + self._step,)
        return Dropped(
            Reason.OVERSIZED_FRAME,
            position + self._step,
            f"a frame over the limit: passed over {position + 1} to {position + self._step}",
        )
