"""Repositories of spaces in the store: led from state to state by one at a time, and taken away whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from indexer import lthash
from indexer.batch import Batch, Key
from indexer.errors import SchemaError
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, AccountChange, Change, Reason, Record
from indexer.store import Limits, Store
from indexer.store.audits import Audits
from indexer.store.spaces import Move, Spaces, SpaceState, StateMovedError, Version
from tests.frames import DID, OTHER, rev
from tests.indexing import Sql, untrue_flags
from tests.spaces.letta import agent, prompt
from tests.store.batches import NOW, SPACE, batch_of, blocked_backend, change, deletion, opened

STRANGER = "did:plc:strangerstrangerstranger"
THERE = f"at://{STRANGER}/{AGENT}/a"


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    """A store over a fresh database."""
    async with opened(database) as store:
        yield store


def state(at: float | None = None, space: str = SPACE, did: str = DID) -> SpaceState:
    """How far a repository has been read: not at all, or to the rev of a second."""
    return SpaceState(space, did, "" if at is None else rev(at), lthash.EMPTY, "proven")


def move(before: float | None, after: float, *changes: Change, space: str = SPACE, did: str = DID) -> Move:
    """What leads from one state to another; a load where nothing was held."""
    proven = [replace(one, proof="space") for one in changes]
    first, then = state(before, space, did), state(after, space, did)
    return Move(first, then, proven, whole=before is None, proof="space")


def written(collection: str = OTHER, rkey: str = "one", value: object = None, at: float = 1, **more: str) -> Change:
    """A record written in the space."""
    return change(collection, rkey, value, at=at, **({"space": SPACE} | more))


async def uris(sql: Sql) -> set[str]:
    """The URIs of all rows."""
    return {row["uri"] for row in await sql.fetch("select uri from letta.record")}


async def test_a_repository_moves_from_its_own_state_only(store: Store, sql: Sql) -> None:
    """What was read from another state than the stored one is refused whole, also if it is the very same again."""
    spaces = Spaces(store)
    first, second = move(None, 1, written()), move(1, 2, written(rkey="two", at=2))
    await spaces.move(first, NOW)
    await spaces.move(second, NOW)
    for late in (first, second, move(None, 3, written(rkey="three", at=3))):
        with pytest.raises(StateMovedError):
            await spaces.move(late, NOW)
    assert {uri.rsplit("/", 1)[1] for uri in await uris(sql)} == {"one", "two"}
    assert (await spaces.states(DID))[SPACE] == state(2)


async def test_two_readers_at_once(database: str, sql: Sql) -> None:
    """Of two that lead the same repository on at the same time one does, the other learns of it; none is lost."""
    async with opened(database) as one, opened(database) as other:
        await Spaces(one).move(move(None, 1, written()), NOW)
        steps = (Spaces(each).move(move(1, 2, written(rkey="two", at=2)), NOW) for each in (one, other))
        outcomes = await asyncio.gather(*steps, return_exceptions=True)
        assert sorted(isinstance(outcome, StateMovedError) for outcome in outcomes) == [False, True]
        assert len(await uris(sql)) == 2


async def test_forgetting_sees_what_is_being_written(database: str, sql: Sql) -> None:
    """A space forgotten while its first load is written is empty afterwards, and nothing more of it comes in."""
    holder = await asyncpg.connect(database)
    async with opened(database) as one, opened(database) as other:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("lock table letta_store.other_record_private in exclusive mode")
        load = asyncio.ensure_future(Spaces(one).move(move(None, 1, written()), NOW))
        await blocked_backend(sql)
        forgetting = asyncio.ensure_future(Spaces(other).remove(SPACE, (), NOW, forget=True))
        while await sql.fetchval("select count(*) from pg_locks where not granted") < 2:
            assert not forgetting.done()
        await transaction.rollback()
        await load
        await forgetting
        assert await uris(sql) == set()
        with pytest.raises(StateMovedError):
            await Spaces(one).move(move(None, 2, written(at=2)), NOW)
    await holder.close()


async def test_forgetting_takes_everything_of_one_space(store: Store, sql: Sql) -> None:
    """All authors, rows, history, states and sources of a space go; a space whose name is like it stays whole."""
    spaces = Spaces(store)
    like = SPACE.replace("self", "sel_")
    other = SPACE.replace("self", "selx")
    for space in (like, other):
        for did in (DID, STRANGER):
            rows = [written(name, space=space, did=did) for name in (AGENT, CONVERSATION, COMPILED_PROMPT, OTHER)]
            await spaces.move(move(None, 1, *rows, space=space, did=did), NOW)
    kept = await sql.fetchval("select count(*) from letta.record")
    await spaces.remove(like, (), NOW, forget=True)
    assert {uri.split("/")[5] for uri in await uris(sql)} == {"selx"}
    assert len(await uris(sql)) * 2 == kept
    for table in ("recompile", "conversation_version", "repo", "space_source"):
        left = {row["space"] for row in await sql.fetch(f"select space from letta_store.{table} where space <> ''")}
        assert left == {other}, table
    await spaces.note(DID, like, "live", None, NOW)
    assert await sql.fetchval("select count(*) from letta_store.space_source where space = $1", like) == 0


async def test_forgetting_an_account_takes_its_spaces_along(store: Store, sql: Sql) -> None:
    """``forget DID`` leaves nothing of the account in any space, and nothing more of it comes in."""
    spaces = Spaces(store)
    await spaces.move(move(None, 1, written()), NOW)
    await Audits(store).forget(DID, NOW)
    assert await uris(sql) == set()
    assert await sql.fetch("select from letta_store.repo where did = $1", DID) == []
    assert await sql.fetch("select from letta_store.space_source") == []
    assert await spaces.is_forgotten(SPACE, DID)
    with pytest.raises(StateMovedError):
        await spaces.move(move(None, 2, written(at=2)), NOW)


async def test_a_deleted_account_that_returns_is_read_anew(store: Store, sql: Sql) -> None:
    """A purge takes the rows of spaces too; their repositories count as not read, so nothing is missing later."""
    spaces = Spaces(store)
    await spaces.move(move(None, 1, written()), NOW)
    batch = Batch()
    batch.add_account(AccountChange(DID, NOW, active=False, status="deleted", purge_rev=rev(5)))
    await store.apply(batch, NOW)
    assert await sql.fetchval("select count(*) from letta_store.other_record") == 0
    assert await spaces.states(DID) == {}
    await spaces.move(move(None, 9, written(at=9)), NOW)
    assert await sql.fetchval("select count(*) from letta_store.other_record") == 1


async def test_what_the_database_refuses_is_left_out(store: Store, sql: Sql) -> None:
    """One record that PostgreSQL doesn't take costs itself alone; it is counted, and named nowhere."""
    bad = replace(written(rkey="bad"), record=Record("{", size=1))
    key = Key(DID, SPACE, COMPILED_PROMPT, "p")
    versions = [Version(key, rev(1), 0, "bafy", None), Version(key, rev(1), 1, "bafz", Record("{", size=1))]
    rows = [written(rkey=str(number)) for number in range(5)]
    await Spaces(store).move(move(None, 0.5), NOW)
    applied = await Spaces(store).move(replace(move(0.5, 1, *rows, bad), superseded=versions), NOW)
    assert applied.dropped == {Reason.REFUSED_BY_DATABASE: 2}
    assert len(await uris(sql)) == 5
    assert await sql.fetchval("select count(*) from letta_store.recompile") == 1
    assert await sql.fetch("select from letta_store.dead_letter") == []


async def test_a_refusal_that_no_record_explains_is_loud(store: Store, sql: Sql) -> None:
    """Where the database refuses the state itself, something of ours is broken: that is said, not passed over."""
    await sql.execute("alter table letta_store.repo add constraint never check (space = '')")
    with pytest.raises(SchemaError):
        await Spaces(store).move(move(None, 1, written()), NOW)


async def test_history_is_bounded_like_rows(database: str, sql: Sql) -> None:
    """Versions of a space count in its author's quota: where that is full, no more are kept."""
    async with opened(database, Limits(quota_rows=4)) as store:
        spaces = Spaces(store)
        await spaces.move(move(None, 1, written(COMPILED_PROMPT, "p", {"content": "1"})), NOW)
        for at in range(2, 9):
            key = Key(DID, SPACE, COMPILED_PROMPT, "p")
            version = Version(key, rev(at), 0, f"bafy{at}", None)
            put = written(COMPILED_PROMPT, "p", {"content": str(at)}, at=at)
            await spaces.move(replace(move(at - 1, at, put), superseded=[version]), NOW)
        assert await sql.fetchval("select count(*) from letta_store.recompile") <= 5
        assert await sql.fetchval("select value ->> 'content' from letta.compiled_prompt") == "8"


async def test_a_delete_waits_for_the_agents_of_others(database: str, sql: Sql) -> None:
    """A prompt goes only when nobody else is at work on the agent it names: else its siblings' flags could be wrong."""
    holder = await asyncpg.connect(database)
    async with opened(database) as store:
        await store.apply(batch_of(change(AGENT, "a", agent("old"), did=STRANGER)), NOW)
        rows = [
            written(COMPILED_PROMPT, key, prompt(THERE, at=f"2026-11-01T1{hour}:00:00Z"))
            for hour, key in enumerate("pq")
        ]
        await Spaces(store).move(move(None, 1, *rows), NOW)
        async with holder.transaction():
            await holder.execute("select from letta_store.account where did = $1 for update", STRANGER)
            gone = deletion(COMPILED_PROMPT, "q", space=SPACE, at=2)
            moving = asyncio.ensure_future(Spaces(store).move(move(1, 2, gone), NOW))
            blocked = asyncio.ensure_future(blocked_backend(sql))
            await asyncio.wait((moving, blocked), return_when=asyncio.FIRST_COMPLETED)
            assert not moving.done()
        await asyncio.gather(moving, blocked)
        assert [row["rkey"] for row in await sql.fetch("select rkey from letta.compiled_prompt")] == ["p"]
        assert await untrue_flags(sql) == []
    await holder.close()


async def test_evidence_comes_from_where_its_reader_can_look(store: Store, sql: Sql) -> None:
    """An agent in a space is evidence for the prompts of that space alone: not for public ones, nor for another's."""
    spaces = Spaces(store)
    elsewhere = SPACE.replace("self", "other")
    here = f"{SPACE}/{DID}/{AGENT}/a"
    await spaces.move(
        move(None, 1, written(AGENT, "a", agent("new")), written(COMPILED_PROMPT, "p", prompt(here))), NOW
    )
    far = written(COMPILED_PROMPT, "p", prompt(here), space=elsewhere)
    await spaces.move(move(None, 1, far, space=elsewhere), NOW)
    await store.apply(batch_of(change(COMPILED_PROMPT, "p", prompt(here))), NOW)
    rows = await sql.fetch("select space, freshness, evidence from letta.compiled_prompt")
    found = {row["space"]: (row["freshness"], row["evidence"] is not None) for row in rows}
    assert found == {"": ("unverified", False), elsewhere: ("unverified", False), SPACE: ("stale", True)}
    await store.apply(batch_of(change(AGENT, "a", agent("old"), at=2)), NOW)
    public = f"at://{DID}/{AGENT}/a"
    for space in (SPACE, elsewhere):
        put = written(COMPILED_PROMPT, "p", prompt(public), space=space, at=3)
        await spaces.move(move(1, 3, put, space=space), NOW)
    rows = await sql.fetch("select freshness from letta.compiled_prompt where space <> ''")
    assert [row["freshness"] for row in rows] == ["fresh", "fresh"]
    assert await untrue_flags(sql) == []
