"""A database as version 1 left it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.indexing import Sql
from tests.migrations.life import fill_version_1


@pytest.fixture
async def old(empty_database: str) -> AsyncIterator[Sql]:
    """A connection to the empty database, after it got the schema of version 1 and what its code wrote there."""
    connection = await asyncpg.connect(empty_database)
    await fill_version_1(connection)
    yield connection
    await connection.close()
