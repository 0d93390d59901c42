"""Roles that sign in with a password, on the database of the tests, which otherwise knows its users by the system."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import pytest

from tests.postgres import TestCluster

GROUP = "indexer_test_login"  # whose members sign in with a password
PASSWORD = "pass-Wörd/%@:of-a-role"
_RULE = f"local all +{GROUP} scram-sha-256"
_NUMBERS = itertools.count(1)


@dataclass(slots=True)
class Logins:
    """Makes roles that sign in with :data:`PASSWORD`; ``admin`` is the superuser's URL."""

    admin: str
    made: list[tuple[str, str]] = field(default_factory=list)

    async def role(self, database: str, *, of: str = "") -> str:
        """A new role, in ``of`` if that is given, without any right of its own: its URL of this database."""
        name = f"indexer_test_{next(_NUMBERS)}"
        groups = f"{GROUP}, {of}" if of else GROUP
        await run(self.admin, f"create role {name} login password '{PASSWORD}' in role {groups}")
        self.made.append((database, name))
        return as_role(database, name)

    async def dissolve(self) -> None:
        """Drop the roles and all that is theirs."""
        for database, name in self.made:
            await run(database, f"drop owned by {name} cascade")
            await run(self.admin, f"reassign owned by {name} to current_user; drop owned by {name}; drop role {name}")


async def run(url: str, sql: str) -> None:
    """Run statements in the database at ``url``."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def as_role(url: str, name: str, password: str = PASSWORD) -> str:
    """The URL of the same database for another role."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:{quote(password, safe='')}@{place}"))


def name_of(url: str) -> str:
    """The role that a URL is for."""
    return urlsplit(url).username or ""


async def _rewrite(url: str, present: str, wanted: str) -> None:
    """Replace the lines ``present`` of the server's pg_hba.conf by ``wanted``; '' stands for its beginning."""
    connection = await asyncpg.connect(url)
    try:
        place = await connection.fetchval("show hba_file")
        text: str = await connection.fetchval("select pg_read_file($1)", place)
        lines = text.replace(present, wanted, 1).splitlines()
        await connection.execute("create temp table rules (line text)")
        await connection.execute("insert into rules select unnest($1::text[])", lines)
        await connection.execute(f"copy rules to '{place}'")
        await connection.execute("select pg_reload_conf()")
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def admin(cluster: TestCluster) -> Iterator[str]:
    """The superuser's URL, on a server that lets the members of a group sign in with passwords for the session."""
    asyncio.run(run(cluster.url, f"create role {GROUP}"))
    asyncio.run(_rewrite(cluster.url, "", _RULE + "\n"))
    yield cluster.url
    asyncio.run(_rewrite(cluster.url, _RULE + "\n", ""))
    asyncio.run(run(cluster.url, f"drop role {GROUP}"))


@pytest.fixture
async def logins(admin: str, database: str, empty_database: str) -> AsyncIterator[Logins]:
    """Makes roles, gone after the test but before its databases."""
    logins = Logins(admin)
    yield logins
    await logins.dissolve()
