"""A whole simulated network and the real index of it: stream, directory and hosts, with time that a test turns.

Nothing runs by itself but the servers on loopback. A test lets things happen in the world, lets the index hear of them
(or of something else), and has everything that is due asked for and fetched until nothing is open. What the index
holds then is compared with what the network holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from aiohttp import web

from indexer.accounts import Discovery
from indexer.identity import Resolver
from indexer.intake import Intake
from indexer.model import COMPILED_PROMPT, Reason
from indexer.outbound import Outbound
from indexer.pds import RepoHost
from indexer.simulator import World, events
from indexer.simulator.dagcbor import cid_text
from indexer.simulator.faults import UnseenSync
from indexer.simulator.http_faults import RequestFault
from indexer.simulator.network import Account
from indexer.simulator.oracle import PREFIX, Expected
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from indexer.simulator.repository import Write
from indexer.simulator.service import Handler
from indexer.simulator.stream import Stream
from indexer.sources.base import Chunk, Opened, ReconnectReason
from indexer.trust import Proof
from indexer.verification import KNOWN_COLLECTIONS
from tests.histories import WEIGHTS
from tests.indexing import MemorySource, Sql, untrue_flags
from tests.trust.parts import Clock, Proving, kept_of, proving

ROUNDS = 30  # of asking and fetching, an hour apart, after which what is still open won't be settled
TICK = timedelta(milliseconds=731)
FIREHOSE = MemorySource("firehose:simulated", "firehose:simulated", live=True, positions="sequence")
COMPILES = "select did, rkey, cid from letta_store.recompile"
RECORDS = "select uri, cid, proof is not null as verified from letta.record"
FLAGS = "select uri, freshness, stale_reasons from letta.compiled_prompt"
OPEN = """
    select r.did from letta_store.repo r join letta_store.account a on a.did = r.did
    where (r.want is not null and not a.hidden) or a.check_at is not null
    union all select did from letta_store.probe
"""

Compile = tuple[str, str]  # URI and CID of a compiled prompt


class During(RequestFault):
    """While an answer is on its way, with what was there when it was asked for, ``action`` happens."""

    def __init__(self, part: str, action: Callable[[], Awaitable[None]], *, times: int | None = None) -> None:
        super().__init__(part, times=times)
        self._action = action

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The proper answer of before."""
        proper = await proceed(request)
        await self._action()
        return proper


@dataclass(slots=True)
class Simulation:
    """A world, its servers, and an index of it that demands proofs.

    ``errors`` are the reasons that ``letta.repo`` has given for wants not met, ``wanted`` all reasons of wants,
    ``lost`` those for which the stream was begun anew.
    """

    world: World
    clock: Clock
    plc: Directory
    pds: Pds
    other: Pds
    parts: Proving
    discovery: Discovery
    resolver: Resolver
    host: RepoHost
    sql: Sql
    stream: Stream = field(default_factory=Stream)
    wanted: set[str] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)
    lost: list[ReconnectReason] = field(default_factory=list)
    seen: set[Compile] = field(default_factory=set)  # applied at some time
    written: set[Compile] = field(default_factory=set)  # by anybody, ever
    drag: float = 0.0  # seconds that pass at each look of ours at the watch
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _restart: list[int | None] = field(default_factory=list)
    _discover: bool = False

    @property
    def accounts(self) -> list[Account]:
        """The accounts that can write, in the order they came."""
        return [account for account in self.world.accounts.values() if account.active]

    @property
    def fetches(self) -> int:
        """How often a repository was asked for."""
        return sum("sync.getRepo?" in request for pds in (self.pds, self.other) for request in pds.requests)

    @property
    def did(self) -> str:
        """The account that has most of what we follow."""
        return max(
            self.accounts, key=lambda account: sum(path.startswith(PREFIX) for path in account.repository.records)
        ).did

    def live(self, steps: int) -> None:
        """Let things happen."""
        for _ in range(steps):
            self.world.life.step()

    def watch(self) -> float:
        """Seconds, as those who fetch measure them."""
        self.clock.turn(seconds=self.drag)
        return self.clock.now.timestamp()

    def greet(self) -> None:
        """Let every account write once more: one that falls silent can't show that it misses something."""
        for account in self.accounts:
            self.world.put(account.did, f"{PREFIX}greeting/{self.world.rkey()}", {"$type": f"{PREFIX}greeting"})

    def unseen(self) -> str:
        """Let an account change without a ``#commit``, so that its repository has to be fetched; its DID."""
        did, path = self.did, f"{PREFIX}greeting/{self.world.rkey()}"
        UnseenSync(self.world).inject(did, [Write(path, {"$type": f"{PREFIX}greeting"})])
        return did

    async def begin(self, steps: int = 40) -> None:
        """Live for a while, with everything heard and settled, and forget what was wanted on the way."""
        self.live(steps)
        self.greet()
        await self.hear()
        await self.settle()
        self.wanted.clear()
        self.errors.clear()

    async def end(self) -> None:
        """Hear of every account once more, settle, and compare."""
        self.greet()
        await self.hear()
        await self.settle()
        await self.equal()

    def emitted(self) -> list[bytes]:
        """The frames that the world has emitted since the last call, as they are."""
        frames = self.world.take()
        for _, body in map(events.parse, frames):
            for op in body.get("ops", ()):
                if op["cid"] is not None and op["path"].startswith(COMPILED_PROMPT):
                    self.written.add((f"at://{body['repo']}/{op['path']}", cid_text(op["cid"].cid)))
        return frames

    # what is heard

    async def hear(self, frames: Iterable[bytes] | None = None, *, each: bool = False) -> None:
        """Publish frames (by default all that the world has emitted since) and index them.

        In one transaction, or ``each`` in its own.
        """
        given = self.emitted() if frames is None else list(frames)
        self.stream.publish(given)
        for chunk in [[frame] for frame in given] if each else [given]:
            await self._take(chunk)

    async def miss(self, frames: Iterable[bytes] | None = None) -> None:
        """Publish frames while nobody listens."""
        self.stream.publish(self.emitted() if frames is None else frames)

    async def connect(self, cursor: int | None = None, *, blind: bool = False) -> None:
        """Connect anew, after ``cursor`` or else after what was committed, and read all that the host has.

        ``blind``: the host gives all it has, whatever it is asked for.
        """
        asked = self.parts.index.intake.committed if cursor is None else cursor
        frames: list[bytes] = []

        async def send(frame: bytes) -> None:
            frames.append(frame)

        following = asyncio.ensure_future(self.stream.follow(0 if blind else asked, send))
        await asyncio.sleep(0)  # it sends all it has, then waits
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await self.parts.index.intake.take(Opened(asked))
        await self._take(frames)

    async def _take(self, frames: list[bytes]) -> None:
        index = self.parts.index
        async with self._turn:
            if frames:
                await index.intake.take(Chunk(frames))
            await index.pipeline.flush()
            await self._note()
        if self._restart:
            await self.connect(self._restart.pop())

    def restart(self, cursor: int | None, reason: ReconnectReason) -> None:
        """What the intake asks for when it can't go on with a connection."""
        self.lost.append(reason)
        self._restart = [cursor]

    def lose(self) -> None:
        """What the index asks for when events are missing of accounts it may not know."""
        self._discover = True

    # what follows from it

    async def settle(self) -> None:
        """Have all that is due asked for and fetched, hour after hour, until nothing is open."""
        for _ in range(ROUNDS):
            if self._discover:
                self._discover = False
                await self.discover()
            await self.parts.ask()
            await self._note()
            while await self.parts.repair.attend():
                await self._note()
            if not self._discover and not await self.sql.fetch(OPEN):
                return
            self.clock.turn(hours=1)
        errors = await self.sql.fetch(f"select did, want_reasons, last_error from letta.repo where did in ({OPEN})")
        raise AssertionError(f"still open: {errors}")

    async def discover(self) -> None:
        """Ask the hosts for every account that holds what we follow; again an hour later where one doesn't answer."""
        for pds in (self.pds, self.other):
            await self.parts.repairs.restart_discovery(pds.url)
            await self.discovery.ask(pds.url, pds.url, KNOWN_COLLECTIONS, tries=1)
            self._discover |= bool(await self.parts.repairs.open_discoveries(pds.url, ()))

    async def _note(self) -> None:
        for row in await self.sql.fetch("select want_reasons, last_error from letta.repo where want is not null"):
            self.wanted |= set(row["want_reasons"])
            self.errors |= {row["last_error"]} - {None}
        self.seen |= await self.history()

    # what is compared

    def dropped(self, reason: Reason) -> float:
        """How many things were dropped or set aside for this reason."""
        return self.parts.index.sample("dropped_total", reason=reason.value)

    async def history(self) -> set[Compile]:
        """Every compile that the index remembers, those of hidden accounts too."""
        rows = await self.sql.fetch(COMPILES)
        return {(f"at://{row['did']}/{COMPILED_PROMPT}/{row['rkey']}", row["cid"]) for row in rows}

    async def equal(self) -> None:
        """The index holds what the network holds: rows, all proven, flags, states of accounts, and a true history."""
        truth = self.world.expected()
        rows = {row["uri"]: (row["cid"], row["verified"]) for row in await self.sql.fetch(RECORDS)}
        assert rows == {uri: (record.cid, True) for uri, record in truth.records.items()}
        verdicts = {uri: prompt.judgement for uri, prompt in truth.prompts.items() if uri in truth.records}
        flags = {row["uri"]: (row["freshness"], tuple(row["stale_reasons"])) for row in await self.sql.fetch(FLAGS)}
        assert flags == {uri: (verdict.freshness, verdict.stale_reasons) for uri, verdict in verdicts.items()}
        assert await untrue_flags(self.sql) == []
        await self._equal_accounts(truth)
        history, happened = await self.history(), compiles(truth)
        assert history <= self.written | happened
        assert history >= self.seen & happened
        assert history >= {(uri, truth.records[uri].cid) for uri in verdicts}

    async def _equal_accounts(self, truth: Expected) -> None:
        for row in await self.sql.fetch("select did, status from letta.repo"):
            account = truth.accounts[row["did"]]
            assert (account.did, row["status"]) == (account.did, account.status)
            if account.status == "deleted":
                assert (await kept_of(self.sql, account.did)).keys() <= {"account", "repo"}


def compiles(truth: Expected) -> set[Compile]:
    """Every write of every prompt that is there."""
    return {(uri, made.cid) for uri, prompt in truth.prompts.items() for made in prompt.compiles}


@asynccontextmanager
async def simulation(
    database: str,
    sql: Sql,
    *,
    seed: int = 1,
    accounts: int = 4,
    weights: Mapping[str, float] | None = None,
    p256: float = 0.3,
    legacy: float = 0.3,
) -> AsyncIterator[Simulation]:
    """A living network of one host (and another, empty one), indexed from its beginning."""
    clock = Clock()

    def tick() -> datetime:
        clock.now += TICK
        return clock.now

    chances = dict(WEIGHTS) | dict(weights or {})
    lively = World(seed, accounts=accounts, clock=tick, weights=chances, p256=p256, legacy=legacy)
    async with AsyncExitStack() as stack:
        plc = await stack.enter_async_context(Directory(lively))
        pds = await stack.enter_async_context(Pds(lively))
        other = await stack.enter_async_context(Pds(lively, adopt=False))
        outbound = Outbound(allow_private_hosts=True, idle_timeout=2.0, monotonic=lambda: made.watch())
        stack.push_async_callback(outbound.aclose)
        resolver = Resolver(outbound, plc.url, verify_handles=False)
        host = RepoHost(outbound)
        parts = await stack.enter_async_context(proving(database, resolver, host, clock=clock))
        discovery = Discovery(parts.repairs, host, parts.index.pipeline, parts.tracked)
        made = Simulation(lively, clock, plc, pds, other, parts, discovery, resolver, host, sql)
        trust = Proof(parts.index.pipeline, parts.tracked, on_loss=made.lose)
        parts.index.intake = Intake(parts.index.pipeline, FIREHOSE, trust, None)  # type: ignore[arg-type]
        parts.index.intake.restart = made.restart
        yield made
