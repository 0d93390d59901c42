"""Connections: opening them, and PostgreSQL's errors as this package's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
from asyncpg.exceptions import ClientConfigurationError

from indexer.errors import BatchRefused, DatabaseError, DatabaseTooSlow, DatabaseUnavailable, SchemaError
from indexer.store.dsn import place_of
from indexer.store.statements import statement

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

# Seconds: the server ends waiting for a lock and working on a statement by itself and says so; a connection without any
# answer is given up after that.
LOCK_TIMEOUT, STATEMENT_TIMEOUT, COMMAND_TIMEOUT = 60, 300, 330
# Seconds that a transaction may wait for its client: one that was paused or cut off in it must not keep its locks.
IDLE_TIMEOUT = 4
Dsn: TypeAlias = Callable[[], Awaitable[str]]

# SQLSTATE classes and codes. The policy on one screen: retry, bisect, or stop.
# connection, rollback, resources, lock, operator, system; a transaction that waited too long for us
_RETRY = ("08", "40", "53", "55", "57", "58", "25P03")
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


# What a writer asks is asked again and again, and looks everything up by key. Planning takes longer than most of its
# statements run, so each is planned once: by rules instead of statistics, since those of a table that was empty when a
# plan was made are wrong soon after.
WRITING = {"plan_cache_mode": "force_generic_plan"} | {
    f"enable_{way}": "off" for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort", "material", "memoize")
}


async def connect(dsn: str, settings: Mapping[str, str] = MappingProxyType({})) -> Connection:
    """Open one connection, with these settings of the server beside those that all have.

    Raises DatabaseUnavailable, or SchemaError where no retry helps (no such database); either says where it looked.
    """
    own = {
        "application_name": "letta-indexer",
        "search_path": "pg_catalog",
        "jit": "off",
        "lock_timeout": f"{LOCK_TIMEOUT}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT}s",
        "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT}s",
    }
    try:
        with translated():
            return await asyncpg.connect(
                dsn, timeout=10, command_timeout=COMMAND_TIMEOUT, server_settings={**own, **settings}
            )
    except (asyncpg.InterfaceError, DatabaseError) as error:
        meant = error if isinstance(error, DatabaseError) else translate(error)
        raise type(meant)(f"{meant} ({place_of(dsn)})") from None


async def fetch(connection: Connection, name: str, *args: Any, table: str | None = None) -> list[asyncpg.Record]:
    """Run one named statement and return its rows. Driver errors come through untranslated."""
    return await connection.fetch(statement(name, table), *args)
