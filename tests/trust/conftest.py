"""What the tests of proofs and repair share: a store, and the repair worker's view of it, twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from indexer.store import Store
from indexer.store.repairs import Repairs
from tests.indexing import Sql
from tests.trust.scene import Scene, scene
from tests.trust.steps import connected


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    """A store over the test's database."""
    store = connected(database)
    yield store
    await store.close()


@pytest.fixture
async def repairs(store: Store) -> Repairs:
    """The repair worker's view of the same store."""
    return Repairs(store)


@pytest.fixture
async def others(database: str) -> AsyncIterator[Repairs]:
    """Another repair worker, with a connection of its own."""
    store = connected(database)
    yield Repairs(store)
    await store.close()


@pytest.fixture
async def one(database: str, sql: Sql) -> AsyncIterator[Scene]:
    """The account and the index, everybody reachable."""
    async with scene(database, sql) as made:
        yield made


@pytest.fixture
async def alone(database: str, sql: Sql) -> AsyncIterator[Scene]:
    """The account and the index, the directory reachable but no host."""
    async with scene(database, sql, reachable=False) as made:
        yield made
