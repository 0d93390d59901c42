"""One account of a simulated network with its hosts and its directory, indexed in process with proofs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

from indexer.identity import Resolver
from indexer.outbound import Outbound
from indexer.pds import RepoHost
from indexer.simulator import events
from indexer.simulator.clock import iso
from indexer.simulator.network import Network
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from tests.frames import AGENT, PROMPT, agent, key, prompt
from tests.indexing import Sql, untrue_flags
from tests.trust.parts import Clock, Proving, Silence, proving


class Hosts(RepoHost):
    """The real client; ``during`` is called once while a repository is on its way, and may make things happen."""

    during: Callable[[], Awaitable[None]] | None = None

    async def get_repo(self, host: str, did: str, file: BinaryIO, *, trusted: bool = False) -> int:
        """The repository as it was before what happens on the way."""
        size = await super().get_repo(host, did, file, trusted=trusted)
        happen, self.during = self.during, None
        if happen is not None:
            await happen()
        return size


@dataclass(slots=True)
class Scene:
    """A network with one account, its host, another host, and an index of it all."""

    network: Network
    pds: Pds
    other: Pds
    clock: Clock
    parts: Proving
    hosts: Hosts
    sql: Sql
    did: str

    async def happen(self) -> None:
        """Let the index hear what has happened."""
        self.clock.turn(seconds=1)
        await self.parts.take(self.network.take())

    async def settle(self) -> None:
        """Let everything be asked and fetched that is due."""
        await self.parts.ask()
        await self.parts.mend()

    def write(self, number: int) -> None:
        """Write another prompt."""
        self.network.put(self.did, f"{PROMPT}/{key(number)}", prompt(memory=f"memory {number}"))

    def told(self, status: str) -> bytes:
        """What a host that is no longer the account's says of it now."""
        self.clock.turn(seconds=1)
        return events.account(self.did, status, seq=self.network.seq, time=iso(self.clock.now))

    async def shown(self) -> int:
        """How many records the index shows."""
        return int(await self.sql.fetchval("select count(*) from letta.record"))

    async def status(self) -> str:
        """What the index says of the account."""
        return str(await self.sql.fetchval("select status from letta_store.account where did = $1", self.did))

    async def equal(self) -> None:
        """The index shows what the network holds, all of it proven, with true flags."""
        rows = await self.sql.fetch("select uri, cid from letta.record where verified")
        truth = self.network.expected().records
        assert {row["uri"]: row["cid"] for row in rows} == {uri: record.cid for uri, record in truth.items()}
        assert await untrue_flags(self.sql) == []


@asynccontextmanager
async def scene(database: str, sql: Sql, *, reachable: bool = True) -> AsyncIterator[Scene]:
    """An account with an agent and a prompt that has just been indexed; ``reachable``: its hosts answer."""
    clock = Clock()
    network = Network(seed=3, clock=clock)
    async with AsyncExitStack() as stack:
        plc = await stack.enter_async_context(Directory(network))
        pds = await stack.enter_async_context(Pds(network))
        other = await stack.enter_async_context(Pds(network, adopt=False))
        outbound = Outbound(allow_private_hosts=True)
        stack.push_async_callback(outbound.aclose)
        resolver = Resolver(outbound, plc.url, verify_handles=False)
        hosts = Hosts(outbound)
        host = hosts if reachable else Silence()
        parts = await stack.enter_async_context(proving(database, resolver, host, clock=clock))
        did = network.create_account().did
        network.put(did, f"{AGENT}/{key(1)}", agent())
        made = Scene(network, pds, other, clock, parts, hosts, sql, did)
        made.write(1)
        await made.happen()
        await parts.mend()
        assert await made.shown() == 2
        yield made
