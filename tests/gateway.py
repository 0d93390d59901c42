"""A way to a test database that can be closed and opened again: a server that goes away and comes back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit


class Gateway:
    """A loopback TCP port that leads to the database whose URL names a Unix socket.

    >>> async with Gateway(database) as gateway:
    ...     gateway.url  # leads there
    ...     await gateway.close()  # every connection breaks, new ones are refused
    ...     await gateway.open()
    """

    def __init__(self, database: str) -> None:
        parts = urlsplit(database)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._socket = f"{query['host']}/.s.PGSQL.{query.get('port', '5432')}"
        self._login = parts.username or query.get("user", "")
        self._name = parts.path
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The URL of the database by way of this port."""
        login = f"{quote(self._login)}@" if self._login else ""
        return f"postgresql://{login}127.0.0.1:{self._port}{self._name}"

    async def open(self) -> None:
        """Let connections through, on the same port as before."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections and break those that are open."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._socket)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._writers -= {writer, back}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
