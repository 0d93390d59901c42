"""Rows in a transaction: what is there, what goes, what comes, and how much each repository holds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import asyncpg

from indexer.batch import Key, Order, key_of, order_of
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, Change, Reason
from indexer.store.context import Context, Pair, by_table, columns, did_of, key_in
from indexer.store.statements import PROMPTS, table_of


class LocksMissedError(Exception):
    """A prompt named another agent by the time the locks were held: begin again, with these accounts too."""

    def __init__(self, dids: set[str]) -> None:
        super().__init__("locks missed")
        self.dids = dids


async def read_counts(context: Context) -> None:
    """How much each repository of the batch holds."""
    for row in await context.fetch("repo_sizes", list(context.batch.dids())):
        context.sizes[row["did"], row["space"]] = (row["records"], row["bytes"])
        context.growth[row["did"], row["space"]] = [row["records"], row["bytes"]]


async def read_rows(context: Context) -> None:
    """Tombstones and rows of the batch's keys. Raises LocksMissedError."""
    keys = list({*context.batch.puts, *context.batch.deletes})
    if not keys:
        return
    for row in await context.fetch("tombstones", *columns(keys, 4)):
        context.tombstones[key_in(row)] = Order(row["rev"], row["proven"])
    for table, group in by_table(keys).items():
        for row in await _kept(context, table, group):
            context.kept[key_in(row)] = row
    prompts = [row for key, row in context.kept.items() if key.collection == COMPILED_PROMPT]
    missed = {did_of(row["agent_uri"]) for row in prompts if row["agent_uri"]} - context.locked
    if missed:
        raise LocksMissedError(missed)


async def _kept(context: Context, table: str, keys: list[Key]) -> list[asyncpg.Record]:
    if table == PROMPTS:
        return await context.fetch("kept_prompts", *columns(keys, 4))
    return await context.fetch("kept_rows", *columns(keys, 4), table=table)


async def delete(context: Context) -> None:
    """Leave tombstones, and delete the rows and the history at or below them."""
    deletes = {
        key: order
        for key, order in context.batch.deletes.items()
        if order.rev > context.floor(key.did) and key.did not in context.forgotten
    }
    if not deletes:
        return
    await context.execute("put_tombstones", *columns(((*key, *order) for key, order in deletes.items()), 6))
    for key, order in deletes.items():
        context.tombstones[key] = max(order, context.tombstones.get(key, order))
    for table, group in by_table(deletes).items():
        rows = columns(((*key, *deletes[key]) for key in group), 6)
        note_deleted(context, await context.fetch("delete_rows", *rows, table=table))
    for collection, name in (
        (COMPILED_PROMPT, "delete_recompiles"),
        (CONVERSATION, "delete_conversation_versions"),
    ):
        gone = [(k.did, k.space, k.rkey, order.rev) for k, order in deletes.items() if k.collection == collection]
        if gone:
            await context.execute(name, *columns(gone, 4))


def note_deleted(context: Context, rows: Iterable[asyncpg.Record]) -> None:
    """Count rows that are gone, and what has to follow from it."""
    for row in rows:
        key = key_in(row)
        context.kept.pop(key, None)
        grown = context.growth[key.did, key.space]
        grown[0] -= 1
        grown[1] -= row["size"]
        context.applied.rows[key.collection] += 1
        if key.collection == AGENT:
            context.agents.add(row["uri"])
        if key.collection == COMPILED_PROMPT:
            context.announce("deleted", key.space, uri=row["uri"])
            if row["agent_uri"]:
                context.pairs.add(Pair(key.did, key.space, row["agent_uri"]))


async def put(context: Context) -> set[Key]:
    """Write the rows that the batch makes or changes; their keys."""
    grouped: defaultdict[str, list[Change]] = defaultdict(list)
    for change in context.batch.puts.values():
        if _admitted(context, change):
            grouped[table_of(change.collection)].append(change)
    written: set[Key] = set()
    for table, group in grouped.items():
        for row in await context.fetch("put_rows", *columns(map(_row, group), 13), table=table):
            key = key_in(row)
            written.add(key)
            context.applied.rows[key.collection] += 1
            if key.collection == AGENT:
                context.agents.add(row["uri"])
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
    records, size = context.growth[change.did, change.space]
    more_records = 0 if kept is not None else 1
    more_bytes = _size(change) - (kept["size"] if kept is not None else 0)
    too_many = more_records and records + more_records > context.limits.quota_rows
    too_much = more_bytes > 0 and size + more_bytes > context.limits.quota_bytes
    if too_many or too_much:
        context.applied.dropped[Reason.QUOTA] += 1
        return False
    context.growth[change.did, change.space] = [records + more_records, size + more_bytes]
    return True


def _size(change: Change) -> int:
    return change.record.size if change.record is not None else 0


def _row(change: Change) -> tuple[Any, ...]:
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
    )


async def write_counts(context: Context) -> None:
    """Add what the batch changed to what each repository holds; a repository is tracked from its first row on."""
    rows = []
    for (did, space), (records, size) in context.growth.items():
        before = context.sizes.get((did, space), (0, 0))
        if (records, size) != before:
            rows.append((did, space, records - before[0], size - before[1]))
    if rows:
        await context.execute("count_repos", *columns(rows, 4))
