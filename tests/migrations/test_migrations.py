"""A database of any version becomes what schema.sql makes, keeps what it holds, and nobody is surprised by it."""

from __future__ import annotations

from indexer.store import migrations
from indexer.store.migrations import SCHEMA_VERSION, migrate
from tests.daemon_process import command
from tests.indexing import Sql, untrue_flags
from tests.migrations.catalogue import catalogue, changed, differences, rows
from tests.migrations.life import index, live
from tests.store.batches import SPACE

VERSION = "select version, compatible_from from letta_store.schema_version order by version desc limit 1"


def test_there_is_a_way_from_every_version() -> None:
    """Migrations are numbered without a gap up to the version of this program."""
    numbers = [migration.version for migration in migrations.migrations()]
    assert numbers == list(range(2, SCHEMA_VERSION + 1))
    assert all(1 <= migration.compatible_from <= migration.version for migration in migrations.migrations())


async def test_a_migrated_schema_is_that_of_schema_sql(empty_database: str, old: Sql, sql: Sql) -> None:
    """From version 1, every object comes out as schema.sql makes it; the message names those that don't."""
    assert (await command("db", "migrate", "--database-url", empty_database)).code == 0
    wrong = differences(await catalogue(old), await catalogue(sql))
    assert not wrong, f"the migrations don't lead to schema.sql:\n\n{wrong}"
    assert await old.fetchrow(VERSION) == await sql.fetchrow(VERSION)
    assert await sql.fetchval("select version from letta_store.schema_version") == SCHEMA_VERSION


async def test_what_was_indexed_survives(old: Sql, database: str, sql: Sql) -> None:
    """Every row of every table and view is what the present code makes of the same events, flags included."""
    await live(database)
    await migrate(old)
    migrated, made = await rows(old), await rows(sql)
    assert len(made["letta.record"]) > 100
    assert migrated.keys() == made.keys()
    assert {relation: wrong for relation in made if (wrong := changed(made[relation], migrated[relation]))} == {}
    assert await untrue_flags(old) == []


async def test_the_code_works_on_a_migrated_database(empty_database: str, old: Sql) -> None:
    """What the present code is told once more, after the migration, changes neither a record nor its history."""
    await migrate(old)
    before = await rows(old)
    await index(empty_database)
    after = await rows(old)
    same = ("letta.record", "letta.recompile", "letta.compiled_prompt", "letta.agent", "letta.thread")
    assert all(len(before[view]) > 1 for view in same)
    assert {view: wrong for view in same if (wrong := changed(before[view], after[view]))} == {}


async def test_who_was_granted_a_space_still_sees_it(old: Sql) -> None:
    """Rights given before the migration are those after it: a role sees its space in every view, others don't."""
    await old.execute("create role granted; create role other in role letta_reader")
    try:
        await old.execute("select letta.grant_space($1, 'granted')", SPACE)
        before = [await seen_by(old, role) for role in ("granted", "other")]
        await migrate(old)
        assert [await seen_by(old, role) for role in ("granted", "other")] == before
        assert before[0]["compiled_prompt"] - before[1]["compiled_prompt"] == 2
        await old.execute("select letta.revoke_space($1, 'granted')", SPACE)
        assert await seen_by(old, "granted") == before[1]
    finally:
        await old.execute("drop owned by granted, other; drop role granted, other")


async def seen_by(sql: Sql, role: str) -> dict[str, int]:
    """How many rows of each view a role sees."""
    views = ("agent", "compiled_prompt", "stale_prompt", "conversation_all", "message", "record", "recompile", "repo")
    await sql.execute(f"set role {role}")
    try:
        return {view: await sql.fetchval(f"select count(*) from letta.{view}") for view in views}
    finally:
        await sql.execute("reset role")
