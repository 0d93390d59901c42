"""The daemon as a process: how it starts, waits, heals and ends, with its exit codes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from indexer.simulator import Relay
from tests.daemon_process import DaemonProcess, command, daemon, eventually
from tests.gateway import Gateway
from tests.indexing import Sql, contents, indexing, read_capture
from tests.networks import cursor_at, following, holds, indexed, key_of, world
from tests.postgres import TestCluster

IDLE = "127.0.0.1:0"


@pytest.fixture
def closed_port() -> int:
    """A loopback port where nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A loopback port that somebody else has."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
async def other_database(cluster: TestCluster) -> AsyncIterator[str]:
    """A second fresh database, to compare with."""
    async with cluster.fresh_database() as url:
        yield url


@pytest.fixture
def capture(pds_a: Path) -> tuple[str, str]:
    """The arguments that name a capture as the source."""
    return "--source", f"file:{pds_a / 'frames.bin'}"


async def once(*arguments: str) -> tuple[int, str]:
    """Exit code and errors of ``run --once``."""
    outcome = await command("run", "--once", "--trust", "relay", "--listen", IDLE, *arguments)
    return outcome.code, outcome.errors


async def test_once_reads_a_capture_to_its_end(
    database: str, sql: Sql, other_database: str, pds_a: Path, capture: tuple[str, str]
) -> None:
    """``run --once`` on a capture ends with 0 and the very index the parts give; once more changes nothing."""
    frames = read_capture(pds_a / "frames.bin")
    async with indexing(other_database) as parts:
        await parts.take(frames)
    reference = await asyncpg.connect(other_database)
    wanted = await contents(reference)
    await reference.close()
    for _ in range(2):
        code, errors = await once(*capture, "--database-url", database)
        assert code == 0, errors
        assert await contents(sql) == wanted
        (source,) = await sql.fetch("select source, seq, state from letta.source")
        assert (source["source"][:5], source["seq"], source["state"]) == ("file:", len(frames), "ended")


async def test_source_that_cannot_be_connected_fails_once(database: str, closed_port: int) -> None:
    """Under --once three failed tries make a failed source: exit code 1, and the source is named."""
    code, errors = await once("--source", f"ws://127.0.0.1:{closed_port}", "--database-url", database)
    assert code == 1
    assert f"firehose:127.0.0.1:{closed_port}" in errors
    assert "gave up after 3 tries" in errors


async def test_one_failed_source_does_not_keep_the_others_from_being_read(
    database: str, sql: Sql, closed_port: int, capture: tuple[str, str]
) -> None:
    """Of two sources one fails: the exit code says so, and the other is in the index to its end."""
    code, _ = await once("--source", f"ws://127.0.0.1:{closed_port}", *capture, "--database-url", database)
    states = {row["source"][:5]: row["state"] for row in await sql.fetch("select source, state from letta.source")}
    assert (code, states) == (1, {"file:": "ended", "fireh": "broken"})
    assert await sql.fetchval("select count(*) from letta.record")


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (("--souce", "file:x"), {}, "--souce"),
        (("--max-lag", "soon"), {}, "--max-lag"),
        (("--source", "http://example.com"), {}, "--source"),
        ((), {"LETTA_INDEXER_MAX_LAGG": "5"}, "LETTA_INDEXER_MAX_LAGG"),
        ((), {"LETTA_INDEXER_ONCE": "perhaps"}, "LETTA_INDEXER_ONCE"),
        (("--cursor", "file:typo=3"), {}, "--cursor: there is no source file:typo"),
    ],
)
async def test_wrong_settings_end_with_2(
    database: str, capture: tuple[str, str], arguments: tuple[str, ...], environment: dict[str, str], named: str
) -> None:
    """What is misspelled or no value ends the daemon at its start, and is named."""
    given = ("--listen", IDLE, "--database-url", database, *(() if "--source" in arguments else capture))
    outcome = await command("run", *given, *arguments, environment=environment)
    assert outcome.code == 2
    assert named in outcome.errors
    assert "Traceback" not in outcome.errors


async def test_address_in_use_ends_with_2(database: str, capture: tuple[str, str], busy_port: int) -> None:
    """A port that somebody else has is a wrong setting."""
    outcome = await command("run", *capture, "--database-url", database, "--listen", f"127.0.0.1:{busy_port}")
    assert (outcome.code, "--listen" in outcome.errors) == (2, True)


async def test_database_that_does_not_exist_ends_with_3(database: str, capture: tuple[str, str]) -> None:
    """No such database: no waiting helps."""
    missing = urlunsplit(urlsplit(database)._replace(path="/missing"))
    code, errors = await once(*capture, "--database-url", missing)
    assert (code, "missing" in errors) == (3, True)


async def test_database_that_does_not_answer_ends_once_with_3(closed_port: int, capture: tuple[str, str]) -> None:
    """Under --once a database is waited for a little, not for ever."""
    code, errors = await once(*capture, "--database-url", f"postgresql://nobody@127.0.0.1:{closed_port}/x")
    assert (code, errors.count("trying again")) == (3, 2)


async def test_unknown_schema_version_ends_with_3(database: str, sql: Sql, capture: tuple[str, str]) -> None:
    """A database written by another release is left alone."""
    await sql.execute("insert into letta_store.schema_version (version, compatible_from) values (999, 999)")
    code, errors = await once(*capture, "--database-url", database)
    assert (code, "999" in errors) == (3, True)
    assert await indexed(sql) == {}


async def test_database_of_somebody_else_ends_with_3(empty_database: str, capture: tuple[str, str]) -> None:
    """A database that holds other tables gets no schema unasked; an empty one does."""
    connection = await asyncpg.connect(empty_database)
    await connection.execute("create table theirs ()")
    assert (await once(*capture, "--database-url", empty_database))[0] == 3
    await connection.execute("drop table theirs")
    assert (await once(*capture, "--database-url", empty_database))[0] == 0
    assert await indexed(connection)
    await connection.close()


async def test_schema_that_vanishes_ends_with_3(database: str, sql: Sql) -> None:
    """Broken state of our own stops the daemon, loudly and in one sentence."""
    life = world(1)
    async with Relay() as relay, following(relay, database) as process:
        relay.publish(life.run(50))
        await holds(sql, life)
        await sql.execute("drop schema letta, letta_store cascade")
        relay.publish(life.run(50))
        assert await process.ended() == 3
    assert any("letta-indexer: " in line for line in process.words)
    assert not any("Traceback" in line for line in process.words)


async def test_without_a_network_it_stays_and_heals(database: str, sql: Sql, closed_port: int) -> None:
    """With nobody to connect to it stays up and says why it isn't ready; it goes on by itself once there is."""
    life = world(2)
    source = f"ws://127.0.0.1:{closed_port}"
    async with daemon("--source", source, "--trust", "relay", "--database-url", database) as process:
        await process.logged("source lost")
        assert await process.get("/healthz") == (200, "ok\n")
        (reason,) = await process.reasons()
        assert f"firehose:127.0.0.1:{closed_port}" in reason
        assert "cannot connect" in reason
        async with Relay(port=closed_port) as relay:
            await process.ready()
            relay.publish(life.run(50))
            await holds(sql, life)
            assert await process.reasons() == []


async def test_without_a_database_it_stays_and_heals(database: str, sql: Sql) -> None:
    """With no database it stays up and says so; when that comes up, so does the index. A later loss heals as well."""
    life = world(3)
    async with Relay() as relay, Gateway(database) as gateway:
        await gateway.close()
        async with daemon("--source", relay.url, "--trust", "relay", "--database-url", gateway.url) as process:
            await process.logged("database not available, trying again")
            assert (await process.get("/healthz"))[0] == 200
            (reason,) = await process.reasons()
            assert "database" in reason
            await gateway.open()
            await process.ready()
            for _ in range(2):
                await gateway.close()
                relay.publish(life.run(50))
                await relay.sent(life.seq)
                assert any("database" in reason for reason in await process.reasons())
                await gateway.open()
                await holds(sql, life)
                await process.ready()


async def test_terminated_backends_are_replaced(database: str, sql: Sql) -> None:
    """A server that ends our connections, again and again, costs nothing but time."""
    life = world(4)
    terminate = """
        select count(pg_terminate_backend(pid)) from pg_stat_activity
        where application_name = 'letta-indexer' and datname = current_database()
    """
    async with Relay() as relay, following(relay, database):
        for _ in range(20):
            relay.publish(life.run(20))
            await relay.sent(life.seq)
            await sql.fetchval(terminate)
        await holds(sql, life)


async def test_two_sources_at_once(database: str, sql: Sql) -> None:
    """Two relays are followed side by side, each with a cursor of its own."""
    one, two = world(5), world(6)
    async with Relay() as first, Relay() as second:
        async with following(first, database, "--source", second.url) as process:
            for _ in range(10):
                first.publish(one.run(10))
                second.publish(two.run(10))
            await holds(sql, one, two)
            assert await process.stop() == 0
        cursors = {row["source"]: row["seq"] for row in await sql.fetch("select source, seq from letta.source")}
        assert cursors == {key_of(first): one.seq, key_of(second): two.seq}


async def _taken_in(process: DaemonProcess, relay: Relay, frames: int) -> None:
    """Wait until the daemon has read this many commits."""

    async def read() -> bool:
        return await process.metric(f'frames_total{{source="{key_of(relay)}",type="commit"}}') == frames

    await eventually(read)


async def test_a_stop_commits_all_that_was_read(database: str, sql: Sql) -> None:
    """SIGTERM ends it with 0, in time, and everything it had read is in the index, with the cursor behind it."""
    life = world(7)
    async with Relay() as relay, following(relay, database, "--batch-age", "1h") as process:
        frames = life.run(100)
        relay.publish(frames)
        await _taken_in(process, relay, sum(b"#commit" in frame[:32] for frame in frames))
        assert await indexed(sql) == {}
        assert await process.stop() == 0
        assert await indexed(sql) == {uri: record.cid for uri, record in life.expected().records.items()}
        (source,) = await sql.fetch("select seq, state from letta.source")
        assert (source["seq"], source["state"]) == (life.seq, "stopped")


async def test_a_stop_in_mid_transaction_loses_nothing(database: str, sql: Sql) -> None:
    """SIGTERM while a transaction waits: what it was writing is written all the same, or the cursor stays before it."""
    life = world(8)
    async with Relay() as relay, following(relay, database) as process:
        relay.publish(life.take())
        await cursor_at(sql, life.seq)
        async with sql.transaction():
            await sql.execute("select from letta_store.account for update")
            relay.publish(life.run(100))
            await _blocked(sql)
            process.terminate()
            await process.logged("stopping")
        assert await process.ended() == 0
        await holds(sql, life)
        assert await sql.fetchval("select seq from letta.source") == life.seq


async def test_a_stop_does_not_wait_for_ever(database: str, sql: Sql) -> None:
    """SIGTERM while the database takes nothing ends it all the same; the next start reads what was left."""
    life = world(9)
    async with Relay() as relay:
        async with following(relay, database) as process:
            relay.publish(life.take())
            await cursor_at(sql, life.seq)
            async with sql.transaction():
                await sql.execute("select from letta_store.account for update")
                relay.publish(life.run(100))
                await _blocked(sql)
                assert await process.stop() == 0
        async with following(relay, database):
            await holds(sql, life)


async def _blocked(sql: Sql) -> None:
    """Wait until a transaction of the daemon's waits for a lock."""
    waiting = """
        select count(*) from pg_stat_activity
        where application_name = 'letta-indexer' and wait_event_type = 'Lock' and datname = current_database()
    """

    async def blocked() -> bool:
        return bool(await sql.fetchval(waiting))

    async with asyncio.timeout(60):
        await eventually(blocked)
