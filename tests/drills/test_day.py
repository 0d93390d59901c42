"""Twenty-four hours of a network in a minute, proofs demanded, and by turns everything fails that can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle
from time import monotonic

from indexer.simulator.faults import Drop, Duplicate, FrameFault, Reorder
from indexer.simulator.http_faults import Refuse
from indexer.simulator.oracle import PREFIX
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from tests.daemon_process import DaemonProcess, daemon, eventually
from tests.drills.drill import UNVERIFIED, Drill, Drills, size
from tests.drills.traffic import PastWorld, flowing
from tests.gateway import Gateway
from tests.indexing import Sql

PORTIONS = size(8, 24)  # that they come in, with a fault in each
STEPS = size(150, 2_000)  # in each of these
SECONDS = size(0.4, 4.0)  # that one takes
SETTLED = size(60.0, 600.0)  # seconds in which what is missing in the end has to have been fetched

Fault = Callable[[], Awaitable[float]]  # gives the moment from which on the daemon has to recover by itself


class Running:
    """A network with its host and its directory, and a daemon that demands proofs of all it is told."""

    def __init__(self, world: PastWorld, pds: Pds, plc: Directory, way: Gateway, stack: AsyncExitStack) -> None:
        self.frame_faults: list[FrameFault] = [
            Drop(chance=0.02, seed=1),
            Duplicate(chance=0.05, seed=2),
            Reorder(chance=0.02, seed=3),
        ]
        self.others = 0  # faults that are not of frames
        self._world, self._pds, self._way, self._stack = world, pds, way, stack
        source = ("--source", pds.url.replace("http", "ws"), "--idle-timeout", "5", "--max-lag", "172800")
        network = ("--trust", "verify", "--plc-url", plc.url, "--allow-private-hosts")
        self._arguments = (*source, *network, "--database-url", way.url)
        self._process: DaemonProcess | None = None

    @property
    def faults(self) -> int:
        """How many have been injected so far."""
        return self.others + sum(fault.injected for fault in self.frame_faults)

    async def start(self) -> None:
        """Start the daemon."""
        self._process = await self._stack.enter_async_context(daemon(*self._arguments))
        await self._process.ready()

    async def kill(self) -> float:
        """kill -9 of the daemon, and a start. What it had claimed to fetch nobody fetches for a minute."""
        assert self._process is not None
        since = monotonic()
        await self._process.kill()
        await self.start()
        return since

    async def hang_up(self) -> float:
        """The host closes its connections."""
        await self._pds.disconnect()
        return monotonic()

    async def lose_database(self) -> float:
        """The database is away for a moment."""
        await self._way.close()
        await asyncio.sleep(SECONDS)
        await self._way.open()
        return monotonic()

    async def refuse(self) -> float:
        """The host has no repository to give for the next two who ask."""
        self._pds.inject(Refuse("getRepo?", retry_after="1", times=2))
        return monotonic()

    async def portion(self, drill: Drill, database: str, fault: Fault) -> None:
        """Let some hours go by with a fault in the midst of it, and others on the way of single frames."""
        frames = self._world.run(STEPS)
        for each in self.frame_faults:
            frames = each.pass_on(frames)
        async with flowing(self._pds.publish, frames, SECONDS) as flow:
            await flow.moment()
            since = await fault()
            self.others += 1
            await drill.recovered(database, flow.next, since=since)

    def greet(self) -> None:
        """Let every account write once more: one that falls silent can't show that something of it was missed."""
        for account in self._world.accounts.values():
            if account.active:
                path = f"{PREFIX}greeting/{self._world.rkey()}"
                self._world.put(account.did, path, {"$type": f"{PREFIX}greeting"})
        self._pds.publish(self._world.take())


async def test_a_day_of_faults(database: str, sql: Sql, drill: Drills) -> None:
    """Whatever was missed is fetched, whatever is held is proven: in the end the index is what the network holds."""
    here = drill("24 hours, proofs demanded")
    world = PastWorld(24, PORTIONS * STEPS)
    async with AsyncExitStack() as stack:
        plc = await stack.enter_async_context(Directory(world))
        pds = await stack.enter_async_context(Pds(world))
        way = await stack.enter_async_context(Gateway(database))
        running = Running(world, pds, plc, way, stack)
        await running.start()
        faults = cycle((running.hang_up, running.lose_database, running.refuse, *size((), (running.kill,))))
        for _, fault in zip(range(PORTIONS), faults, strict=False):
            await running.portion(here, database, fault)
        running.greet()
        await here.reached(database, pds.stream.seq)
        here.faults = running.faults

        async def proven() -> bool:
            return not await sql.fetchval(UNVERIFIED)

        await eventually(proven, within=SETTLED)
        here.extras.append("all proven")
        await here.judge(database, world.expected(), history=False, within=SETTLED)
