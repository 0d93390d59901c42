"""A relay that sends far faster than anybody could write: it is held back, memory is bounded, nothing is lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from indexer.simulator import Relay
from indexer.simulator.network import Network
from indexer.simulator.oracle import PREFIX
from tests.daemon_process import DaemonProcess, daemon
from tests.drills.drill import Drills, size
from tests.drills.memory import resident, sampled
from tests.indexing import Sql
from tests.networks import key_of

FRAMES = size(1_200, 15_000)
TEXT = 60_000  # characters of each message
ACCOUNTS = 10
CLOSED = size(1.0, 20.0)  # seconds in which the database takes nothing at all
MOST_MORE = 64.0  # MB of memory beside what was in use before: two batches of 8 MiB as they are read, kept and sent


def flood(network: Network, dids: list[str], count: int) -> list[bytes]:
    """Frames of as many messages, each with a text that doesn't get shorter by packing it."""
    for number in range(count):
        record = {
            "$type": f"{PREFIX}message",
            "conversation": f"at://{dids[0]}/{PREFIX}conversation/c",
            "role": "assistant",
            "status": "complete",
            "seq": number,
            "content": network.rng.randbytes(TEXT // 2).hex(),
            "createdAt": "2026-01-02T03:04:05.678Z",
        }
        network.put(dids[number % len(dids)], f"{PREFIX}message/{network.rkey()}", record)
    return network.take()


async def _taken_in(process: DaemonProcess, relay: Relay) -> float:
    """How many MB the daemon says it has read."""
    return (await process.metric(f'bytes_total{{source="{key_of(relay)}"}}') or 0) / 1e6


async def test_flood(database: str, sql: Sql, drill: Drills) -> None:
    """Whether the database takes nothing or what it can, the daemon reads no more than it has room for."""
    here = drill("relay floods")
    network = Network(seed=9, clock=lambda: datetime.now(UTC))
    dids = [network.create_account().did for _ in range(ACCOUNTS)]
    first = network.take()
    frames = flood(network, dids, FRAMES)
    offered = sum(map(len, frames)) / 1e6
    async with Relay() as relay:
        # Batches by size alone: the most that may be gathered is.
        arguments = ("--source", relay.url, "--trust", "relay", "--batch-age", "0.2", "--database-url", database)
        async with daemon(*arguments) as process:
            await process.ready()
            relay.publish(first)
            await here.reached(database, relay.seq)
            before = resident(process.pid)
            async with sampled(process.pid) as memory:
                async with sql.transaction():
                    await sql.execute("select from letta_store.account for update")
                    relay.publish(frames)
                    here.faults += 1
                    await asyncio.sleep(CLOSED)
                    held_back = await _taken_in(process, relay)
                await here.recovered(database, relay.seq)
    more = memory.peak - before
    here.extras.append(
        f"{offered:.0f} MB offered at once, {held_back:.0f} MB read while the database was shut, "
        f"memory {memory.peak:.0f} MB at most, {more:.0f} MB more than before"
    )
    await here.judge(database, network.expected())
    assert offered > MOST_MORE
    assert held_back < MOST_MORE
    assert more < MOST_MORE
