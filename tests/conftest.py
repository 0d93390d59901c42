"""What the tests share: one throw-away PostgreSQL for the session, a fresh database for each test that asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from indexer.store.statements import schema_sql
from tests.indexing import Sql
from tests.postgres import TestCluster

CAPTURES = Path(__file__).parent / "captures"


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """A PostgreSQL of the session's own, with a template database that has our schema."""
    cluster = TestCluster()
    asyncio.run(cluster.start())
    try:
        asyncio.run(cluster.create_template(schema_sql()))
        yield cluster
    finally:
        asyncio.run(cluster.stop())


@pytest.fixture
async def database(cluster: TestCluster) -> AsyncIterator[str]:
    """The URL of a fresh database with our schema in it."""
    url = await cluster.clone()
    yield url
    await cluster.drop(url)


@pytest.fixture
async def empty_database(cluster: TestCluster) -> AsyncIterator[str]:
    """The URL of a fresh database with nothing in it."""
    url = await cluster.empty()
    yield url
    await cluster.drop(url)


@pytest.fixture
async def sql(database: str) -> AsyncIterator[Sql]:
    """A connection to the fresh database, for asking what is in it."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
def pds_a() -> Path:
    """A capture of the reference PDS: frames.bin, did-docs.json, expected.json and each account's CAR."""
    return CAPTURES / "pds-a"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """List last what this machine could not run."""
    missing = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "not run:" in report.longrepr[2]
    ]
    for report in missing:
        assert isinstance(report.longrepr, tuple)
        terminalreporter.write_line(f"NOT RUN {report.nodeid}: {report.longrepr[2].partition('not run: ')[2]}")
