"""The disk of the database fills up, for real: nothing can be written until there is room again; nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import asyncpg
import pytest

from indexer.embedded import EmbeddedPostgres
from indexer.simulator import Relay
from tests.daemon_process import DaemonProcess, daemon
from tests.drills.drill import Drills, size
from tests.drills.traffic import Day, flowing, followed
from tests.postgres import chosen_bin_dir

FAULTS = size(2, 20)
SECONDS = size(0.8, 2.0)  # of traffic around each
FULL = size(0.5, 5.0)  # seconds that the disk stays full
DISK = 256  # MB
BLOCK = 4096  # bytes
NO_SPACE = "the database is not available: DiskFullError (53100)"


class Disk:
    """A small file system at ``path`` that can be filled to the last block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the room there is."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, BLOCK):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def clear(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A file system of its own in memory, of :data:`DISK` MB."""
    with tempfile.TemporaryDirectory(prefix="test-") as folder:
        Path(folder).chmod(0o755)
        options = f"size={DISK}m,mode=0755"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True
        )
        if mounted.returncode != 0:
            pytest.skip(f"not run: needs the right to mount a file system ({mounted.stderr.strip()})")
        try:
            yield Disk(Path(folder))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
async def server(disk: Disk) -> AsyncIterator[EmbeddedPostgres]:
    """A PostgreSQL with all it has on the small disk."""
    server = EmbeddedPostgres(disk.path / "data", bin_dir=chosen_bin_dir())
    yield server
    await server.stop()


async def _write_log(url: str) -> None:
    """Have PostgreSQL use up the files of its log that it has: without room for another it can't go on at all."""
    connection = await asyncpg.connect(url)
    with suppress(OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
        while True:
            await connection.execute("select pg_logical_emit_message(false, 'drill', 'drill'), pg_switch_wal()")
    connection.terminate()


async def _full(disk: Disk, process: DaemonProcess, url: str, *, log: bool) -> None:
    """Fill the disk, see that PostgreSQL meets the end of it, and after a while make room; ``log``: it crashes."""
    disk.fill()
    if log:
        await _write_log(url)
    else:
        await process.logged("database not available, trying again", error=NO_SPACE)
        assert await process.reasons()
    await asyncio.sleep(FULL)
    disk.clear()


async def test_disk_full(day: Day, disk: Disk, server: EmbeddedPostgres, drill: Drills) -> None:
    """A full disk, for data or for PostgreSQL's own log: what could not be written is written once there is room."""
    here = drill("disk full")
    url = await server.start()
    async with Relay() as relay, daemon(*followed(relay), "--database-url", url) as process:
        await process.ready()
        for number, part in enumerate(day.parts(FAULTS)):
            async with flowing(relay.publish, part, SECONDS) as flow:
                await flow.moment()
                await _full(disk, process, url, log=number % 2 == 1)
                since = monotonic()
                await server.ensure_running()
                here.faults += 1
                await here.recovered(url, flow.next, since=since)
        await here.reached(url, relay.seq)
        await here.judge(url, day.truth)


async def test_disk_of_the_embedded_server_full(day: Day, disk: Disk, server: EmbeddedPostgres, drill: Drills) -> None:
    """The same with the daemon's own PostgreSQL: it is started again by the daemon, as soon as that can be."""
    here = drill("disk of the embedded PostgreSQL full")
    async with Relay() as relay, daemon(*followed(relay), "--data-dir", str(disk.path / "data")) as process:
        await process.ready()
        url = await server.start()  # joins the one that runs
        for part in day.parts(FAULTS // 2):
            async with flowing(relay.publish, part, SECONDS) as flow:
                await flow.moment()
                await _full(disk, process, url, log=True)
                here.faults += 1
                await here.recovered(url, flow.next)
        await here.reached(url, relay.seq)
        await here.judge(url, day.truth)
