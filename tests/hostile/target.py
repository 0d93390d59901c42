"""What hostile frames are thrown at, and what has to hold whatever they were."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from indexer.cbor import cid_bytes, cid_of, encode_json
from indexer.model import Json
from tests.frames import DID, OTHER, Op, commit, key, put, rev
from tests.indexing import Indexing, Sql, untrue_flags

CANARY = "SECRET-of-a-record"  # in hostile content: it may be nowhere but in that content's own row
BYSTANDER = put(OTHER, "bystander", {"$type": OTHER, "here": True})
VIEWS = "select relname from pg_class where relnamespace = 'letta'::regnamespace and relkind = 'v' order by relname"
BLOCKS = " union all ".join(
    f"select uri, cid, value::text as value, block from letta_store.{table}"
    for table in ("agent", "conversation", "compiled_prompt", "message", "other_record")
)


@dataclass(slots=True)
class Target:
    """An index that takes frames, and a connection to look at what became of them."""

    index: Indexing
    sql: Sql

    async def take(self, *frames: bytes) -> None:
        """Take the frames as one batch."""
        await self.index.take(frames)

    async def attack(self, *ops: Op, rev: str = rev(1), extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Take a commit of these operations and, after them, of one that nothing is wrong with: it must be indexed."""
        await self.take(commit(*ops, BYSTANDER, rev=rev, extra=extra))
        assert await self.rev_of(OTHER, "bystander") == rev

    async def reasons_for(self, *frames: bytes) -> list[str]:
        """Take frames between two that nothing is wrong with, which must be indexed; why those were set aside."""
        before = await self.letters()
        await self.sql.execute("delete from letta_store.other_record where rkey in ('ahead', 'behind')")
        ahead, behind = (commit(put(OTHER, rkey, {"$type": OTHER})) for rkey in ("ahead", "behind"))
        await self.take(ahead, *frames, behind)
        assert await self.rev_of(OTHER, "ahead") == await self.rev_of(OTHER, "behind") == rev(0)
        return (await self.letters())[len(before) :]

    async def rev_of(self, collection: str, rkey: str) -> str | None:
        """The rev of a row, None if there is no such row."""
        found: str | None = await self.sql.fetchval(
            "select rev from letta.record where did = $1 and collection = $2 and rkey = $3", DID, collection, rkey
        )
        return found

    async def row(self, view: str, rkey: str = key(1)) -> dict[str, Any]:
        """The row of a view with this record key; fails if there is none."""
        row = await self.sql.fetchrow(f"select * from letta.{view} where did = $1 and rkey = $2", DID, rkey)
        assert row is not None
        return dict(row)

    async def value(self, rkey: str = key(1)) -> Any:
        """The value of the record with this key, from JSON."""
        return json.loads((await self.row("record", rkey))["value"])

    async def rules(self, rkey: str = key(1)) -> set[tuple[str, str]]:
        """Field and rule of each violation of the record with this key."""
        violations = json.loads((await self.row("record", rkey))["violations"] or "[]")
        return {(violation["field"], violation["rule"]) for violation in violations}

    async def letters(self) -> list[str]:
        """The reasons of the dead letters, in the order they came; each was counted as dropped and as a letter."""
        reasons = [row["reason"] for row in await self.sql.fetch("select reason from letta.dead_letter order by id")]
        for reason in reasons:
            assert self.index.sample("dropped_total", reason=reason) >= reasons.count(reason)
            assert self.index.sample("dead_letters_total", reason=reason) == reasons.count(reason)
        return reasons

    async def kept(self, columns: str) -> list[tuple[object, ...]]:
        """These columns of the dead letters, in the order they came."""
        return [
            tuple(row) for row in await self.sql.fetch(f"select {columns} from letta_store.dead_letter order by id")
        ]

    async def assert_sound(self) -> None:
        """The promises that hold after anything: true flags, readable views, honest rows, no secrets, still at work."""
        await self._assert_still_at_work()
        assert await untrue_flags(self.sql) == []
        await assert_readable(self.sql)
        await assert_rows_hash(self.sql)
        told = [f"{row['did']} {row['detail']}" for row in await self.sql.fetch("select * from letta.dead_letter")]
        told += [row["violations"] or "" for row in await self.sql.fetch("select violations from letta.record")]
        assert not [words for words in told if CANARY in words]

    async def _assert_still_at_work(self) -> None:
        did = "did:plc:cccccccccccccccccccccccc"
        await self.take(commit(put(OTHER, "next", {"$type": OTHER}), did=did))
        assert await self.sql.fetchval("select count(*) from letta.record where did = $1", did) == 1


async def assert_readable(sql: Sql) -> None:
    """Every row of every view comes through, for the owner and for the role that may only read."""
    views = [row["relname"] for row in await sql.fetch(VIEWS)]
    assert len(views) >= 12
    for role in ("none", "letta_reader"):
        await sql.execute(f"set role {role}")
        try:
            for view in views:
                await sql.fetch(f"select * from letta.{view}")
        finally:
            await sql.execute("reset role")


async def assert_rows_hash(sql: Sql) -> None:
    """Every row's block, kept or encoded from its value, hashes to the row's CID."""
    for row in await sql.fetch(BLOCKS):
        value: Json = json.loads(row["value"])
        block = row["block"] if row["block"] is not None else encode_json(value)
        codec = cid_bytes(row["cid"])[1]
        assert cid_of(block, codec) == cid_bytes(row["cid"]), row["uri"]
