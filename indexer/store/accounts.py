"""Accounts in a transaction: their locks, their states, what is purged with them."""

from __future__ import annotations

from indexer.batch import Key
from indexer.model import COMPILED_PROMPT
from indexer.store.context import Context, columns, did_of, short_keys
from indexer.store.rows import note_deleted
from indexer.store.statements import HISTORY_TABLES, RECORD_TABLES


async def lock(context: Context, more: set[str]) -> set[str]:
    """Lock every account that the batch can touch: whose rows it writes, and whose agents its prompts name or named."""
    batch = context.batch
    prompts = [key for key in {*batch.puts, *batch.deletes} if key.collection == COMPILED_PROMPT]
    dids = batch.dids() | more | {did_of(uri) for uri in await _agents(context, prompts)}
    await context.execute("lock_accounts", list(dids))
    return dids


async def _agents(context: Context, prompts: list[Key]) -> list[str]:
    if not prompts:
        return []
    puts = [context.batch.puts[key].record for key in prompts if key in context.batch.puts]
    references = [record.agent for record in puts if record is not None and record.agent is not None]
    rows = await context.fetch("agents_of_prompts", *short_keys(prompts), references)
    return [row["agent_uri"] for row in rows]


async def update_accounts(context: Context) -> None:
    """Bring account states up to the batch's, purge what it purges, and note what else is known of them."""
    batch = context.batch
    states = {row["did"]: row for row in await context.fetch("account_states", list(batch.dids()))}
    context.purged_revs = {did: row["purged_rev"] for did, row in states.items()}
    context.forgotten = {did for did, row in states.items() if row["forgotten"]}
    news = [
        change
        for change in batch.accounts.values()
        if (change.time, change.status) > (states[change.did]["status_time"], states[change.did]["status"])
    ]
    if news:
        await context.execute("put_account_states", *columns(((c.did, c.active, c.status, c.time) for c in news), 4))
        await _touch_agents(context, [change.did for change in news])
    await _purge(context, {c.did: c.purge_rev for c in batch.accounts.values() if c.purge_rev})


async def _touch_agents(context: Context, dids: list[str]) -> None:
    context.agents.update(row["uri"] for row in await context.fetch("agents_of_accounts", dids))


async def _purge(context: Context, gone: dict[str, str]) -> None:
    """Take all rows and history of accounts at or below a rev away; nothing at or below it comes back."""
    if not gone:
        return
    dids, revs = list(gone), list(gone.values())
    await _touch_agents(context, dids)
    await context.execute("put_purged_revs", dids, revs)
    for table in RECORD_TABLES:
        note_deleted(context, await context.fetch("purge_rows", dids, revs, table=table))
    for table in HISTORY_TABLES:
        await context.execute("purge_unlisted", dids, revs, table=table)
    for did, rev in gone.items():
        context.purged_revs[did] = max(rev, context.purged_revs.get(did, ""))
