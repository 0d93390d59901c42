"""The events a host keeps, and how it answers subscribers: no socket, only what to send.

Lexicon ``com.atproto.sync.subscribeRepos``; behaviour read off the reference implementation: no cursor is live from
now, a cursor ahead of the last event is refused with ``FutureCursor``, one behind what is kept gets an ``#info``
``OutdatedCursor`` and everything that is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from indexer.simulator import events

PATH = "/xrpc/com.atproto.sync.subscribeRepos"

Send: TypeAlias = Callable[[bytes], Awaitable[None]]


class Stream:
    """A log of frames with any number of followers. All methods belong to one event loop.

    ``connections`` counts followers, ``cursors`` says what each asked for, ``outdated`` and ``refused`` how many
    asked for what is no longer kept, or for the future.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.cursors: list[int | None] = []
        self.outdated = 0
        self.refused = 0
        self._log: list[tuple[int | None, bytes]] = []
        self._dropped = 0  # entries that were in the log once, so that positions stay valid
        self._forgot = 0  # the last sequence number no longer kept
        self._reached: dict[int, int] = {}  # by the connection's number: the last sequence number sent
        self._changed = asyncio.Event()

    @property
    def seq(self) -> int:
        """The sequence number of the last event published, 0 before the first."""
        return next((seq for seq, _ in reversed(self._log) if seq is not None), self._forgot)

    def publish(self, frames: Iterable[bytes]) -> None:
        """Append frames (any bytes) to what is replayed and send them to all followers."""
        self._log += ((events.seq_of(frame), frame) for frame in frames)
        self._announce()

    def forget(self, before: int) -> None:
        """Keep no event with a sequence number below ``before``; older cursors are outdated from now on."""
        kept = next((at for at, (seq, _) in enumerate(self._log) if seq is not None and seq >= before), len(self._log))
        self._forgot = max([self._forgot, *(seq for seq, _ in self._log[:kept] if seq is not None)])
        self._dropped += kept
        del self._log[:kept]

    def reset(self) -> None:
        """Begin a new sequence: nothing is kept, the next event may carry any number. Connections stay open."""
        self._dropped += len(self._log)
        self._log.clear()
        self._forgot = 0
        self._reached = dict.fromkeys(self._reached, -1)

    async def sent(self, seq: int) -> None:
        """Wait until some present follower has been sent an event with this sequence number or a greater one."""
        await self._until(lambda: any(reached >= seq for reached in self._reached.values()))

    async def subscribed(self, connections: int = 1) -> None:
        """Wait until so many connections have been made, ended ones included."""
        await self._until(lambda: self.connections >= connections)

    async def follow(self, cursor: int | None, send: Send) -> None:
        """Serve one subscriber until it is cancelled, ``send`` raises, or its cursor is refused."""
        self.connections += 1
        number = self.connections
        self.cursors.append(cursor)
        self._reached[number] = -1
        position = self._start(cursor)
        self._announce()
        try:
            if cursor is not None and cursor > self.seq:
                self.refused += 1
                await send(events.error("FutureCursor", "Cursor in the future."))
                return
            if cursor is not None and cursor < self._forgot:
                self.outdated += 1
                await send(events.info("OutdatedCursor", "Requested cursor exceeded limit."))
            while True:
                changed = self._changed
                position = await self._send_from(number, position, send)
                await changed.wait()
        finally:
            del self._reached[number]

    def _start(self, cursor: int | None) -> int:
        """The position in the log, counted from the beginning of time, to start after ``cursor``."""
        end = self._dropped + len(self._log)
        if cursor is None:
            return end
        later = (at for at, (seq, _) in enumerate(self._log) if seq is not None and seq > cursor)
        return next((self._dropped + at for at in later), end)

    async def _send_from(self, number: int, position: int, send: Send) -> int:
        """Send everything from ``position`` on; returns the position after it."""
        while (at := max(position - self._dropped, 0)) < len(self._log):
            seq, data = self._log[at]
            position = self._dropped + at + 1
            await send(data)
            if seq is not None and seq > self._reached[number]:
                self._reached[number] = seq
                self._announce()
        return position

    def _announce(self) -> None:
        """Wake everybody who waits for something to change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()
