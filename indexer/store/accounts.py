"""Accounts in a transaction: their locks, their states, what is purged with them."""

from __future__ import annotations

from itertools import chain

from indexer.model import COMPILED_PROMPT, AccountChange, Want, WantReason
from indexer.store.chain import ASKED
from indexer.store.context import Context, columns
from indexer.store.rows import note_deleted, require_locks
from indexer.store.statements import HISTORY_TABLES, RECORD_TABLES
from indexer.syntax import LAST_TID, parse_record_uri


async def lock(context: Context, more: set[str]) -> None:
    """Lock every account that the batch can touch: whose rows it writes, and whose agents its prompts name or named.

    Handles are written, and hidden accounts checked after a loss, where the account is there: none is made for them.
    """
    batch = context.batch
    context.locked = batch.dids() | more | await _dids_of_agents(context)
    lost = any(not want.did for want in batch.wants)
    await context.execute("lock_accounts", list(context.locked), list(batch.handles), lost)


async def _dids_of_agents(context: Context) -> set[str]:
    """The accounts of the agents that the batch's prompts name; those they name until now turn out under the locks."""
    batch = context.batch
    proposed = (change for proposal in batch.proposals for change in proposal.changes)
    references = {
        change.record.agent
        async for change in context.paced(chain(batch.puts.values(), proposed))
        if change.collection == COMPILED_PROMPT and change.record is not None and change.record.agent is not None
    }
    return {uri.did for uri in map(parse_record_uri, references) if uri is not None}


async def update_accounts(context: Context) -> None:
    """Bring account states up to the batch's, purge what it purges, and note what else is known of them."""
    batch, states = context.batch, context.states
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
    context.away = {did for did, row in states.items() if not row["active"]}
    for change in news:
        (context.away.discard if change.active else context.away.add)(change.did)
    _note_returns([change for change in news if change.confirm], context)
    await _purge(context, {c.did: c.purge_rev for c in batch.accounts.values() if c.purge_rev})


def _note_returns(news: list[AccountChange], context: Context) -> None:
    """What comes back is fetched anew; of what goes away the account's own host is asked."""
    context.doubted.update(change.did for change in news if not change.active)
    for change in news:
        if change.active and context.states[change.did]["hidden"] and (change.did, "") in context.before:
            context.wants.append(Want(change.did, WantReason.RETURNED))


async def confirm(context: Context) -> None:
    """Have the hosts of accounts asked that went away, or were away when they came to be tracked or were asked for.

    Only of tracked repositories, those of this transaction included.
    """
    batch = context.batch
    new = {one.did for one in batch.proposals} | {one.did for one in batch.undecided} | {w.did for w in batch.wants}
    new -= {did for did, _ in context.before}
    asked = {want.did for want in batch.wants if want.reason in ASKED}
    doubted = context.doubted | (context.away & (new | asked))
    if doubted:
        await context.execute("put_checks", list(doubted), context.now)


async def _touch_agents(context: Context, dids: list[str]) -> None:
    context.agents.update(row["uri"] for row in await context.fetch("agents_of_accounts", dids))


async def forget(context: Context, did: str) -> None:
    """Purge an account whole, and let nothing of it in again."""
    await _purge(context, {did: LAST_TID})
    await context.execute("drop_account_spaces", did)
    await context.execute("forget_account", did)
    await context.execute("purge_probes", [did])
    await context.execute("untrack_all", did)
    context.forgotten.add(did)
    for repo in [repo for repo in context.after if repo[0] == did]:
        del context.after[repo]


async def _purge(context: Context, gone: dict[str, str]) -> None:
    """Take all rows and history of accounts at or below a rev away; nothing at or below it comes back.

    Raises LocksMissedError for prompts that name an agent of an account not locked.
    """
    if not gone:
        return
    dids, revs = list(gone), list(gone.values())
    require_locks(context, await context.fetch("agents_named_by_accounts", dids, revs))
    await _touch_agents(context, dids)
    await context.execute("put_purged_revs", dids, revs)
    for table in RECORD_TABLES:
        note_deleted(context, await context.fetch("purge_rows", dids, revs, table=table))
    for table in HISTORY_TABLES:
        context.mark(await context.fetch("purge_unlisted", dids, revs, table=table), -1)
    await context.execute("reset_spaces", dids)
    await context.execute("purge_pending", dids)
    await context.execute("purge_letters", dids)
    for did, rev in gone.items():
        context.purged_revs[did] = max(rev, context.purged_revs.get(did, ""))
