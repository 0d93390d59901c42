"""What bounds the index: dead letters by number, bytes and age; accounts by --only and --deny."""

from __future__ import annotations

from datetime import timedelta

from indexer.store import Limits
from tests.frames import AGENT, DID, OTHER, STRANGER, account, agent, commit, delete, key, put, rev
from tests.indexing import Sql, indexing


async def sizes(sql: Sql) -> list[int]:
    """The sizes of the dead letters kept, oldest first."""
    return [row["size"] for row in await sql.fetch("select size from letta.dead_letter order by id")]


async def test_dead_letters_bounded_by_number(database: str, sql: Sql) -> None:
    """The newest are kept, within a batch and between batches; the counters go on counting all."""
    async with indexing(database, limits=Limits(letter_rows=5)) as index:
        for batch in range(3):
            await index.take(b"\xff" * (4 * batch + n) for n in range(1, 5))
            assert await sizes(sql) == list(range(max(1, 4 * batch), 4 * batch + 5))
        assert index.sample("dead_letters_total", reason="malformed_frame") == 12


async def test_dead_letters_bounded_by_bytes(database: str, sql: Sql) -> None:
    """As many of the newest are kept as fit, however large a single one is."""
    async with indexing(database, limits=Limits(letter_bytes=10_000)) as index:
        await index.take(b"\xff" * 3_000 for _ in range(10))
        assert await sizes(sql) == [3_000] * 3
        await index.take([b"\xff" * 9_000])
        assert await sizes(sql) == [9_000]
        await index.take([b"\xff" * 11_000])
        assert await sizes(sql) == []


async def test_dead_letters_bounded_by_age(database: str, sql: Sql) -> None:
    """Old ones go when new ones come."""
    async with indexing(database, limits=Limits(letter_age=timedelta(days=30))) as index:
        await index.take([b"\xff", b"\xff\xff"])
        await sql.execute("update letta_store.dead_letter set seen_at = seen_at - interval '31 days' where size = 1")
        await index.take([b"\xff\xff\xff"])
    assert await sizes(sql) == [2, 3]


async def test_deleted_account_takes_its_dead_letters_along(database: str, sql: Sql) -> None:
    """Frames that were set aside hold content: they go with their account."""
    async with indexing(database) as index:
        for did in (DID, STRANGER):
            await index.take([commit(put(AGENT, key(1), b"\xff"), did=did, rev=rev(1))])
        await index.take([account(active=False, status="deleted", time="2024-02-01T00:00:00Z")])
    assert [row["did"] for row in await sql.fetch("select did from letta.dead_letter")] == [STRANGER]


async def test_deleted_record_leaves_no_dead_letter_with_its_content(database: str, sql: Sql) -> None:
    """A record's frame that was set aside goes when the record is deleted."""
    async with indexing(database) as index:
        for did in (DID, STRANGER):
            await index.take([commit(put(AGENT, key(1), b"\xff"), did=did, rev=rev(1))])
        await index.take([commit(delete(AGENT, key(1)), rev=rev(2))])
    kept = await sql.fetch("select did from letta_store.dead_letter where length(frame) > 0")
    assert [row["did"] for row in kept] == [STRANGER]


async def test_letter_of_the_batch_that_takes_it_back(database: str, sql: Sql) -> None:
    """A frame set aside and what takes its content back may come in one batch."""
    bad = commit(put(AGENT, key(1), b"\xff"), rev=rev(1))
    async with indexing(database) as index:
        await index.take([bad, commit(delete(AGENT, key(1)), rev=rev(2))])
        assert await sql.fetchval("select count(*) from letta_store.dead_letter where length(frame) > 0") == 0
        await index.take([bad, account(active=False, status="deleted", time="2024-02-01T00:00:00Z")])
        assert await sql.fetchval("select count(*) from letta.dead_letter") == 0


async def test_only(database: str, sql: Sql) -> None:
    """With --only, nothing of anybody else is taken: no record, no account, no dead letter; it is counted."""
    async with indexing(database, only=[DID]) as index:
        for did in (DID, STRANGER):
            await index.take([commit(put(AGENT, key(1), agent()), put(OTHER, key(1), b"\xff"), did=did), account(did)])
        assert index.sample("dropped_total", reason="denied") == 2
    for relation in ("letta.record", "letta.dead_letter", "letta_store.account"):
        assert {row["did"] for row in await sql.fetch(f"select did from {relation}")} == {DID}, relation


async def test_deny(database: str, sql: Sql) -> None:
    """With --deny, nothing of these accounts is taken, also where --only names them."""
    async with indexing(database, only=[DID, STRANGER], deny=[STRANGER]) as index:
        for did in (DID, STRANGER):
            await index.take([commit(put(AGENT, key(1), agent()), did=did)])
    assert {row["did"] for row in await sql.fetch("select did from letta_store.account")} == {DID}
