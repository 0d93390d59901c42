"""What the catalog of a database with our schema says, read once."""

from __future__ import annotations

import asyncio

import pytest

from tests.postgres import TestCluster
from tests.scaling.levels import Places
from tests.scaling.sources import Schema, all_places, read_schema


@pytest.fixture(scope="session")
def schema(cluster: TestCluster) -> Schema:
    """Our schema, as a database has it."""

    async def read() -> Schema:
        async with cluster.fresh_database() as url:
            return await read_schema(url)

    return asyncio.run(read())


@pytest.fixture(scope="session")
def places(schema: Schema) -> Places:
    """Where the rows of each table and view come from, by the plan in ``deploy/citus.sql``."""
    return all_places(schema)
