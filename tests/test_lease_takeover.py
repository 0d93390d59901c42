"""Two daemons on one database: one writes, and whatever becomes of it the other goes on, within six seconds.

Both are processes, the database is real, and a trigger on its cursors notes every step back: there is none unless
somebody wrote under a lease that was not his any more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic

import asyncpg
import pytest

from indexer.simulator import Relay, World
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from tests.daemon_process import DaemonProcess, command, daemon, eventually
from tests.gateway import Gateway
from tests.indexing import Sql
from tests.networks import cursor_at, holds, key_of, world

TAKEOVER = 6.0  # seconds, as promised
EXPIRY = 4.0  # seconds for which a lease is valid
OVERTAKEN = "another daemon is the writer now: what was not committed yet is its to read"
WATCH = """
    create table public.step_back (seq bigint, was bigint);
    create function public.watch() returns trigger language plpgsql as $$
    begin
        if new.seq < old.seq then
            insert into public.step_back values (new.seq, old.seq);
        end if;
        return new;
    end $$;
    create trigger watch before update on letta_store.cursor for each row execute function public.watch();
"""
BLOCKED = """
    select count(*) from pg_stat_activity
    where application_name = 'letta-indexer' and wait_event_type = 'Lock' and datname = current_database()
"""

BEGUN = "insert into letta_store.cursor (source, seq) values ($1, 0) on conflict (source) do update set seq = 0"


@pytest.fixture
async def watched(sql: Sql) -> Sql:
    """A connection to the database, whose cursors are watched."""
    await sql.execute(WATCH)
    return sql


@asynccontextmanager
async def joining(relay: Relay, url: str, event: str, *arguments: str) -> AsyncIterator[DaemonProcess]:
    """A daemon that follows the relay, once it is ready and has logged ``event``."""
    async with daemon("--source", relay.url, "--trust", "relay", "--database-url", url, *arguments) as process:
        await process.ready()
        await process.logged(event)
        yield process


@asynccontextmanager
async def pair(
    relay: Relay, database: str, *arguments: str, by: str | None = None
) -> AsyncIterator[tuple[DaemonProcess, DaemonProcess]]:
    """The writer, which reaches the database ``by`` a way of its own, and a daemon on standby."""
    async with (
        joining(relay, by or database, "this daemon is the writer", *arguments) as writer,
        joining(relay, database, "on standby", *arguments) as standby,
    ):
        assert [await role(writer), await role(standby)] == ["writer", "standby"]
        yield writer, standby


async def role(process: DaemonProcess) -> str:
    """What a daemon says it is, by ``/readyz`` and by its metric, once they agree: it may change between the two."""
    told = ""

    async def agree() -> bool:
        nonlocal told
        told = json.loads((await process.get("/readyz"))[1])["role"]
        return bool(await process.metric("writer") == (told == "writer"))

    await eventually(agree)
    return told


async def is_standby(process: DaemonProcess) -> bool:
    """Whether a daemon is on standby, and ready."""
    return (await process.get("/readyz"))[0] == 200 and await role(process) == "standby"


async def one_writer(*processes: DaemonProcess) -> bool:
    """Whether one of the daemons is the writer and every other one on standby."""
    return sorted([await role(process) for process in processes]) == ["standby"] * (len(processes) - 1) + ["writer"]


async def goes_on(sql: Sql, relay: Relay, life: World, since: float, within: float = TAKEOVER) -> None:
    """What happens now is in the index in time, as the relay's network holds it; the cursor never went back."""
    relay.publish(life.run(30))
    await asyncio.wait_for(cursor_at(sql, life.seq), within - (monotonic() - since))
    print(f"taken over after {monotonic() - since:.1f} s")
    await holds(sql, life)
    assert await sql.fetch("table public.step_back") == []


async def test_killed(database: str, watched: Sql) -> None:
    """kill -9 of the writer: the daemon on standby writes on, and a third takes its place."""
    life = world(66)
    async with Relay() as relay, pair(relay, database) as (writer, standby):
        relay.publish(life.run(60))
        await holds(watched, life)
        assert [await standby.metric("reconnects_total"), len(relay.cursors)] == [None, 1]
        relay.publish(life.run(60))  # and in the middle of that
        died = monotonic()
        await writer.kill()
        await goes_on(watched, relay, life, died)
        assert await role(standby) == "writer"
        async with joining(relay, database, "on standby"):
            await goes_on(watched, relay, life, monotonic())


async def test_paused_in_mid_transaction(database: str, watched: Sql) -> None:
    """A writer that is stopped while it writes is overtaken; awakened, it commits nothing and stands by."""
    life = world(61)
    async with Relay() as relay, pair(relay, database) as (writer, standby):
        relay.publish(life.run(60))
        await cursor_at(watched, life.seq)
        async with watched.transaction():
            await watched.execute("select from letta_store.account for update")
            relay.publish(life.run(60))
            await eventually(lambda: watched.fetchval(BLOCKED))
            os.kill(writer.pid, signal.SIGSTOP)
            stopped = monotonic()
        await goes_on(watched, relay, life, stopped)
        assert await role(standby) == "writer"
        os.kill(writer.pid, signal.SIGCONT)
        await _overtaken(writer)
        await goes_on(watched, relay, life, monotonic())


async def test_paused_between_a_plan_and_its_values(database: str, watched: Sql) -> None:
    """A writer that is stopped where its server counts it as at work, so that no limit ends that, is overtaken too."""
    life = world(70)
    async with Relay() as relay, pair(relay, database) as (writer, standby):
        await watched.execute(BEGUN, key_of(relay))  # the writer has not asked for a tombstone yet, nor will the other
        locker = await asyncpg.connect(database)
        async with locker.transaction():
            await locker.execute("lock table letta_store.tombstone in access exclusive mode")
            relay.publish(life.run(60))
            await eventually(lambda: watched.fetchval(BLOCKED))
            os.kill(writer.pid, signal.SIGSTOP)
            stopped = monotonic()
        await locker.close()
        await goes_on(watched, relay, life, stopped)
        assert await role(standby) == "writer"
        os.kill(writer.pid, signal.SIGCONT)
        await _overtaken(writer)
        await goes_on(watched, relay, life, monotonic())


async def _overtaken(process: DaemonProcess) -> None:
    """The daemon finds out that it is the writer no more, and stands by, following nothing."""
    await process.logged(OVERTAKEN)
    await eventually(lambda: is_standby(process))
    assert "letta_indexer_lag_seconds{" not in (await process.get("/metrics"))[1]


async def test_awakened_with_a_batch_in_hand(database: str, watched: Sql) -> None:
    """A writer that is awakened and commits before it could learn anything commits nothing: its transaction asks."""
    life = world(69)
    async with (
        Relay() as relay,
        joining(relay, database, "this daemon is the writer", "--batch-age", "5s") as writer,
        joining(relay, database, "on standby") as other,
    ):
        relay.publish(life.run(60))
        await cursor_at(watched, life.seq)
        relay.publish(life.run(60))
        await eventually(lambda: writer.metric('queue_depth{queue="batch"}'))
        os.kill(writer.pid, signal.SIGSTOP)
        await goes_on(watched, relay, life, monotonic())
        async with watched.transaction():
            await watched.execute("lock table letta_store.lease in share mode")  # nobody can renew
            os.kill(writer.pid, signal.SIGCONT)
            await writer.logged(OVERTAKEN)
        # by now the lease may have run out for want of a renewal, and either of them may have it next
        await goes_on(watched, relay, life, monotonic())
        await eventually(lambda: one_writer(writer, other))


async def test_paused_again_and_again(database: str, watched: Sql) -> None:
    """Whatever a writer does when it is stopped, the two change places, and the index is the network's."""
    life = world(62)
    async with Relay() as relay, pair(relay, database) as (writer, standby):
        for _ in range(2):
            ends = asyncio.ensure_future(_traffic(relay, life))
            await asyncio.sleep(random.uniform(0.2, 1))  # any moment will do
            os.kill(writer.pid, signal.SIGSTOP)
            stopped = monotonic()
            await ends
            await goes_on(watched, relay, life, stopped)
            os.kill(writer.pid, signal.SIGCONT)
            await eventually(partial(is_standby, writer))
            writer, standby = standby, writer
        await goes_on(watched, relay, life, monotonic())


async def _traffic(relay: Relay, life: World) -> None:
    for _ in range(100):
        relay.publish(life.run(5))
        await asyncio.sleep(0.01)


async def test_cut_off_and_found_again(database: str, watched: Sql) -> None:
    """A writer that no packet reaches or leaves is overtaken, and says so; back again, it stands by."""
    life = world(63)
    async with (
        Relay() as relay,
        Gateway(database) as gateway,
        pair(relay, database, by=gateway.url) as (writer, standby),
    ):
        relay.publish(life.run(60))
        await cursor_at(watched, life.seq)
        relay.publish(life.run(60))
        gateway.freeze()
        cut = monotonic()
        await goes_on(watched, relay, life, cut)
        assert await role(standby) == "writer"

        async def gives_up() -> bool:
            return await writer.metric("writer") == 0

        await eventually(gives_up)
        assert (await writer.get("/readyz"))[0] == 503
        gateway.thaw()
        await _overtaken(writer)
        await goes_on(watched, relay, life, monotonic())


async def test_refused_connections(database: str, watched: Sql) -> None:
    """A writer whose connections break, and that gets no others, is not waited for."""
    life = world(64)
    async with Relay() as relay, Gateway(database) as gateway, pair(relay, database, by=gateway.url) as (writer, _):
        relay.publish(life.run(60))
        await cursor_at(watched, life.seq)
        await gateway.close()
        await goes_on(watched, relay, life, monotonic())
        await gateway.open()
        await _overtaken(writer)


async def test_a_stop_hands_over(database: str, watched: Sql) -> None:
    """A writer that is told to end commits what it read, and is followed before its lease would have expired."""
    life = world(65)
    async with Relay() as relay, pair(relay, database, "--batch-age", "1h") as (writer, standby):
        relay.publish(life.run(60))
        await relay.sent(life.seq)
        assert await writer.stop() == 0
        ended = monotonic()
        async with asyncio.timeout(EXPIRY):
            await standby.logged("this daemon is the writer")
        print(f"handed over in {monotonic() - ended:.1f} s")
        await holds(watched, life)
        relay.publish(life.run(10))
        await relay.sent(life.seq)
        assert await standby.stop() == 0
        await holds(watched, life)
        assert relay.cursors[0] is None
        assert await watched.fetch("table public.step_back") == []


async def test_a_lone_daemon_is_not_kept_waiting(database: str, sql: Sql) -> None:
    """After kill -9 the next start writes at once: the lease of a process that is gone holds nobody up."""
    life = world(67)
    async with Relay() as relay:
        async with joining(relay, database, "this daemon is the writer") as process:
            relay.publish(life.run(60))
            await cursor_at(sql, life.seq)
            await process.kill()
        await sql.execute("update letta_store.lease set valid_until = 'infinity'")
        async with joining(relay, database, "this daemon is the writer"):
            relay.publish(life.run(30))
            await holds(sql, life)


async def test_once_does_not_wait_for_a_writer_that_lives(database: str, pds_a: Path) -> None:
    """``run --once`` beside a writer ends with 3 and says who that is; when the writer is gone it does its work."""
    arguments = ("--source", f"file:{pds_a / 'frames.bin'}", "--trust", "relay", "--database-url", database)
    once = ("run", "--once", "--listen", "127.0.0.1:0", *arguments)
    async with Relay() as relay, joining(relay, database, "this daemon is the writer") as process:
        outcome = await command(*once)
        assert outcome.code == 3
        assert f":{process.pid} writes this database" in outcome.errors
        assert "Traceback" not in outcome.errors
        await process.kill()
        outcome = await command(*once)
        assert outcome.code == 0, outcome.errors


async def test_once_gives_a_lost_database_up(database: str, sql: Sql, pds_a: Path) -> None:
    """A database that goes away for good under ``--once`` ends the run with 3, in half a minute or so."""
    async with Gateway(database) as gateway:
        source = ("--source", f"file:{pds_a / 'frames.bin'}", "--once", "--batch-rows", "1")
        async with daemon(*source, "--trust", "relay", "--database-url", gateway.url) as process:
            await eventually(lambda: sql.fetchval("select count(*) from letta.record"))
            await gateway.close()
            assert await process.ended() == 3
        assert any("letta-indexer: the database is not available" in line for line in process.words)


async def test_proofs_go_on(database: str, watched: Sql) -> None:
    """Under ``--trust verify`` both daemons repair and one writes; when that dies the other knows what is tracked."""
    weights = {"hide": 0.0, "delete_account": 0.0, "new_account": 0.0}
    life = World(seed=11, accounts=4, clock=lambda: datetime.now(UTC), weights=weights)
    async with Directory(life) as plc, Pds(life) as pds:
        network = ("--source", pds.url.replace("http", "ws", 1), "--plc-url", plc.url, "--allow-private-hosts")
        arguments = (*network, "--trust", "verify", "--database-url", database)
        async with daemon(*arguments) as writer:
            await writer.ready()
            async with daemon(*arguments) as standby:
                await standby.logged("on standby")
                pds.publish(life.run(100))
                await holds(watched, life)
                pds.publish(life.run(60))
                await writer.kill()
                pds.publish(life.run(60))
                await holds(watched, life)
                await eventually(lambda: watched.fetchval("select bool_and(verified) from letta.record"))
                assert await role(standby) == "writer"
                assert await watched.fetch("table public.step_back") == []
