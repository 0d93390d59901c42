"""What the database is asked and told before and after PostgreSQL's own programs dump our schemas or restore them.

A dump is taken at one instant and holds rows and positions alike, so that what is restored from it goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from indexer.errors import SchemaError
from indexer.store import Store
from indexer.store.connection import Connection
from indexer.store.migrations import older_version, refuse_encoding, refuse_newer
from indexer.store.statements import statement

SCHEMAS = ("letta", "letta_store")  # what a dump holds
VERSIONS = ("--data-only", "--schema=letta_store", "--table=schema_version")  # what of it `refuse_unusable` is to see

_COPIED = re.compile(r"^COPY letta_store\.schema_version \((.*?)\) FROM stdin;\n(.*?)^\\\.$", re.MULTILINE | re.DOTALL)


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

    async def end_restore(self) -> int | None:
        """Give the planner its figures; the schema's version if it is an older one, to be migrated next."""
        async with self._store.unchecked_connection() as connection:
            await connection.execute(statement("analyze"))
            return await older_version(connection)


def refuse_unusable(versions: str) -> None:
    """Raise SchemaError for a dump that this program could not work with once it is restored.

    ``versions`` is the SQL that pg_restore makes of the table of schema versions.
    """
    copied = _COPIED.search(versions)
    rows = [line.split("\t") for line in copied[2].splitlines()] if copied else []
    if copied is None or not rows:
        raise SchemaError("this dump holds no index of letta-indexer")
    names = copied[1].split(", ")
    found = [{name: int(value) for name, value in zip(names, row, strict=True) if value.isdecimal()} for row in rows]
    newest = max(found, key=lambda row: row["version"])
    refuse_newer("the dump", newest["version"], newest.get("compatible_from", newest["version"]))


def _major(connection: Connection) -> int:
    return int(connection.get_server_version().major)
