"""Ways to a server that a test closes, opens again, and freezes: a database or a host that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Passage:
    """A loopback TCP port (``port``) that leads to wherever ``connect`` does.

    >>> async with Passage(lambda: asyncio.open_connection("127.0.0.1", 5432)) as passage:
    ...     await passage.close()  # every connection breaks, new ones are refused
    ...     await passage.open()
    ...     passage.freeze()  # connections stand, and nothing gets through, either way
    ...     passage.thaw()
    """

    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self.port = 0
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._gates: dict[asyncio.Task[None], asyncio.Event] = {}
        self._frozen = False

    async def open(self) -> None:
        """Let connections through, on the same port as before."""
        self._server = await asyncio.start_server(self._admit, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections and break those that are open."""
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Break the connections that are open; new ones are let through."""
        tasks = list(self._gates)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def freeze(self, *, later: bool = True) -> None:
        """Let nothing more through on the connections that are open, nor, with ``later``, on those to come."""
        self._frozen = later
        for gate in self._gates.values():
            gate.clear()

    def thaw(self) -> None:
        """Let what was held up through, and everything after it."""
        self._frozen = False
        for gate in self._gates.values():
            gate.set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gate = asyncio.Event()
        if not self._frozen:
            gate.set()
        task = asyncio.ensure_future(self._pass_on(reader, writer, gate))
        self._gates[task] = gate
        task.add_done_callback(self._gates.pop)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        writers = [writer]
        try:
            await gate.wait()
            there, back = await self._connect()
            writers.append(back)
            await asyncio.gather(_copy(reader, back, gate), _copy(there, writer, gate))
        except (OSError, asyncio.CancelledError) as end:  # one side is gone, or was never there
            for each in writers:
                each.transport.abort()
            if isinstance(end, asyncio.CancelledError):
                raise


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    while data := await reader.read(1 << 16):
        await gate.wait()
        writer.write(data)
        await writer.drain()
    writer.close()


class Gateway(Passage):
    """A passage to the database whose URL names a Unix socket."""

    def __init__(self, database: str) -> None:
        parts = urlsplit(database)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        socket = f"{query['host']}/.s.PGSQL.{query.get('port', '5432')}"
        super().__init__(lambda: asyncio.open_unix_connection(socket))
        self._login = parts.username or query.get("user", "")
        self._name = parts.path

    @property
    def url(self) -> str:
        """The URL of the database by way of this port."""
        login = f"{quote(self._login)}@" if self._login else ""
        return f"postgresql://{login}127.0.0.1:{self.port}{self._name}"
