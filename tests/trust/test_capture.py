"""A capture of the reference PDS, proven: with the directory alone, and with one bit of it wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from indexer.audit import audit_index
from indexer.identity import ResolvedIdentity, Resolver
from indexer.keys import signing_key
from indexer.outbound import Outbound
from indexer.pds import RepoHost
from indexer.store.audits import Audits
from tests import frames
from tests.indexing import Sql, contents, indexing, read_capture, untrue_flags
from tests.trust.flips import BLOCKS, FIELDS, CommitFrame, commit_frames, flip
from tests.trust.parts import Clock, Directory, Proving, Silence, empty, proving, wants

CASES = 8  # flips of each part of a frame, in each of two ways
PDS = "http://localhost:2583"
NOWHERE = "http://127.0.0.1:9"  # nobody listens on the discard port


@dataclass(frozen=True, slots=True)
class Window:
    """Three commits of one account in a row; the first two touch what we follow."""

    first: CommitFrame
    damaged: CommitFrame
    last: CommitFrame

    def rows(self) -> dict[str, str]:
        """URI and CID of the records that these commits leave."""
        written = dict(item for frame in (self.first, self.damaged, self.last) for item in frame.written())
        return {uri: cid for uri, cid in written.items() if cid is not None}


@pytest.fixture(scope="module")
def documents(pds_a: Path) -> dict[str, dict[str, object]]:
    """The DID documents of the capture, with a host that doesn't answer."""
    found: dict[str, dict[str, object]] = json.loads((pds_a / "did-docs.json").read_text().replace(PDS, NOWHERE))
    return found


@pytest.fixture(scope="module")
def windows(pds_a: Path) -> list[Window]:
    """Every three commits in a row that a flip can be tried on."""
    by_account: dict[str, list[CommitFrame]] = {}
    for frame in commit_frames(read_capture(pds_a / "frames.bin")):
        by_account.setdefault(frame.did, []).append(frame)
    triples = [t for own in by_account.values() for t in zip(own, own[1:], own[2:], strict=False)]
    return [Window(*triple) for triple in triples if triple[0].touches and triple[1].touches]


@pytest.fixture(scope="module")
def history(pds_a: Path) -> set[tuple[str, str | None]]:
    """URI and CID of everything that was ever written in the capture."""
    return {item for frame in commit_frames(read_capture(pds_a / "frames.bin")) for item in frame.written()}


@asynccontextmanager
async def directory(documents: dict[str, dict[str, object]]) -> AsyncIterator[str]:
    """A PLC directory with these documents on loopback; its URL."""

    async def answer(request: web.Request) -> web.Response:
        document = documents.get(request.match_info["did"])
        return web.json_response(document, status=200 if document else 404)

    application = web.Application()
    application.add_routes([web.get("/{did}", answer)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def directory_alone(database: str, documents: dict[str, dict[str, object]]) -> AsyncIterator[Proving]:
    """The parts, with the real client on that directory, and no host reachable."""
    outbound = Outbound(allow_private_hosts=True)
    try:
        async with directory(documents) as url:
            resolver = Resolver(outbound, url, verify_handles=False)
            async with proving(database, resolver, RepoHost(outbound)) as parts:
                yield parts
    finally:
        await outbound.aclose()


async def verified(sql: Sql) -> set[tuple[str, str]]:
    """URI and CID of every row; all of them have to be verified, with values that hash to the CIDs."""
    rows = await sql.fetch("select uri, cid, verified from letta.record")
    assert all(row["verified"] for row in rows)
    return {(row["uri"], row["cid"]) for row in rows}


def reported(pds_a: Path) -> set[tuple[str, str]]:
    """URI and CID of every record that the PDS listed at the end of the capture."""
    accounts = json.loads((pds_a / "expected.json").read_text())
    return {(record["uri"], record["cid"]) for account in accounts.values() for record in account["records"]}


# The capture as it is


@pytest.mark.parametrize("size", [433, 20])
async def test_directory_alone_proves_everything(
    database: str, sql: Sql, pds_a: Path, documents: dict[str, dict[str, object]], size: int
) -> None:
    """Pending and identity settle it all without any host: every row verified, and what the PDS itself reported."""
    captured = read_capture(pds_a / "frames.bin")
    async with directory_alone(database, documents) as parts:
        for at in range(0, len(captured), size):
            await parts.take(captured[at : at + size])
            await parts.mend()
        await parts.mend(tries=3)
        assert [difference async for difference in audit_index(Audits(parts.index.store))] == []
    assert await verified(sql) == reported(pds_a)
    assert await untrue_flags(sql) == []
    assert await sql.fetchval("select count(*) from letta_store.pending") == 0


async def test_second_replay_changes_nothing(
    database: str, sql: Sql, pds_a: Path, documents: dict[str, dict[str, object]]
) -> None:
    """Replayed whole, and resumed from cursors in between, by a process that starts anew: nothing changes."""
    captured = read_capture(pds_a / "frames.bin")
    before = None
    for start in (0, 0, len(captured) // 3, len(captured) * 9 // 10):
        async with directory_alone(database, documents) as parts:
            await parts.take(captured[start:])
            await parts.mend(tries=2)
        before = before or await contents(sql)
        assert await contents(sql) == before
    assert await verified(sql) == reported(pds_a)


async def test_proofs_are_raised_on_what_was_believed(
    database: str, sql: Sql, pds_a: Path, documents: dict[str, dict[str, object]]
) -> None:
    """Rows that a relay's word brought are unproven; the same events with proofs raise them and change nothing else."""
    captured = read_capture(pds_a / "frames.bin")
    async with indexing(database) as believing:
        await believing.take(captured)
    told = await contents(sql)
    assert await sql.fetchval("select count(*) from letta.record where verified") == 0
    async with directory_alone(database, documents) as parts:
        await parts.take(captured)
        await parts.mend(tries=2)
    assert await verified(sql) == reported(pds_a)
    proven = await contents(sql)
    assert (proven["flags"], proven["history"]) == (told["flags"], told["history"])
    assert [row[:4] for row in proven["rows"]] == [row[:4] for row in told["rows"]]


async def test_nobody_resolved_proves_nothing(database: str, sql: Sql, pds_a: Path) -> None:
    """Without the directory nothing is indexed, everything waits, and every repository is wanted."""
    captured = read_capture(pds_a / "frames.bin")
    async with directory_alone(database, {}) as parts:
        await parts.take(captured)
        touched = {frame.did for frame in commit_frames(captured) if frame.touches}
        assert set(await wants(sql)) >= touched
        await parts.mend()
    assert await sql.fetchval("select count(*) from letta.record") == 0
    assert await sql.fetchval("select count(distinct did) from letta_store.pending") == len(touched)


# One bit of it wrong


@pytest.fixture
async def known(database: str, documents: dict[str, dict[str, object]]) -> AsyncIterator[Proving]:
    """The parts, with all identities at hand and no host reachable."""
    clock = Clock()
    identities = {
        did: ResolvedIdentity(did, signing_key(document, did), NOWHERE, None, None, clock.now)
        for did, document in documents.items()
    }
    async with proving(database, Directory(identities), Silence(), clock=clock) as parts:
        yield parts


async def take_damaged(parts: Proving, sql: Sql, window: Window, damaged: bytes, *, waiting: bool) -> set[str]:
    """Index the window with that frame in its middle: who was wanted when it came, or is at the end.

    ``waiting``: the account's key is not at hand when the frame comes, so that it is judged later, by repair.
    """
    await empty(sql)
    parts.tracked.revs.clear()
    await parts.take([window.first.raw])
    await parts.mend()
    await sql.execute("update letta_store.repo set want = null, want_reasons = '{}'")  # whatever it was, it was met
    if waiting:
        await parts.take([frames.identity(window.first.did)])
    await parts.take([damaged])
    wanted = set(await wants(sql))
    await parts.mend()
    await parts.take([window.last.raw])
    await parts.mend()
    return wanted | set(await wants(sql))


async def assert_all_true(parts: Proving, sql: Sql, history: set[tuple[str, str | None]], case: str) -> None:
    """Whatever is indexed was written by its author, and hashes to its CID."""
    rows = await sql.fetch("select uri, cid, verified from letta.record")
    assert {(row["uri"], row["cid"]) for row in rows} <= history, case
    assert all(row["verified"] for row in rows), case
    assert [difference async for difference in audit_index(Audits(parts.index.store))] == [], case


def cases(windows: list[Window], place: str, seed: str) -> Iterable[tuple[Window, bytes, str]]:
    """Windows chosen by the seed, each with one bit of its middle frame flipped at such a place."""
    random = Random(seed)
    able = [window for window in windows if place in window.damaged.places()]
    for number in range(CASES):
        window = random.choice(able)
        yield window, flip(window.damaged, place, random), f"{place} of {window.damaged.body['seq']}, case {number}"


@pytest.mark.parametrize("waiting", [False, True], ids=["at once", "by repair"])
@pytest.mark.parametrize("place", [*FIELDS, *BLOCKS])
async def test_flipped_bit_is_noticed(
    known: Proving, sql: Sql, windows: list[Window], history: set[tuple[str, str | None]], place: str, waiting: bool
) -> None:
    """Nothing wrong is indexed, and the repository is wanted (or the one that the frame names now)."""
    for window, damaged, case in cases(windows, place, f"{place} {waiting}"):
        wanted = await take_damaged(known, sql, window, damaged, waiting=waiting)
        await assert_all_true(known, sql, history, case)
        if place == "other node" and not wanted:  # one that the proof doesn't need
            rows = {(row["uri"], row["cid"]) for row in await sql.fetch("select uri, cid from letta.record")}
            assert rows == set(window.rows().items()), case
        else:
            assert window.first.did in wanted, case


@pytest.mark.parametrize("place", [*FIELDS[2:], "signed commit", "root node", "record"])
async def test_flipped_bit_is_noticed_though_nothing_follows(
    known: Proving, sql: Sql, windows: list[Window], place: str
) -> None:
    """The repository is wanted by the damaged frame itself, not only by what comes after it."""
    for window, damaged, case in cases(windows, place, f"{place} alone"):
        await empty(sql)
        known.tracked.revs.clear()
        await known.take([window.first.raw])
        await known.mend()
        await sql.execute("update letta_store.repo set want = null, want_reasons = '{}'")
        await known.take([damaged])
        assert window.first.did in await wants(sql), case


async def test_other_account_that_a_flip_names_is_wanted(
    known: Proving, sql: Sql, windows: list[Window], history: set[tuple[str, str | None]]
) -> None:
    """A bit in the account's name makes it another's commit: nothing of that one is indexed, and it is wanted."""
    renamed = 0
    for window, damaged, case in cases(windows, "repo", "renamed"):
        named = named_in(damaged)
        wanted = await take_damaged(known, sql, window, damaged, waiting=False)
        await assert_all_true(known, sql, history, case)
        if named.startswith("did:plc:"):
            renamed += 1
            assert {named, window.first.did} <= wanted, case
    assert renamed


def named_in(damaged: bytes) -> str:
    """The account that a damaged frame names, '' if that is no text any more."""
    try:
        return commit_frames([damaged])[0].did
    except UnicodeDecodeError:
        return ""
