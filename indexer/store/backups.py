"""What the database is asked and told before and after PostgreSQL's own programs dump our schemas or restore them.

A dump is taken at one instant and holds rows and positions alike, so that what is restored from it goes on from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from indexer.errors import SchemaError
from indexer.store import Store
from indexer.store.connection import Connection
from indexer.store.migrations import check_version, refuse_encoding
from indexer.store.statements import statement

SCHEMAS = ("letta", "letta_store")  # what a dump holds


class Backups:
    """Backups of the database at ``dsn``, whatever the version of its schema. Raises what :class:`Store` does."""

    def __init__(self, dsn: str) -> None:
        async def known() -> str:
            return dsn

        self._store = Store(known)

    async def begin_dump(self) -> int:
        """The server's major version; raises SchemaError where there is nothing of ours to dump."""
        async with self._store.unchecked_connection() as connection:
            if not await connection.fetchval(statement("has_schema")):
                raise SchemaError("the database has no schema of letta-indexer: there is nothing to dump")
            return _major(connection)

    @asynccontextmanager
    async def restoring(self) -> AsyncIterator[int]:
        """Keep an empty database for a restore: nobody else creates a schema in it. Gives the server's major version.

        Raises SchemaError where it isn't empty.
        """
        async with self._store.unchecked_connection() as connection:
            await connection.execute(statement("keep_creation"))
            await refuse_encoding(connection)
            if not await connection.fetchval(statement("is_empty")):
                raise SchemaError("the database is not empty: restore into a new one")
            await connection.execute(statement("create_reader"))
            yield _major(connection)

    async def end_restore(self) -> None:
        """Give the planner its figures. Raises SchemaError where the schema has to be migrated, or is a newer one."""
        async with self._store.unchecked_connection() as connection:
            await connection.execute(statement("analyze"))
            await check_version(connection)


def _major(connection: Connection) -> int:
    return int(connection.get_server_version().major)
