"""The schema of a database: created, checked, and led from an older version to this program's.

``schema.sql`` is what a new database gets, ``indexer/migrations/NNNN_*.sql`` what leads one of the version before to
NNNN. The first line of that, ``-- compatible from: N``, names the oldest version whose programs can work with the
result: where it isn't NNNN itself, the migration only adds to the schema, and a daemon of version N goes on meanwhile.

Two advisory locks keep that true. Who creates or migrates a schema holds the one. Whoever works with it shares the
other, from before looking at the version until the connection ends; and a migration that present programs could not go
on with has to have it alone: it is refused while any of them is at work, and who comes later sees the new version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import structlog

from indexer.errors import DatabaseError, DatabaseUnavailable, SchemaError
from indexer.store.connection import Connection, translated
from indexer.store.statements import schema_sql, statement

SCHEMA_VERSION = 2
MIGRATION_TIMEOUT = 86_400.0  # seconds for one migration: it may have to rewrite every row

_log = structlog.stdlib.get_logger("indexer.store.migrations")

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_COMPATIBLE = re.compile(r"-- compatible from: (\d+)\n")


@dataclass(frozen=True, slots=True)
class Migration:
    """What leads a schema of ``version - 1`` to ``version``, which programs of ``compatible_from`` on can work with."""

    version: int
    compatible_from: int
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations by version, from the folder of that name in the package."""
    found = []
    for file in resources.files("indexer").joinpath("migrations").iterdir():
        if name := _NAME.fullmatch(file.name):
            sql = file.read_text("utf-8")
            compatible = _COMPATIBLE.match(sql)
            if compatible is None:
                raise ValueError(f"{file.name} doesn't begin with `-- compatible from: N`")
            found.append(Migration(int(name[1]), int(compatible[1]), sql))
    return tuple(sorted(found, key=lambda migration: migration.version))


async def ensure_schema(connection: Connection, *, migrates: bool = False) -> None:
    """Create the schema in an empty database, in one transaction, or check the version of the one that is there.

    ``migrates``: lead an older one to this program's version. Raises SchemaError for a version that this program can't
    work with, for a database that holds other tables, and for one that isn't UTF-8.
    """
    async with connection.transaction():
        await connection.execute(statement("lock_creation"))
        await refuse_encoding(connection)
        if not await connection.fetchval(statement("has_schema")):
            if not await connection.fetchval(statement("is_empty")):
                raise SchemaError(
                    "the database has no schema of letta-indexer, but other tables: name an empty one by "
                    "--database-url, or run `letta-indexer db init` to add the schema beside them"
                )
            await connection.execute(schema_sql())
    if migrates:
        await migrate(connection)
    await check_version(connection)


async def create_schema(connection: Connection) -> bool:
    """Create the schema whatever else the database holds; False if it was there. Raises SchemaError."""
    async with connection.transaction():
        await connection.execute(statement("lock_creation"))
        await refuse_encoding(connection)
        created = not await connection.fetchval(statement("has_schema"))
        if created:
            await connection.execute(schema_sql())
    await check_version(connection)
    return created


async def migrate(connection: Connection) -> list[int]:
    """Lead the schema to this program's version, in one transaction; the versions it went through, [] if none.

    Raises SchemaError where there is no schema, where it is newer than this program knows, and where programs are at
    work that could not go on with the result. A migration that fails says so: SchemaError, or DatabaseUnavailable where
    trying again can help.
    """
    making = 0  # the version that a migration is leading to
    try:
        with translated(connection):
            async with connection.transaction():
                due = await _due(connection)
                for migration in due:
                    making = migration.version
                    await connection.execute(migration.sql, timeout=MIGRATION_TIMEOUT)
                    await connection.execute(statement("put_version"), migration.version, migration.compatible_from)
                making = 0
    except DatabaseError as error:
        if not making:
            raise
        kind = type(error) if isinstance(error, DatabaseUnavailable) else SchemaError
        raise kind(f"the migration to schema version {making} failed, and nothing was changed: {error}") from None
    if due:
        _log.info("the schema is migrated", to=due[-1].version)
    await check_version(connection)
    return [migration.version for migration in due]


async def _due(connection: Connection) -> list[Migration]:
    """What has to be made, by us alone until the end of the transaction. Raises SchemaError."""
    await connection.execute(statement("lock_creation"))
    found, _ = await _version(connection)
    due = [migration for migration in migrations() if migration.version > found]
    if any(migration.compatible_from > found for migration in due):
        await _refuse_company(connection)
    if due:
        _log.info("migrating the schema", found=found, to=due[-1].version)
    await connection.execute(statement("unlimited_time"))
    return due


async def check_version(connection: Connection) -> None:
    """Raise SchemaError unless this program can work with the schema. It stays so while the connection is open."""
    found = await older_version(connection)
    if found is not None:
        raise SchemaError(
            f"the database has schema version {found}, this letta-indexer needs version {SCHEMA_VERSION}: "
            "run `letta-indexer db migrate`"
        )


async def older_version(connection: Connection) -> int | None:
    """The version of a schema that has to be migrated before this program can work with it, None for any other.

    It stays so while the connection is open. Raises SchemaError for one that takes a newer program.
    """
    with translated(connection):
        await connection.execute(statement("share_schema"))
        found, compatible_from = await _version(connection)
    refuse_newer("the database", found, compatible_from)
    return found if found < SCHEMA_VERSION else None


def refuse_newer(holder: str, found: int, compatible_from: int) -> None:
    """Raise SchemaError if the schema of version ``found`` that ``holder`` has takes a newer program than this."""
    if compatible_from > SCHEMA_VERSION:
        raise SchemaError(
            f"{holder} has schema version {found}, this letta-indexer knows version {SCHEMA_VERSION}: "
            "run a newer letta-indexer"
        )


async def _version(connection: Connection) -> tuple[int, int]:
    """The schema's version, and the oldest version whose programs can work with it. Raises SchemaError without one."""
    if not await connection.fetchval(statement("has_schema")):
        raise SchemaError("the database has no schema of letta-indexer: run `letta-indexer db init`")
    row = await connection.fetchrow(statement("schema_version"))
    if row is None:
        raise SchemaError("the schema of letta-indexer in this database has no version: restore it from a dump")
    return row["version"], row["compatible_from"]


async def refuse_encoding(connection: Connection) -> None:
    """Raise SchemaError unless the database keeps text as UTF-8."""
    if await connection.fetchval(statement("encoding")) != "UTF8":
        raise SchemaError("the database is not encoded in UTF8: create one that is, and name it by --database-url")


async def _refuse_company(connection: Connection) -> None:
    if not await connection.fetchval(statement("try_own_schema")):
        raise SchemaError(
            "a letta-indexer of an older version is at work on this database, and could not go on after this "
            "migration: stop every daemon and command, then run `letta-indexer db migrate` again"
        )
