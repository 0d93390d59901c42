"""One batch, one transaction: rows, freshness, history, account states, dead letters and cursors together.

The account rows of everything the batch can touch are locked first (did order, one statement); what is decided after
that is decided on what was read under the locks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import asyncpg

from indexer.batch import Batch
from indexer.model import Reason
from indexer.store.accounts import confirm, lock, update_accounts
from indexer.store.chain import decide, hold
from indexer.store.connection import Connection
from indexer.store.context import Applied, Context, Limits, Pair, columns, short_key_in
from indexer.store.history import remember
from indexer.store.lease import Lease, hold_lease
from indexer.store.rows import LocksMissedError, delete, put, read_rows, read_states, write_repos

T = TypeVar("T")

MOST_PROBES = 20_000  # accounts that wait to be asked about; anybody can make up more
ATTEMPTS = 8  # at getting all locks: each failure means that a prompt's agent changed in between


Step = Callable[[Context], Awaitable[T]]


async def write(
    connection: Connection, batch: Batch, limits: Limits, now: datetime, lease: Lease | None = None
) -> Applied:
    """Write a batch in one transaction. Driver errors come through untranslated; nothing is written then."""
    return (await transact(connection, batch, limits, now, lease=lease))[0]


async def transact(
    connection: Connection,
    batch: Batch,
    limits: Limits,
    now: datetime,
    *,
    dids: Set[str] = frozenset(),
    before: Step[None] | None = None,
    after: Step[T] | None = None,
    lease: Lease | None = None,
) -> tuple[Applied, T | None]:
    """Write a batch in one transaction, with steps of the caller's: under the locks, and when the rows are written.

    ``dids`` are locked beside those of the batch. Raises LeaseLostError unless ``lease`` is still held at the end.
    """
    more = set(dids)
    for _ in range(ATTEMPTS):
        own = replace(batch, puts=dict(batch.puts), deletes=dict(batch.deletes), versions=dict(batch.versions))
        context = Context(connection, own, limits, now)
        try:
            async with connection.transaction():
                if batch.dids() or batch.handles or batch.wants or dids:
                    await lock(context, more)
                if batch.dids() or batch.wants or dids:
                    await _index(context, before)
                await _finish(context)
                result = await after(context) if after is not None else None
                await hold_lease(connection, lease)
                return context.applied, result
        except LocksMissedError as missed:
            more |= missed.dids
    raise asyncpg.DeadlockDetectedError("the agents of the prompts in a batch kept changing")


async def _index(context: Context, before: Step[None] | None) -> None:
    await read_states(context, context.batch.dids())
    await update_accounts(context)
    decide(context)
    if before is not None:
        await before(context)
    await read_rows(context)
    await delete(context)
    await remember(context, await put(context))
    await write_repos(context)
    await hold(context)
    await confirm(context)
    await refresh(context)


async def refresh(context: Context) -> None:
    """Bring the flags of every prompt that what happened can concern in line with their definition."""
    await context.run("drop_flags", context.gone)
    flags = await context.run("refresh", await _concerned(context), heavy=3)
    news = {short_key_in(flag): flag for flag in flags if flag["space"] == "" and _is_news(flag)}
    for row in await context.run("named_prompts", news):
        flag = news[short_key_in(row)]
        facts = {name: row[name] for name in ("uri", "cid", "agent")}
        facts |= {name: flag[name] for name in ("freshness", "stale_reasons")}
        context.announce("stale" if flag["freshness"] == "stale" else "fresh", row["space"], **facts)


def _is_news(flag: asyncpg.Record) -> bool:
    return flag["freshness"] != flag["was"] and "stale" in (flag["freshness"], flag["was"])


async def _concerned(context: Context) -> list[tuple[object, ...]]:
    """What the statement ``refresh`` is asked: the touched prompts of each pair, and of which pair every prompt.

    A prompt is compared with its agent and with the latest of its pair: if neither what is the latest nor what was has
    been touched, no other is concerned. What was later than the latest that is untouched was the latest.
    """
    whole: set[Pair] = set()
    if context.agents:
        rows = await context.fetch("prompts_of_agents", list(context.agents))
        whole.update(Pair(row["did"], row["space"], row["agent_uri"]) for row in rows)
    asked: list[tuple[object, ...]] = []
    for pair in context.touched.keys() | whole:
        left = context.left.get(pair)
        place = (left.compiled_at if left.dated else None, left.rkey) if left else (None, None)
        asked.append((*pair, " ".join(context.touched.get(pair, ())), pair in whole, *place))
    return asked


async def _finish(context: Context) -> None:
    batch = context.batch
    claimed = [change for change in batch.handles.values() if change.confirm]
    if claimed:
        await context.execute("note_identities", [change.did for change in claimed], context.now)
    if batch.probes:
        (full,) = await context.fetch("put_probes", list(batch.probes), context.now, MOST_PROBES)
        if full["dropped"]:
            context.applied.dropped[Reason.QUOTA] += full["dropped"]
    believed = [(c.did, c.handle, c.time) for c in batch.handles.values() if not c.confirm]
    if believed:
        await context.execute("put_handles", *columns(believed, 3))
    if context.news:
        await context.fetch("notify", context.news)
    if batch.dead_letters:
        letters = ((m.source, m.position, m.did, m.reason.value, m.detail, m.frame, m.size) for m in batch.dead_letters)
        await context.execute("put_dead_letters", *columns(letters, 7))
        await context.execute("purge_letters", [change.did for change in batch.accounts.values() if change.purge_rev])
    if batch.deletes:
        await context.execute("empty_letters", list({key.did for key in batch.deletes}))
    if batch.positions:
        rows = ((source, p.seq, p.event_time) for source, p in batch.positions.items())
        await context.execute("put_cursors", *columns(rows, 3), context.now)
