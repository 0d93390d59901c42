"""Data that the database refuses: the one offending row is set aside, everything else is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from indexer.batch import Batch, Position
from indexer.errors import DatabaseTooSlow, DatabaseUnavailable, SchemaError
from indexer.model import (
    AccountChange,
    Change,
    DeadLetter,
    HandleChange,
    Proposal,
    Reason,
    Undecided,
    Want,
    WantReason,
)
from indexer.store import SLOW_TRIES, Applied, Store, connection
from indexer.store.chain import EMPTY_TREE
from indexer.store.lease import Lease
from tests.frames import AGENT, CONVERSATION, DID, MESSAGE, OTHER, PROMPT, STRANGER, rev, uri
from tests.indexing import Sql, untrue_flags
from tests.store.batches import NOW, batch_of, change, deletion, keys, opened

SECRET = "SECRET"
# Nothing that the decoder makes is refused; these stand for what it could overlook.
REFUSED: dict[str, str | int] = {
    "U+0000": f'{{"a": "{SECRET}\\u0000"}}',
    "no JSON": f'{{"a": {SECRET}',
    "a lone surrogate": f'{{"a": "{SECRET}\ud800"}}',
    "a raw U+0000": f'{{"a": "{SECRET}\0"}}',
    "nested beyond the stack": "[" * 200_000,
    "no text at all": 7,
    "a line break": f'{{"a":\n"{SECRET}"}}',
}


def refused(rkey: str, why: str = "U+0000", collection: str = OTHER, did: str = DID) -> Change:
    """A change that the database or its driver takes exception to."""
    good = change(collection, rkey, did=did)
    assert good.record is not None
    return replace(good, record=replace(good.record, value=REFUSED[why]))  # type: ignore[arg-type]


@pytest.mark.parametrize("why", REFUSED)
async def test_one_refused_row(database: str, sql: Sql, why: str) -> None:
    """The one row goes to dead_letter with its key and without its content; all else of the batch is written."""
    batch = batch_of(*(change(rkey=f"k{n:02}") for n in range(20)), refused("k07x", why))
    batch.positions["file:x"] = Position(7, NOW)
    batch.add_account(AccountChange(STRANGER, NOW, active=False, status="deactivated"))
    async with opened(database) as store:
        applied = await store.apply(batch, NOW)
    assert await keys(sql) == [f"k{n:02}" for n in range(20)]
    assert applied.dropped == {Reason.REFUSED_BY_DATABASE: 1}
    (letter,) = await sql.fetch("select did, reason, detail from letta.dead_letter")
    assert (letter["did"], letter["reason"]) == (DID, "refused_by_database")
    assert f"{OTHER}/k07x" in letter["detail"]
    assert SECRET not in letter["detail"]
    assert await sql.fetchval("select seq from letta.source") == 7
    assert await sql.fetchval("select status from letta_store.account where did = $1", STRANGER) == "deactivated"


@pytest.mark.parametrize("places", [(0,), (31,), (0, 1), (15, 16), (0, 31), tuple(range(0, 32, 3)), tuple(range(32))])
async def test_refused_rows_in_any_place(database: str, sql: Sql, places: tuple[int, ...]) -> None:
    """Wherever the offending rows are and however many, all of them and none of the others are set aside."""
    batch = batch_of(*(refused(f"k{n:02}") if n in places else change(rkey=f"k{n:02}") for n in range(32)))
    batch.positions["file:x"] = Position(1, None)
    async with opened(database) as store:
        applied = await store.apply(batch, NOW)
    assert await keys(sql) == [f"k{n:02}" for n in range(32) if n not in places]
    assert applied.dropped[Reason.REFUSED_BY_DATABASE] == len(places)
    assert await sql.fetchval("select count(*) from letta.dead_letter") == len(places)
    assert await sql.fetchval("select seq from letta.source") == 1


async def test_refused_rows_of_every_collection(database: str, sql: Sql) -> None:
    """In every table a refused row is set aside alone, its history with it, and the flags of the others are true."""
    collections = (AGENT, CONVERSATION, PROMPT, MESSAGE, OTHER)
    good = [change(name, "good", {"agent": uri(AGENT, "good")}) for name in collections]
    async with opened(database) as store:
        await store.apply(batch_of(*good, *(refused("bad", collection=name) for name in collections)), NOW)
    assert [await keys(sql, name) for name in collections] == [["good"]] * 5
    for table in ("recompile", "conversation_version"):
        assert [row["rkey"] for row in await sql.fetch(f"select rkey from letta_store.{table}")] == ["good"]
    assert await untrue_flags(sql) == []


async def test_refused_row_beside_deletes(database: str, sql: Sql) -> None:
    """Deletes of the same batch are done."""
    async with opened(database) as store:
        await store.apply(batch_of(change(rkey="a"), change(rkey="b")), NOW)
        await store.apply(batch_of(deletion(rkey="a", at=2), refused("c"), deletion(rkey="b", at=2)), NOW)
    assert await keys(sql) == []
    assert await sql.fetchval("select count(*) from letta_store.tombstone") == 2


async def test_batch_comes_again(database: str, sql: Sql) -> None:
    """The same batch, read again after it was cut short, gives the same rows."""
    async with opened(database) as store:
        for _ in range(2):
            await store.apply(batch_of(change(rkey="a"), refused("b"), change(rkey="c")), NOW)
    assert await keys(sql) == ["a", "c"]


OTHERS: dict[str, Batch] = {
    "dead_letters": Batch(dead_letters=[DeadLetter("file:x", None, None, Reason.BAD_PATH, "\0", b"", 0)]),
    "undecided": Batch(undecided=[Undecided(DID, rev(1), WantReason.UNKNOWN_KEY, "\0", b"frame")]),
    "confirmed": Batch(confirmed={DID: (rev(1), "\0")}),
    "wants": Batch(wants=[Want(DID, WantReason.SYNC, "\0")]),
    "handles": Batch(handles={DID: HandleChange(DID, NOW, "\0")}),
    "accounts": Batch(accounts={DID: AccountChange(DID, NOW, active=False, status="\ud800")}),
}


@pytest.mark.parametrize("kind", OTHERS)
async def test_one_refused_thing_that_is_no_record(database: str, sql: Sql, kind: str) -> None:
    """Whatever it is that the database refuses, it alone is set aside; it never stops the daemon."""
    batch = batch_of(*(change(rkey=f"k{n}") for n in range(5)))
    for name in ("dead_letters", "undecided", "confirmed", "wants", "handles", "accounts"):
        setattr(batch, name, getattr(OTHERS[kind], name))
    batch.accounts[STRANGER] = AccountChange(STRANGER, NOW, active=False, status="deactivated")
    batch.positions["file:x"] = Position(7, NOW)
    async with opened(database) as store:
        await store.apply(batch_of(change(rkey="k0")), NOW)
        applied = await store.apply(replace(batch, accounts=dict(batch.accounts)), NOW)
    assert await keys(sql) == [f"k{n}" for n in range(5)]
    assert applied.dropped == {Reason.REFUSED_BY_DATABASE: 1}
    assert kind in await sql.fetchval("select detail from letta.dead_letter where reason = 'refused_by_database'")
    assert await sql.fetchval("select seq from letta.source") == 7
    assert await sql.fetchval("select status from letta_store.account where did = $1", STRANGER) == "deactivated"


async def test_refusal_that_nothing_explains(database: str, sql: Sql) -> None:
    """If the database refuses what holds nothing, our own state is broken: nothing is written, it is said loudly."""
    async with opened(database) as store:
        with pytest.raises(SchemaError):
            await store.apply(Batch(positions={"file:\0": Position(1, None)}), NOW)
    assert await sql.fetchval("select count(*) from letta.source") == 0


class Flaky(Store):
    """A store whose database goes away once, when a part of a batch has been written."""

    writes = 0

    async def _write(self, batch: Batch, now: datetime, lease: Lease | None) -> Applied:
        applied = await super()._write(batch, now, lease)
        self.writes += 1
        if self.writes == 1:
            raise DatabaseUnavailable("gone")
        return applied


async def test_parted_commit_that_is_cut_short(database: str, sql: Sql) -> None:
    """A proven commit with one refused record loses no other, also if only a part of it had been written when the
    database went away: it moves its repository with its last part."""

    async def dsn() -> str:
        return database

    changes = (*(change(rkey=f"k{n}") for n in range(4)), refused("bad"))
    batch = Batch(proposals=[Proposal(DID, rev(1), None, EMPTY_TREE, "data", changes, "test", b"frame")])
    store = Flaky(dsn)
    try:
        with pytest.raises(DatabaseUnavailable):
            await store.apply(batch, NOW)
        assert await sql.fetchval("select rev from letta_store.repo") == ""
        await store.apply(batch, NOW)
    finally:
        await store.close()
    assert await keys(sql) == [f"k{n}" for n in range(4)]
    assert await sql.fetchval("select rev from letta_store.repo") == rev(1)


class Slow(Store):
    """A store whose database takes too long for whatever holds the record named ``slow``."""

    tries = 0

    async def _write(self, batch: Batch, now: datetime, lease: Lease | None) -> Applied:
        if any(key.rkey == "slow" for key in batch.puts):
            self.tries += 1
            raise DatabaseTooSlow("too long")
        return await super()._write(batch, now, lease)


async def test_what_takes_too_long_is_set_aside(database: str, sql: Sql) -> None:
    """What the database takes too long for holds nothing else up for ever: tried a few times alone, then set aside."""

    async def dsn() -> str:
        return database

    store = Slow(dsn)
    try:
        applied = await store.apply(batch_of(*(change(rkey=name) for name in ("a", "b", "slow", "z"))), NOW)
    finally:
        await store.close()
    assert await keys(sql) == ["a", "b", "z"]
    assert applied.dropped == {Reason.REFUSED_BY_DATABASE: 1}
    assert store.tries == 2 + SLOW_TRIES


async def test_statement_without_end(database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database itself ends a statement that takes too long, and says that it did: no outage is made of it."""
    monkeypatch.setattr(connection, "STATEMENT_TIMEOUT", 1)
    async with opened(database) as store:
        with pytest.raises(DatabaseTooSlow):
            async with store.connection("write") as connected:
                await connected.execute("select pg_sleep(60)")
