"""The firehose of one host: ``com.atproto.sync.subscribeRepos`` over WebSocket, raw frames unread."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

from indexer import __version__
from indexer.sources.address import FirehoseAddress
from indexer.sources.base import MAX_FRAME_BYTES, Chunk, Item, Opened, Positions
from indexer.sources.websocket import connect

USER_AGENT = f"letta-indexer/{__version__}"


class FirehoseSource:
    """A :class:`indexer.sources.base.Source` over one WebSocket at a time.

    ``connect_timeout`` (seconds) covers name, TCP, TLS, redirects and handshake. After ``idle_timeout`` seconds in
    which the consumer waited and no frame came the connection counts as dead, whatever pings it answers; the default
    suits small hosts too, where silence is normal and connecting again does no harm.
    """

    live: ClassVar[bool] = True
    positions: ClassVar[Positions] = "sequence"

    def __init__(
        self,
        address: FirehoseAddress,
        *,
        connect_timeout: float = 20.0,
        idle_timeout: float = 300.0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.key = address.key
        self.label = address.key
        self._address = address
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._max_frame_bytes = max_frame_bytes

    @property
    def url(self) -> str:
        """The URL connected to, without a cursor; it may hold a password, so it is never shown."""
        return self._address.url

    async def items(self, cursor: int | None) -> AsyncGenerator[Item, None]:
        """One connection from ``cursor`` on, until it is lost.

        Raises:
            SourceLost: always, in the end; ``reason`` is a :class:`indexer.sources.base.ReconnectReason`.
            SourceBroken: the connection can never be made from here.
        """
        connection = await connect(
            self._address.after(cursor),
            name=self.label,
            user_agent=USER_AGENT,
            timeout=self._connect_timeout,
            max_frame_bytes=self._max_frame_bytes,
        )
        try:
            yield Opened(cursor)
            while True:
                yield Chunk(await connection.take(self._idle_timeout))
        finally:
            await connection.leave()
