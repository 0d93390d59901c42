"""Which program works with which schema: what is refused says what to do, and a migration surprises nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest

from indexer.embedded import EmbeddedPostgres
from indexer.errors import DatabaseUnavailable, SchemaError
from indexer.store import migrations
from indexer.store.migrations import SCHEMA_VERSION, Migration, migrate
from tests.daemon_process import Outcome, command
from tests.indexing import Sql
from tests.migrations.life import fill_version_1
from tests.store.batches import NOW, batch_of, blocked_backend, change, keys, opened

NEXT = SCHEMA_VERSION + 1
ADDITIVE = Migration(NEXT, SCHEMA_VERSION, "create table letta_store.added ()")
BREAKING = Migration(NEXT, NEXT, "alter table letta_store.other_record rename to moved")
BROKEN = Migration(NEXT + 1, NEXT + 1, "create table letta_store.more (); select 1 / 0")
VERSION = "insert into letta_store.schema_version (version, compatible_from) values ($1, $2)"
NEWEST = "select version from letta_store.schema_version order by version desc limit 1"


async def once(source: Path, *arguments: str) -> Outcome:
    """Index a capture and end."""
    listening = ("--listen", "127.0.0.1:0")
    return await command("run", "--once", "--trust", "relay", *listening, "--source", f"file:{source}", *arguments)


@pytest.fixture
def capture(pds_a: Path) -> Path:
    """A file of frames."""
    return pds_a / "frames.bin"


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[Migration]:
    """The migrations of the next release, for ``migrate`` alone: an empty list, to be filled."""
    found: list[Migration] = []
    monkeypatch.setattr(migrations, "migrations", lambda: tuple(found))
    return found


async def test_older_schema_is_refused_until_it_is_migrated(old: Sql, empty_database: str, capture: Path) -> None:
    """A database of an older release ends every command with 3 and the command that helps; nothing is touched."""
    there = ("--database-url", empty_database)
    for outcome in (await once(capture, *there), await command("status", *there)):
        assert (outcome.code, "`letta-indexer db migrate`" in outcome.errors) == (3, True), outcome.errors
    assert await old.fetchval(NEWEST) == 1
    outcome = await command("db", "migrate", *there)
    assert outcome[:2] == (0, f"migrated to schema version {SCHEMA_VERSION}\n")
    assert await command("db", "migrate", *there) == (0, "the schema is this release's already\n", "")
    assert (await once(capture, *there)).code == 0


async def test_newer_schema_is_refused(database: str, sql: Sql, capture: Path) -> None:
    """A database that a newer release has migrated for itself alone is left alone, by the migration too."""
    await sql.execute(VERSION, 998, 998)
    there = ("--database-url", database)
    for outcome in (await once(capture, *there), await command("db", "migrate", *there)):
        assert (outcome.code, "run a newer letta-indexer" in outcome.errors) == (3, True), outcome.errors
    assert await sql.fetchval("select count(*) from letta.record") == 0


async def test_newer_schema_that_only_adds_is_worked_with(database: str, sql: Sql, capture: Path) -> None:
    """A newer schema that says it is compatible with this program's is no reason to stop."""
    await sql.execute(VERSION, 998, SCHEMA_VERSION)
    assert (await once(capture, "--database-url", database)).code == 0
    assert await sql.fetchval("select count(*) from letta.record") > 0


async def test_embedded_database_is_migrated_by_run(tmp_path: Path, capture: Path) -> None:
    """On a database of its own, where nobody else works, ``run`` makes the migration itself."""
    server = EmbeddedPostgres(tmp_path, fast_for_tests=True)
    sql = await asyncpg.connect(await server.start())
    await fill_version_1(sql)
    held = await sql.fetchval("select count(*) from letta.record")
    await sql.close()
    await server.stop()
    outcome = await once(capture, "--data-dir", str(tmp_path))
    assert outcome.code == 0, outcome.errors
    told = [line for line in map(json.loads, outcome.errors.splitlines()) if "schema" in line["event"]]
    assert [(line["event"], line.get("found"), line["to"]) for line in told] == [
        ("migrating the schema", 1, SCHEMA_VERSION),
        ("the schema is migrated", None, SCHEMA_VERSION),
    ]
    sql = await asyncpg.connect(await server.start())
    assert await sql.fetchval(NEWEST) == SCHEMA_VERSION
    assert await sql.fetchval("select count(*) from letta.record") == held > 0
    await sql.close()
    await server.stop()


async def test_migration_is_made_whole_or_not_at_all(sql: Sql, released: list[Migration]) -> None:
    """Where one of several migrations fails, none was made, and the error says both and which one it was."""
    released += [ADDITIVE, BROKEN]
    with pytest.raises(SchemaError, match=rf"migration to schema version {NEXT + 1} failed, and nothing was changed"):
        await migrate(sql)
    assert await sql.fetchval(NEWEST) == SCHEMA_VERSION
    assert await sql.fetchval("select to_regclass('letta_store.added')") is None


async def test_a_connection_lost_in_a_migration_is_an_outage(
    database: str, sql: Sql, released: list[Migration]
) -> None:
    """That too is called a failed migration; as an outage it is tried again."""
    released.append(Migration(NEXT, NEXT, "select pg_terminate_backend(pg_backend_pid())"))
    with pytest.raises(
        DatabaseUnavailable, match=f"migration to schema version {NEXT} failed, and nothing was changed"
    ):
        await migrate(sql)
    other = await asyncpg.connect(database)
    assert await other.fetchval(NEWEST) == SCHEMA_VERSION
    await other.close()


async def test_two_that_migrate_at_once(database: str, sql: Sql, released: list[Migration]) -> None:
    """Two migrations at once are one, and each ends well."""
    released.append(ADDITIVE)
    other = await asyncpg.connect(database)
    assert sorted(await asyncio.gather(migrate(sql), migrate(other))) == [[], [NEXT]]
    await other.close()


async def test_additive_migration_lets_the_old_daemon_work(database: str, sql: Sql, released: list[Migration]) -> None:
    """While a program of this version works and after, on old connections and on new ones, it goes on writing."""
    released.append(ADDITIVE)
    async with opened(database) as store:
        await store.apply(batch_of(change(rkey="before")), NOW)
        assert await migrate(sql) == [NEXT]
        await store.apply(batch_of(change(rkey="after")), NOW)
    async with opened(database) as store:
        await store.apply(batch_of(change(rkey="anew")), NOW)
    assert await keys(sql) == ["after", "anew", "before"]


async def test_breaking_migration_waits_for_an_empty_house(database: str, sql: Sql, released: list[Migration]) -> None:
    """What present programs can't go on with is refused while one of them works, and seen by those that come later."""
    released.append(BREAKING)
    async with opened(database) as store:
        await store.apply(batch_of(change()), NOW)
        with pytest.raises(SchemaError, match="stop every daemon"):
            await migrate(sql)
        await store.close()
        with pytest.raises(SchemaError, match="run a newer letta-indexer"):
            await migrate(sql)  # made, and then this very program can't go on
        assert await sql.fetchval(NEWEST) == NEXT
        with pytest.raises(SchemaError, match="run a newer letta-indexer"):
            await store.apply(batch_of(change()), NOW)


async def test_who_comes_during_a_breaking_migration(database: str, sql: Sql, released: list[Migration]) -> None:
    """Who connects while a breaking migration is being made waits for it, and sees the new version."""
    async with opened(database) as store:
        async with sql.transaction():
            assert await sql.fetchval("select pg_try_advisory_xact_lock(7815838946019)")
            arriving = asyncio.create_task(store.apply(batch_of(change()), NOW))
            watcher = await asyncpg.connect(database)
            await blocked_backend(watcher)
            await watcher.close()
            await sql.execute(VERSION, NEXT, NEXT)
        with pytest.raises(SchemaError, match="run a newer letta-indexer"):
            await arriving
