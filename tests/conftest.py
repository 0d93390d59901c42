"""What the tests share: one throw-away PostgreSQL for the session, a fresh database for each test that asks."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from indexer.store.statements import schema_sql
from tests.indexing import Sql
from tests.postgres import TestCluster

pytest_plugins = ["tests.drills.figures"]

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


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder whose way the embedded server's user can go too."""
    folder = Path(tempfile.mkdtemp(prefix="test-"))
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pds_a() -> Path:
    """A capture of the reference PDS: frames.bin, did-docs.json, expected.json and each account's CAR."""
    return CAPTURES / "pds-a"


def _not_run(reporter: pytest.TerminalReporter) -> list[tuple[str, str]]:
    """Tests that this machine lacks something for, with what it lacks."""
    skipped = (report for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple))
    reasons = ((report.nodeid, report.longrepr[2]) for report in skipped)
    return [(name, reason.partition("not run: ")[2]) for name, reason in reasons if "not run: " in reason]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List last what this machine could not run."""
    for name, reason in _not_run(terminalreporter):
        terminalreporter.write_line(f"NOT RUN {name}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything has to run (CI), what could not is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("INDEXER_TEST_REQUIRE_ALL") and reporter is not None and _not_run(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
