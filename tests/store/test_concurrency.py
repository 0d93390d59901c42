"""Writers at the same time, and connections that break: the flags stay right, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from indexer.batch import Batch
from indexer.errors import DatabaseUnavailable
from indexer.store import SILENCE, Limits
from indexer.store.context import Context
from indexer.store.writer import transact
from tests.daemon_process import eventually
from tests.frames import AGENT, DID, PROMPT, STRANGER, TEMPLATE, agent, commit, key, prompt, put, sha256, uri
from tests.indexing import Sql, indexing, untrue_flags
from tests.store.batches import NOW, batch_of, blocked_backend, change, keys, opened

OLD, NEW = agent("old"), agent(TEMPLATE)
IDLE_FOR_LONG = "select clock_timestamp() - state_change > $1 from pg_stat_activity where pid = $2"
THEIRS = prompt(agent=uri(AGENT, key(1)))  # a prompt in a stranger's repository of our agent


@asynccontextmanager
async def second(url: str) -> AsyncIterator[Sql]:
    """One more connection."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def interleave(url: str, sql: Sql, first: Batch, then: Batch) -> None:
    """Write two batches at once: the second starts when the first has done all its work but has not committed."""
    done, go_on = asyncio.Event(), asyncio.Event()

    async def pause(context: Context) -> None:
        done.set()
        await go_on.wait()

    async with second(url) as one, opened(url) as store, asyncio.TaskGroup() as tasks:
        tasks.create_task(transact(one, first, Limits(), NOW, after=pause))
        await done.wait()
        tasks.create_task(store.apply(then, NOW))
        await blocked_backend(sql)
        go_on.set()


@pytest.mark.parametrize("did", [DID, STRANGER])
@pytest.mark.parametrize("agent_first", [True, False])
@pytest.mark.parametrize("freshness", ["fresh", "stale"])
async def test_agent_and_prompt_written_at_once(
    database: str, sql: Sql, did: str, agent_first: bool, freshness: str
) -> None:
    """An agent changed in one transaction, a prompt of it inserted in another: in either order the flag is right."""
    before, after = (OLD, NEW) if freshness == "fresh" else (NEW, OLD)
    async with opened(database) as store:
        await store.apply(batch_of(change(AGENT, key(1), before)), NOW)
    agents, prompts = batch_of(change(AGENT, key(1), after, at=2)), batch_of(change(PROMPT, key(1), THEIRS, did=did))
    await interleave(database, sql, *((agents, prompts) if agent_first else (prompts, agents)))
    assert await sql.fetchval("select freshness from letta.compiled_prompt") == freshness
    assert await untrue_flags(sql) == []


async def test_two_siblings_written_at_once(database: str, sql: Sql) -> None:
    """Two prompts of one agent inserted at the same time: the older one is found stale."""
    early = prompt(memfsRevision="1" * 40, compiledAt="2024-01-01T00:00:00Z")
    first, then = change(PROMPT, key(1), early), change(PROMPT, key(2), prompt())
    await interleave(database, sql, batch_of(first), batch_of(then))
    rows = await sql.fetch("select freshness from letta.compiled_prompt order by rkey")
    assert [row["freshness"] for row in rows] == ["stale", "unverified"]
    assert await untrue_flags(sql) == []


async def test_prompt_leaves_its_agent_while_that_changes(database: str, sql: Sql) -> None:
    """A prompt turned to another agent while the one it leaves is rewritten ends with the flag of its new one."""
    other = agent("other")
    async with opened(database) as store:
        await store.apply(batch_of(change(AGENT, key(1), OLD), change(AGENT, key(2), other, did=STRANGER)), NOW)
        await store.apply(batch_of(change(PROMPT, key(1), THEIRS, did=STRANGER)), NOW)
    turned = prompt(agent=uri(AGENT, key(2), STRANGER), rawSystemHash=sha256("other"))
    leaving = batch_of(change(PROMPT, key(1), turned, did=STRANGER, at=3))
    await interleave(database, sql, batch_of(change(AGENT, key(1), NEW, at=2)), leaving)
    assert await sql.fetchval("select freshness from letta.compiled_prompt") == "fresh"
    assert await untrue_flags(sql) == []


async def test_locks_are_taken_in_order(database: str, sql: Sql) -> None:
    """A writer that waits for one account holds those before it and none after it, so that two never wait in a ring."""
    dids = [f"did:plc:{letter * 24}" for letter in "dbeca"]
    await sql.executemany("insert into letta_store.account (did) values ($1)", [(did,) for did in dids])
    async with second(database) as holder, opened(database) as store, asyncio.TaskGroup() as tasks:
        async with holder.transaction():
            await holder.execute("select from letta_store.account where did = $1 for update", sorted(dids)[2])
            tasks.create_task(store.apply(batch_of(*(change(did=did) for did in dids)), NOW))
            await blocked_backend(sql)
            free = await sql.fetch("select did from letta_store.account for update skip locked")
        assert {row["did"] for row in free} == set(sorted(dids)[3:])
    assert await sql.fetchval("select count(*) from letta.record") == 5


@asynccontextmanager
async def held_up(url: str, sql: Sql) -> AsyncIterator[None]:
    """Inside, whoever writes our account waits."""
    await sql.execute("insert into letta_store.account (did) values ($1)", DID)
    async with second(url) as holder, holder.transaction():
        await holder.execute("select from letta_store.account for update")
        yield


async def terminate_blocked(sql: Sql) -> None:
    """End the backend that waits for a lock, as an administrator may at any time."""
    await sql.execute("select pg_terminate_backend($1, 10000)", await blocked_backend(sql))


@pytest.mark.parametrize("times", [1, 3])
async def test_lost_connection(database: str, sql: Sql, times: int) -> None:
    """A backend terminated in the middle of a batch: it is tried again; nothing is missing, nothing there twice."""
    frames = [commit(put(PROMPT, key(1), prompt())), commit(put(AGENT, key(1), NEW)), b"no frame"]
    async with indexing(database) as index, asyncio.TaskGroup() as tasks:
        async with held_up(database, sql):
            taking = tasks.create_task(index.take(frames))
            for _ in range(times):
                await terminate_blocked(sql)
            assert not taking.done()
        await taking
    rows = await sql.fetch("select freshness, recompiles from letta.compiled_prompt")
    assert [tuple(row) for row in rows] == [("fresh", 0)]
    assert await sql.fetchval("select count(*) from letta.dead_letter") == 1
    assert await sql.fetchval("select seq from letta.source") == 3


async def test_lost_connection_is_told_to_the_caller(database: str, sql: Sql) -> None:
    """The store itself doesn't try again: it says that this can help, and takes a new connection then."""
    async with opened(database) as store:
        async with held_up(database, sql):
            applying = asyncio.ensure_future(store.apply(batch_of(change()), NOW))
            await terminate_blocked(sql)
            with pytest.raises(DatabaseUnavailable):
                await applying
        assert await keys(sql) == []
        await store.apply(batch_of(change()), NOW)
    assert await keys(sql) == ["one"]


async def test_cancelled_in_the_middle(database: str, sql: Sql) -> None:
    """A write that is cancelled leaves nothing behind, and the next one doesn't meet its connection."""
    async with opened(database) as store:
        async with held_up(database, sql):
            applying = asyncio.ensure_future(store.apply(batch_of(change(rkey="cancelled")), NOW))
            await blocked_backend(sql)
            applying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await applying
        await store.apply(batch_of(change()), NOW)
    assert await keys(sql) == ["one"]


async def test_connection_just_taken_up_is_not_taken_for_dead(database: str, sql: Sql) -> None:
    """A server that has been idle since long before is not waiting for us: it hasn't heard what it is asked yet."""
    async with opened(database) as store:
        await store.ping()
        async with store.connection("ping") as connection:
            await eventually(lambda: sql.fetchval(IDLE_FOR_LONG, SILENCE, connection.get_server_pid()))
            await store._break_dead()
            assert not connection.is_closed()
            await store._break_dead()  # nothing was asked all the while between two looks
            assert connection.is_closed()
