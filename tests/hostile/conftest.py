"""A target for hostile frames; whatever a test threw at it, the index's promises are checked at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.hostile.target import Target
from tests.indexing import Sql, indexing


@pytest.fixture
async def target(database: str, sql: Sql) -> AsyncIterator[Target]:
    """The real pipeline and store over a fresh database."""
    async with indexing(database) as index:
        target = Target(index, sql)
        yield target
        await target.assert_sound()
