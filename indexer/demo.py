"""The demonstration: a simulated network on loopback, indexed live, and what the views say about it.

The network is :mod:`indexer.simulator`'s: a PLC directory and a PDS with real keys, trees and commits. The daemon is
the real one and follows that PDS over a WebSocket. What is printed is either a fixed text about what happens in the
network, or a query with the rows it gave: nothing is said about the index but by its views.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import dedent, fill, indent
from typing import Final, TypeAlias

from indexer.daemon import Daemon
from indexer.demo_spaces import PRIVATE_PROMPTS, PRIVATE_RECORDS, Grace, simulated_spaces
from indexer.errors import IndexerError
from indexer.simulator import World, content
from indexer.simulator.clock import iso
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from indexer.simulator.repository import Write
from indexer.store import Store
from indexer.tables import WIDTH, Row, table_lines

SEED: Final = 2026
PATIENCE: Final = 30.0  # seconds until an index that doesn't follow is a failure
LOOK_AGAIN: Final = 0.2  # seconds between looks at the index, unless a transaction is committed sooner

Say: TypeAlias = Callable[[str], None]
Ask: TypeAlias = Callable[[str], Awaitable[Sequence[Row]]]


class Network:
    """The simulated network: some accounts with a life of their own, and Ada, whom the story is about.

    Ada has one agent and two conversations, each with a compiled prompt. ``grace``, if she is there, has her agent in a
    permissioned space. Made by :func:`simulated_network`.
    """

    def __init__(self, world: World, pds: Pds, directory: Directory, grace: Grace | None = None) -> None:
        self.world = world
        self._grace = grace
        self._pds = pds
        self._directory = directory
        self._ada: _Ada | None = None

    @property
    def settings(self) -> dict[str, object]:
        """What the daemon has to be told to follow this network, by the names of the settings."""
        return {
            "source": [self._pds.url.replace("http", "ws", 1)],
            "relay_url": self._pds.url,
            "plc_url": self._directory.url,
            "allow_private_hosts": True,
            "trust": "verify",
            "listen": "127.0.0.1:0",
            **(self._grace.settings if self._grace is not None else {}),
        }

    @property
    def scenes(self) -> tuple[Scene, ...]:
        """What there is to be shown."""
        return SCENES if self._grace is None else SCENES + SPACE_SCENES

    @property
    def grace(self) -> Grace:
        """Grace, in a network with spaces."""
        assert self._grace is not None, "this network has no spaces"
        return self._grace

    def expected(self) -> dict[str, str]:
        """URI and CID of every record that the index has to show."""
        public = {uri: record.cid for uri, record in self.world.expected().records.items()}
        return public if self._grace is None else public | self._grace.expected()

    @property
    def did(self) -> str:
        """Ada's DID."""
        return self.ada.did

    @property
    def ada(self) -> _Ada:
        """Ada, once she has joined. Raises RuntimeError before that."""
        if self._ada is None:
            raise RuntimeError("Ada has not joined yet")
        return self._ada

    def begin(self) -> None:
        """Let three accounts live for a while, then let Ada join."""
        for number in range(3):
            self.world.create_account(f"u{number}.invalid")
        for name in ["agent"] * 3 + ["noise", "fork", "noise"] * 2 + ["message", "noise", "noise"] * 15:
            self.world.life.happen(name)
        self._ada = _Ada(self.world)
        self.go_on()

    def go_on(self) -> None:
        """Send what has happened to whoever subscribed, amid what other applications write."""
        for _ in range(10):
            self.world.life.noise()
        self._pds.publish(self.world.take())


class _Ada:
    """One account: an agent, its two conversations, and what she does with them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.did = world.create_account("ada.invalid").did
        rng = world.rng
        record = content.agent_record(rng, world.clock()) | {"name": "gardener"}
        agent = content.Agent(self.did, world.rkey(), "ada.invalid", record, "", None)
        self._agent = agent
        self._change_memory()
        self.first, self.second = (content.Thread(self.did, world.rkey(), agent) for _ in range(2))
        agent.record["primaryConversation"] = self.first.uri
        writes = [Write(agent.path, agent.record)]
        for thread, role, title in ((self.first, "primary", "Watering"), (self.second, "fork", "Harvest")):
            value = content.conversation_record(rng, agent, role, world.clock()) | {"title": title, "hidden": False}
            writes += [Write(thread.path, value), self._compiled(thread)]
        world.commit(self.did, writes)

    def rewrite_template(self) -> None:
        """Give the agent another system template."""
        self._agent.record = self._agent.record | {"system": content.template(self._world.rng)}
        self._world.put(self.did, self._agent.path, self._agent.record)

    def compile(self, thread: content.Thread) -> None:
        """Compile a conversation's prompt in full, over the old one."""
        self._world.commit(self.did, [self._compiled(thread)])

    def take_memory_up(self, thread: content.Thread) -> None:
        """Compile a conversation's prompt, then change the agent's memory and tell that conversation of it alone."""
        self.compile(thread)
        self._change_memory()
        fields = content.memory_fields(self._world.rng, thread, self._world.clock())
        thread.prompt = (thread.prompt or {}) | fields | self._now()
        self._world.put(self.did, thread.prompt_path, thread.prompt)

    def leave(self) -> None:
        """Delete the account."""
        self._world.delete_account(self.did)

    def _change_memory(self) -> None:
        rng = self._world.rng
        self._agent.memory, self._agent.revision = content.core_memory(rng), content.revision(rng)

    def _compiled(self, thread: content.Thread) -> Write:
        thread.prompt = content.compiled(self._world.rng, thread, self._world.clock()) | self._now()
        return Write(thread.prompt_path, thread.prompt)

    def _now(self) -> dict[str, object]:
        return {"compiledAt": iso(self._world.clock())}


@asynccontextmanager
async def simulated_network(*, spaces: bool = False) -> AsyncIterator[Network]:
    """A network on loopback, of today, that nobody but (with ``spaces``) Grace has joined yet; gone after the block."""
    world = World(SEED, accounts=0, clock=lambda: datetime.now(UTC), quirks=0)
    async with AsyncExitStack() as stack:
        pds = await stack.enter_async_context(Pds(world))
        grace = await stack.enter_async_context(simulated_spaces(SEED + 1)) if spaces else None
        networks = [world] if grace is None else [world, grace.network]
        directory = await stack.enter_async_context(Directory(*networks))
        yield Network(world, pds, directory, grace)


def questions_to(store: Store) -> Ask:
    """What asks a store for the rows of a query."""

    async def ask(sql: str) -> Sequence[Row]:
        async with store.connection("read") as connection:
            return [dict(row) for row in await connection.fetch(sql)]

    return ask


@dataclass(frozen=True, slots=True)
class Scene:
    """Something that happens in the network, in words, and the queries that show what the index makes of it.

    In ``queries`` ``{did}`` stands for Ada's DID.
    """

    title: str
    text: str
    happens: Callable[[Network], None]
    queries: tuple[str, ...]


class Demo:
    """Tells the story, with a daemon at work beside it that follows ``network``.

    ``ask`` runs a query on the index, ``say`` prints a line; after each scene there are ``pause`` seconds to read it.
    """

    def __init__(self, network: Network, daemon: Daemon, *, ask: Ask, say: Say, pause: float = 0.0) -> None:
        self._network = network
        self._daemon = daemon
        self._ask = ask
        self._say = say
        self._pause = pause
        self._committed = asyncio.Event()
        daemon.pipeline.listen(lambda _: self._committed.set())

    async def run(self) -> None:
        """Tell the story to its end, or until somebody stops the daemon; it has ended when this returns.

        Raises IndexerError if the index doesn't follow the network.
        """
        try:
            async with asyncio.TaskGroup() as group:
                story = group.create_task(self._tell(), name="story")
                daemon = group.create_task(self._daemon.run(), name="daemon")
                await asyncio.wait((story, daemon), return_when=asyncio.FIRST_COMPLETED)
                self._daemon.stop()
                story.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _tell(self) -> None:
        self._words(INTRODUCTION)
        await self._until(self._is_live)
        for number, scene in enumerate(self._network.scenes, 1):
            scene.happens(self._network)
            self._network.go_on()
            await self._until(self._is_equal)
            await self._play(number, scene)
            await asyncio.sleep(self._pause)
        self._words(END)

    async def _play(self, number: int, scene: Scene) -> None:
        self._say(f"== {number}. {scene.title}")
        self._say("")
        self._words(scene.text)
        for query in scene.queries:
            sql = query.format(did=self._network.did)
            rows = await self._ask(sql)
            for line in [*indent(sql, "    ").splitlines(), "", *table_lines(rows), ""]:
                self._say(line)

    def _words(self, text: str) -> None:
        for line in [*paragraph(text), ""]:
            self._say(line)

    async def _until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the index has come to something; looked at after every transaction of the daemon's."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    self._committed.clear()
                    if await holds():
                        return
                    await self._next_commit()
        except TimeoutError:
            raise IndexerError(f"the index did not follow the simulated network within {PATIENCE:g} s") from None

    async def _next_commit(self) -> None:
        try:
            async with asyncio.timeout(LOOK_AGAIN):
                await self._committed.wait()
        except TimeoutError:
            return

    async def _is_live(self) -> bool:
        """Whether the daemon is subscribed."""
        return bool(await self._ask("select from letta.source where state = 'live' and source like 'firehose:%'"))

    async def _is_equal(self) -> bool:
        """Whether the index holds what the network holds."""
        rows = await self._ask("select uri, cid from letta.record")
        return {row["uri"]: row["cid"] for row in rows} == self._network.expected()


def paragraph(text: str) -> list[str]:
    """A text as lines of at most 80 columns."""
    return fill(" ".join(text.split()), WIDTH, break_on_hyphens=False).splitlines()


INTRODUCTION: Final = """
    A simulated network starts on loopback: a directory of identities and a server with repositories. letta-indexer
    follows it into a PostgreSQL of its own, both thrown away at the end. Each query below is shown as it is asked,
    with the rows it gives.
"""
END: Final = """
    That is all. To follow the public network: letta-indexer run. To ask it: letta-indexer db psql, or any client of
    PostgreSQL. Nothing of this demonstration is left on the machine.
"""

_PROMPTS: Final = dedent("""\
    select p.rkey, c.title, p.recompiles, p.freshness, p.stale_reasons
    from letta.compiled_prompt p
    join letta.conversation c on c.did = p.did and c.rkey = p.rkey
    where p.did = '{did}' order by p.rkey;""")
_EVIDENCE: Final = dedent("""\
    select p.rkey, p.stale_since, e ->> 'reason' as reason,
        e ->> 'field' as field, e ->> 'found' as found,
        e ->> 'expected' as expected, substr(e ->> 'record', 39) as says_who
    from letta.stale_prompt p, jsonb_array_elements(p.evidence) e
    where p.did = '{did}' order by p.rkey;""")
_SOURCES: Final = dedent("""\
    select source, state, seq from letta.source where seq is not null;""")
_RECORDS: Final = dedent("""\
    select collection, count(*) as records,
        count(*) filter (where verified) as verified,
        count(*) filter (where valid is false) as invalid
    from letta.record group by collection order by collection;""")
_AGENTS: Final = dedent("""\
    select a.name as agent, left(a.system_sha256, 12) as template,
        count(c.uri) as conversations, count(distinct c.did) as accounts
    from letta.agent a left join letta.conversation_all c on c.agent = a.uri
    group by a.uri, a.name, a.system_sha256 order by a.uri;""")
_HISTORY: Final = dedent("""\
    select rkey, kind, seen_at, content_bytes,
        left(raw_system_hash, 8) as template, left(memfs_revision, 8) as memory
    from letta.recompile where did = '{did}'
    order by rkey, rev;""")
_LEFT: Final = dedent("""\
    select a.status, count(distinct r.uri) as records,
        count(distinct h.cid) as compiles
    from letta.repo a
    left join letta.record r on r.did = a.did
    left join letta.recompile h on h.did = a.did
    where a.did = '{did}' group by a.status;""")

SCENES: Final = (
    Scene(
        "Agents and their conversations",
        """Some accounts keep Letta agents, all of them post elsewhere too. The index takes what belongs to Letta and
        moves its position over the rest. A record is verified once its bytes are proven to be in a repository signed
        by its account's key.""",
        Network.begin,
        (_SOURCES, _RECORDS, _AGENTS),
    ),
    Scene(
        "Ada's compiled prompts",
        """One of these accounts is Ada's. Each of her agent's conversations has a compiled prompt: the agent's system
        template with its memory put in. A prompt is fresh if it was made from the template that the agent's record
        holds now.""",
        Network.go_on,
        (_PROMPTS,),
    ),
    Scene(
        "Ada rewrites the template",
        """The agent's record changes, the prompts don't: they were compiled from something else. The evidence names the
        field of the prompt, the value found there, the one expected, and the record that says so.""",
        lambda network: network.ada.rewrite_template(),
        (_PROMPTS, _EVIDENCE),
    ),
    Scene(
        "One prompt is compiled again",
        """The new prompt overwrites the old one under the same key. It is fresh again; the other one is not.""",
        lambda network: network.ada.compile(network.ada.first),
        (_PROMPTS,),
    ),
    Scene(
        "So is the other, then the memory changes",
        """The memory belongs to the agent, a compile takes it up for one conversation. After a new memory reached the
        second conversation in the middle of its talk, the first one's prompt still has the old: no record of the agent
        says so, but the prompt beside it, compiled later.""",
        lambda network: network.ada.take_memory_up(network.ada.second),
        (_PROMPTS, _EVIDENCE),
    ),
    Scene(
        "The first prompt takes the memory up too",
        """Nothing contradicts either prompt any more. The history shows what each compile was: the first one, a full
        one (its content changed), or a memory update (the content was kept on purpose).""",
        lambda network: network.ada.compile(network.ada.first),
        (_PROMPTS, _HISTORY),
    ),
    Scene(
        "Ada leaves",
        """Her account is deleted, and with it every record and all history. What an account takes back is gone.""",
        lambda network: network.ada.leave(),
        (_LEFT, _RECORDS),
    ),
)

SPACE_SCENES: Final = (
    Scene(
        "Grace keeps her agent in a permissioned space",
        """Nothing of a space is on the firehose or in any public method. With an app password the index reads her own
        repository there, and checks that it is complete. Who may only read what is public sees none of these rows.""",
        lambda network: network.grace.begin(),
        (PRIVATE_RECORDS, PRIVATE_PROMPTS),
    ),
    Scene(
        "Her template changes in the space",
        "What is in a space is evidence for the prompts of that space alone.",
        lambda network: network.grace.rewrite_template(),
        (PRIVATE_PROMPTS,),
    ),
)
