"""The commands beside ``run``: what they print is what the views say, and their exit codes are as documented."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import asyncpg
import pytest

from indexer.embedded import binaries
from indexer.simulator import Relay
from tests.daemon_process import command, daemon, eventually
from tests.embedded.servers import alive, exists, postmaster
from tests.indexing import Sql, indexing, read_capture
from tests.networks import holds, world


@pytest.fixture
async def filled(database: str, pds_a: Path) -> str:
    """The URL of a database that holds the index of the capture."""
    async with indexing(database) as index:
        await index.take(read_capture(pds_a / "frames.bin"))
    return database


async def test_status_says_what_the_views_say(filled: str, sql: Sql) -> None:
    """``status --json`` has sources, repositories, records, prompts and issues, each figure that of its view."""
    outcome = await command("status", "--json", "--database-url", filled)
    assert outcome.code == 0
    status = json.loads(outcome.output)
    assert {row["collection"]: row["records"] for row in status["records"]} == {
        row["collection"]: row["n"]
        for row in await sql.fetch("select collection, count(*) as n from letta.record group by collection")
    }
    assert {row["freshness"]: row["prompts"] for row in status["prompts"]} == {
        row["freshness"]: row["n"]
        for row in await sql.fetch("select freshness, count(*) as n from letta.compiled_prompt group by freshness")
    }
    assert sum(row["repos"] for row in status["repos"]) == await sql.fetchval("select count(*) from letta.repo")
    assert [row["seq"] for row in status["sources"]] == [row["seq"] for row in await sql.fetch("table letta.source")]
    assert sum(row["issues"] for row in status["issues"]) == await sql.fetchval(
        "select count(*) from letta.integrity_issue"
    )


async def test_status_for_people_shows_the_same(filled: str) -> None:
    """Without --json the same figures come as tables."""
    told = json.loads((await command("status", "--json", "--database-url", filled)).output)
    shown = (await command("status", "--database-url", filled, environment={"COLUMNS": "200"})).output
    for row in told["records"]:
        (line,) = [line for line in shown.splitlines() if row["collection"] in line]
        assert f" {row['records']} " in line


async def test_stale_lists_the_stale_prompts(filled: str, sql: Sql) -> None:
    """``stale`` gives the rows of ``letta.stale_prompt``; with --exit-code it ends with 1 because there are some."""
    outcome = await command("stale", "--json", "--exit-code", "--database-url", filled)
    assert outcome.code == 1
    rows = await sql.fetch(
        "select uri, agent, conversation, stale_reasons, stale_since, evidence from letta.stale_prompt"
    )
    assert {row["uri"]: row for row in json.loads(outcome.output)} == {
        row["uri"]: {
            **dict(row),
            "stale_since": row["stale_since"].isoformat(),
            "evidence": json.loads(row["evidence"]),
        }
        for row in rows
    }
    assert rows
    shown = await command("stale", "--database-url", filled, environment={"COLUMNS": "500"})
    assert shown.code == 0
    assert all(row["uri"] in shown.output for row in rows)


async def test_stale_with_nothing_stale_ends_with_0(database: str) -> None:
    """Nothing stale, nothing to complain about."""
    assert await command("stale", "--exit-code", "--database-url", database) == (0, "no stale prompts\n", "")
    assert (await command("stale", "--json", "--exit-code", "--database-url", database))[:2] == (0, "[]\n")


@pytest.mark.parametrize("name", ["status", "stale"])
async def test_reports_on_a_database_without_our_schema_end_with_3(empty_database: str, name: str) -> None:
    """A report never creates anything: where there is no index, that is said."""
    outcome = await command(name, "--database-url", empty_database)
    assert outcome.code == 3
    assert "letta-indexer: " in outcome.errors
    connection = await asyncpg.connect(empty_database)
    assert await connection.fetchval("select to_regnamespace('letta')") is None
    await connection.close()


async def test_db_init_adds_the_schema_beside_other_tables(empty_database: str) -> None:
    """``db init`` creates the schema in a database that is used for other things too, and does nothing twice."""
    connection = await asyncpg.connect(empty_database)
    await connection.execute("create table theirs as select 1 as a")
    assert await command("db", "init", "--database-url", empty_database) == (0, "schema created\n", "")
    assert await command("db", "init", "--database-url", empty_database) == (0, "the schema is there already\n", "")
    assert await connection.fetchval("select count(*) from letta.record") == 0
    assert await connection.fetchval("select a from theirs") == 1
    await connection.close()


async def test_db_psql_and_url_lead_to_a_given_database(filled: str, sql: Sql) -> None:
    """``db psql`` hands its arguments to psql and ends with psql's code; ``db url`` prints what it was given."""
    count = await sql.fetchval("select count(*) from letta.record")
    environment = {"PATH": str(binaries())}
    question = ("db", "psql", "--database-url", filled, "--", "-XAtc")
    outcome = await command(*question, "select count(*) from letta.record", environment=environment)
    assert (outcome.code, outcome.output) == (0, f"{count}\n")
    assert (await command(*question, "nonsense", environment=environment)).code == 1
    assert await command("db", "url", "--database-url", filled) == (0, f"{filled}\n", "")


async def test_capture_can_be_replayed(database: str, sql: Sql, tmp_path: Path) -> None:
    """What ``capture`` records of a relay, ``run`` replays to the index that following the relay gives."""
    life, file = world(40), tmp_path / "frames.bin"
    frames = life.run(80)
    async with Relay() as relay:
        relay.publish(frames)
        source = ("--source", relay.url, "--cursor", f"{relay.url.replace('ws://', 'firehose:')}=0")
        outcome = await command("capture", str(file), *source, "--limit", str(len(frames)))
        assert outcome[:2] == (0, f"{len(frames)} frames in {file}\n")
        again = await command("capture", str(file), *source)
        assert (again.code, str(file) in again.errors) == (2, True)
    assert read_capture(file) == frames
    outcome = await command(
        *("run", "--once", "--source", f"file:{file}", "--trust", "relay"),
        *("--database-url", database, "--listen", "127.0.0.1:0"),
    )
    assert outcome.code == 0
    await holds(sql, life)


async def test_capture_ends_after_a_time_or_by_ctrl_c(tmp_path: Path) -> None:
    """A capture can be limited in time; what it has written is whole."""
    life, file = world(41), tmp_path / "frames.bin"
    async with Relay() as relay:
        relay.publish(life.run(10))
        source = ("--source", relay.url, "--cursor", f"{relay.url.replace('ws://', 'firehose:')}=0")
        outcome = await command("capture", str(file), *source, "--seconds", "0.5")
    assert outcome.code == 0
    assert f"{len(read_capture(file))} frames" in outcome.output


async def test_capture_of_a_host_that_is_never_reached(tmp_path: Path) -> None:
    """That is a failure, said in a sentence with the source and the reason, and leaves no file behind."""
    async with Relay() as relay:
        url = relay.url  # nobody answers there any more
    outcome = await command("capture", str(tmp_path / "frames.bin"), "--source", url, "--seconds", "0.5")
    assert (outcome.code, outcome.output) == (1, "")
    last = outcome.errors.splitlines()[-1]
    assert last.startswith("letta-indexer: ")
    assert [word for word in ("never reached", url.removeprefix("ws://"), "cannot connect") if word not in last] == []
    assert not exists(tmp_path / "frames.bin")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_capture_that_is_stopped_before_its_host_is_reached(number: signal.Signals, tmp_path: Path) -> None:
    """By ctrl-C or by whoever limits its time: the reason is said as well, and no file is left."""
    file = tmp_path / "frames.bin"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "indexer", "capture", str(file), "--source", "ws://127.0.0.1:1"), stderr=PIPE
    )
    assert process.stderr is not None
    assert b"source lost" in await process.stderr.readline()
    assert exists(file)
    process.send_signal(number)
    errors = await process.stderr.read()
    assert (await process.wait(), b"letta-indexer: nothing to capture" in errors) == (1, True)
    assert not exists(file)


async def test_capture_of_a_silent_host(tmp_path: Path) -> None:
    """A host that was reached and sends nothing gives a capture of no frames, which can be replayed."""
    async with Relay() as relay:
        outcome = await command("capture", str(tmp_path / "frames.bin"), "--source", relay.url, "--seconds", "0.5")
    assert outcome == (0, f"0 frames in {tmp_path / 'frames.bin'}\n", "")
    assert read_capture(tmp_path / "frames.bin") == []


async def test_a_file_that_is_no_capture_is_a_failed_source(database: str, tmp_path: Path) -> None:
    """``run --once`` of some other file ends with 1 and a sentence that names it; an empty capture ends with 0."""
    (tmp_path / "README.md").write_text("# no frames\n\nbut SECRET words")
    (tmp_path / "empty").touch()
    there = ("--database-url", database, "--listen", "127.0.0.1:0")
    outcome = await command("run", "--once", "--source", f"file:{tmp_path / 'README.md'}", *there)
    assert outcome.code == 1
    assert f"letta-indexer: capture file {tmp_path / 'README.md'}: not a capture" in outcome.errors
    assert "SECRET" not in outcome.errors
    assert (await command("run", "--once", "--source", f"file:{tmp_path / 'empty'}", *there)).code == 0


async def test_everything_works_on_the_embedded_server(data_dir: Path) -> None:
    """Without a database URL the daemon brings its own; the other commands reach it; it ends with the daemon."""
    life = world(42)
    there = ("--data-dir", str(data_dir))
    async with Relay() as relay, daemon("--source", relay.url, "--trust", "relay", *there) as process:
        await process.ready()
        relay.publish(life.run(60))
        server = postmaster(data_dir)
        url = (await command("db", "url", *there)).output.strip()
        sql = await asyncpg.connect(url)
        await holds(sql, life)
        count = await sql.fetchval("select count(*) from letta.record")
        await sql.close()
        question = ("db", "psql", *there, "--", "-XAtc", "select count(*) from letta.record")
        assert (await command(*question)).output == f"{count}\n"
        status = json.loads((await command("status", "--json", *there)).output)
        assert sum(row["records"] for row in status["records"]) == count
        assert await process.reasons() == []
        assert postmaster(data_dir) == server
        assert await process.stop() == 0
    assert not alive(server)
    assert (await command("db", "url", *there)).output.strip() == url
    assert (await command(*question)).output == f"{count}\n"


@pytest.mark.parametrize(
    "words",
    [
        *(("status",), ("stale",), ("check",), ("check", "--remote"), ("forget", "did:plc:ewvi7nxzyoun6zhxrhs64oiz")),
        *(("db", "url"), ("db", "psql"), ("db", "dump", "index.dump"), ("db", "migrate")),
    ],
)
async def test_only_what_makes_an_index_makes_one(words: tuple[str, ...], data_dir: Path) -> None:
    """A mistyped --data-dir gives no empty index: one sentence names the folder, and nothing is made there."""
    outcome = await command(*words, "--data-dir", str(data_dir))
    assert (outcome.code, outcome.output) == (3, "")
    assert outcome.errors.startswith(f"letta-indexer: there is no index in {data_dir}: ")
    assert [name for name in ("run", "db init", "db restore") if f"`letta-indexer {name}`" not in outcome.errors] == []
    assert outcome.errors.count("\n") == 1
    assert not exists(data_dir)


async def test_stopped_while_the_embedded_server_starts(data_dir: Path) -> None:
    """SIGTERM in the middle of the start ends it in good order: no server is left behind."""
    claim = data_dir / "postgres/postmaster.pid"
    async with daemon("--source", "ws://127.0.0.1:1", "--trust", "relay", "--data-dir", str(data_dir)) as process:

        async def begun() -> bool:
            return claim.exists() and "\n" in claim.read_text()

        await eventually(begun)
        server = postmaster(data_dir)
        assert await process.stop() == 0
    assert not alive(server)
