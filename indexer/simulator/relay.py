"""A relay on loopback: ``com.atproto.sync.subscribeRepos`` over WebSocket, and nothing else."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from indexer.simulator import events
from indexer.simulator.stream import PATH, Stream


class Relay(Stream):
    """A relay that serves the frames published to it.

    >>> async with Relay() as relay:
    ...     relay.publish(world.run(100))
    ...     await relay.sent(world.seq)  # some subscriber of relay.url has been sent this event

    ``port`` 0 takes any free one. All methods belong to the event loop that entered the relay.
    """

    def __init__(self, *, port: int = 0) -> None:
        super().__init__()
        self._port = port
        self._open: set[ServerConnection] = set()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """``ws://127.0.0.1:port``, without a path."""
        return f"ws://127.0.0.1:{self._port}"

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

    async def disconnect(self, code: int = 1012) -> None:
        """Close every connection properly, with this close code."""
        await asyncio.gather(*(connection.close(code) for connection in list(self._open)))

    def cut(self) -> None:
        """Drop every connection without a closing handshake."""
        for connection in list(self._open):
            connection.transport.abort()

    async def refuse(self, name: str = "ConsumerTooSlow", message: str = "too slow") -> None:
        """Send every subscriber an error frame and close its connection."""
        for connection in list(self._open):
            await connection.send(events.error(name, message))
        await self.disconnect(1008)

    async def _serve(self, connection: ServerConnection) -> None:
        """Follow the stream until the connection ends, whichever side ends it."""
        self._open.add(connection)
        following = asyncio.ensure_future(self.follow(_cursor(connection), connection.send))
        ended = asyncio.ensure_future(connection.wait_closed())
        try:
            await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(connection)
            for task in (following, ended):
                task.cancel()
            results = await asyncio.gather(following, ended, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ConnectionClosed):
                raise result


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
