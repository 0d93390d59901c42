"""History in a transaction: every version of a prompt or a conversation that nothing has taken away since."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import asyncpg

from indexer.batch import Key, order_of
from indexer.model import COMPILED_PROMPT, CONVERSATION, Change, Reason, Record
from indexer.store.context import Context, short_key


async def remember(context: Context, written: dict[Key, asyncpg.Record]) -> None:
    """Keep the versions that the batch brought; ``written`` are the rows it made or changed, as they are now."""
    prompts = {key: row for key, row in written.items() if key.collection == COMPILED_PROMPT}
    roomy = (key for key in prompts if _has_room(context, key))
    rows = await context.run("put_recompiles", map(short_key, roomy), context.limits.keep_content)
    context.mark(rows, 1)
    async for key, row in context.paced(prompts.items()):
        _compare(context, key, row)
    passed = [
        version_row(key, change.rev, change.cid, record)
        async for key, change, record in context.paced(_versions(context, COMPILED_PROMPT, written))
        if _has_room(context, key)
    ]
    await keep_passed(context, passed)
    versions = [
        (*short_key(key), change.rev, change.cid, record.value)
        async for key, change, record in context.paced(_versions(context, CONVERSATION, ()))
        if _has_room(context, key)
    ]
    context.mark(await context.run("put_conversation_versions", versions, heavy=5), 1)


async def keep_passed(context: Context, rows: Iterable[tuple[object, ...]]) -> None:
    """Keep versions of prompts (:func:`version_row`) that are not the rows."""
    context.mark(await context.run("put_passed_recompiles", rows, context.limits.keep_content, heavy=6), 1)


def version_row(key: Key, rev: str, cid: str | None, record: Record | None, ordinal: int = 0) -> tuple[object, ...]:
    """One version of a prompt that isn't the row; of one without a record the CID is all that is known."""
    value, facts = (None, {}) if record is None else (record.value, record.facts)
    said = (facts.get(name) for name in ("content_bytes", "content_sha256", "core_memory_sha256"))
    return (*short_key(key), rev, ordinal, cid, value, *said)


def _has_room(context: Context, key: Key) -> bool:
    """Whether one more version is within its account's quota; one that isn't is counted."""
    if context.has_room(key.did, key.space):
        return True
    context.applied.dropped[Reason.QUOTA] += 1
    return False


def _versions(context: Context, collection: str, written: Container[Key]) -> Iterator[tuple[Key, Change, Record]]:
    """The versions of the batch that nothing known takes away, but for those that are rows ``written``."""
    puts = context.batch.puts
    for (key, _, _), change in context.batch.versions.items():
        if key.collection != collection or (key in written and change is puts[key]):
            continue
        if change.record and context.survives(key, order_of(change)):
            yield key, change, change.record


def _compare(context: Context, key: Key, row: asyncpg.Record) -> None:
    """What a written prompt became: its kind of recompile, and what needs a new look because of it."""
    before = context.kept.get(key)
    context.enter(row)
    if before is not None:
        context.leave(before)
    kind = kind_of(before, row)
    if kind is not None:
        context.applied.recompiles[kind] += 1
    if before is not None and kind is not None:
        facts = {"uri": row["uri"], "cid": row["cid"], "previous_cid": before["cid"], "kind": kind}
        context.announce("recompiled", key.space, **facts)


def kind_of(before: asyncpg.Record | None, after: asyncpg.Record) -> str | None:
    """The kind of a recompile, as the view ``letta.recompile`` has it; None where the CID is the same."""
    if before is None:
        return "first"
    if before["cid"] == after["cid"]:
        return None
    if before["content_sha256"] != after["content_sha256"]:
        return "full"
    memory = ("core_memory_sha256", "memfs_revision")
    return "memory" if any(before[name] != after[name] for name in memory) else "touch"
