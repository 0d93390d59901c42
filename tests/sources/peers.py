"""Loopback WebSocket servers for the tests of this folder, and what one connection to them gives."""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from indexer.errors import SourceLost
from indexer.sources.address import FirehoseAddress, parse_source_url
from indexer.sources.base import Chunk
from indexer.sources.firehose import FirehoseSource

Handler = Callable[[ServerConnection], Awaitable[None]]
Gate = Callable[[ServerConnection, Request], Response | None]


def address(port: int, scheme: str = "ws") -> FirehoseAddress:
    parsed = parse_source_url(f"{scheme}://127.0.0.1:{port}")
    assert isinstance(parsed, FirehoseAddress)
    return parsed


@asynccontextmanager
async def host(
    handler: Handler, gate: Gate | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FirehoseAddress]:
    """A server that runs ``handler`` for each connection ``gate`` lets through."""
    async with serve(handler, "127.0.0.1", 0, process_request=gate, close_timeout=0.1, ssl=tls) as server:
        yield address(next(iter(server.sockets)).getsockname()[1], "ws" if tls is None else "wss")


async def silent(connection: ServerConnection) -> None:
    """Answers pings, sends nothing."""
    await connection.wait_closed()


def cursor_of(connection: ServerConnection) -> str | None:
    assert connection.request is not None
    return parse_qs(urlsplit(connection.request.path).query).get("cursor", [None])[0]


def frame_header(opcode: int, size: int, *, fin: bool = True) -> bytes:
    """A server's frame header with a 64-bit length (RFC 6455 section 5.2)."""
    return struct.pack(">BBQ", (0x80 if fin else 0) | opcode, 127, size)


async def until_lost(source: FirehoseSource, cursor: int | None = None) -> tuple[list[bytes], SourceLost]:
    """Everything one connection gives, and how it ends."""
    frames: list[bytes] = []
    try:
        async with aclosing(source.items(cursor)) as items:
            async for item in items:
                frames += item.frames if isinstance(item, Chunk) else []
    except SourceLost as lost:
        return frames, lost
    raise AssertionError("a firehose ended without being lost")


async def lost_with(source: FirehoseSource) -> str:
    return (await until_lost(source))[1].reason
