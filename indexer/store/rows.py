"""Rows in a transaction: what is there, what goes, what comes, and how much each repository holds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import asyncpg

from indexer.batch import Key, Order, key_of, order_of
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, Change, Reason
from indexer.store.context import NOTHING, Context, Head, Share, by_table, did_of, key_in, short_key
from indexer.store.statements import FACTS, table_of


class LocksMissedError(Exception):
    """A prompt named another agent by the time the locks were held: begin again, with these accounts too."""

    def __init__(self, dids: set[str]) -> None:
        super().__init__("locks missed")
        self.dids = dids


def require_locks(context: Context, rows: Iterable[asyncpg.Record]) -> None:
    """Raise LocksMissedError unless the accounts of the agents that prompts among these rows name are locked."""
    if missed := {did_of(row["agent_uri"]) for row in rows if row["agent_uri"]} - context.locked:
        raise LocksMissedError(missed)


async def read_states(context: Context, dids: Iterable[str]) -> None:
    """What is known of these accounts, how far each of their repositories is proven, and how much it holds."""
    for row in await context.fetch("account_states", list(dids)):
        context.states[row["did"]] = row
        repo = row["did"], row["space"]
        if row["space"] is not None and repo not in context.before:
            context.before[repo] = Share(row["records"], row["bytes"], row["marks"])
            context.after[repo] = replace(context.before[repo])
        if row["space"] == "":
            context.known[row["did"]] = Head(row["rev"], row["data_cid"])
            context.snapshot_revs[row["did"]] = row["snapshot_rev"]


async def read_rows(context: Context) -> None:
    """Tombstones and rows of the batch's keys. Raises LocksMissedError."""
    for table, group in by_table({*context.batch.puts, *context.batch.deletes}).items():
        for row in await context.run("kept_rows", group, table=table):
            if row["cid"] is None:
                context.tombstones[key_in(row)] = Order(row["rev"], row["proven"])
            else:
                context.kept[key_in(row)] = row
    require_locks(context, context.kept.values())


async def delete(context: Context) -> None:
    """Leave tombstones, and delete the rows and the history at or below them."""
    deletes: dict[Key, Order] = {}
    for key, order in context.batch.deletes.items():
        if _admits_delete(context, key, order):
            deletes[key] = order
            if key not in context.tombstones:
                context.after[key.did, key.space].marks += 1
    await context.run("put_tombstones", ((*key, *order) for key, order in deletes.items()))
    for key, order in deletes.items():
        context.tombstones[key] = max(order, context.tombstones.get(key, order))
    for table, group in by_table(deletes).items():
        rows = ((*key, *deletes[key]) for key in group)
        note_deleted(context, await context.run("delete_rows", rows, table=table))
    for collection, name in (
        (COMPILED_PROMPT, "delete_recompiles"),
        (CONVERSATION, "delete_conversation_versions"),
    ):
        gone = ((*short_key(key), order.rev) for key, order in deletes.items() if key.collection == collection)
        context.mark(await context.run(name, gone), -1)


def _admits_delete(context: Context, key: Key, order: Order) -> bool:
    """Whether a delete counts: not settled before, and a key never seen only within its account's quota."""
    if order.rev <= context.floor(key) or key.did in context.forgotten:
        return False
    if key not in context.tombstones and key not in context.kept and not context.has_room(key.did, key.space):
        context.applied.dropped[Reason.QUOTA] += 1
        return False
    return True


def note_deleted(context: Context, rows: Iterable[asyncpg.Record]) -> None:
    """Count rows that are gone, and what has to follow from it."""
    for row in rows:
        key = key_in(row)
        context.kept.pop(key, None)
        share = context.after[key.did, key.space]
        share.records -= 1
        share.bytes -= row["size"]
        context.applied.rows[key.collection] += 1
        if key.collection == AGENT:
            context.agents.add(row["uri"])
        if key.collection == COMPILED_PROMPT:
            context.announce("deleted", key.space, uri=row["uri"])
            context.leave(row)
            context.gone.add(short_key(key))


async def put(context: Context) -> dict[Key, asyncpg.Record]:
    """Write the rows that the batch makes or changes; what is now there of them. Raises LocksMissedError."""
    grouped: defaultdict[str, list[Change]] = defaultdict(list)
    async for change in context.paced(context.batch.puts.values()):
        if _admitted(context, change):
            grouped[table_of(change.collection)].append(change)
    written: dict[Key, asyncpg.Record] = {}
    for table, group in grouped.items():
        facts = FACTS.get(table, {})
        for row in await context.run("put_rows", (_row(change, facts) for change in group), table=table, heavy=6):
            key = key_in(row)
            written[key] = row
            context.applied.rows[key.collection] += 1
            if key.collection == AGENT:
                context.agents.add(row["uri"])
    require_locks(context, written.values())
    return written


def _admitted(context: Context, change: Change) -> bool:
    """Whether a put becomes a row: it isn't gone since, is newer than what is kept, and within its account's quota."""
    key, order = key_of(change), order_of(change)
    if change.did in context.forgotten:
        context.applied.dropped[Reason.FORGOTTEN] += 1
        return False
    if not context.survives(key, order):
        return False
    kept = context.kept.get(key)
    if kept is not None and (*order, change.cid) <= (kept["rev"], kept["proven"], kept["cid"]):
        return False
    return _within_quota(context, change, kept)


def _within_quota(context: Context, change: Change, kept: asyncpg.Record | None) -> bool:
    share = context.after[change.did, change.space]
    more_bytes = _size(change) - (kept["size"] if kept is not None else 0)
    too_many = kept is None and not context.has_room(change.did, change.space)
    if too_many or (more_bytes > 0 and share.bytes + more_bytes > context.limits.quota_bytes):
        context.applied.dropped[Reason.QUOTA] += 1
        return False
    share.records += kept is None
    share.bytes += more_bytes
    return True


def _size(change: Change) -> int:
    return change.record.size if change.record is not None else 0


def _row(change: Change, facts: Iterable[str]) -> tuple[Any, ...]:
    record = change.record
    assert record is not None, "a put has a record"
    violations = [{"field": one.field, "rule": one.rule} for one in record.violations]
    return (
        *key_of(change),
        change.cid,
        change.rev,
        record.value,
        record.size,
        record.block,
        json.dumps(record.digests) if record.digests else None,
        record.valid,
        json.dumps(violations) if violations else None,
        change.proof,
        *(record.facts.get(name) for name in facts),
    )


async def write_repos(context: Context) -> None:
    """Add what the batch changed to what each repository holds, and note where its commits led it.

    A repository is tracked from its first row on.
    """
    rows = []
    for did, space in context.after.keys() | {(did, "") for did in context.moved}:
        before, share = context.before.get((did, space), Share()), context.after[did, space]
        head = context.moved.get(did, NOTHING) if space == "" else NOTHING
        more = share.records - before.records, share.bytes - before.bytes, share.marks - before.marks
        if any(more) or head.rev:
            rows.append((did, space, *more, *head))
    await context.run("put_repos", rows)
