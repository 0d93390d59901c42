"""The schema: made in an empty database, left alone in any other, readable by those who may only read."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from indexer.errors import SchemaError
from tests.frames import AGENT, CONVERSATION, DID, MESSAGE, OTHER, PROMPT, STRANGER
from tests.hostile.target import assert_readable
from tests.indexing import Sql
from tests.store.batches import NOW, SPACE, batch_of, change, opened

OURS = "select count(*) from pg_namespace where nspname in ('letta', 'letta_store')"


async def test_schema_is_made_in_an_empty_database(empty_database: str) -> None:
    """The first start makes the schema, the second finds it."""
    for _ in range(2):
        async with opened(empty_database) as store:
            await store.ping()
            assert not await store.initialize()


async def test_two_that_start_at_once(empty_database: str) -> None:
    """Two daemons on one empty database make one schema."""

    async def start() -> None:
        async with opened(empty_database) as store:
            await store.ping()

    await asyncio.gather(start(), start())


async def test_schema_is_made_whole_or_not_at_all(empty_database: str) -> None:
    """Where something is in the way, nothing is left behind of what was made until then."""
    sql = await asyncpg.connect(empty_database)
    try:
        await sql.execute("create schema letta_store")
        with pytest.raises(SchemaError):
            async with opened(empty_database):
                pass
        assert await sql.fetchval(OURS) == 1
        await sql.execute("drop schema letta_store")
        async with opened(empty_database):
            assert await sql.fetchval(OURS) == 2
    finally:
        await sql.close()


async def test_database_of_others_is_left_alone(empty_database: str) -> None:
    """A database with other tables is refused with what to do, and can be used by asking for it."""
    sql = await asyncpg.connect(empty_database)
    try:
        await sql.execute("create table theirs ()")
        with pytest.raises(SchemaError, match="db init"):
            async with opened(empty_database):
                pass
        assert await sql.fetchval(OURS) == 0
        await sql.execute("create view other as select 1")
    finally:
        await sql.close()


@pytest.mark.parametrize(
    "change_version", ["update letta_store.schema_version set version = 99", "delete from letta_store.schema_version"]
)
async def test_unknown_version_is_refused(database: str, sql: Sql, change_version: str) -> None:
    """A schema of a version that this program doesn't know is not touched."""
    await sql.execute(change_version)
    with pytest.raises(SchemaError, match="version"):
        async with opened(database):
            pass


async def test_reader_reads_views_and_nothing_else(database: str, sql: Sql) -> None:
    """letta_reader can read every view, no table of the store by name, and write nothing anywhere."""
    async with opened(database) as store:
        await store.apply(
            batch_of(*(change(name, did=STRANGER) for name in (AGENT, CONVERSATION, PROMPT, MESSAGE, OTHER))), NOW
        )
    await assert_readable(sql)
    tables = await sql.fetch(
        "select relname from pg_class where relnamespace = 'letta_store'::regnamespace and relkind in ('r', 'v')"
    )
    views = await sql.fetch("select relname from pg_class where relnamespace = 'letta'::regnamespace and relkind = 'v'")
    assert len(tables) > 12
    await sql.execute("set role letta_reader")
    attempts = [f"select * from letta_store.{row['relname']}" for row in tables]
    attempts += [
        f"delete from {schema}.{row['relname']}"
        for schema, rows in (("letta", views), ("letta_store", tables))
        for row in rows
    ]
    attempts += [f"insert into letta.{row['relname']} default values" for row in views]
    attempts += [f"create table {schema}.mine ()" for schema in ("letta", "letta_store", "public")]
    attempts += [
        "select letta_store.record_uri('x')",
        "drop view letta.record",
        "set role none; drop role letta_reader",
    ][:2]
    allowed = [attempt for attempt in attempts if not await _is_refused(sql, attempt)]
    assert allowed == []


async def _is_refused(sql: Sql, statement: str) -> bool:
    try:
        async with sql.transaction():
            await sql.execute(statement)
    except asyncpg.PostgresError as error:
        assert isinstance(error, asyncpg.InsufficientPrivilegeError | asyncpg.ObjectNotInPrerequisiteStateError), (
            statement
        )
        return True
    return False


async def test_reader_sees_public_records_only(database: str, sql: Sql) -> None:
    """What is in a space is in no view that the reader sees; the owner sees it."""
    names = (AGENT, CONVERSATION, PROMPT, MESSAGE, OTHER)
    async with opened(database) as store:
        await store.apply(batch_of(*(change(name, space=SPACE) for name in names)), NOW)
    for view in (
        "record",
        "agent",
        "conversation",
        "compiled_prompt",
        "message",
        "recompile",
        "repo",
        "integrity_issue",
    ):
        owner = await sql.fetchval(f"select count(*) from letta.{view} where space <> ''")
        await sql.execute("set role letta_reader")
        reader = await sql.fetchval(f"select count(*) from letta.{view} where space <> ''")
        await sql.execute("reset role")
        assert (owner > 0, reader) == (True, 0), view
    assert await sql.fetchval("select count(*) from letta_store.account where did = $1", DID) == 1


async def test_everything_people_query_has_a_comment(sql: Sql) -> None:
    """Every view of letta says what it is."""
    silent = await sql.fetch(
        "select relname from pg_class where relnamespace = 'letta'::regnamespace and obj_description(oid, 'pg_class') is null"
    )
    assert [row["relname"] for row in silent] == []
