"""The daemon needs a role that owns its two schemas, and nothing more: run as such a role, from nothing to spaces."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.daemon_process import command, daemon
from tests.indexing import Sql
from tests.privilege.conftest import Logins, name_of, run
from tests.privilege.rights import excess

SPACE = "at://did:plc:aaaaaaaaaaaaaaaaaaaaaaaa/space/com.example.kind/self"
READER = "do $$ begin create role letta_reader nologin; exception when duplicate_object then null; end $$"
POWERS = "rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls"


@pytest.fixture
async def owner(admin: str, empty_database: str, logins: Logins) -> str:
    """The URL of a database for its owner, made as docs/privacy.md says."""
    url = await logins.role(empty_database)
    await run(admin, f"alter database {database_of(url)} owner to {name_of(url)}")
    await run(admin, READER)
    return url


@pytest.fixture
async def as_owner(owner: str) -> AsyncIterator[Sql]:
    """A connection of the owner's."""
    connection = await asyncpg.connect(owner)
    yield connection
    await connection.close()


def database_of(url: str) -> str:
    """The database that a URL names."""
    return url.partition("?")[0].rpartition("/")[2]


def replay(capture: Path) -> tuple[str, ...]:
    """Arguments for a run to the end of a capture."""
    source = f"file:{capture / 'frames.bin'}"
    return ("--once", "--trust", "relay", "--source", source, "--listen", "127.0.0.1:0")


async def test_owner_without_powers_is_enough(owner: str, as_owner: Sql, pds_a: Path) -> None:
    """A role without a single power makes the schema, indexes a real server's life, audits it and forgets."""
    assert not await as_owner.fetchval(f"select {POWERS} from pg_roles where rolname = current_user")
    environment = {"LETTA_INDEXER_DATABASE_URL": owner}
    indexed = await command("run", *replay(pds_a), environment=environment)
    assert (indexed.code, await as_owner.fetchval("select count(*) > 50 from letta.record")) == (0, True), (
        indexed.errors
    )
    for words in (["check"], ["status", "--json"], ["stale"], ["db", "init"], ["forget", await an_account(as_owner)]):
        outcome = await command(*words, environment=environment)
        assert outcome.code == 0, (words, outcome.errors)


async def an_account(sql: Sql) -> str:
    """The DID of somebody who has records."""
    did: str = await sql.fetchval("select min(did) from letta.record")
    return did


async def test_owner_of_the_schemas_alone_is_enough(admin: str, owner: str, pds_a: Path) -> None:
    """Once the schemas are there, the database may be somebody else's, with no right to make anything else in it."""
    environment = {"LETTA_INDEXER_DATABASE_URL": owner}
    assert (await command("db", "init", environment=environment)).code == 0
    await run(admin, f"alter database {database_of(owner)} owner to current_user")
    connection = await asyncpg.connect(owner)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("create schema mine")
    finally:
        await connection.close()
    source = ("--source", f"file:{pds_a / 'frames.bin'}")
    async with daemon(*source, environment=environment) as process:
        await process.ready()
        assert await process.stop() == 0
    assert (await command("run", *replay(pds_a), environment=environment)).code == 0


async def test_what_the_owner_makes_is_closed(owner: str, as_owner: Sql, logins: Logins) -> None:
    """Made by such a role, too, the schema leaves readers without a right too many, and its owner without powers."""
    assert (await command("db", "init", environment={"LETTA_INDEXER_DATABASE_URL": owner})).code == 0
    assert await excess(as_owner, "letta_reader") == []


async def test_granting_a_space_takes_the_right_to_admit_readers(
    admin: str, owner: str, as_owner: Sql, empty_database: str, logins: Logins
) -> None:
    """The owner can grant a space once it may admit members to letta_reader; until then it is told what it lacks."""
    assert (await command("db", "init", environment={"LETTA_INDEXER_DATABASE_URL": owner})).code == 0
    url = await logins.role(empty_database)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="letta_reader"):
        await as_owner.execute("select letta.grant_space($1, $2)", SPACE, name_of(url))
    await run(admin, f"grant letta_reader to {name_of(owner)} with admin option")
    await as_owner.execute("select letta.grant_space($1, $2)", SPACE, name_of(url))
    member = await asyncpg.connect(url)
    try:
        assert await member.fetch("select * from letta.record") == []
    finally:
        await member.close()


async def test_without_the_readers_role_it_says_what_to_do(admin: str, empty_database: str, logins: Logins) -> None:
    """Where letta_reader is missing and may not be made, the start ends with 3 and the statement that helps."""
    url = await logins.role(empty_database)
    await run(admin, f"alter database {database_of(url)} owner to {name_of(url)}")
    present = await asyncpg.connect(admin)
    try:
        await present.execute("alter role letta_reader rename to letta_reader_elsewhere")
        outcome = await command("db", "init", environment={"LETTA_INDEXER_DATABASE_URL": url})
    finally:
        await present.execute("alter role letta_reader_elsewhere rename to letta_reader")
        await present.close()
    assert outcome.code == 3
    assert "role letta_reader is missing and this user may not create it" in outcome.errors


async def test_what_everybody_may_can_be_taken_from_readers(
    admin: str, owner: str, empty_database: str, logins: Logins, pds_a: Path
) -> None:
    """As docs/privacy.md has it done, readers lose temporary tables, large objects and locks; the daemon works."""
    environment = {"LETTA_INDEXER_DATABASE_URL": owner}
    assert (await command("db", "init", environment=environment)).code == 0
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text("utf-8")
    (block,) = [one for one in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if "advisory" in one]
    await run(empty_database, block.replace("letta_indexer", name_of(owner)))
    reader = await asyncpg.connect(await logins.role(empty_database, of="letta_reader"))
    try:
        for attempt in (
            *(
                "create temp table mine ()",
                "select pg_advisory_lock(7815838946018)",
                "select pg_advisory_xact_lock(1, 2)",
            ),
            *("select pg_try_advisory_lock_shared(1)", "select lo_create(0)", "select lo_from_bytea(0, 'x')"),
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(attempt)
    finally:
        await reader.close()
    outcome = await command("run", *replay(pds_a), environment=environment)
    assert outcome.code == 0, outcome.errors
