"""Batches made to order, and ways to look at a database while others work in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from indexer.batch import Batch
from indexer.model import Change, Record
from indexer.store import Limits, Store
from indexer.store.statements import table_of
from indexer.texts import facts_of
from tests.frames import DID, OTHER, cid_of, rev
from tests.indexing import Sql

NOW = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
SPACE = f"at://{DID}/space/com.example.space/self"


def change(
    collection: str = OTHER,
    rkey: str = "one",
    value: object = None,
    *,
    did: str = DID,
    space: str = "",
    at: float = 1,
    text: str | None = None,
) -> Change:
    """A record written: ``value`` is what it holds, ``text`` the JSON text instead, however wrong."""
    held = text if text is not None else json.dumps(value or {"$type": collection})
    agent = value.get("agent") if isinstance(value, dict) else None
    facts = facts_of(collection, value, {}) if isinstance(value, dict) else {}
    record = Record(held, size=len(held), agent=agent if isinstance(agent, str) else None, facts=facts)
    cid = "b" + cid_of(held.encode("utf-8", "replace")).hex()
    return Change(did, space, collection, rkey, rev(at), cid, record)


def deletion(collection: str = OTHER, rkey: str = "one", *, did: str = DID, space: str = "", at: float = 1) -> Change:
    """A record deleted."""
    return Change(did, space, collection, rkey, rev(at), None, None)


def batch_of(*changes: Change) -> Batch:
    """A batch of these changes."""
    batch = Batch()
    for one in changes:
        batch.add(one)
    return batch


@asynccontextmanager
async def opened(url: str, limits: Limits | None = None) -> AsyncIterator[Store]:
    """A store over the database at ``url``."""

    async def dsn() -> str:
        return url

    store = Store(dsn, limits=limits)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def keys(sql: Sql, collection: str = OTHER) -> list[str]:
    """The record keys in the table of a collection, in order."""
    return [
        row["rkey"] for row in await sql.fetch(f"select rkey from letta_store.{table_of(collection)} order by rkey")
    ]


BLOCKED = """
    select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' limit 1
"""


async def blocked_backend(sql: Sql) -> int:
    """The process that waits for a lock in this database, as soon as there is one; TimeoutError if none comes."""
    async with asyncio.timeout(60):
        while True:
            pid: int | None = await sql.fetchval(BLOCKED)
            if pid is not None:
                return pid
