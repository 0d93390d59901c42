"""The schema: made in an empty database, left alone in any other, readable by those who may only read."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from indexer.errors import SchemaError
from tests.frames import AGENT, CONVERSATION, MESSAGE, OTHER, PROMPT
from tests.hostile.target import assert_readable
from tests.indexing import Sql
from tests.store.batches import NOW, SPACE, batch_of, change, opened

EVERY = (AGENT, CONVERSATION, PROMPT, MESSAGE, OTHER)
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


@pytest.mark.parametrize("change_version", ["update {} set version = 99, compatible_from = 99", "delete from {}"])
async def test_unknown_version_is_refused(database: str, sql: Sql, change_version: str) -> None:
    """A schema of a version that this program doesn't know is not touched."""
    await sql.execute(change_version.format("letta_store.schema_version"))
    with pytest.raises(SchemaError, match="version"):
        async with opened(database):
            pass


async def test_reader_reads_views_and_nothing_else(database: str, sql: Sql) -> None:
    """letta_reader can read every view, no table of the store by name, and write nothing anywhere."""
    async with opened(database) as store:
        await store.apply(batch_of(*(change(name) for name in EVERY)), NOW)
    await assert_readable(sql)
    tables, views = await relations(sql, "letta_store"), await relations(sql, "letta")
    assert (len(tables) > 12, len(views) > 10) == (True, True)
    await sql.execute("set role letta_reader")
    attempts = [f"select * from {table}" for table in tables]
    attempts += [f"delete from {relation}" for relation in (*tables, *views)]
    attempts += [f"insert into {view} default values" for view in views]
    attempts += [f"create table {schema}.mine ()" for schema in ("letta", "letta_store", "public")]
    attempts += ["select letta_store.record_uri('x')", "drop view letta.record", "drop schema letta cascade"]
    assert [attempt for attempt in attempts if not await is_refused(sql, attempt)] == []


async def relations(sql: Sql, schema: str) -> list[str]:
    """The tables and views of a schema."""
    rows = await sql.fetch(
        "select format('%s.%I', $1::text, relname) as name from pg_class "
        "where relnamespace = to_regnamespace($1) and relkind in ('r', 'v')",
        schema,
    )
    return [row["name"] for row in rows]


async def is_refused(sql: Sql, statement: str) -> bool:
    """Whether a statement fails for want of a right, or because its view is none that could be written to."""
    try:
        async with sql.transaction():
            await sql.execute(statement)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError):
        return True
    return False


async def test_reader_sees_public_records_only(database: str, sql: Sql) -> None:
    """What is in a space is in no view that the reader sees; the owner sees it."""
    async with opened(database) as store:
        await store.apply(batch_of(*(change(name, space=SPACE) for name in EVERY)), NOW)
    for view in ("record", "agent", "conversation", "compiled_prompt", "message", "recompile", "integrity_issue"):
        owner = await sql.fetchval(f"select count(*) from letta.{view}")
        await sql.execute("set role letta_reader")
        reader = await sql.fetchval(f"select count(*) from letta.{view}")
        await sql.execute("reset role")
        assert (owner > 0, reader) == (True, 0), view


async def test_everything_people_query_has_a_comment(sql: Sql) -> None:
    """Every view of letta says what it is."""
    views = await relations(sql, "letta")
    comment = "select obj_description(to_regclass($1))"
    silent = [view for view in views if not await sql.fetchval(comment, view)]
    assert (len(views) > 10, silent) == (True, [])
