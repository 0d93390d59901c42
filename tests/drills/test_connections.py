"""Connections that are cut, that freeze, and that stay alive with nothing in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import cycle

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from indexer.simulator import Relay
from indexer.simulator.stream import Send
from tests.daemon_process import daemon
from tests.drills.drill import Drill, Drills, size
from tests.drills.traffic import OPTIONS, Day, flowing, followed
from tests.gateway import Gateway, Passage

FAULTS = size(4, 40)
SECONDS = size(0.5, 1.5)  # of traffic around each fault
OUTAGE = size(0.5, 3.0)  # seconds that a way stays closed or frozen
SILENCE = 1.0  # seconds without an event after which a connection is made anew here

Fault = Callable[[Passage], Awaitable[None]]


class StallingRelay(Relay):
    """A relay whose connections can fall silent while they go on answering pings, and sending their own."""

    def __init__(self) -> None:
        super().__init__()
        self.pongs = 0
        self._silenced = 0  # connections up to this number get nothing any more
        self._pings: list[asyncio.Task[None]] = []

    def stall(self) -> None:
        """Let every open connection fall silent for good."""
        self._silenced = self.connections
        self._pings += [asyncio.ensure_future(self._ping(connection)) for connection in self._open]

    async def follow(self, cursor: int | None, send: Send) -> None:
        """As ever, until stalled."""
        number = self.connections + 1

        async def send_unless_silenced(frame: bytes) -> None:
            if number <= self._silenced:
                await asyncio.Event().wait()
            await send(frame)

        await super().follow(cursor, send_unless_silenced)

    async def _ping(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await (await connection.ping())
                self.pongs += 1
                await asyncio.sleep(SILENCE / 10)


async def test_stalled_relay(day: Day, database: str, drill: Drills) -> None:
    """A relay that goes silent with its pings alive is left and connected to again, from where it was."""
    here = drill("relay stalls, pings alive")
    async with StallingRelay() as relay:
        arguments = (*followed(relay), "--database-url", database, "--idle-timeout", str(SILENCE))
        async with daemon(*arguments) as process:
            await process.ready()
            for part in day.parts(size(2, FAULTS)):
                async with flowing(relay.publish, part, SECONDS) as flow:
                    await flow.moment()
                    pongs = relay.pongs
                    relay.stall()
                    here.faults += 1
                    await here.recovered(database, flow.next)
                assert relay.pongs > pongs
            await here.reached(database, relay.seq)
    await here.judge(database, day.truth)


async def cut(way: Passage) -> None:
    """Every connection breaks."""
    await way.cut()


async def out(way: Passage) -> None:
    """Every connection breaks, and for a while none can be made."""
    await way.close()
    await asyncio.sleep(OUTAGE)
    await way.open()


async def frozen(way: Passage) -> None:
    """For a while nothing gets through, in neither direction."""
    way.freeze()
    await asyncio.sleep(OUTAGE)
    way.thaw()


async def dead(way: Passage) -> None:
    """Nothing gets through any more on what is open, and nobody says so; new connections are sound."""
    way.freeze(later=False)


async def _through(here: Drill, day: Day, relay: Relay, database: str, way: Passage, *faults: Fault) -> None:
    """Let a day go by with a fault in each part of it."""
    for part, fault in zip(day.parts(FAULTS), cycle(faults), strict=False):
        async with flowing(relay.publish, part, SECONDS) as flow:
            await flow.moment()
            await fault(way)
            here.faults += 1
            await here.recovered(database, flow.next)
    await here.reached(database, relay.seq)
    await here.judge(database, day.truth)


async def test_connection_to_the_source_fails(day: Day, database: str, drill: Drills) -> None:
    """Cut, closed, frozen or dead without a word: the stream goes on after the last frame that was read."""
    here = drill("source cut, away, frozen, dead")
    async with Relay() as relay:
        port = int(relay.url.rpartition(":")[2])
        async with Passage(lambda: asyncio.open_connection("127.0.0.1", port)) as way:
            source = ("--source", f"ws://127.0.0.1:{way.port}", "--idle-timeout", str(SILENCE))
            async with daemon(*OPTIONS, *source, "--database-url", database) as process:
                await process.ready()
                await _through(here, day, relay, database, way, cut, out, frozen, dead)


async def test_connection_to_the_database_fails(day: Day, database: str, drill: Drills) -> None:
    """Cut, closed, frozen or dead without a word: what could not be written is written as soon as can be."""
    here = drill("database cut, away, frozen, dead")
    async with Relay() as relay, Gateway(database) as way:
        arguments = (*followed(relay), "--database-url", way.url)
        async with daemon(*arguments) as process:
            await process.ready()
            await _through(here, day, relay, database, way, cut, out, frozen, dead)
