"""The lease: which daemon of a database writes its stream, by a row that the writer renews and the others watch.

Time is the server's alone. A daemon that was paused or cut off can't know that its lease is over; so every transaction
that writes for the stream ends with :func:`hold_lease`, which fails under a lease that somebody else has taken since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import asyncpg

from indexer.errors import DatabaseUnavailable, SchemaError
from indexer.store.connection import Connection, fetch

Connected: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

VALIDITY = timedelta(seconds=4)  # of a lease that isn't renewed; also the longest wait for an answer about it


class LeaseLostError(Exception):
    """Another daemon has taken the lease: nothing was written, and nothing can be under this one."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write the stream, until another daemon takes it; then the generation is another."""

    generation: int


async def hold_lease(connection: Connection, lease: Lease | None) -> None:
    """Keep the lease from being taken until this transaction ends, as its last step; None: it needs none.

    Raises LeaseLostError if it was taken. Renewing it goes on meanwhile. What is held is held for a moment: the server
    ends a transaction whose client has fallen silent (``connection.IDLE_TIMEOUT``).
    """
    if lease is not None and not await fetch(connection, "hold_lease", lease.generation):
        raise LeaseLostError


class Leases:
    """What a daemon does about the lease; ``name`` tells people which daemon it is.

    ``connected`` gives the connection for that, which has to be the same as long as it stands: its end frees the lease.
    Every method raises DatabaseUnavailable where the database doesn't answer within :data:`VALIDITY`.
    """

    def __init__(self, connected: Connected, name: str) -> None:
        self._connected = connected
        self._name = name

    async def take(self) -> Lease | None:
        """The lease, if nobody holds it: none was taken, it expired, was given back, or its holder's session ended.

        Waits for transactions that hold it. What the last holder began and didn't commit it never will.
        """
        rows = await self._run("take_lease", self._name, VALIDITY)
        return Lease(rows[0]["generation"]) if rows else None

    async def holder(self) -> str | None:
        """The name of the daemon that holds the lease; None if nobody does. Raises SchemaError if there is no lease."""
        rows = await self._run("lease_holder")
        if not rows:
            raise SchemaError("the row of letta_store.lease is missing: restore it, or the database")
        return str(rows[0]["holder"]) if rows[0]["held"] else None

    async def renew(self, lease: Lease) -> None:
        """Keep the lease for another :data:`VALIDITY`, also if it has expired. Raises LeaseLostError if it is taken."""
        if not await self._run("renew_lease", lease.generation, VALIDITY):
            raise LeaseLostError

    async def release(self, lease: Lease) -> None:
        """Give the lease back, unless it is taken already."""
        await self._run("release_lease", lease.generation)

    async def _run(self, name: str, *args: object) -> list[asyncpg.Record]:
        try:
            async with asyncio.timeout(VALIDITY.total_seconds()), self._connected() as connection:
                return await fetch(connection, name, *args)
        except TimeoutError:
            raise DatabaseUnavailable("the database is not available: it doesn't answer") from None
