"""A Jetstream on loopback, both versions of its protocol: filters, cursors, compression, retention.

Behaviour read off the reference implementation's description. Cursors are inclusive, and times from 10^15 on. Version 2
refuses a sequence number no longer kept before the upgrade (``CursorTooOld``), and answers one from the future with an
``#info`` and what is new; a time too old becomes the oldest kept, in version 2 with an ``#info``, in version 1 in
silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import zstandard
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from indexer.simulator.witness import LEXICON, Witness, Witnessed, error, info, text

VERSION_1 = "/subscribe"
VERSION_2 = f"/xrpc/{LEXICON}"
DICTIONARY = "/xrpc/network.bsky.jetstream.getZstdDictionary"
TIMES = 10**15

Query = dict[str, list[str]]


def trained(samples: Iterable[bytes], *, number: int = 7, size: int = 16_384) -> bytes:
    """A zstd dictionary with this number as its id, made of samples of what is to be compressed."""
    return zstandard.train_dictionary(size, list(samples), dict_id=number).as_bytes()


class Jetstream:
    """A host that has witnessed what is published to it: ``async with Jetstream() as host: host.url``.

    ``versions`` are those it speaks, ``dictionary`` is what version 2 compresses with for who asks. ``asked`` holds
    path and query of every request to subscribe, ``sent_bytes`` counts what went out in frames.
    """

    def __init__(
        self, *, port: int = 0, first_seq: int = 1, versions: tuple[int, ...] = (1, 2), dictionary: bytes | None = None
    ) -> None:
        self.asked: list[str] = []
        self.sent_bytes = 0
        self.versions = versions
        self.dictionary = dictionary
        self.log: list[Witnessed] = []
        self._port = port
        self._witness = Witness(first_seq)
        self._open: set[ServerConnection] = set()
        self._changed = asyncio.Event()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """``ws://127.0.0.1:port``, without a path."""
        return f"ws://127.0.0.1:{self._port}"

    @property
    def floor(self) -> int:
        """The first sequence number that is kept; the next one if nothing is."""
        return self.log[0].seq if self.log else self._witness.next_seq

    async def __aenter__(self) -> Self:
        self._server = await serve(self._serve, "127.0.0.1", self._port, process_request=self._gate, compression=None)
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close(code=1001)
            await self._server.wait_closed()

    def publish(self, frames: Iterable[bytes]) -> None:
        """Witness frames of the firehose, and send what they are to all subscribers."""
        self.put(*(event for frame in frames for event in self._witness.see(frame)))

    def put(self, *witnessed: Witnessed) -> None:
        """Append events as they are."""
        self.log += witnessed
        self._announce()

    def forget(self, before: int) -> None:
        """Keep no event with a sequence number below ``before``."""
        self.log = [event for event in self.log if event.seq >= before]

    async def disconnect(self, code: int = 1000) -> None:
        """Close every connection properly."""
        await asyncio.gather(*(connection.close(code) for connection in list(self._open)))

    def cut(self) -> None:
        """Drop every connection without a closing handshake."""
        for connection in list(self._open):
            connection.transport.abort()

    async def refuse(self, name: str = "ConsumerTooSlow") -> None:
        """Send every subscriber an error frame and close its connection."""
        for connection in list(self._open):
            await connection.send(error(name).decode())
        await self.disconnect(1008)

    async def subscribed(self, times: int = 1) -> None:
        """Wait until so many subscriptions have been asked for, refused ones included, and one is open."""
        while len(self.asked) < times or not self._open:
            await self._changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # the handshake

    def _gate(self, connection: ServerConnection, request: Request) -> Response | None:
        address = urlsplit(request.path)
        if address.path == DICTIONARY and self.dictionary is not None:
            return _answer(HTTPStatus.OK, self.dictionary, "application/octet-stream")
        served = {VERSION_1: 1, VERSION_2: 2}.get(address.path)
        if served not in self.versions:
            return _answer(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
        self.asked.append(request.path)
        self._announce()
        return self._refusal(parse_qs(address.query)) if served == 2 else None

    def _refusal(self, query: Query) -> Response | None:
        """What version 2 refuses before the upgrade."""
        cursor = _number(query, "cursor")
        asked = _number(query, "zstdDictionary")
        if "wantedCollections" in query:
            return refusal("InvalidRequest")
        if asked is not None and (self.dictionary is None or asked != _id_of(self.dictionary)):
            return refusal("UnknownZstdDictionary")
        if cursor is not None and cursor < min(TIMES, self.floor):
            return refusal("CursorTooOld")
        return None

    # the stream

    async def _serve(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        self._announce()
        following = asyncio.ensure_future(self._follow(connection))
        ended = asyncio.ensure_future(connection.wait_closed())
        try:
            await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(connection)
            following.cancel()
            ended.cancel()
            results = await asyncio.gather(following, ended, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ConnectionClosed):
                raise result

    async def _follow(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        address = urlsplit(connection.request.path)
        query = parse_qs(address.query)
        version = 2 if address.path == VERSION_2 else 1
        send = self._sender(connection, query)
        after, notice = self._start(version, _number(query, "cursor"))
        if notice is not None:
            await send(notice)
        while True:
            changed = self._changed
            for event in [event for event in self.log if event.seq > after]:
                after = event.seq
                frame = _frame(event, version, query)
                if frame is not None:
                    await send(frame)
            await changed.wait()

    def _start(self, version: int, cursor: int | None) -> tuple[int, bytes | None]:
        """The sequence number to go on after, and what has to be said before."""
        tip = self._witness.next_seq - 1
        if cursor is None:
            return tip, None
        if cursor >= TIMES or version == 1:
            later = (event.seq for event in self.log if event.time_us >= cursor)
            clamped = version == 2 and bool(self.log) and cursor < self.log[0].time_us
            return next(later, tip + 1) - 1, info("OutdatedCursor") if clamped else None
        return (tip, info("FutureCursor")) if cursor > tip + 1 else (cursor - 1, None)

    def _sender(self, connection: ServerConnection, query: Query) -> Callable[[bytes], Awaitable[None]]:
        packed = _number(query, "zstdDictionary") is not None
        data = zstandard.ZstdCompressionDict(self.dictionary or b"") if packed else None
        compressor = zstandard.ZstdCompressor(dict_data=data) if data else None

        async def send(frame: bytes) -> None:
            out = compressor.compress(frame) if compressor else frame
            self.sent_bytes += len(out)
            await connection.send(out if compressor else out.decode(errors="surrogateescape"))

        return send


def _frame(event: Witnessed, version: int, query: Query) -> bytes | None:
    """The frame of an event for who asked so; None if it was filtered out."""
    patterns = query.get("collections" if version == 2 else "wantedCollections", [])
    kinds = query.get("kinds", []) if version == 2 else []
    dids = query.get("dids" if version == 2 else "wantedDids", [])
    frame = event.version_2 if version == 2 else event.version_1
    limit = _number(query, "maxMessageSizeBytes")
    if frame is None or (kinds and event.kind not in kinds) or (dids and event.did not in dids):
        return None
    if event.kind == "commit" and patterns and not any(_matches(event.collection, pattern) for pattern in patterns):
        return None
    return None if limit and len(frame) > limit else frame


def _matches(collection: str, pattern: str) -> bool:
    return collection.startswith(pattern[:-1]) if pattern.endswith(".*") else collection == pattern


def _number(query: Query, name: str) -> int | None:
    return int(query[name][0]) if name in query else None


def _id_of(dictionary: bytes) -> int:
    return int.from_bytes(dictionary[4:8], "little")


def refusal(name: str) -> Response:
    """An XRPC error before the upgrade."""
    return _answer(
        HTTPStatus.BAD_REQUEST, text({"error": name, "message": "said by the simulator"}), "application/json"
    )


def _answer(status: HTTPStatus, body: bytes, media_type: str) -> Response:
    headers = Headers([("Content-Type", media_type), ("Content-Length", str(len(body))), ("Connection", "close")])
    return Response(status.value, status.phrase, headers, body)
