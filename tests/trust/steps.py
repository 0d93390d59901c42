"""Commits made to order, and what a database holds of them: for tests of the store's part in repair."""

from __future__ import annotations

from datetime import UTC, datetime

from indexer.batch import Batch
from indexer.model import Change, Proof, Proposal, Record, Undecided, Want, WantReason
from indexer.store import Applied, Store, chain
from indexer.store.claims import Claim, Snapshot
from indexer.store.repairs import Repairs
from indexer.texts import facts_of
from tests import frames
from tests.frames import DID, PROMPT
from tests.indexing import Sql

NOW = datetime.now(UTC)
EMPTY = chain.EMPTY_TREE


def rev(number: float) -> str:
    """The rev of the commit with this number."""
    return frames.rev(number)


def put(
    name: str, content: str, number: float, *, collection: str = PROMPT, proof: Proof | None = "repo", did: str = DID
) -> Change:
    """A record written in the commit with this number: ``content`` stands for both its value and its CID."""
    value = f'{{"content": "{content}"}}'
    record = Record(value, len(value), facts=facts_of(collection, {"content": content}, {}))
    return Change(did, "", collection, name, rev(number), f"cid-{content}", record, proof)


def gone(name: str, number: float, *, collection: str = PROMPT, proof: Proof | None = "repo") -> Change:
    """A record deleted in the commit with this number."""
    return Change(DID, "", collection, name, rev(number), None, None, proof)


def commit(number: int, *changes: Change, since: int | None = None, did: str = DID) -> Proposal:
    """A proven commit after the one with the number ``since`` (by default the one before); the first is number 1."""
    before = number - 1 if since is None else since
    data = EMPTY if before == 0 else f"data-{before}"
    frame = f"{did} {number} {since}".encode()
    after = rev(before) if before else None
    return Proposal(did, rev(number), after, data, f"data-{number}", changes, "test", frame)


def undecided(number: int, *, did: str = DID, size: int = 10) -> Undecided:
    """A commit of an account whose key is not known."""
    return Undecided(did, rev(number), WantReason.UNKNOWN_KEY, "test", f"{did} {number}".encode().ljust(size))


def snapshot(number: int, *changes: Change) -> Snapshot:
    """The repository as its host signs it at the commit with this number."""
    return Snapshot(DID, rev(number), f"data-{number}", changes)


def connected(url: str) -> Store:
    """A store with connections of its own."""

    async def dsn() -> str:
        return url

    return Store(dsn)


async def write(
    store: Store,
    *proposals: Proposal,
    changes: tuple[Change, ...] = (),
    held: tuple[Undecided, ...] = (),
    wanted: tuple[Want, ...] = (),
) -> Applied:
    """Write one batch, as the stream does."""
    batch = Batch(proposals=list(proposals), undecided=list(held), wants=list(wanted))
    for change in changes:
        batch.add(change)
    return await store.apply(batch, NOW)


async def claim(repairs: Repairs, now: datetime = NOW) -> Claim:
    """The one want that is due, claimed."""
    (claim,) = await repairs.claim(now, 1)
    return claim


async def fetch_wanted(store: Store, repairs: Repairs, want: Want | None = None) -> Claim:
    """A claim on a repository that somebody asks for."""
    await write(store, wanted=(want or Want(DID, WantReason.BACKFILL),))
    return await claim(repairs)


async def rows(sql: Sql) -> dict[str, tuple[str, str, str | None]]:
    """Content, rev and proof of every row, by record key."""
    found = await sql.fetch("select rkey, cid, rev, proof from letta.record")
    return {row["rkey"]: (row["cid"].removeprefix("cid-"), row["rev"], row["proof"]) for row in found}


async def history(sql: Sql) -> list[tuple[str, str]]:
    """Record key and content of every compile that is remembered, by rev."""
    found = await sql.fetch("select rkey, cid from letta_store.recompile order by rkey, rev, cid")
    return [(row["rkey"], row["cid"].removeprefix("cid-")) for row in found]


async def head(sql: Sql) -> tuple[str, str, str]:
    """The proven rev of the repository, the root of its tree, and the rev of its last snapshot."""
    row = await sql.fetchrow("select rev, data_cid, snapshot_rev from letta_store.repo where did = $1", DID)
    assert row is not None
    return row["rev"], row["data_cid"], row["snapshot_rev"]
