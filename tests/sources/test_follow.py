"""When the reconnect loop connects, from where, and when it gives up. The source plays a script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import ClassVar

import pytest

from indexer.errors import SourceBroken, SourceLost
from indexer.model import Reason
from indexer.sources.backoff import Backoff
from indexer.sources.base import Chunk, Dropped, Item, Opened, Positions, ReconnectReason, State, Status
from indexer.sources.follow import Follower

CLOSED = SourceLost("play: closed", reason=ReconnectReason.CLOSED)
REFUSED = SourceLost("play: refused", reason=ReconnectReason.CONNECT_FAILED)
OVERSIZED = SourceLost("play: oversized", reason=ReconnectReason.OVERSIZED)
IDLE = SourceLost("play: idle", reason=ReconnectReason.IDLE)
BATCH = Chunk([b"x"])

Act = Sequence[Item | Exception]


class Play:
    """A source whose connections follow a script; after the last one it ends."""

    key = "firehose:play"
    label = "play"
    live: ClassVar[bool] = True
    positions: ClassVar[Positions] = "sequence"

    def __init__(self, *acts: Act) -> None:
        self.acts = list(acts)
        self.cursors: list[int | None] = []
        self.closed = 0

    async def items(self, cursor: int | None) -> AsyncGenerator[Item, None]:
        self.cursors.append(cursor)
        try:
            for step in self.acts.pop(0) if self.acts else []:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed += 1


class Run:
    """One follower over one play: what it yielded, waited and reported."""

    def __init__(
        self, *acts: Act, resume_from: Callable[[], int | None] = lambda: 10, tries: int | None = None
    ) -> None:
        self.play = Play(*acts)
        self.waits: list[float] = []
        self.statuses: list[Status] = []
        self.follower = Follower(
            self.play,
            resume_from=resume_from,
            on_status=self.statuses.append,
            max_attempts=tries,
            backoff=Backoff(rng=lambda: 1.0),
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def all(self, restart: Callable[[Item], None] = lambda _: None) -> list[Item]:
        items: list[Item] = []
        async with aclosing(self.follower.items()) as stream:
            async for item in stream:
                items.append(item)
                restart(item)
        return items


async def test_each_connection_resumes_where_processing_stands() -> None:
    """The cursor is asked for anew at each connect, never remembered."""
    position = iter([None, 5, 9])
    run = Run([Opened(None), BATCH, CLOSED], [Opened(5), BATCH, CLOSED], resume_from=lambda: next(position))
    assert await run.all() == [Opened(None), BATCH, Opened(5), BATCH]
    assert run.play.cursors == [None, 5, 9]


async def test_only_a_frame_resets_the_backoff() -> None:
    """A host that accepts connections and drops them is waited for longer and longer; a frame is success."""
    opened = Opened(10)
    run = Run([REFUSED], [opened, CLOSED], [opened, CLOSED], [opened, BATCH, CLOSED], [REFUSED])
    await run.all()
    assert run.waits == [0.5, 1.0, 2.0, 0.5, 1.0]


async def test_idle_reconnects_at_once() -> None:
    """Silence is no failure: a small host has nothing to say, and nothing may be missed meanwhile."""
    run = Run([REFUSED], [Opened(10), IDLE], [REFUSED])
    await run.all()
    assert run.waits == [0.5, 0.0, 1.0]


async def test_every_loss_is_reported_once_with_its_reason() -> None:
    """reconnects_total and /readyz follow from the states alone."""
    run = Run([REFUSED], [Opened(10), BATCH, CLOSED])
    await run.all()
    refused = Status(State.WAITING, 1, ReconnectReason.CONNECT_FAILED, 0.5, "play: refused")
    closed = Status(State.WAITING, 1, ReconnectReason.CLOSED, 0.5, "play: closed")
    connecting = [Status(State.CONNECTING), Status(State.CONNECTING, 1)]
    live = Status(State.LIVE, 1)
    assert run.statuses == [connecting[0], refused, connecting[1], live, closed, connecting[1], Status(State.ENDED)]


async def test_a_restart_leaves_the_connection_and_goes_where_it_was_told() -> None:
    """The new cursor holds until a frame is taken in, also through failed connects; the rest of the old is not read."""
    run = Run([Opened(10), BATCH, Chunk([b"never"])], [REFUSED], [Opened(0), BATCH, CLOSED])

    def fall_back(item: Item) -> None:
        if isinstance(item, Chunk) and run.play.cursors == [10]:
            run.follower.restart(0, reason=ReconnectReason.FUTURE_CURSOR)

    assert await run.all(fall_back) == [Opened(10), BATCH, Opened(0), BATCH]
    assert run.play.cursors == [10, 0, 0, 10]
    assert run.play.closed == 4
    reasons = [status.reason for status in run.statuses if status.state is State.WAITING]
    assert reasons == [ReconnectReason.FUTURE_CURSOR, ReconnectReason.CONNECT_FAILED, ReconnectReason.CLOSED]


async def test_a_host_that_refuses_every_cursor_is_not_hammered() -> None:
    """The first restart is immediate; further ones without a frame taken in between wait like failures."""
    act: Act = [Opened(10), BATCH]
    run = Run(act, act, act, act)

    def refuse(item: Item) -> None:
        if isinstance(item, Chunk):
            run.follower.restart(None, reason=ReconnectReason.ERROR_FRAME)

    await run.all(refuse)
    assert run.waits == [0.0, 0.5, 1.0, 2.0]
    assert run.play.cursors == [10, None, None, None, None]


async def test_an_oversized_frame_is_passed_over() -> None:
    """One sequence number is given up, told where it happened, and the stream goes on behind it."""
    run = Run([Opened(10), BATCH, OVERSIZED], [Opened(11), BATCH, CLOSED])
    items = await run.all()
    assert run.play.cursors == [10, 11, 10]
    assert [(item.reason, item.position) for item in items if isinstance(item, Dropped)] == [
        (Reason.OVERSIZED_FRAME, 11)
    ]


async def test_an_oversized_frame_behind_a_gap_is_no_endless_loop() -> None:
    """While it keeps coming the step doubles, up to a bound; each number is given up once; a frame starts over."""
    run = Run(*[[OVERSIZED]] * 12, [Opened(0), BATCH, OVERSIZED])
    items = [item for item in await run.all() if isinstance(item, Dropped)]
    steps = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]
    expected = [10 + sum(steps[: n + 1]) for n in range(12)]
    assert run.play.cursors == [10, *expected, 11]
    assert [item.position for item in items] == [*expected, 11]
    assert run.waits[:3] == [0.5, 1.0, 2.0]


async def test_an_oversized_frame_at_no_known_position_changes_nothing() -> None:
    """Live from now, nothing processed: from now again."""
    run = Run([Opened(None), OVERSIZED], resume_from=lambda: None)
    items = await run.all()
    assert run.play.cursors == [None, None]
    assert [item.position for item in items if isinstance(item, Dropped)] == [None]


async def test_a_restart_asked_for_between_connections_costs_no_connection() -> None:
    """What was asked for while none stood is done by the next connect."""
    run = Run([OVERSIZED], [Opened(3), BATCH])

    def on_dropped(item: Item) -> None:
        if isinstance(item, Dropped):
            run.follower.restart(3, reason=ReconnectReason.SEQUENCE_RESET)

    await run.all(on_dropped)
    assert run.play.cursors == [10, 3]


async def test_three_tries_without_a_frame_are_the_end_if_asked_for() -> None:
    """--once ends with a failed source; the error says what went wrong last."""
    run = Run([REFUSED], [Opened(10), BATCH, CLOSED], [REFUSED], [REFUSED], tries=3)
    with pytest.raises(SourceBroken, match=r"play: refused \(gave up after 3 tries\)"):
        await run.all()
    assert run.statuses[-1].state is State.BROKEN
    assert len(run.play.cursors) == 4


async def test_a_broken_source_is_not_tried_again() -> None:
    """No retry brings a missing file back."""
    run = Run([SourceBroken("no such file")])
    with pytest.raises(SourceBroken, match="no such file"):
        await run.all()
    assert (run.play.cursors, run.statuses[-1].state) == ([10], State.BROKEN)


async def test_closing_the_stream_closes_the_connection() -> None:
    """Whoever stops reading leaves nothing open."""
    run = Run([Opened(10), BATCH, BATCH])
    async with aclosing(run.follower.items()) as stream:
        assert await anext(stream) == Opened(10)
        assert run.play.closed == 0
    assert run.play.closed == 1
