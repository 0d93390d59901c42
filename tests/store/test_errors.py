"""What an error of the driver or the database means: try again, this data is refused, or stop."""

from __future__ import annotations

import asyncpg
import pytest

from indexer.errors import BatchRefused, DatabaseError, DatabaseUnavailable, SchemaError
from indexer.store.connection import translate

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
    (asyncpg.InterfaceError, DatabaseUnavailable),
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
    (asyncpg.exceptions.DataError, BatchRefused),
    (ValueError, BatchRefused),
    (OverflowError, BatchRefused),
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
