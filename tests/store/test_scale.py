"""What a large account costs: one change looks at few rows, one statement gets few rows, nobody waits for a count."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import timedelta

import asyncpg
import pytest

from indexer.batch import Batch
from indexer.model import AccountChange, Change, HandleChange, Want, WantReason
from indexer.store import Limits, audits, context
from indexer.store.audits import Audits
from indexer.store.context import Context, parts
from indexer.store.repairs import Repairs
from indexer.store.statements import statement
from indexer.store.writer import transact
from tests.frames import AGENT, DID, OTHER, PROMPT, STRANGER, agent, key, prompt, rev, uri
from tests.indexing import Sql, untrue_flags
from tests.store.batches import NOW, batch_of, blocked_backend, change, deletion, keys, opened


def sibling(number: int, *, at: float = 1, second: int | None = None, memory: str = "1", agent: int = 1) -> Change:
    """A prompt of one of our agents, compiled at a second of one minute."""
    when = "no time" if second == 0 else f"2024-01-01T00:00:{number if second is None else second:02}Z"
    value = prompt(agent=uri(AGENT, key(agent)), compiledAt=when, memfsRevision=memory * 40)
    return change(PROMPT, key(number), value, at=at)


async def test_flags_after_any_change(database: str, sql: Sql) -> None:
    """Whichever prompts of an agent come, change, change sides or go, in whatever company, every flag is true."""
    chance = random.Random(7)
    async with opened(database) as store:
        await store.apply(batch_of(change(AGENT, key(1), agent("other"))), NOW)
        for at in range(2, 62):
            batch = Batch()
            for _ in range(chance.choice((1, 1, 2, 4))):
                number = chance.randrange(1, 8)
                second, memory, whose = chance.randrange(5), chance.choice("12"), chance.choice((1, 1, 2))
                batch.add(
                    deletion(PROMPT, key(number), at=at)
                    if chance.random() < 0.3
                    else sibling(number, at=at + chance.random() / 2, second=second, memory=memory, agent=whose)
                )
            await store.apply(batch, NOW)
            assert await untrue_flags(sql) == [], at


@pytest.mark.parametrize(("number", "all_looked_at"), [(5, False), (9, True)])
@pytest.mark.parametrize("goes", [False, True])
async def test_change_that_concerns_no_other(
    database: str, sql: Sql, number: int, all_looked_at: bool, goes: bool
) -> None:
    """Only what was or is an agent's latest prompt has its siblings looked at, however many there are."""
    async with opened(database) as store:
        await store.apply(batch_of(*(sibling(n) for n in range(1, 10))), NOW)
        await sql.execute("update letta_store.freshness set freshness = 'fresh' where rkey = $1", key(3))
        await store.apply(batch_of(deletion(PROMPT, key(number), at=2) if goes else sibling(number, at=2)), NOW)
    assert (await untrue_flags(sql) == []) is all_looked_at


async def test_statements_get_a_part_at_a_time(database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of any size is written in one transaction, by statements that are given few rows each."""
    monkeypatch.setattr(context, "PART_ROWS", 3)
    async with opened(database) as store:
        await store.apply(batch_of(*(change(name, f"k{n}") for n in range(10) for name in (OTHER, PROMPT))), NOW)
        assert len(await keys(sql, PROMPT)) == len(await keys(sql)) == 10
        assert await sql.fetchval("select count(*) from letta_store.recompile") == 10
        await store.apply(batch_of(*(deletion(PROMPT, f"k{n}", at=2) for n in range(10))), NOW)
    assert await keys(sql, PROMPT) == []
    assert await sql.fetchval("select count(*) from letta_store.recompile") == 0
    assert await sql.fetchval("select sum(records) from letta_store.repo") == 10


def test_parts_are_bounded_by_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part has more rows or, unless it is a single row, more bytes than it may; none is lost, order is kept."""
    monkeypatch.setattr(context, "PART_ROWS", 3)
    monkeypatch.setattr(context, "PART_BYTES", 10)
    rows = [("aaaa", n) for n in range(3)] + [(b"b" * 50, 3), ("", 4), ("", 5), ("", 6), ("", 7)]
    assert [[n for _, n in part] for part in parts(rows, 0)] == [[0, 1], [2], [3], [4, 5, 6], [7]]
    assert [[n for _, n in part] for part in parts(rows)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(parts([])) == []


async def test_due_wants_come_in_the_order_of_an_index(sql: Sql) -> None:
    """Claiming a want looks at those that are due longest, not at all that are open."""
    await sql.execute("set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off")
    plan = "\n".join(row[0] for row in await sql.fetch(f"explain {statement('due_wants')}", NOW, 4, 9))
    assert ("Index Cond: (next_attempt_at" in plan, "Sort" in plan) == (True, False), plan


async def test_want_of_everything_said_twice(database: str, sql: Sql) -> None:
    """What is wanted for the same already is not written again, unless a fetch of it has begun: that came too early."""
    dids = [f"did:plc:{letter * 24}" for letter in "abc"]
    everything = Batch(wants=[Want("", WantReason.OUTDATED_CURSOR)] * 2)
    async with opened(database) as store:
        await store.apply(batch_of(*(change(did=did) for did in dids)), NOW)
        await store.apply(everything, NOW)
        (claim,) = await Repairs(store).claim(NOW + timedelta(seconds=1), 1)
        await store.apply(everything, NOW)
    rows = await sql.fetch("select did, want_no, want_reasons from letta_store.repo where want = 'fetch'")
    assert {row["did"]: row["want_no"] for row in rows} == {did: 1 + (did == claim.did) for did in dids}
    assert {tuple(row["want_reasons"]) for row in rows} == {("outdated_cursor",)}


async def test_handles_are_locked_in_order(database: str, sql: Sql) -> None:
    """Accounts of which only a handle is written are locked with the others, in order; none is made for it."""
    dids = [f"did:plc:{letter * 24}" for letter in "abcde"]
    batch = batch_of(change(did=dids[3]), change(did=dids[0]))
    for did in (dids[1], dids[2], dids[4], STRANGER):
        batch.add_handle(HandleChange(did, NOW, "alice.test"))
    holder = await asyncpg.connect(database)
    await sql.executemany("insert into letta_store.account (did) values ($1)", [(did,) for did in dids])
    async with opened(database) as store, asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute("select from letta_store.account where did = $1 for update", dids[1])
        tasks.create_task(store.apply(batch, NOW))
        await blocked_backend(sql)
        free = await sql.fetch("select did from letta_store.account order by did for update skip locked")
    await holder.close()
    assert [row["did"] for row in free] == dids[2:]
    rows = await sql.fetch("select did from letta_store.account where handle = 'alice.test' order by did")
    assert [row["did"] for row in rows] == [dids[1], dids[2], dids[4]]


async def test_purge_locks_the_agents_of_what_goes(database: str, sql: Sql) -> None:
    """An account that is purged may take prompts along whose agents somebody else is writing just then."""
    async with opened(database) as store:
        await store.apply(batch_of(change(PROMPT, key(1), prompt(agent=uri(AGENT, key(1), STRANGER)))), NOW)
    locked: set[str] = set()

    async def look(context: Context) -> None:
        locked.update(context.locked)

    gone = Batch(accounts={DID: AccountChange(DID, NOW, active=False, status="deleted", purge_rev=rev(9))})
    await transact(sql, gone, Limits(), NOW, after=look)
    assert locked == {DID, STRANGER}
    assert await keys(sql, PROMPT) == []


async def test_audit_reads_page_by_page(database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows and accounts there are, each is audited once."""
    monkeypatch.setattr(audits, "PAGE", 2)
    names = [(did, name, f"k{n}") for did in (DID, STRANGER, "did:web:x") for name in (OTHER, PROMPT) for n in range(5)]
    async with opened(database) as store:
        await store.apply(batch_of(*(change(name, rkey, did=did) for did, name, rkey in names)), NOW)
        assert sorted([row.uri async for row in Audits(store).rows()]) == sorted(
            uri(name, rkey, did) for did, name, rkey in names
        )
        await sql.execute("update letta_store.freshness set freshness = 'fresh' where rkey = 'k3'")
        found = [flags["uri"] for flags in await Audits(store).untrue_flags()]
    assert found == sorted(uri(PROMPT, "k3", did) for did in (DID, STRANGER, "did:web:x"))


async def test_ping_waits_for_nobody(database: str) -> None:
    """Whether the database answers can be told while somebody counts, reads, writes and repairs."""
    async with opened(database) as store, AsyncExitStack() as others:
        for purpose in ("count", "read", "write", "repair"):
            await others.enter_async_context(store.connection(purpose))
        async with asyncio.timeout(30):
            await store.ping()
