"""The database of the test suite: one throw-away PostgreSQL a session, one fresh database a test.

By default it is the embedded PostgreSQL of the wheel. ``INDEXER_TEST_PG_BIN`` names another one's ``bin``
folder (such as ``/usr/lib/postgresql/15/bin``), to test against the oldest version we support.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from indexer.embedded import EmbeddedPostgres

TEMPLATE = "template_of_tests"


def chosen_bin_dir() -> Path | None:
    """Return the folder of PostgreSQL programs the environment asks for, None for the wheel's."""
    folder = os.environ.get("INDEXER_TEST_PG_BIN")
    return Path(folder) if folder else None


class TestCluster:
    """A throw-away cluster and the databases in it.

    Bound to no event loop: every method opens and closes its own connection, so a session-wide instance serves
    tests that each run in a loop of their own.
    """

    __test__ = False  # not a collection of tests, whatever its name begins with

    def __init__(self, bin_dir: Path | None = None) -> None:
        self._server = EmbeddedPostgres(None, temporary=True, fast_for_tests=True, bin_dir=bin_dir or chosen_bin_dir())
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Start the cluster; raises EmbeddedError if that cannot be."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop the cluster and remove all it has on disk."""
        await self._server.stop()

    @property
    def url(self) -> str:
        """The URL of the database in which the cluster is administered; the user is a superuser."""
        return self._server.dsn

    async def create_template(self, sql: str) -> None:
        """Create the database that :meth:`clone` copies, by running ``sql`` (such as ``schema.sql``) in it."""
        await self._administer(f"create database {TEMPLATE} template template0")
        connection = await asyncpg.connect(_in_database(self.url, TEMPLATE))
        try:
            await connection.execute(sql)
        finally:
            await connection.close()
        # A connection to it would make every clone fail.
        await self._administer(f"alter database {TEMPLATE} allow_connections false")

    async def clone(self) -> str:
        """Create a database with the content of the template; return its URL."""
        name = f"test_{next(self._numbers)}"
        # Without fsync, copying the files costs a tenth of logging every block (the server's default).
        await self._administer(f"create database {name} template {TEMPLATE} strategy file_copy")
        return _in_database(self.url, name)

    async def empty(self) -> str:
        """Create a database with nothing in it; return its URL."""
        name = f"test_{next(self._numbers)}"
        await self._administer(f"create database {name} template template0 strategy file_copy")
        return _in_database(self.url, name)

    async def drop(self, url: str) -> None:
        """Drop the database that :meth:`clone` or :meth:`empty` returned, whoever is still connected to it."""
        await self._administer(f'drop database "{urlsplit(url).path[1:]}" with (force)')

    @asynccontextmanager
    async def fresh_database(self) -> AsyncIterator[str]:
        """Give the URL of a clone of the template, and drop it afterwards."""
        url = await self.clone()
        try:
            yield url
        finally:
            await self.drop(url)

    async def _administer(self, sql: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


def _in_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
