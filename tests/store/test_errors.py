"""What an error of the driver or the database means: try again, this data is refused, or stop."""

from __future__ import annotations

import asyncpg
import pytest
from asyncpg.exceptions._base import DataError as ClientDataError

from indexer.errors import BatchRefused, DatabaseError, DatabaseTooSlow, DatabaseUnavailable, SchemaError
from indexer.store.connection import translate, translated
from indexer.store.statements import statement
from tests.indexing import Sql
from tests.store.batches import opened

SECRET = "SECRET"
MEANINGS: list[tuple[type[BaseException], type[DatabaseError]]] = [
    (asyncpg.AdminShutdownError, DatabaseUnavailable),
    (asyncpg.CrashShutdownError, DatabaseUnavailable),
    (asyncpg.CannotConnectNowError, DatabaseUnavailable),
    (asyncpg.ConnectionDoesNotExistError, DatabaseUnavailable),
    (asyncpg.DeadlockDetectedError, DatabaseUnavailable),
    (asyncpg.SerializationError, DatabaseUnavailable),
    (asyncpg.DiskFullError, DatabaseUnavailable),
    (asyncpg.TooManyConnectionsError, DatabaseUnavailable),
    (asyncpg.LockNotAvailableError, DatabaseUnavailable),
    (ConnectionResetError, DatabaseUnavailable),
    (TimeoutError, DatabaseUnavailable),
    (EOFError, DatabaseUnavailable),
    (asyncpg.UntranslatableCharacterError, BatchRefused),
    (asyncpg.CharacterNotInRepertoireError, BatchRefused),
    (asyncpg.NumericValueOutOfRangeError, BatchRefused),
    (asyncpg.NotNullViolationError, BatchRefused),
    (asyncpg.UniqueViolationError, BatchRefused),
    (asyncpg.ProgramLimitExceededError, BatchRefused),
    (asyncpg.StatementTooComplexError, BatchRefused),
    (asyncpg.DataError, BatchRefused),
    (ClientDataError, BatchRefused),
    (OverflowError, BatchRefused),
    (asyncpg.InterfaceError, SchemaError),
    (asyncpg.QueryCanceledError, DatabaseTooSlow),
    (asyncpg.UndefinedTableError, SchemaError),
    (asyncpg.UndefinedColumnError, SchemaError),
    (asyncpg.InsufficientPrivilegeError, SchemaError),
    (asyncpg.InvalidPasswordError, SchemaError),
    (asyncpg.InvalidCatalogNameError, SchemaError),
]


@pytest.mark.parametrize(("kind", "meaning"), MEANINGS, ids=lambda kind: kind.__name__)
def test_meaning_of_an_error(kind: type[BaseException], meaning: type[DatabaseError]) -> None:
    """One policy: what broke off is tried again, what is refused is parted, what no retry helps ends the run."""
    assert type(translate(kind("what happened"))) is meaning


@pytest.mark.parametrize(("kind", "meaning"), [one for one in MEANINGS if one[1] is not SchemaError])
def test_error_holds_no_content(kind: type[BaseException], meaning: type[DatabaseError]) -> None:
    """PostgreSQL quotes what it refuses; what we say of it doesn't."""
    assert SECRET not in str(translate(kind(f"invalid: {SECRET}")))


def test_text_that_is_no_unicode() -> None:
    """A lone surrogate, which the driver can't encode, is refused data."""
    with pytest.raises(UnicodeEncodeError) as caught:
        (SECRET + "\ud800").encode()
    error = translate(caught.value)
    assert (type(error), SECRET in str(error)) == (BatchRefused, False)


async def test_a_call_that_is_wrong_is_not_tried_again(database: str) -> None:
    """A statement run with too few arguments is a mistake of ours: no retry helps, and it is no outage."""
    async with opened(database) as store:
        with pytest.raises(SchemaError):
            async with store.connection("write") as connection:
                await connection.fetch(statement("put_cursors"), [])


async def test_a_connection_that_is_gone_is_an_outage(database: str) -> None:
    """The driver's word for work on a closed connection is the same as for a mistake; it is tried again."""
    async with opened(database) as store:
        with pytest.raises(DatabaseUnavailable):  # noqa: PT012 (it is translated where the connection is given back)
            async with store.connection("write") as connection:
                await connection.close()
                await connection.fetch(statement("schema_version"))


async def test_a_mistake_of_ours_is_no_refused_data(sql: Sql) -> None:
    """A ValueError out of our own code comes through as it is: nothing is set aside for it."""
    with pytest.raises(ValueError, match="ours"), translated(sql):
        raise ValueError("ours")
