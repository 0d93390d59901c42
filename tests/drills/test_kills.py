"""kill -9, of the daemon, of PostgreSQL, and of both: whatever was going on, nothing is lost and nothing is doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import asyncpg
import pytest

from indexer.embedded import EmbeddedPostgres
from indexer.embedded.processes import send
from indexer.simulator import Relay
from tests.daemon_process import DaemonProcess, daemon
from tests.drills.drill import Drill, Drills, size
from tests.drills.traffic import Day, Flow, flowing, followed
from tests.embedded.servers import postmaster
from tests.postgres import chosen_bin_dir

KILLS = size(2, 40)  # of each drill; half as many where the embedded server takes part
SECONDS = size(0.6, 2.0)  # of traffic around each kill
STARTING = 0.25  # of the kills are followed by one of the daemon that starts then
START_SECONDS = 1.5  # which takes about so long


@pytest.fixture
async def server(data_dir: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own, to be killed; it may also be the daemon's, looked at from outside."""
    server = EmbeddedPostgres(data_dir, bin_dir=chosen_bin_dir())
    yield server
    await server.stop()


async def _killed_again(arguments: tuple[str, ...]) -> None:
    """Kill a daemon at some moment of its start."""
    async with daemon(*arguments) as process:
        await asyncio.sleep(random.uniform(0, START_SECONDS))
        await process.kill()


async def _one_life(
    here: Drill, relay: Relay, process: DaemonProcess, url: str, part: list[bytes], *ends: int
) -> float:
    """Let traffic flow into the daemon and kill it in the midst of it, and these other processes; the moment."""
    flow = Flow(relay.publish, part, SECONDS)
    await flow.moment()
    await here.reached(url, 1)  # one that never committed anything begins with what comes after its start
    since = monotonic()
    assert await process.kill() == -signal.SIGKILL
    for pid in ends:
        os.kill(pid, signal.SIGKILL)
    here.faults += 1
    await flow.done()
    return since


async def test_daemon_killed(day: Day, database: str, drill: Drills) -> None:
    """kill -9 of the daemon at any moment, of its start too, loses nothing and doubles nothing."""
    here = drill("kill -9 of the daemon")
    async with Relay() as relay:
        arguments = (*followed(relay), "--database-url", database)
        since = 0.0
        for part in day.parts(KILLS):
            async with daemon(*arguments) as process:
                await process.ready()
                if here.faults:
                    await here.recovered(database, relay.seq, since=since)
                since = await _one_life(here, relay, process, database, part)
            if here.faults == 1 or random.random() < STARTING:
                await _killed_again(arguments)
                here.faults += 1
        async with daemon(*arguments):
            await here.recovered(database, relay.seq, since=since)
        await here.judge(database, day.truth)


async def _crash(url: str) -> None:
    """kill -9 of the processes that serve the daemon: the server ends all others and recovers by itself."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select pid from pg_stat_activity where application_name = 'letta-indexer'")
    connection.terminate()
    send(signal.SIGKILL, [row["pid"] for row in rows])


async def test_postgresql_killed(day: Day, data_dir: Path, server: EmbeddedPostgres, drill: Drills) -> None:
    """kill -9 of PostgreSQL's processes, or of all of it and a start: the daemon goes on by itself."""
    here = drill("kill -9 of PostgreSQL")
    url = await server.start()
    async with Relay() as relay, daemon(*followed(relay), "--database-url", url) as process:
        await process.ready()
        for number, part in enumerate(day.parts(KILLS)):
            async with flowing(relay.publish, part, SECONDS) as flow:
                await flow.moment()
                since = monotonic()
                if number % 2:
                    os.kill(postmaster(data_dir), signal.SIGKILL)
                    await server.ensure_running()
                else:
                    await _crash(url)
                here.faults += 1
                await here.recovered(url, flow.next, since=since)
        await here.reached(url, relay.seq)
        await here.judge(url, day.truth)


async def test_embedded_server_killed_under_the_daemon(
    day: Day, data_dir: Path, server: EmbeddedPostgres, drill: Drills
) -> None:
    """kill -9 of the embedded PostgreSQL: the daemon starts it again and goes on, by itself."""
    here = drill("kill -9 of the embedded PostgreSQL")
    async with Relay() as relay, daemon(*followed(relay), "--data-dir", str(data_dir)) as process:
        await process.ready()
        url = await server.start()  # joins the one that runs
        for part in day.parts(KILLS // 2):
            async with flowing(relay.publish, part, SECONDS) as flow:
                await flow.moment()
                since = monotonic()
                os.kill(postmaster(data_dir), signal.SIGKILL)
                here.faults += 1
                await here.recovered(url, flow.next, since=since)
        await here.reached(url, relay.seq)
        await here.judge(url, day.truth)


async def test_both_killed(day: Day, data_dir: Path, server: EmbeddedPostgres, drill: Drills) -> None:
    """kill -9 of daemon and embedded PostgreSQL in one instant: the next start goes on from what was committed."""
    here = drill("kill -9 of daemon and PostgreSQL")
    async with Relay() as relay:
        arguments = (*followed(relay), "--data-dir", str(data_dir))
        since = 0.0
        for part in day.parts(KILLS // 2):
            async with daemon(*arguments) as process:
                await process.ready()
                url = await server.start()  # joins the daemon's
                if here.faults:
                    await here.recovered(url, relay.seq, since=since)
                since = await _one_life(here, relay, process, url, part, postmaster(data_dir))
        async with daemon(*arguments) as process:
            await process.ready()
            url = await server.start()
            await here.recovered(url, relay.seq, since=since)
            await here.judge(url, day.truth)
