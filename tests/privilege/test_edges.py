"""What strangers at the outer edges can make the daemon hold in memory is bounded, however small their pieces are."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from websockets.asyncio.server import ServerConnection

from indexer.sources import websocket
from tests.daemon_process import eventually
from tests.sources.peers import host

EMPTY = b"\x82\x00"  # a binary message of no bytes, as a server sends it (RFC 6455 section 5.2)
MOST_FRAMES = 100_000


async def test_frames_without_bytes_fill_no_memory() -> None:
    """While nobody takes its frames, a peer that sends empty ones without end is held back like any other."""

    async def flood(connection: ServerConnection) -> None:
        with suppress(ConnectionError, RuntimeError):  # the latter: it was closed meanwhile
            while not connection.transport.is_closing():
                connection.transport.write(EMPTY * 5_000)
                await asyncio.sleep(0.001)

    async with host(flood) as where:
        connection = await websocket.connect(
            where.url, name="peer", user_agent="test", timeout=10.0, max_frame_bytes=1 << 20
        )
        try:

            async def held_back() -> bool:
                assert len(connection._frames) < MOST_FRAMES
                return connection._held_back

            await eventually(held_back)
        finally:
            await connection.leave()
