"""A relay on loopback: ``com.atproto.sync.subscribeRepos`` over WebSocket, with replay and the reference's answers.

Lexicon ``com.atproto.sync.subscribeRepos``; behaviour read off the reference implementation: no cursor is live from
now, a cursor ahead of the last event is refused with ``FutureCursor``, one behind what is kept gets an ``#info``
``OutdatedCursor`` and everything that is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from indexer.simulator import events

PATH = "/xrpc/com.atproto.sync.subscribeRepos"


class Relay:
    """A relay that serves the frames published to it.

    >>> async with Relay() as relay:
    ...     relay.publish(world.run(100))
    ...     await relay.sent(world.seq)  # some subscriber of relay.url has been sent this event

    ``port`` 0 takes any free one. All methods belong to the event loop that entered the relay.
    """

    def __init__(self, *, port: int = 0) -> None:
        self.connections = 0
        self.cursors: list[int | None] = []
        self._port = port
        self._log: list[tuple[int | None, bytes]] = []
        self._dropped = 0  # entries that were in the log once, so that positions stay valid
        self._forgot = 0  # the last sequence number no longer kept
        self._subscribers: dict[ServerConnection, int] = {}
        self._changed = asyncio.Event()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """``ws://127.0.0.1:port``, without a path."""
        return f"ws://127.0.0.1:{self._port}"

    @property
    def seq(self) -> int:
        """The sequence number of the last event published, 0 before the first."""
        return next((seq for seq, _ in reversed(self._log) if seq is not None), self._forgot)

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve, "127.0.0.1", self._port, process_request=_only_the_stream, compression=None, max_size=2**16
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close(code=1001)
            await self._server.wait_closed()

    def publish(self, frames: Iterable[bytes]) -> None:
        """Append frames (any bytes) to what is replayed and send them to all subscribers."""
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
        self._subscribers = dict.fromkeys(self._subscribers, -1)

    async def sent(self, seq: int) -> None:
        """Wait until some present subscriber has been sent an event with this sequence number or a greater one."""
        await self._until(lambda: any(reached >= seq for reached in self._subscribers.values()))

    async def subscribed(self, connections: int = 1) -> None:
        """Wait until so many connections have been made, ended ones included."""
        await self._until(lambda: self.connections >= connections)

    async def disconnect(self, code: int = 1012) -> None:
        """Close every connection properly, with this close code."""
        await asyncio.gather(*(connection.close(code) for connection in list(self._subscribers)))

    def cut(self) -> None:
        """Drop every connection without a closing handshake."""
        for connection in list(self._subscribers):
            connection.transport.abort()

    async def refuse(self, name: str = "ConsumerTooSlow", message: str = "too slow") -> None:
        """Send every subscriber an error frame and close its connection."""
        for connection in list(self._subscribers):
            await connection.send(events.error(name, message))
        await self.disconnect(1008)

    def _announce(self) -> None:
        """Wake everybody who waits for something to change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    async def _serve(self, connection: ServerConnection) -> None:
        cursor = _cursor(connection)
        self.connections += 1
        self.cursors.append(cursor)
        self._subscribers[connection] = -1
        self._announce()
        try:
            if cursor is not None and cursor > self.seq:
                await connection.send(events.error("FutureCursor", "Cursor in the future."))
                return
            if cursor is not None and cursor < self._forgot:
                await connection.send(events.info("OutdatedCursor", "Requested cursor exceeded limit."))
            await self._stream(connection, self._start(cursor))
        except ConnectionClosed:
            pass
        finally:
            del self._subscribers[connection]

    def _start(self, cursor: int | None) -> int:
        """The position in the log, counted from the beginning of time, to start after ``cursor``."""
        end = self._dropped + len(self._log)
        if cursor is None:
            return end
        later = (at for at, (seq, _) in enumerate(self._log) if seq is not None and seq > cursor)
        return next((self._dropped + at for at in later), end)

    async def _stream(self, connection: ServerConnection, position: int) -> None:
        closed = asyncio.ensure_future(connection.wait_closed())
        try:
            while not closed.done():
                changed = asyncio.ensure_future(self._changed.wait())
                position = await self._send_from(connection, position)
                await asyncio.wait((changed, closed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            closed.cancel()

    async def _send_from(self, connection: ServerConnection, position: int) -> int:
        """Send everything from ``position`` on; returns the position after it."""
        while (at := max(position - self._dropped, 0)) < len(self._log):
            seq, data = self._log[at]
            position = self._dropped + at + 1
            await connection.send(data)
            if seq is not None and seq > self._subscribers[connection]:
                self._subscribers[connection] = seq
                self._announce()
        return position


def _cursor(connection: ServerConnection) -> int | None:
    request = connection.request
    asked = parse_qs(urlsplit(request.path).query).get("cursor") if request else None
    return int(asked[0]) if asked else None


def _only_the_stream(connection: ServerConnection, request: Request) -> Response | None:
    address = urlsplit(request.path)
    if address.path != PATH:
        return connection.respond(HTTPStatus.NOT_FOUND, "no such method\n")
    if any(not value.isdecimal() for value in parse_qs(address.query).get("cursor", [])):
        return connection.respond(HTTPStatus.BAD_REQUEST, "cursor must be a number\n")
    return None
