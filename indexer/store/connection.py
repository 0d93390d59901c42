"""Connections: opening them, the schema behind them, and PostgreSQL's errors as this package's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
from asyncpg.exceptions import ClientConfigurationError

from indexer.errors import BatchRefused, DatabaseError, DatabaseTooSlow, DatabaseUnavailable, SchemaError
from indexer.store.statements import schema_sql, statement

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

SCHEMA_VERSION = 1
# Seconds: the server ends waiting for a lock and working on a statement by itself and says so; a connection without any
# answer is given up after that.
LOCK_TIMEOUT, STATEMENT_TIMEOUT, COMMAND_TIMEOUT = 60, 300, 330
Dsn: TypeAlias = Callable[[], Awaitable[str]]

# SQLSTATE classes and codes. The policy on one screen: retry, bisect, or stop.
_RETRY = ("08", "40", "53", "55", "57", "58")  # connection, rollback, resources, lock, operator, system
_REFUSED = ("22", "23", "54", "XX000")  # data, constraint, a program limit such as nesting depth, internal error
_CANCELED = "57014"  # by our own time limit for a statement


def translate(error: BaseException, *, lost: bool = False) -> DatabaseError:
    """What an exception of the driver means: try again, this data is refused, or stop; ``lost``: the connection is.

    The message holds the SQLSTATE and the kind of error only: PostgreSQL quotes record content in its own.
    """
    code = getattr(error, "sqlstate", None)
    what = f"{type(error).__name__}{f' ({code})' if code else ''}"
    if isinstance(error, asyncpg.PostgresError) and code is not None:
        return _translate_code(error, code, what)
    if isinstance(error, UnicodeError):
        return BatchRefused("the data holds text that is no Unicode")
    if _is_refusal(error):
        return BatchRefused(f"the driver refuses the data: {what}")
    if isinstance(error, asyncpg.InterfaceError) and not lost:
        return SchemaError(f"the driver doesn't do what is asked of it: {what}")
    return DatabaseUnavailable(f"the database is not available: {what}")


def _is_refusal(error: BaseException) -> bool:
    """Whether the driver can't encode what it was given: its own DataError, which is a ValueError too."""
    encoding = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    return isinstance(error, OverflowError) or (encoding and not isinstance(error, ClientConfigurationError))


def _translate_code(error: BaseException, code: str, what: str) -> DatabaseError:
    if code == _CANCELED:
        return DatabaseTooSlow(f"the database takes too long: {what}")
    if code.startswith(_REFUSED):
        return BatchRefused(f"the database refuses the data: {what}")
    if code.startswith(_RETRY):
        return DatabaseUnavailable(f"the database is not available: {what}")
    return SchemaError(f"the database doesn't let us work: {what}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else ""


@contextmanager
def translated(connection: Connection | None = None) -> Iterator[None]:
    """Everything the driver raises inside comes out as a DatabaseError.

    What the state of the connection has to explain comes through unless that is given: its holder translates it.
    """
    try:
        yield
    except asyncpg.InterfaceError as error:
        if connection is None and not _is_refusal(error):
            raise
        raise translate(error, lost=connection is not None and connection.is_closed()) from None
    except (asyncpg.PostgresError, asyncpg.InternalClientError, OSError) as error:
        raise translate(error) from None
    except (EOFError, TimeoutError, OverflowError, UnicodeError) as error:
        raise translate(error) from None


async def connect(dsn: str) -> Connection:
    """Open one connection. Raises DatabaseUnavailable, or SchemaError where no retry helps (no such database)."""
    settings = {
        "application_name": "letta-indexer",
        "search_path": "pg_catalog",
        "jit": "off",
        # A plan made once and for all is one for arrays of unknown length over tables as they were, often empty ones.
        "plan_cache_mode": "force_custom_plan",
        "lock_timeout": f"{LOCK_TIMEOUT}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT}s",
    }
    try:
        with translated():
            return await asyncpg.connect(dsn, timeout=10, command_timeout=COMMAND_TIMEOUT, server_settings=settings)
    except asyncpg.InterfaceError as error:
        raise translate(error) from None


async def ensure_schema(connection: Connection) -> None:
    """Create the schema in an empty database, in one transaction, or check the version of the one that is there.

    Raises SchemaError for an unknown version, for a database that holds other tables, and for one that isn't UTF-8.
    """
    with translated():
        async with connection.transaction():
            await connection.execute(statement("lock_creation"))
            if await connection.fetchval(statement("encoding")) != "UTF8":
                raise SchemaError(
                    "the database is not encoded in UTF8: create one that is, and name it by --database-url"
                )
            if not await connection.fetchval(statement("has_schema")):
                if not await connection.fetchval(statement("is_empty")):
                    raise SchemaError(
                        "the database has no schema of letta-indexer, but other tables: name an empty one by "
                        "--database-url, or run `letta-indexer db init` to add the schema beside them"
                    )
                await connection.execute(schema_sql())
        await check_version(connection)


async def create_schema(connection: Connection) -> bool:
    """Create the schema whatever else the database holds; False if it was there. Raises SchemaError."""
    with translated():
        async with connection.transaction():
            await connection.execute(statement("lock_creation"))
            if await connection.fetchval(statement("has_schema")):
                created = False
            else:
                await connection.execute(schema_sql())
                created = True
        await check_version(connection)
        return created


async def check_version(connection: Connection) -> None:
    """Raise SchemaError unless the schema has the version this program knows."""
    version = await connection.fetchval(statement("schema_version"))
    if version != SCHEMA_VERSION:
        raise SchemaError(
            f"the database has schema version {version}, this program knows version {SCHEMA_VERSION}: "
            "run the release of letta-indexer that fits the database, or migrate it"
        )


async def fetch(connection: Connection, name: str, *args: Any, table: str | None = None) -> list[asyncpg.Record]:
    """Run one named statement and return its rows. Driver errors come through untranslated."""
    return await connection.fetch(statement(name, table), *args)
