"""A WebSocket that hands over frames in bulk; the only module that knows the library ``websockets``.

What the library does: handshake, TLS, proxies, limits, keepalive, closing, and parsing, except for what nearly all
frames are: a whole message that came in one read is cut off here, which costs a tenth. What else is done here: frames
are handed over as one list, which saves the library's queue and a coroutine a frame; what waits to be taken is bounded
in bytes, not in frames, so that a peer with large frames can't fill the memory; and every way to fail becomes a
``SourceLost`` with its reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as _LibraryConnect  # noqa: N812 (a class, spelled in lower case)
from websockets.client import ClientProtocol
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    SecurityError,
    WebSocketException,
)
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Event

from indexer.errors import SourceBroken, SourceError, SourceLost
from indexer.sources.base import ReconnectReason
from indexer.sources.header import ENDLESS, MESSAGES, payload_bounds

BUFFER_BYTES = 1024 * 1024
"""Reading stops while more than this waits to be taken; one read and one frame may come on top."""

FRAME_COST = 64
"""Bytes that a frame takes beside its own: a peer could send empty ones without end."""

MAX_REDIRECTS = 3
_PING_SECONDS = 30.0
_CLOSE_SECONDS = 1.0
_MAX_UNSENT_BYTES = 1024 * 1024
_CLOSE_REASONS = {  # how the reference server words its close frames
    "ConsumerTooSlow": ReconnectReason.CONSUMER_TOO_SLOW,
    "FutureCursor": ReconnectReason.FUTURE_CURSOR,
}
_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
_FAULTS = (CloseCode.PROTOCOL_ERROR, CloseCode.UNSUPPORTED_DATA, CloseCode.INVALID_DATA)

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # at DEBUG the library formats every frame, content included


class HandshakeRefused(SourceLost):
    """The host answered the handshake with an HTTP status; ``code`` is the XRPC error that it names, '' if none.

    For whoever knows what to do about a particular one; else it is a connection lost like any other.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, reason=ReconnectReason.HTTP_ERROR)
        self.status = status
        self.code = code


async def connect(url: str, *, name: str, user_agent: str, timeout: float, max_frame_bytes: int) -> FrameConnection:
    """Connect to ``url`` within ``timeout`` seconds, redirects included; ``name`` stands for it in messages.

    Compression is off: frames hold hashes and signatures, and a small one can't unpack into a large one.

    Raises:
        SourceLost: no connection; ``reason`` is ``connect_failed``, ``tls`` or ``http_error``.
        HandshakeRefused: the same, where the host gave another HTTP status.
        SourceBroken: the environment names a proxy this installation can't use.
    """
    try:
        connection = await _Connect(
            url,
            create_connection=FrameConnection,
            compression=None,
            user_agent_header=user_agent,
            open_timeout=timeout,
            close_timeout=_CLOSE_SECONDS,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            max_size=max_frame_bytes,
            logger=_log,
        )
    except (WebSocketException, OSError, UnicodeError, ImportError) as exc:
        raise _not_connected(name, exc) from exc
    assert isinstance(connection, FrameConnection)
    connection.name, connection.limit = name, max_frame_bytes
    return connection


class FrameConnection(ClientConnection):
    """One open WebSocket. Text frames come as their bytes too: what they hold is for the consumer to judge."""

    def __init__(self, protocol: ClientProtocol, **settings: Any) -> None:
        super().__init__(protocol, **settings)
        self.name = ""
        self.limit = 0  # bytes of a message cut off here; longer ones are the library's to take or refuse
        self._answer: bytes | None = b""  # the last bytes of the handshake's answer, None once it is whole
        self._theirs = 0  # bytes up to the end of the frame that the library is reading
        self._rest = b""  # the beginning of a frame's header
        self._frames: list[bytes] = []
        self._held = 0  # bytes that _frames take
        self._fragments: bytearray | None = None  # of a message that isn't whole
        self._held_back = False  # reading is stopped
        self._leaving = False
        self._lost: SourceLost | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self, timeout: float) -> list[bytes]:
        """All frames that came since the last call; waits for one, up to ``timeout`` seconds.

        Only this wait counts as silence: while the consumer is busy, the peer isn't idle.

        Raises:
            SourceLost: the connection has ended and every frame was taken, or none came in time.
        """
        if not self._frames:
            await self._wait(timeout)
        frames, self._frames = self._frames, []
        self._held = 0
        self._read_on()
        return frames

    async def leave(self) -> None:
        """Close the connection, giving the peer a second to agree; what still comes is thrown away."""
        self._leaving = True
        self._frames = []
        try:
            self._read_on()
            # The library bounds its wait for the peer's answer, but not that for a peer who reads nothing.
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * _CLOSE_SECONDS):
                    await self.close()
        finally:
            self.transport.abort()

    async def _wait(self, timeout: float) -> None:
        if self._lost is None and self.protocol.state is OPEN:
            self._waiter = self.loop.create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            except TimeoutError:
                raise SourceLost(f"{self.name}: no data for {timeout:g} s", reason=ReconnectReason.IDLE) from None
            finally:
                self._waiter = None
        if not self._frames:
            if self._lost is None:
                await self.close()  # one of us has begun to; waits, but not for ever, for the peer to end it
            raise self._lost or SourceLost(f"{self.name}: closed", reason=ReconnectReason.CLOSED)

    def _read_on(self) -> None:
        if self._held_back and not self.transport.is_closing():
            self.transport.resume_reading()
        self._held_back = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the event loop and the library call.

    def data_received(self, data: bytes) -> None:
        """Parse what was read, then stop reading if enough is held."""
        self._cut(data if self._answer is None else self._after_handshake(data))
        if self._held > BUFFER_BYTES and not self._held_back and not self.transport.is_closing():
            self._held_back = True
            self.transport.pause_reading()
        if self.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.transport.abort()  # a peer that sends pings without end and reads no pong
        if self._frames or self.protocol.state is not OPEN:
            self._wake()

    def _after_handshake(self, data: bytes) -> bytes:
        """Give the library the answer to the handshake, which ends at its first blank line, and return what follows."""
        assert self._answer is not None
        seen = self._answer + data
        _, blank, after = seen.partition(b"\r\n\r\n")
        self._answer = None if blank else seen[-3:]
        super().data_received(data[: len(data) - len(after)])
        return after

    def _cut(self, data: bytes) -> None:
        """Keep the messages that are whole in what was read; give the library every other frame, each to its end.

        So it is at the beginning of a frame whenever we are, and frames stay in order. A frame that breaks the rules
        has no end, nor has what comes once the connection is closing: the library decides what becomes of them.
        """
        data, self._rest = self._rest + data, b""
        at = 0
        while (at := self._keep_whole(data, at)) < len(data):
            if self.protocol.state is not OPEN:
                self._theirs = ENDLESS
            elif not self._theirs:
                start, stop = payload_bounds(data, at)
                if start > len(data):
                    self._rest = data[at:]
                    return
                self._theirs = stop - at
            part = data[at : at + self._theirs]
            self._theirs -= len(part)
            at += len(part)
            super().data_received(part)

    def _keep_whole(self, data: bytes, at: int) -> int:
        """Keep the whole messages from ``at`` on and return where anything else begins. Runs for every frame."""
        if self._theirs or self._fragments is not None or self.protocol.state is not OPEN:
            return at
        keep, limit, end = self._frames.append, self.limit, len(data)
        while True:
            start, stop = payload_bounds(data, at)
            if stop > end or stop - start > limit or data[at] not in MESSAGES:
                return at
            keep(data[start:stop])
            self._held += stop - start + FRAME_COST
            at = stop

    def process_event(self, event: Event) -> None:
        """Keep data frames; leave the handshake and control frames to the library."""
        if not (isinstance(event, Frame) and event.opcode in _DATA):
            super().process_event(event)
        elif event.fin and self._fragments is None:
            self._keep(bytes(event.data))
        else:
            self._fragments = self._fragments or bytearray()
            self._fragments += event.data
            if event.fin:
                message, self._fragments = bytes(self._fragments), None
                self._keep(message)

    def _keep(self, frame: bytes) -> None:
        if not self._leaving:
            self._frames.append(frame)
            self._held += len(frame) + FRAME_COST

    def connection_lost(self, exc: Exception | None) -> None:
        """Note how the connection ended; frames already held can still be taken."""
        super().connection_lost(exc)
        self._lost = _ended(self.name, self.protocol.close_exc, held_back=self._held_back)
        self._wake()


class _Connect(_LibraryConnect):
    """Follows at most three redirects, and none that would drop the cursor."""

    _redirects = 0

    def process_redirect(self, exc: Exception) -> Exception | str:
        query = urlsplit(self.uri).query
        try:
            target = super().process_redirect(exc)
        except (InvalidURI, ValueError):
            return SecurityError("redirected to something that is no WebSocket address")
        if isinstance(target, Exception):
            return target
        self._redirects += 1
        if self._redirects > MAX_REDIRECTS:
            return SecurityError(f"more than {MAX_REDIRECTS} redirects")
        # The peer says where; what we ask for, and from which cursor on, stays ours.
        return urlsplit(target)._replace(query=query).geturl()


def _not_connected(name: str, exc: Exception) -> SourceError:
    """What a failed attempt to connect means; no text of the peer goes into the message."""
    if isinstance(exc, ImportError):
        return SourceBroken(f"{name}: the proxy set in the environment needs the package python-socks")
    if isinstance(exc, ssl.SSLError):
        return SourceLost(f"{name}: TLS: {exc.reason or type(exc).__name__}", reason=ReconnectReason.TLS)
    if isinstance(exc, InvalidStatus):
        status = exc.response.status_code
        return HandshakeRefused(
            f"{name}: HTTP {status} instead of a WebSocket", status=status, code=_error_code(exc.response.body)
        )
    if isinstance(exc, InvalidHandshake):
        return SourceLost(f"{name}: bad handshake ({type(exc).__name__})", reason=ReconnectReason.HTTP_ERROR)
    if isinstance(exc, TimeoutError):
        return SourceLost(f"{name}: no connection in time", reason=ReconnectReason.CONNECT_FAILED)
    detail = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
    return SourceLost(f"{name}: cannot connect ({detail})", reason=ReconnectReason.CONNECT_FAILED)


def _error_code(body: bytes | bytearray) -> str:
    """The name in an XRPC error answer, '' where there is none. To be compared, not shown."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    code = answer.get("error") if isinstance(answer, dict) else None
    return code if isinstance(code, str) else ""


def _ended(name: str, exc: ConnectionClosed, *, held_back: bool) -> SourceLost:
    """What the end of a connection means: what we said first, else what the peer said."""
    if exc.sent is not None and not exc.rcvd_then_sent:
        reason = _own_reason(exc.sent, held_back=held_back)
        return SourceLost(f"{name}: we closed with {exc.sent.code} ({reason.value})", reason=reason)
    if exc.rcvd is None:
        return SourceLost(f"{name}: the connection broke off", reason=ReconnectReason.CLOSED)
    reason = _CLOSE_REASONS.get(exc.rcvd.reason, ReconnectReason.CLOSED)  # any other text of the peer's is not shown
    return SourceLost(f"{name}: closed by the peer with {exc.rcvd.code} ({reason.value})", reason=reason)


def _own_reason(sent: Close, *, held_back: bool) -> ReconnectReason:
    if sent.code == CloseCode.MESSAGE_TOO_BIG:
        return ReconnectReason.OVERSIZED
    if sent.code in _FAULTS:
        return ReconnectReason.PROTOCOL_ERROR
    if sent.code == CloseCode.INTERNAL_ERROR:  # no pong; one we held back ourselves is no fault of the peer's
        return ReconnectReason.CONSUMER_TOO_SLOW if held_back else ReconnectReason.IDLE
    return ReconnectReason.CLOSED
