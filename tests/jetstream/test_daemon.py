"""``letta-indexer run --source jetstream+ws://…`` as a process: what it shows, proves, and goes on from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from indexer.simulator import World
from indexer.simulator.jetstream import Jetstream, trained
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from tests.daemon_process import DaemonProcess, command, daemon, eventually
from tests.histories import WEIGHTS
from tests.indexing import Sql
from tests.jetstream.test_proof import STAYING

Shown = dict[str, tuple[str, bool]]


async def shown(sql: Sql) -> Shown:
    """CID and proof of every record."""
    rows = await sql.fetch("select uri, cid, verified from letta.record")
    return {row["uri"]: (row["cid"], row["verified"]) for row in rows}


@asynccontextmanager
async def running(host: Jetstream, database: str, plc: Directory) -> AsyncIterator[DaemonProcess]:
    """The daemon on a Jetstream whose word it doesn't take, ready."""
    network = ("--trust", "verify", "--plc-url", plc.url, "--allow-private-hosts", "--database-url", database)
    async with daemon("--source", f"jetstream+{host.url}", *network) as process:
        await process.ready()
        yield process


async def test_records_come_by_jetstream_and_proofs_from_their_servers(database: str, sql: Sql) -> None:
    """Compressed, over a restart and a lost connection, all that is written ends up verified, and in its place."""
    world = World(5, accounts=3, weights=WEIGHTS | STAYING, clock=lambda: datetime.now(UTC))
    world.take()

    async def equal() -> bool:
        truth = world.expected().records
        return truth != {} and await shown(sql) == {uri: (record.cid, True) for uri, record in truth.items()}

    async with Pds(world), Directory(world) as plc, Jetstream() as host:
        host.dictionary = trained((f'{{"did":"{number}"}}'.encode() for number in range(2000)), size=2048)
        async with running(host, database, plc) as process:
            await host.subscribed()
            host.publish(world.run(200))
            await eventually(equal)
            await host.disconnect()
            host.publish(world.run(60))
            await eventually(equal)
            assert await process.stop() == 0
        host.publish(world.run(60))
        async with running(host, database, plc):
            await eventually(equal)
        assert all("zstdDictionary=7" in asked for asked in host.asked)
        assert "cursor=" in host.asked[-1]


async def test_a_capture_is_of_a_firehose(tmp_path: object) -> None:
    """Jetstream's frames are no firehose's, and a capture of them could not be replayed."""
    outcome = await command("capture", "--source", "jetstream+wss://a.example", f"{tmp_path}/x.bin")
    assert outcome.code == 2
    assert "Jetstream" in outcome.errors
