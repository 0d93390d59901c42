"""The daemon and what a host may do to its subscribers: cut them off, refuse them, forget, begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from websockets.asyncio.server import ServerConnection

from indexer.simulator import Relay
from indexer.simulator.events import seq_of
from tests.daemon_process import DaemonProcess, daemon, eventually
from tests.indexing import Sql, contents
from tests.networks import cursor_at, following, holds, key_of, world
from tests.sources.peers import cursor_of, host


async def _reconnected(process: DaemonProcess, key: str, reason: str) -> None:
    """Wait until the daemon has counted a connection made anew for this reason."""

    async def counted() -> bool:
        return bool(await process.metric(f'reconnects_total{{reason="{reason}",source="{key}"}}'))

    await eventually(counted)


async def test_cut_connections_are_made_anew(database: str, sql: Sql) -> None:
    """However a connection ends, the next one goes on after the last frame read: nothing is missing."""
    life = world(20)
    async with Relay() as relay, following(relay, database) as process:
        for end in (relay.cut, relay.disconnect):
            relay.publish(life.run(30))
            await relay.sent(life.seq)
            ended = end()
            if ended is not None:
                await ended
            relay.publish(life.run(30))
            await holds(sql, life)
        await _reconnected(process, key_of(relay), "closed")
        assert relay.cursors[0] is None
        assert None not in relay.cursors[1:]


async def test_consumer_too_slow_is_an_interruption(database: str, sql: Sql) -> None:
    """A host that finds us too slow is connected again, from where we are."""
    life = world(21)
    async with Relay() as relay, following(relay, database) as process:
        relay.publish(life.run(30))
        await cursor_at(sql, life.seq)
        await relay.refuse("ConsumerTooSlow")
        await relay.subscribed(2)
        assert relay.cursors == [None, life.seq]
        relay.publish(life.run(30))
        await holds(sql, life)
        await _reconnected(process, key_of(relay), "consumer_too_slow")
        assert await process.metric('dropped_total{reason="error_frame"}') == 1


async def test_outdated_cursor_goes_on_with_what_there_is(database: str, sql: Sql) -> None:
    """A host that no longer has what was missed says so and goes on, and so do we."""
    life = world(22)
    async with Relay() as relay:
        async with following(relay, database) as process:
            relay.publish(life.run(30))
            await cursor_at(sql, life.seq)
            assert await process.stop() == 0
        reached = life.seq
        relay.publish(life.run(30))
        relay.forget(before=life.seq)
        last = life.seq
        async with following(relay, database) as process:
            await cursor_at(sql, last)
            assert relay.cursors[1:] == [reached]
            assert relay.outdated == 1
            assert await process.metric(f'frames_total{{source="{key_of(relay)}",type="info"}}') == 1


async def test_future_cursor_begins_at_the_start(database: str, sql: Sql) -> None:
    """A host that lost its numbers refuses our cursor: it is forgotten, and all that the host has is read."""
    before, after = world(23), world(24)
    async with Relay() as relay:
        async with following(relay, database) as process:
            relay.publish(before.run(60))
            await cursor_at(sql, before.seq)
            assert await process.stop() == 0
        relay.reset()
        relay.publish(after.run(10))
        assert after.seq < before.seq
        async with following(relay, database) as process:
            await holds(sql, before, after)
            await cursor_at(sql, after.seq)
            assert relay.cursors[1:] == [before.seq, 0]
            await _reconnected(process, key_of(relay), "future_cursor")
            relay.publish(after.run(30))
            await holds(sql, before, after)


async def _send(connection: ServerConnection, frames: Iterable[bytes], after: int) -> None:
    for frame in frames:
        seq = seq_of(frame)
        if seq is None or seq > after:
            await connection.send(frame)


async def test_fallen_sequence_begins_at_the_start(database: str, sql: Sql) -> None:
    """A connection whose first frame is not after the cursor asked for shows new numbers: all is read again."""
    before, after = world(25), world(26)
    old, new = before.run(60), after.run(10)
    assert after.seq < before.seq
    asked: list[str | None] = []
    fallen = asyncio.Event()

    async def serve(connection: ServerConnection) -> None:
        asked.append(cursor_of(connection))
        if fallen.is_set():  # a host that doesn't look at a cursor it can't know
            await _send(connection, new if len(asked) > 2 else new[3:], 0)
        else:
            await _send(connection, old, 0)
        await connection.wait_closed()

    async with host(serve) as address:
        source = address.url.partition("/xrpc")[0]
        async with daemon("--source", source, "--trust", "relay", "--database-url", database) as process:
            await cursor_at(sql, before.seq)
            await process.kill()
        fallen.set()
        async with daemon("--source", source, "--trust", "relay", "--database-url", database) as process:
            await holds(sql, before, after)
            await cursor_at(sql, after.seq)
            await _reconnected(process, address.key, "sequence_reset")
    assert asked == [None, str(before.seq), "0"]


async def test_disorder_keeps_the_cursor(database: str, sql: Sql) -> None:
    """Lower numbers later in a connection are disorder: the events count, the cursor stays with the greatest."""
    life = world(27)
    frames = life.run(60)
    cut = len(frames) // 2
    async with Relay() as relay, following(relay, database):
        relay.publish(frames[cut:])
        await cursor_at(sql, life.seq)
        relay.publish(frames[:cut])
        await holds(sql, life)
        await cursor_at(sql, life.seq)
        assert relay.cursors == [None]


async def test_a_given_cursor_counts_once(database: str, sql: Sql) -> None:
    """``--cursor`` starts after a position whatever is stored, that once; then what is stored counts again."""
    life = world(28)
    async with Relay() as relay:
        relay.publish(life.run(60))
        async with following(relay, database, "--cursor", f"{key_of(relay)}=0") as process:
            await holds(sql, life)
            await cursor_at(sql, life.seq)
            wanted = await contents(sql)
            assert await process.stop() == 0
        async with following(relay, database, "--cursor", f"{key_of(relay)}=5") as process:
            await cursor_at(sql, life.seq)
            assert await process.stop() == 0
        assert await contents(sql) == wanted
        async with following(relay, database):
            await relay.subscribed(3)
        assert relay.cursors == [0, 5, life.seq]


async def test_once_ends_when_a_firehose_is_caught_up(database: str, sql: Sql) -> None:
    """Under --once a firehose is caught up with an event younger than the start, or after a silence."""
    life = world(29)
    async with Relay() as relay:
        relay.publish(life.run(60))
        arguments = ("--source", relay.url, "--trust", "relay", "--database-url", database, "--once")
        async with daemon(*arguments, "--cursor", f"{key_of(relay)}=0") as process:
            assert await process.ended() == 0
        await holds(sql, life)
        async with daemon(*arguments) as process:
            await relay.subscribed(2)
            relay.publish(life.run(1))
            assert await process.ended() == 0
        assert relay.cursors[0] == 0
