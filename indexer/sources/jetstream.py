"""A Jetstream: records as JSON, filtered by its host, over WebSocket; frames are unpacked and handed over unread.

Version 2 is ``network.bsky.jetstream.subscribeEvents`` (lexicon of that name): the host's own sequence numbers, frames
compressed if a dictionary is asked for. Version 1 is ``/subscribe``: times in microseconds, no compression (its
dictionary is in no package). In both a cursor *includes* its event. Their numbers can't be mistaken for one another:
from 10^15 on they are times, in version 2 too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple

from indexer.errors import SourceLost
from indexer.sources.address import JetstreamAddress, Version
from indexer.sources.base import Chunk, Item, Opened, Positions, ReconnectReason
from indexer.sources.compression import MAGIC, Dictionary
from indexer.sources.firehose import USER_AGENT
from indexer.sources.websocket import FrameConnection, HandshakeRefused, connect

TIMES: Final = 10**15
"""From here on a cursor is a time in microseconds since 1970, below it a sequence number. The first: all there is."""

MAX_FRAME_BYTES: Final = 8 * 1024 * 1024
"""Longest frame accepted, unpacked: four times the blocks of a legal commit."""

OVERLAP: Final = 5_000_000  # microseconds read again in version 1, where events may share a time
LOOKBACK: Final = 24 * 3600 * 1_000_000  # microseconds that version 1 keeps events; it drops older cursors in silence
CHUNK_BYTES: Final = 1024 * 1024  # of unpacked frames handed over at once, and one frame
MAX_PATTERNS: Final = 100  # that a host takes; more of them aren't filtered by it
_RECOVERIES: Final = 4  # handshakes tried before a connection counts as lost

Fetch = Callable[[str], Awaitable[bytes | None]]


class Start(NamedTuple):
    """Where to begin: the cursor to ask for, the number below which nothing can come, and whether events are lost."""

    ask: int | None
    after: int | None
    missed: bool


class JetstreamSource:
    """A :class:`indexer.sources.base.Source` over one WebSocket at a time.

    ``collections`` are the patterns to ask for. ``fetch`` gets the body of a URL of the host's, None if there is none;
    without it nothing is compressed. ``clock`` is Unix time. The timeouts are those of
    :class:`indexer.sources.firehose.FirehoseSource`.
    """

    live: ClassVar[bool] = True
    positions: ClassVar[Positions] = "sequence"

    def __init__(
        self,
        address: JetstreamAddress,
        collections: Sequence[str],
        *,
        fetch: Fetch | None = None,
        connect_timeout: float = 20.0,
        idle_timeout: float = 300.0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.key = address.key
        self.label = address.key
        self._address = address
        self._collections = collections if len(collections) <= MAX_PATTERNS else ()
        self._fetch = fetch
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._max_frame_bytes = max_frame_bytes
        self._clock = clock
        self._dictionary: Dictionary | None = None
        self._refused: int | None = None  # the id of a dictionary that the host gives out and doesn't take

    async def items(self, cursor: int | None) -> AsyncGenerator[Item, None]:
        """One connection from ``cursor`` on, until it is lost.

        ``Opened.missed`` where the host doesn't keep what followed the cursor, or the cursor is of the other version.

        Raises:
            SourceLost: always, in the end; ``reason`` is a :class:`indexer.sources.base.ReconnectReason`.
            SourceBroken: the connection can never be made from here.
        """
        connection, opened = await self._opened(cursor)
        try:
            yield opened
            while True:
                for frames in self._unpacked(await connection.take(self._idle_timeout)):
                    yield Chunk(frames)
        finally:
            await connection.leave()

    async def _opened(self, cursor: int | None) -> tuple[FrameConnection, Opened]:
        """A connection, whatever the host wants asked otherwise than it first was."""
        version: Version = self._address.version or 2
        outdated = False
        for _ in range(_RECOVERIES):
            start = start_of(version, 0 if outdated else cursor, self._clock())
            try:
                connection = await self._connect(version, start.ask)
            except HandshakeRefused as refused:
                if refused.status == 404 and version == 2 and self._address.version is None:
                    version = 1
                elif refused.code == "CursorTooOld" and not outdated:
                    outdated = True
                elif refused.code == "UnknownZstdDictionary" and self._dictionary is not None:
                    self._refused, self._dictionary = self._dictionary.id, None
                else:
                    raise
            else:
                return connection, Opened(start.after, start.missed or outdated)
        raise SourceLost(f"{self.label}: the host refuses every handshake", reason=ReconnectReason.HTTP_ERROR)

    async def _connect(self, version: Version, ask: int | None) -> FrameConnection:
        filters = "collections" if version == 2 else "wantedCollections"
        parameters = [(filters, pattern) for pattern in self._collections]
        if ask is not None:
            parameters.append(("cursor", str(ask)))
        if version == 1:  # a frame over the limit could not be stepped over: times say nothing of how many come next
            parameters.append(("maxMessageSizeBytes", str(self._max_frame_bytes)))
        elif (dictionary := await self._with_dictionary()) is not None:
            parameters.append(("zstdDictionary", str(dictionary.id)))
        return await connect(
            self._address.subscription(version, parameters),
            name=self.label,
            user_agent=USER_AGENT,
            timeout=self._connect_timeout,
            max_frame_bytes=self._max_frame_bytes,
        )

    async def _with_dictionary(self) -> Dictionary | None:
        """The host's dictionary, if it has a usable one: without it all works, uncompressed."""
        if self._dictionary is None and self._fetch is not None:
            blob = await self._fetch(self._address.dictionary_url)
            try:
                dictionary = Dictionary(blob or b"")
            except ValueError:
                return None
            self._dictionary = None if dictionary.id == self._refused else dictionary
        return self._dictionary

    def _unpacked(self, frames: Iterable[bytes]) -> Iterator[list[bytes]]:
        """Frames unpacked, in lists of bounded size. Raises SourceLost for one that can't be."""
        chunk: list[bytes] = []
        held = 0
        for frame in frames:
            chunk.append(self._text_of(frame))
            held += len(chunk[-1])
            if held > CHUNK_BYTES:
                yield chunk
                chunk, held = [], 0
        if chunk:
            yield chunk

    def _text_of(self, frame: bytes) -> bytes:
        dictionary = self._dictionary
        if dictionary is None or not frame.startswith(MAGIC):
            return frame
        try:
            return dictionary.unpack(frame, self._max_frame_bytes)
        except ValueError as error:
            # Passed over, an event would be lost. It comes again, on a connection without that dictionary.
            self._refused, self._dictionary = dictionary.id, None
            raise SourceLost(f"{self.label}: {error}", reason=ReconnectReason.PROTOCOL_ERROR) from error


def start_of(version: Version, cursor: int | None, now: float) -> Start:
    """Where to begin so that nothing after ``cursor`` is left out (0: all that the host keeps, None: from now on)."""
    if cursor is None:
        return Start(None, None, False)
    if cursor < TIMES and (version == 1 or cursor == 0):
        return Start(TIMES, None, missed=cursor != 0)  # a sequence number says nothing where times count
    if cursor < TIMES:
        return Start(cursor + 1, cursor, False)
    if version == 2:
        return Start(cursor, None, False)  # the host says in its stream if that is too old
    ask = max(TIMES, cursor - OVERLAP)
    return Start(ask, ask - 1, missed=now * 1_000_000 - cursor > LOOKBACK)
