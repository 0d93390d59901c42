"""Frames cut off what was read, without the library's parser: the library alone is what they are compared with."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import CLOSED, OPEN, Event
from websockets.uri import parse_uri
from websockets.utils import accept_key

from indexer.errors import SourceLost
from indexer.sources import websocket
from indexer.sources.firehose import FirehoseSource
from indexer.sources.websocket import FrameConnection
from tests.sources.peers import address, frame_header, until_lost

LIMIT = 300  # bytes of a message
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
BLANK = b"\r\n\r\n"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
ACCEPTED = UPGRADE + accept_key(KEY).encode() + BLANK


class Wire(asyncio.Transport):
    """A transport that remembers what was written, without masks, as one text of bytes for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(unmasked(bytes(data)))

    def write_eof(self) -> None:
        self.written.append(b"")

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""


def unmasked(data: bytes) -> bytes:
    """A short frame of a client's, as it would be without its random mask."""
    mask, payload = data[2:6], data[6:]
    return data[:2] + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


@dataclass
class Alone:
    """What the library's parser, asked alone, makes of the bytes."""

    protocol: ClientProtocol
    frames: list[bytes] = field(default_factory=list)
    response: Response | None = None
    written: list[bytes] = field(default_factory=list)
    _pieces: bytes = b""

    def receive(self, data: bytes | None) -> None:
        """Parse what was read; None is its end."""
        if data is None:
            self.protocol.receive_eof()
        else:
            self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            self._note(event)
        self.send_data()

    def send_data(self) -> None:
        self.written += [unmasked(data) for data in self.protocol.data_to_send()]

    def _note(self, event: Event) -> None:
        if isinstance(event, Response):
            self.response = event
        elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            self._pieces += event.data
            if event.fin:
                self.frames.append(self._pieces)
                self._pieces = b""


def protocol() -> ClientProtocol:
    """A protocol that has yet to read the answer to its handshake."""
    made = ClientProtocol(parse_uri("ws://peer.test/"), max_size=LIMIT)
    made.key = KEY
    return made


def connection(wire: Wire, limit: int = LIMIT) -> FrameConnection:
    """A connection of ours in the same state."""
    made = FrameConnection(protocol())
    made.limit = limit
    made.connection_made(wire)
    return made


def frame(first: int, payload: bytes, form: int = 0) -> bytes:
    """A frame whose length is written in 7 bits, 16 or 64 (``form`` 0 to 2): as short as can be, but no shorter."""
    size = len(payload)
    forms = [bytes([size])] if size < 126 else []
    forms += [struct.pack(">BH", 126, size), struct.pack(">BQ", 127, size)]
    return bytes([first]) + forms[min(form, len(forms) - 1)] + payload


forms = st.integers(0, 2)
payloads = st.sampled_from([*map(bytes, (0, 1, 125, 126, LIMIT - 8, LIMIT)), BLANK, BLANK + b"\x82\x02ab", b"\x82\x01"])
messages = st.builds(frame, st.sampled_from((0x82, 0x82, 0x81)), payloads, forms)
fragments = st.builds(frame, st.sampled_from((0x02, 0x01, 0x00, 0x00, 0x80)), payloads, forms)
controls = st.builds(frame, st.sampled_from((0x89, 0x8A)), st.sampled_from((b"", b"beat", bytes(125))), forms)
closes = st.builds(
    lambda code, reason, form: frame(0x88, struct.pack(">H", code) + reason, form),
    st.sampled_from((1000, 1008, 1005, 4000)),
    st.sampled_from((b"", b"FutureCursor", b"\xff")),
    forms,
)
broken = st.one_of(
    st.builds(frame, st.integers(0, 255), st.sampled_from((b"", b"odd", bytes(126), bytes(LIMIT + 1))), forms),
    st.builds(frame, st.sampled_from((0x82, 0x00, 0x89)), st.just(bytes(LIMIT + 1)), forms),
    st.builds(lambda first: struct.pack(">BBQ", first, 127, 1 << 63), st.sampled_from((0x82, 0x00, 0x89))),
    st.builds(lambda size: bytes([0x82, 0x80 | size]) + b"mask" + bytes(size), st.integers(0, 127)),
    st.sampled_from((0xC2, 0x83, 0x02, 0x80, 0x88)).map(lambda first: bytes([first])),
)
ends = st.just(b"") | closes | broken
streams = st.builds(
    lambda frames, end, after: b"".join([*frames, end, *after]),
    st.lists(messages | fragments | controls, max_size=8),
    ends,
    st.lists(messages | closes, max_size=2),
)
refusals = st.sampled_from(
    (
        UPGRADE + b"of somebody else" + BLANK,
        ACCEPTED.replace(BLANK, b"\n\n"),
        ACCEPTED.replace(b"\r\nUpgrade", b"\nUpgrade"),
        BLANK + ACCEPTED,
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 9" + BLANK + BLANK + b"\x82\x01a\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0" + BLANK,
        b"HTTP/1.1 500 Sorry" + BLANK,
        b"HTTP/1.1 500 Sorry" + BLANK + b"\x82",
        b"HTTP/1.1 100 Continue" + BLANK + ACCEPTED,
    )
)
places = st.lists(st.integers(0, 1 << 16), max_size=8) | st.just(range(5000))  # where reads end, modulo all there is


def cut(data: bytes, reads: Sequence[int]) -> list[bytes]:
    """The bytes as they are read, in pieces of at least one."""
    bounds = sorted({0, len(data), *(end % (len(data) + 1) for end in reads)})
    return [data[begin:end] for begin, end in pairwise(bounds)]


async def compare(data: bytes, reads: Sequence[int], closes_at: int | None = None, limit_at: int = 0) -> None:
    """Assert that both make the same of the bytes, after each read and at their end.

    ``closes_at`` is the read before which we begin to close, ``limit_at`` that before which the limit is known.
    """
    wire, alone = Wire(), Alone(protocol())
    ours = connection(wire, limit=0)
    for number, piece in enumerate(cut(data, reads)):
        if number == limit_at:
            ours.limit = LIMIT
        if number == closes_at and ours.protocol.state is OPEN:
            for one in (ours, alone):
                one.protocol.send_close(1000)
                one.send_data()
        ours.data_received(piece)
        alone.receive(piece)
        assert (ours._frames, wire.written) == (alone.frames, alone.written)
        assert ours.protocol.state is alone.protocol.state
    ours.eof_received()
    alone.receive(None)
    assert alone.protocol.state is CLOSED
    ours.connection_lost(None)
    assert (wire.written, repr(ours.response)) == (alone.written, repr(alone.response))
    assert repr(ours.protocol.handshake_exc) == repr(alone.protocol.handshake_exc)
    assert (await ours.take(0) if alone.frames else []) == alone.frames
    with pytest.raises(SourceLost) as lost:
        await ours.take(0)
    end = websocket._ended("", alone.protocol.close_exc, held_back=False)
    assert (lost.value.reason, str(lost.value)) == (end.reason, str(end))


@settings(max_examples=500)
@given(stream=streams, reads=places, closes_at=st.none() | st.integers(0, 8), limit_at=st.integers(0, 2))
def test_frames_and_end_are_those_of_the_library_alone(
    stream: bytes, reads: Sequence[int], closes_at: int | None, limit_at: int
) -> None:
    """Whatever a peer sends, however it is cut into reads: the same frames, answers, state and end, read by read."""
    asyncio.run(compare(ACCEPTED + stream, reads, closes_at, limit_at))


@example(refusal=b"HTTP/1.1 500 Sorry" + BLANK + b"\x82", stream=b"", reads=())
@given(refusal=refusals, stream=streams, reads=places)
def test_a_refused_handshake_is_the_librarys(refusal: bytes, stream: bytes, reads: Sequence[int]) -> None:
    """Nothing after an answer that opens no connection is a frame, whatever it looks like."""
    asyncio.run(compare(refusal + stream, reads))


@pytest.mark.parametrize("split", range(1, 6))
async def test_a_message_that_came_whole_is_not_given_to_the_library(
    split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the handshake, however its end is cut, and the frames that are cut in two or no whole message."""
    asked: list[bytes] = []
    receive = ClientConnection.data_received

    def note(self: ClientConnection, data: bytes) -> None:
        asked.append(data)
        receive(self, data)

    monkeypatch.setattr(ClientConnection, "data_received", note)
    ours = connection(Wire())
    text, long, ping = frame(0x81, b"hi"), frame(0x82, bytes(256)), frame(0x89, b"")
    ours.data_received(ACCEPTED[: len(ACCEPTED) - split])
    ours.data_received(ACCEPTED[len(ACCEPTED) - split :] + text + long + ping + text + long[:1])
    ours.data_received(long[1:100])
    ours.data_received(long[100:] + text)
    assert b"".join(asked[:2]) == ACCEPTED
    assert asked[2:] == [ping, long[:100], long[100:]]
    assert await ours.take(0) == [b"hi", bytes(256), b"hi", bytes(256), b"hi"]


async def test_frames_in_the_same_segment_as_the_handshake_are_taken() -> None:
    """A host that sends at once loses nothing: frames behind its answer, in the same write, are the first ones."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(BLANK)
        key = next(line[19:] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        frames = frame_header(2, 3) + b"one" + frame_header(2, 3) + b"t"
        writer.write(UPGRADE + accept_key(key.decode()).encode() + BLANK + frames)
        await writer.drain()
        writer.write(b"wo" + struct.pack(">BBH", 0x88, 2, 1000))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        got, lost = await until_lost(FirehoseSource(address(server.sockets[0].getsockname()[1])))
    assert (got, lost.reason) == ([b"one", b"two"], "closed")
