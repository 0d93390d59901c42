"""The captured exchanges of a reference PDS, followed into a database: its own listing is the truth."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from indexer.keys import PublicKey
from indexer.outbound import Outbound
from indexer.pipeline import utc_now
from indexer.simulator.http_faults import AlterBody, BreakOff, RequestFault
from indexer.simulator.service import Handler
from indexer.space_follow import SpaceFollower
from indexer.spaces.client import SpaceClient
from indexer.spaces.pace import Pace
from indexer.spaces.session import Secret, Session
from indexer.store.spaces import Spaces
from tests.indexing import Indexing, Sql, indexing, untrue_flags
from tests.spaces import captured

HEADS = list(captured.commits())
ROWS = "select uri, cid, verified from letta.record"


class Index:
    """What the follower of the captured account makes of it; each round begins from what is stored."""

    def __init__(self, pds: captured.CapturedHost, parts: Indexing, sql: Sql) -> None:
        self.pds = pds
        self.page = 1_000
        self._parts = parts
        self._sql = sql

    async def round(self) -> bool:
        """Follow to the host's head."""
        outbound = Outbound(allow_private_hosts=True)

        async def open_client() -> SpaceClient:
            session = Session(outbound, self.pds.url, captured.DID, Secret("x"))
            return SpaceClient(session, page=self.page)

        async def key(did: str, fresh: bool) -> PublicKey:
            return captured.key()

        follower = SpaceFollower(
            captured.DID,
            open_client,
            key,
            self._parts.store,
            self._parts.pipeline,
            wanted=lambda _: True,
            report=lambda *_: None,
            once=True,
            pace=lambda: Pace(shortest=0.0, longest=0.0),
        )
        try:
            return await follower.run()
        finally:
            await outbound.aclose()

    async def begin(self, head: str) -> None:
        """Hold what the host had at ``head``, and nothing else."""
        await Spaces(self._parts.store).remove(captured.SPACE, (), utc_now())
        self.pds.head = head
        assert await self.round()
        await self.holds(head)

    async def rows(self) -> dict[str, str]:
        """URI and CID of every row: each of them verified."""
        rows = await self._sql.fetch(ROWS)
        assert all(row["verified"] for row in rows)
        return {row["uri"]: row["cid"] for row in rows}

    async def holds(self, head: str) -> None:
        """The rows are those of ``head``, the flags what they have to be, and that is how far it has been read."""
        assert await self.rows() == captured.rows_at(head)
        assert await untrue_flags(self._sql) == []
        assert await self._sql.fetchval("select rev from letta.source where source like 'space:at:%'") == head


@asynccontextmanager
async def captured_index(database: str, sql: Sql) -> AsyncIterator[Index]:
    """An empty index of the captured host."""
    async with captured.CapturedHost(HEADS[0], rebuilt=True) as pds, indexing(database) as parts:
        yield Index(pds, parts, sql)


async def test_a_load_gives_what_the_pds_listed(database: str, sql: Sql) -> None:
    """The captured CAR leads to exactly the records that the PDS itself listed, all verified."""
    async with captured_index(database, sql) as index:
        await index.begin(HEADS[-1])
        assert await index.rows() == captured.expected()


async def test_every_page_boundary_leads_there(database: str, sql: Sql) -> None:
    """From every head to the last, in pages of every size, polls lead to exactly what the PDS listed."""
    most = len(captured.log(HEADS[-1])) + 1
    async with captured_index(database, sql) as index:
        for number, head in enumerate(HEADS[:-1]):
            for size in range(1, most + 1 - number, 1 if number == 0 else 4):
                await index.begin(head)
                index.page = size
                index.pds.head = HEADS[-1]
                loads = sum("getRepo" in request for request in index.pds.requests)
                assert await index.round()
                assert sum("getRepo" in request for request in index.pds.requests) == loads
                await index.holds(HEADS[-1])
        assert await index.rows() == captured.expected()


async def test_from_head_to_head(database: str, sql: Sql) -> None:
    """Read at each of its heads in turn, in small pages, the index is at each what the host was."""
    async with captured_index(database, sql) as index:
        index.page = 2
        for head in HEADS:
            index.pds.head = head
            assert await index.round()
            await index.holds(head)
            assert await index.round()  # nothing new changes nothing
            await index.holds(head)


class Repeat(RequestFault):
    """The ``at``-th answer is the one before it, once more."""

    def __init__(self, at: int) -> None:
        super().__init__("listRepoOps")
        self._at = at
        self._last: bytes | None = None

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The last answer instead of the proper one."""
        proper = await proceed(request)
        assert isinstance(proper, web.Response)
        body = self._last if self.injected == self._at and self._last is not None else proper.body
        self._last = bytes(proper.body or b"")  # type: ignore[arg-type]
        return web.Response(body=body, content_type=proper.content_type)


@pytest.mark.parametrize("at", range(2, 8))
async def test_a_repeated_answer_changes_nothing(database: str, sql: Sql, at: int) -> None:
    """A host that gives one answer twice is seen through: the rows are never but those of one of its heads."""
    async with captured_index(database, sql) as index:
        await index.begin(HEADS[0])
        index.page, index.pds.head = 2, HEADS[-1]
        fault = index.pds.inject(Repeat(at))
        await index.round()
        assert await index.rows() in [captured.rows_at(head) for head in HEADS]
        index.pds.cure(fault)
        assert await index.round()
        await index.holds(HEADS[-1])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
async def test_a_cut_anywhere_changes_nothing(database: str, sql: Sql, share: float) -> None:
    """A connection that breaks in any answer leaves the index at a head of the host's; the next round goes on."""
    async with captured_index(database, sql) as index:
        for _ in range(3):
            await index.begin(HEADS[0])
            index.page, index.pds.head = 3, HEADS[-1]
            for answers in range(4):
                fault = index.pds.inject(After(answers, share))
                await index.round()
                assert await index.rows() in (captured.rows_at(HEADS[0]), captured.expected())
                index.pds.cure(fault)
            assert await index.round()
            await index.holds(HEADS[-1])


class After(BreakOff):
    """All answers but the first few break off."""

    def __init__(self, answers: int, fraction: float) -> None:
        super().__init__("com.atproto.space.", fraction=fraction)
        self._answers = answers

    def wants(self, request: web.Request) -> bool:
        """Let the first answers through."""
        if not super().wants(request):
            return False
        self._answers -= 1
        return self._answers < 0


def flipped(rng: random.Random, body: bytes) -> bytes:
    """A body with one bit changed."""
    changed = bytearray(body)
    changed[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
async def test_a_flipped_bit_leads_to_a_reload_and_never_to_a_wrong_row(database: str, sql: Sql, seed: int) -> None:
    """Whatever bit of an operation's answer changes, the host is asked for the whole, and the rows are its rows."""
    rng = random.Random(seed)
    async with captured_index(database, sql) as index:
        for _ in range(10):
            await index.begin(HEADS[0])
            index.pds.head = HEADS[-1]
            fault = index.pds.inject(AlterBody("listRepoOps", lambda body: flipped(rng, body), times=1))
            await index.round()
            assert await index.rows() in (captured.rows_at(HEADS[0]), captured.expected())
            index.pds.cure(fault)
            assert await index.round()
            await index.holds(HEADS[-1])


@pytest.mark.parametrize("seed", range(4))
async def test_a_flipped_bit_of_an_archive_never_makes_a_row(database: str, sql: Sql, seed: int) -> None:
    """Whatever bit of an archive changes, nothing of it becomes a row, unless it is read again whole."""
    rng = random.Random(seed)
    async with captured_index(database, sql) as index:
        await index.begin(HEADS[1])
        index.pds.head = HEADS[-1]
        for _ in range(10):
            faults = [
                index.pds.inject(AlterBody("listRepoOps", lambda _: b'{"ops": 5}')),
                index.pds.inject(AlterBody("getRepo", lambda body: flipped(rng, body))),
            ]
            await index.round()
            unproven = await sql.fetch("select uri, cid from letta.record where not verified")
            rows = await sql.fetch(ROWS)
            expected = [captured.rows_at(HEADS[1]), captured.expected()]
            assert {row["uri"]: row["cid"] for row in rows} in expected
            assert len(unproven) in (0, len(rows))  # a commit that proves nothing any more, or all
            for fault in faults:
                index.pds.cure(fault)
        assert await index.round()
        await index.holds(HEADS[-1])
