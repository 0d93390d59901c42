"""Killed at any moment, any number of times, the daemon ends with the index of a run that was never killed.

``INDEXER_TEST_KILLS`` says how often it is killed (6 unless set; the work grows with it: 50 kills are over 20 s of it).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import asyncpg
import pytest

from indexer.embedded import EmbeddedPostgres
from indexer.simulator.capture import write_capture
from tests.copies import copies
from tests.daemon_process import DaemonProcess, command, daemon, eventually
from tests.embedded.servers import postmaster
from tests.indexing import Sql, contents, read_capture, untrue_flags
from tests.postgres import TestCluster

KILLS = int(os.environ.get("INDEXER_TEST_KILLS", "6"))
COPIES = max(40, 4 * KILLS)
LEAST_INSIDE = 0.8  # of the kills have to fall where there is something to lose
STARTING = 0.25  # of the kills fall in the first moments of a start
START_SECONDS = 1.5  # which last so long

Index = dict[str, list[tuple[object, ...]]]


@dataclass(frozen=True, slots=True)
class Work:
    """A capture, the arguments that have it indexed, and what an undisturbed run makes of it, in how much time."""

    arguments: tuple[str, ...]
    frames: int
    seconds: float  # from the first commit to the end
    index: Index


@pytest.fixture(scope="module")
def work(cluster: TestCluster, pds_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """The work to be killed in, done once without."""
    path = tmp_path_factory.mktemp("kills") / "frames.bin"
    frames = write_capture(path, copies(read_capture(pds_a / "frames.bin"), COPIES))
    # Small batches: more transactions, and so more moments within one.
    arguments = ("--once", "--source", f"file:{path}", "--trust", "relay", "--batch-rows", "50")
    seconds, index = asyncio.run(_undisturbed(cluster, *arguments))
    print(f"{COPIES} copies of the capture, {frames} frames: {seconds:.1f} s of work")
    assert index["rows"]
    return Work(arguments, frames, seconds, index)


async def _undisturbed(cluster: TestCluster, *arguments: str) -> tuple[float, Index]:
    """A run that nobody kills: its seconds from the first commit to the end, and its index."""
    async with cluster.fresh_database() as url:
        async with daemon(*arguments, "--database-url", url) as process:
            await _committed(process, 0)
            begun = monotonic()
            assert await process.ended(within=600) == 0
        return monotonic() - begun, await _contents(url)


async def _contents(url: str) -> Index:
    sql = await asyncpg.connect(url)
    try:
        assert await untrue_flags(sql) == []
        return await contents(sql)
    finally:
        await sql.close()


async def _position(process: DaemonProcess) -> int:
    """The committed position as the daemon reports it; 0 before it does, and once it has ended."""
    with suppress(Exception):
        for line in (await process.get("/metrics"))[1].splitlines():
            if line.startswith("letta_indexer_cursor_seq{"):
                return int(float(line.rpartition(" ")[2]))
    return 0


async def _committed(process: DaemonProcess, after: int) -> None:
    """Wait until the daemon has committed more than what was there, or has ended."""
    await process.announced()

    async def more() -> bool:
        return not process.running or await _position(process) > after

    await eventually(more)


async def _at_some_moment(process: DaemonProcess, *, after: int, most: float, starting: bool) -> None:
    """Let a random time pass: of the start, or of up to ``most`` seconds of work."""
    if not starting:
        await _committed(process, after)
    await asyncio.sleep(random.uniform(0, most))


async def test_killed_at_random_moments(work: Work, database: str, sql: Sql) -> None:
    """kill -9 of the daemon loses nothing and doubles nothing, whatever it was doing."""
    inside, position = [], 0
    for kill in range(KILLS):
        starting = kill > 0 and random.random() < STARTING
        share = work.seconds * (1 - position / work.frames) / (KILLS - kill + 1)
        async with daemon(*work.arguments, "--database-url", database) as process:
            await _at_some_moment(process, after=position, most=START_SECONDS if starting else share, starting=starting)
            code = await process.kill()
        before, position = position, await sql.fetchval("select max(seq) from letta.source") or 0
        assert position >= before
        assert await untrue_flags(sql) == []
        if code == -signal.SIGKILL and 0 < position < work.frames:
            inside.append(position)
    print(f"killed {KILLS} times, after these frames of {work.frames}: {inside}")
    assert len(inside) >= LEAST_INSIDE * KILLS
    await _finish(work, "--database-url", database)
    assert await contents(sql) == work.index


async def _finish(work: Work, *arguments: str) -> None:
    outcome = await command("run", "--listen", "127.0.0.1:0", *work.arguments, *arguments, within=600)
    assert outcome.code == 0, outcome.errors


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder whose way the embedded server's user can go too."""
    folder = Path(tempfile.mkdtemp(prefix="test-"))
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def embedded(data_dir: Path) -> AsyncIterator[EmbeddedPostgres]:
    """The server of the data folder, for looking into it once the daemon has ended."""
    server = EmbeddedPostgres(data_dir)
    yield server
    await server.stop()


async def test_embedded_server_killed_under_the_daemon(work: Work, data_dir: Path, embedded: EmbeddedPostgres) -> None:
    """kill -9 of the embedded PostgreSQL: the daemon starts it again and goes on, by itself."""
    kills, inside, position = max(3, KILLS // 5), 0, 0
    async with daemon(*work.arguments, "--data-dir", str(data_dir)) as process:
        for kill in range(kills):
            share = work.seconds * (1 - position / work.frames) / (kills - kill + 1)
            await _at_some_moment(process, after=position, most=share, starting=False)
            position = await _position(process)
            os.kill(postmaster(data_dir), signal.SIGKILL)
            inside += 0 < position < work.frames and process.running
        assert inside >= LEAST_INSIDE * kills
        assert await process.ended(within=600) == 0
    assert await _contents(await embedded.start()) == work.index


async def test_both_killed(work: Work, data_dir: Path, embedded: EmbeddedPostgres) -> None:
    """kill -9 of daemon and embedded PostgreSQL in one instant: the next start goes on from what was committed."""
    kills, inside, position = max(3, KILLS // 5), 0, 0
    there = ("--data-dir", str(data_dir))
    for kill in range(kills):
        share = work.seconds * (1 - position / work.frames) / (kills - kill + 1)
        async with daemon(*work.arguments, *there) as process:
            await _at_some_moment(process, after=position, most=share, starting=False)
            position = await _position(process)
            inside += 0 < position < work.frames and process.running
            os.kill(process.pid, signal.SIGKILL)
            os.kill(postmaster(data_dir), signal.SIGKILL)
    assert inside >= LEAST_INSIDE * kills
    await _finish(work, *there)
    assert await _contents(await embedded.start()) == work.index
