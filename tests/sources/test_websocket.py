"""What a peer does on an open connection, by accident or on purpose, and what comes of it."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable
from contextlib import aclosing

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from indexer.errors import SourceLost
from indexer.sources import websocket
from indexer.sources.base import Chunk
from indexer.sources.firehose import FirehoseSource
from tests.sources.peers import frame_header, host, lost_with, until_lost


async def test_pings_are_not_data() -> None:
    """A peer that answers pings, and sends some, but no frame, is dropped."""

    async def ping(connection: ServerConnection) -> None:
        while True:
            await (await connection.ping())

    async with host(ping) as where:
        frames, lost = await until_lost(FirehoseSource(where, idle_timeout=0.1))
    assert (frames, lost.reason) == ([], "idle")


async def test_a_peer_that_answers_no_ping_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's keepalive ends in the same reason: the peer went silent."""
    monkeypatch.setattr(websocket, "_PING_SECONDS", 0.05)
    monkeypatch.setattr(websocket, "_CLOSE_SECONDS", 0.05)

    async def deaf(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await connection.wait_closed()

    async with host(deaf) as where:
        assert await lost_with(FirehoseSource(where)) == "idle"


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (1000, "", "closed"),
        (1001, "", "closed"),
        (1011, "", "closed"),
        (1009, "", "closed"),
        (4000, "\x1b[31m", "closed"),
        (1008, "ConsumerTooSlow", "consumer_too_slow"),
        (1008, "FutureCursor", "future_cursor"),
    ],
)
async def test_a_close_frame_is_named_by_its_sense(code: int, text: str, reason: str) -> None:
    """The reference server's words are known; all others are one reason, and can't write on a terminal."""
    async with host(lambda connection: connection.close(code, text)) as where:
        _, lost = await until_lost(FirehoseSource(where))
    assert (lost.reason, str(code) in str(lost), "\x1b" in str(lost)) == (reason, True, False)


async def hostile(*data: bytes) -> tuple[list[bytes], SourceLost, int | None]:
    """What comes of a peer that writes ``data`` on an open connection: frames, loss, the close code it got."""
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def write(connection: ServerConnection) -> None:
        connection.transport.writelines(data)
        await connection.wait_closed()
        codes.put_nowait(connection.close_code)

    async with host(write) as where:
        frames, lost = await until_lost(FirehoseSource(where))
        return frames, lost, await codes.get()


async def test_a_frame_over_the_limit_is_refused_on_its_length_alone() -> None:
    """17 MB announced: refused with 1009 before a byte of it is read; the frames before it still come."""
    frames, lost, code = await hostile(frame_header(2, 2) + b"ok", frame_header(2, 17_000_000))
    assert (frames, lost.reason, code) == ([b"ok"], "oversized", 1009)


async def test_a_peer_that_answers_no_close_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Having refused a frame we give the peer a moment to close, not until its next ping is due."""
    monkeypatch.setattr(websocket, "_CLOSE_SECONDS", 0.05)

    waiting = asyncio.Event()

    async def stay(connection: ServerConnection) -> None:
        await waiting.wait()
        connection.transport.pause_reading()
        connection.transport.write(frame_header(2, 17_000_000))
        await connection.wait_closed()

    async with host(stay) as where, asyncio.timeout(10):
        connection = await websocket.connect(
            where.url, name="a", user_agent="b", timeout=10, max_frame_bytes=websocket.BUFFER_BYTES
        )
        taking = asyncio.create_task(connection.take(300))
        await asyncio.sleep(0)  # one turn: it waits now
        waiting.set()
        with pytest.raises(SourceLost) as lost:
            await taking
    assert lost.value.reason == "oversized"


async def test_fragments_over_the_limit_are_refused_together() -> None:
    """The limit holds for the message: pieces below it don't add up to more."""
    piece = bytes(9 * 1024 * 1024)
    parts = [frame_header(2, len(piece), fin=False), piece, frame_header(0, len(piece))]
    frames, lost, code = await hostile(*parts)
    assert (frames, lost.reason, code) == ([], "oversized", 1009)


@pytest.mark.parametrize(
    ("data", "frames", "reason"),
    [
        (frame_header(1, 2) + b"hi", [b"hi"], None),  # text, for the pipeline to refuse
        (frame_header(1, 3) + b"\xff\xfe\xed", [b"\xff\xfe\xed"], None),  # text that is none
        (frame_header(1, 1, fin=False) + b"h" + frame_header(0, 1) + b"i", [b"hi"], None),
        (frame_header(3, 1) + b"x", [], "protocol_error"),  # an opcode that isn't one
        (frame_header(0, 1) + b"x", [], "protocol_error"),  # continues nothing
        (struct.pack(">BB", 0x82, 0x81) + b"mask!", [], "protocol_error"),  # a server never masks
        (frame_header(2, 5) + b"cut", [], None),
    ],
)
async def test_a_peer_that_breaks_the_rules_cannot_break_us(
    data: bytes, frames: list[bytes], reason: str | None
) -> None:
    """Text comes as bytes; a violation ends the connection under its name; a frame cut off is never given."""

    async def write(connection: ServerConnection) -> None:
        connection.transport.write(data)
        if reason is None:
            connection.transport.close()
        await connection.wait_closed()

    async with host(write) as where:
        got, lost = await until_lost(FirehoseSource(where))
    assert (got, lost.reason) == (frames, reason or "closed")


async def test_endless_fragments_of_nothing_are_held_as_nothing() -> None:
    """A hundred thousand empty pieces of one message cost no memory and make one frame."""
    empty = struct.pack(">BB", 0x00, 0)
    data = struct.pack(">BB", 0x02, 0) + empty * 100_000 + struct.pack(">BB", 0x80, 0)
    frames, lost, _ = await hostile(data, struct.pack(">BBH", 0x88, 2, 1000))
    assert (frames, lost.reason) == ([b""], "closed")


async def test_a_slow_consumer_holds_the_peer_back() -> None:
    """While the consumer is busy no more than buffers' worth is taken off the host; afterwards all of it comes."""
    total, size = 2048, 64 * 1024
    sent = 0

    async def push(connection: ServerConnection) -> None:
        nonlocal sent
        for _ in range(total):
            await connection.send(bytes(size))
            sent += 1

    async with host(push) as where, aclosing(FirehoseSource(where).items(None)) as items:
        await anext(items)
        first = await anext(items)
        assert isinstance(first, Chunk)
        await settled(lambda: sent)
        assert sent < total // 2
        count, largest = len(first.frames), 0
        while count < total:
            chunk = await anext(items)
            assert isinstance(chunk, Chunk)
            count += len(chunk.frames)
            largest = max(largest, sum(map(len, chunk.frames)))
        assert largest < websocket.BUFFER_BYTES + 1024 * 1024


async def settled(number: Callable[[], int]) -> None:
    """Let the loop turn until ``number`` has stood still for a thousand turns."""
    for _ in range(100):
        before = number()
        for _ in range(1000):
            await asyncio.sleep(0)
        if number() == before:
            return
    raise AssertionError("never settled")


async def test_leaving_a_peer_that_still_pushes_takes_no_more_frames() -> None:
    """Closing in the midst of a flood ends, the peer told or cut off; what came meanwhile is thrown away."""
    gone = asyncio.Event()

    async def push(connection: ServerConnection) -> None:
        try:
            for chunk in itertools.repeat(bytes(64 * 1024)):
                await connection.send(chunk)
        except ConnectionClosed:
            gone.set()

    async with host(push) as where:
        connection = await websocket.connect(
            where.url, name="a", user_agent="b", timeout=10, max_frame_bytes=websocket.BUFFER_BYTES
        )
        assert await connection.take(10)
        await connection.leave()
        with pytest.raises(SourceLost):
            await connection.take(10)
        await gone.wait()


async def test_a_peer_that_pings_and_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pongs nobody reads don't pile up."""
    monkeypatch.setattr(websocket, "_MAX_UNSENT_BYTES", 100_000)
    ping = struct.pack(">BB", 0x89, 125) + bytes(125)

    async def flood(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        while not connection.transport.is_closing():
            connection.transport.write(ping * 1000)
            await connection.drain()
            await asyncio.sleep(0)

    async with host(flood) as where:
        assert await lost_with(FirehoseSource(where)) == "closed"
