"""History in a transaction: every version of a prompt or a conversation that nothing has taken away since."""

from __future__ import annotations

import json
from collections.abc import Iterator

import asyncpg

from indexer.batch import Key, order_of
from indexer.model import COMPILED_PROMPT, CONVERSATION, Change, Reason, Record
from indexer.store.context import Context, key_in, short_key


async def remember(context: Context, written: set[Key]) -> None:
    """Keep the versions that the batch brought; ``written`` are the rows it made or changed."""
    prompts = [key for key in written if key.collection == COMPILED_PROMPT]
    if prompts:
        roomy = [key for key in prompts if _has_room(context, key)]
        rows = await context.run("put_recompiles", map(short_key, roomy), context.limits.keep_content)
        context.mark(rows, 1)
        await _compare(context, prompts)
    passed = [
        (*_version(change), record.value, json.dumps(record.digests))
        for key, change, record in _versions(context, COMPILED_PROMPT)
        if not (key in written and change is context.batch.puts[key]) and _has_room(context, key)
    ]
    context.mark(await context.run("put_passed_recompiles", passed, context.limits.keep_content), 1)
    versions = [
        (*_version(change), record.value)
        for key, change, record in _versions(context, CONVERSATION)
        if _has_room(context, key)
    ]
    context.mark(await context.run("put_conversation_versions", versions), 1)


def _has_room(context: Context, key: Key) -> bool:
    """Whether one more version is within its account's quota; one that isn't is counted."""
    if context.has_room(key.did, key.space):
        return True
    context.applied.dropped[Reason.QUOTA] += 1
    return False


def _versions(context: Context, collection: str) -> Iterator[tuple[Key, Change, Record]]:
    for (key, _, _), change in context.batch.versions.items():
        if key.collection == collection and change.record and context.survives(key, order_of(change)):
            yield key, change, change.record


def _version(change: Change) -> tuple[str, str, str, str, str | None]:
    return change.did, change.space, change.rkey, change.rev, change.cid


async def _compare(context: Context, prompts: list[Key]) -> None:
    """What each written prompt became: its kind of recompile, and the agents whose prompts need a new look."""
    for row in await context.run("kept_prompts", prompts):
        key = key_in(row)
        before = context.kept.get(key)
        context.touch(row, before)
        kind = kind_of(before, row)
        if kind is not None:
            context.applied.recompiles[kind] += 1
        if before is not None and kind is not None:
            facts = {"uri": row["uri"], "cid": row["cid"], "previous_cid": before["cid"], "kind": kind}
            context.announce("recompiled", key.space, **facts)
    await context.run("forget_freshness", map(short_key, prompts))


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
