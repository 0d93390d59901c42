"""Data that the database refuses: the one offending row is set aside, everything else is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from indexer.batch import Batch, Position
from indexer.errors import SchemaError
from indexer.model import AccountChange, Change, DeadLetter, Reason
from tests.frames import AGENT, CONVERSATION, DID, MESSAGE, OTHER, PROMPT, STRANGER, uri
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


async def test_refusal_that_no_row_explains(database: str, sql: Sql) -> None:
    """If the database refuses what holds no record, our own state is broken: nothing is written, it is said loudly."""
    letter = DeadLetter("file:x", None, None, Reason.MALFORMED_FRAME, "\0", b"", 0)
    async with opened(database) as store:
        with pytest.raises(SchemaError):
            await store.apply(Batch(dead_letters=[letter], positions={"file:x": Position(1, None)}), NOW)
    assert await sql.fetchval("select count(*) from letta.source") == 0
