"""The store: everything that touches PostgreSQL. Other modules see :class:`Store`, never the driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Literal, get_args

import structlog

from indexer.batch import Batch, Position
from indexer.errors import BatchRefused, DatabaseTooSlow, DatabaseUnavailable, SchemaError
from indexer.model import DeadLetter, Reason
from indexer.store.connection import IDLE_TIMEOUT, WRITING, Connection, Dsn, connect, fetch, translated
from indexer.store.context import Applied, Limits
from indexer.store.lease import Lease, hold_lease
from indexer.store.migrations import check_version, create_schema, ensure_schema
from indexer.store.reports import Summary, read_counts, read_stale, read_summary
from indexer.store.statements import statement
from indexer.store.writer import write

__all__ = ["Applied", "Limits", "Store", "Summary"]

Purpose = Literal["write", "repair", "read", "count", "ping", "page", "lease", "watch"]

PRUNED = 5_000  # accounts at a time
SET_ASIDE_LIMIT = 256  # bytes of a refused record's key that its dead letter names
SLOW_TRIES = 3  # of what can't be parted and takes the database too long, before it is set aside

WATCH = 0.5  # seconds between looks at connections in use
SILENCE = timedelta(seconds=5)  # that a server process may wait for us while we wait for it

_log = structlog.stdlib.get_logger("indexer.store")


class Store:
    """One database: a connection for each purpose, made anew after it broke. What scans all rows to count them keeps
    nobody waiting, and a ping waits for nobody.

    ``dsn`` is awaited before each connection, so that it may start or restart the server; ``migrates``: :meth:`open`
    leads an older schema to this program's version. Every method raises DatabaseUnavailable where trying again can
    help, and SchemaError where it can't.
    """

    def __init__(self, dsn: Dsn, *, limits: Limits | None = None, migrates: bool = False) -> None:
        self._dsn = dsn
        self._migrates = migrates
        self.limits = limits or Limits()
        self._connections: dict[Purpose, Connection] = {}
        self._processes: dict[Purpose, int] = {}  # of the server, behind each connection
        self._watched: set[int] = set()  # processes behind connections that were in use at the last look
        self._turns: dict[Purpose, asyncio.Lock] = {purpose: asyncio.Lock() for purpose in get_args(Purpose)}

    async def open(self) -> None:
        """Connect, and create or check the schema. Raises SchemaError."""
        async with self.unchecked_connection() as connection:
            await ensure_schema(connection, migrates=self._migrates)

    async def initialize(self) -> bool:
        """Create the schema whatever else the database holds; False if it was there already."""
        async with self.unchecked_connection() as connection:
            return await create_schema(connection)

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            with translated(connection):
                await connection.close(timeout=5)
        self._connections.clear()

    async def apply(self, batch: Batch, now: datetime, lease: Lease | None = None) -> Applied:
        """Write a batch and its positions in one transaction, if it is the stream's under ``lease``.

        Data that the database refuses, or takes too long for, is parted until the one thing is found that is at fault:
        that becomes a dead letter, everything else is written. Positions go with the last part: cut short, the rest is
        simply read again. Raises LeaseLostError; without a lease only what repair writes may be written.
        """
        try:
            return await self._write(batch, now, lease)
        except (BatchRefused, DatabaseTooSlow) as error:
            try:
                low, high = batch.halves()
            except ValueError:
                return await self._set_aside(batch, error, now, lease)
        return await self.apply(low, now, lease) + await self.apply(high, now, lease)

    async def _write(self, batch: Batch, now: datetime, lease: Lease | None) -> Applied:
        async with self.connection("write") as connection:
            applied = await write(connection, batch, self.limits, now, lease)
            if batch.dead_letters:
                limits = self.limits
                oldest = now - limits.letter_age
                await connection.execute(
                    statement("bound_dead_letters"), limits.letter_rows, limits.letter_bytes, oldest
                )
            return applied

    async def _set_aside(
        self, batch: Batch, error: BatchRefused | DatabaseTooSlow, now: datetime, lease: Lease | None
    ) -> Applied:
        """Write the batch without the one thing that the database refuses, and that as a dead letter."""
        if isinstance(error, DatabaseTooSlow):
            for _ in range(SLOW_TRIES - 1):
                with suppress(DatabaseTooSlow, BatchRefused):
                    return await self._write(batch, now, lease)
        did, what, rest = batch.without_last()
        if not what:
            raise SchemaError(f"the database refuses what holds nothing: {error}") from error
        detail = f"{error}: {what}"[:SET_ASIDE_LIMIT]
        _log.warning("set aside", did=did, what=what, error=str(error))
        rest.add_dead_letter(DeadLetter("", None, did, Reason.REFUSED_BY_DATABASE, detail, b"", 0))
        applied = await self.apply(rest, now, lease)
        applied.dropped[Reason.REFUSED_BY_DATABASE] += 1
        return applied

    async def positions(self, sources: list[str]) -> dict[str, Position]:
        """The committed position of each of these sources that has one."""
        async with self.connection("read") as connection:
            rows = await fetch(connection, "cursors", sources)
        return {row["source"]: Position(row["seq"], row["event_time"]) for row in rows if row["seq"] is not None}

    async def set_source_state(
        self, source: str, state: str, detail: str | None, now: datetime, lease: Lease | None = None
    ) -> None:
        """Record what a source is doing, for ``letta.source``. Raises LeaseLostError."""
        async with self.connection("read") as connection, connection.transaction():
            await connection.execute(statement("put_source_state"), source, state, detail, now)
            await hold_lease(connection, lease)

    async def ping(self) -> None:
        """Raise unless the database answers and has the schema."""
        async with self.connection("ping") as connection:
            await connection.fetchval(statement("schema_version"))

    async def prune(self, before: datetime) -> int:
        """Forget some states of accounts that hold nothing here, told before that time; how many."""
        async with self.connection("count") as connection, connection.transaction():
            dids = [row["did"] for row in await fetch(connection, "prunable_accounts", before, PRUNED)]
            await fetch(connection, "lock_accounts", [], dids, False)
            return len(await fetch(connection, "prune_accounts", dids, before))

    async def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Prompts by freshness, and stale prompts by reason."""
        async with self.connection("count") as connection:
            return await read_counts(connection)

    async def summary(self) -> Summary:
        """What ``status`` shows."""
        async with self.connection("read") as connection:
            return await read_summary(connection)

    async def stale(self) -> list[dict[str, object]]:
        """The stale prompts, the longest stale first."""
        async with self.connection("read") as connection:
            return await read_stale(connection)

    @asynccontextmanager
    async def connection(self, purpose: Purpose) -> AsyncIterator[Connection]:
        """The connection for a purpose, for one user at a time; closed if the user's work fails on it."""
        async with self._turns[purpose]:
            connection = self._connections.get(purpose)
            if connection is None or connection.is_closed():
                connection = await self._checked_connection(purpose)
                self._connections[purpose] = connection
            try:
                with translated(connection):
                    yield connection
            except BatchRefused:
                raise
            except BaseException:
                # Cut off in mid-command (cancelled, timed out, lost): its state is unknown, so it isn't used again.
                self._connections.pop(purpose, None)
                connection.terminate()
                raise

    async def watch(self) -> None:
        """Until cancelled: break each connection on which somebody waits for a server that waits for us, or is gone.

        A network can lose a connection without a word. From here it looks like one whose statement takes long. What
        another daemon lost so, with locks that somebody here waits for, is ended at the server.
        """
        while True:
            await asyncio.sleep(WATCH)
            with suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(SILENCE.total_seconds()):
                    await self._break_dead()

    async def _break_dead(self) -> None:
        used = [purpose for purpose in self._connections if purpose != "watch" and self._turns[purpose].locked()]
        processes = {self._processes[purpose] for purpose in used}
        # Of what has come into use since the last look the server may not have seen the first statement yet.
        watched = processes & self._watched
        self._watched = processes
        waiting = {self._processes[p]: self._connections[p] for p in used if self._processes[p] in watched}
        if processes:
            async with self.connection("watch") as connection:
                for row in await fetch(connection, "dead_processes", list(waiting), SILENCE):
                    _log.warning("a connection to the database is dead", process=row["pid"])
                    waiting[row["pid"]].terminate()
                for row in await fetch(connection, "end_silent", list(processes), timedelta(seconds=IDLE_TIMEOUT)):
                    _log.warning("a daemon that fell silent held locks: its process was ended", process=row["pid"])

    async def _checked_connection(self, purpose: Purpose) -> Connection:
        """A new connection to a schema that this program can work with."""
        connection = await connect(await self._dsn(), WRITING if purpose in ("write", "repair") else {})
        try:
            await check_version(connection)
            with translated(connection):
                self._processes[purpose] = await connection.fetchval(statement("process"))
        except BaseException:
            connection.terminate()
            raise
        return connection

    @asynccontextmanager
    async def unchecked_connection(self) -> AsyncIterator[Connection]:
        """A connection of its own to a database whose schema may be of any version, or missing; closed after that."""
        connection = await connect(await self._dsn())
        try:
            with translated(connection):
                yield connection
                await connection.close(timeout=5)
        finally:
            connection.terminate()
