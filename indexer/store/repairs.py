"""The store as the repair worker sees it: wants, pending, identities, checks, probes, discovery."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import asyncpg

from indexer.batch import Batch
from indexer.model import AccountChange, Want, WantReason
from indexer.store.claims import (
    Claim,
    ClaimLostError,
    Snapshot,
    Waiting,
    conclude,
    hold_claim,
    reconcile,
    settle,
    waiting_of,
)
from indexer.store.connection import fetch
from indexer.store.context import Applied, Context, Limits, columns
from indexer.store.lease import Lease, hold_lease
from indexer.store.statements import RECORD_TABLES, statement
from indexer.store.writer import Step, transact

if TYPE_CHECKING:
    from indexer.store import Store

MANY = (1 << 31) - 1  # tries: no bound
LEASE = timedelta(minutes=1)  # that a claim stands unless it is extended: what a crash costs the repository


@dataclass(frozen=True, slots=True)
class Check:
    """An account whose identity, and status if it is away, has to be asked for; ``rev`` is its last proven one."""

    did: str
    status: str
    active: bool
    status_time: datetime
    hidden: bool
    checks: int
    rev: str


class Repairs:
    """What repair does in a store, on a connection of its own. Raises what :class:`indexer.store.Store` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def limits(self) -> Limits:
        """What bounds the index."""
        return self._store.limits

    async def _fetch(self, name: str, *args: object, table: str | None = None) -> list[asyncpg.Record]:
        async with self._store.connection("repair") as connection:
            return await fetch(connection, name, *args, table=table)

    async def claim(self, now: datetime, limit: int, *, tries: int = MANY) -> list[Claim]:
        """Take on up to ``limit`` wants that are due and were tried ``tries`` times at most.

        Claimed one by one: no two workers get the same.
        """
        claims: list[Claim] = []
        while not claims:
            candidates = [row["did"] for row in await self._fetch("due_wants", now, limit * 4, tries)]
            if not candidates:
                break
            random.shuffle(candidates)
            for did in candidates:  # of which others may have taken every one meanwhile
                if len(claims) < limit:
                    claims += map(_claim, await self._fetch("claim_want", did, uuid4(), now, now + LEASE))
        return claims

    async def renew(self, claim: Claim, now: datetime) -> Claim:
        """The claim as of now: what is begun next meets all that was wanted until here. Raises ClaimLostError."""
        for row in await self._fetch("renew_claim", claim.did, claim.id, now + LEASE):
            return _claim(row)
        raise ClaimLostError

    async def extend(self, claims: Sequence[Claim], now: datetime) -> None:
        """Keep claims for another lease."""
        await self._fetch("extend_leases", *columns(((claim.did, claim.id) for claim in claims), 2), now + LEASE)

    async def end(self, claim: Claim, now: datetime) -> None:
        """Give a claim back that was met; what was wanted since then is due."""
        await self._fetch("end_claim", claim.did, claim.id, now)

    async def pending(self, did: str) -> list[Waiting]:
        """The commits of a repository that wait for a decision, by rev."""
        return [waiting_of(row) for row in await self._fetch("pending_of", did)]

    async def settle(self, claim: Claim, batch: Batch, dropped: list[Waiting], now: datetime) -> tuple[Applied, bool]:
        """Write what pending commits prove, and forget those that are ``dropped``; whether the want is met by that.

        Raises ClaimLostError.
        """

        async def before(context: Context) -> None:
            await hold_claim(context, claim)

        async def after(context: Context) -> bool:
            return await settle(context, claim, dropped, now)

        return await self._transact(batch, claim.did, now, before, after)

    async def reconcile(self, claim: Claim, snapshot: Snapshot, now: datetime) -> tuple[Applied, bool]:
        """Make the rows what a snapshot says; whether the want is met by that. Raises ClaimLostError."""

        async def before(context: Context) -> None:
            await hold_claim(context, claim, shown=True)
            await reconcile(context, snapshot)

        async def after(context: Context) -> bool:
            return await conclude(context, claim, snapshot, now)

        return await self._transact(snapshot.as_batch(), claim.did, now, before, after)

    async def _transact(
        self, batch: Batch, did: str, now: datetime, before: Step[None], after: Step[bool] | None = None
    ) -> tuple[Applied, bool]:
        async with self._store.connection("repair") as connection:
            applied, met = await transact(
                connection, batch, self._store.limits, now, dids={did}, before=before, after=after
            )
            return applied, bool(met)

    async def release(self, claim: Claim, again: datetime, error: str | None, *, fell_short: bool = False) -> None:
        """Give a claim back, to be taken on again later, with the reason why it isn't met."""
        shown = None if error is None else error.encode(errors="replace").decode().replace("\0", "\ufffd")[:500]
        await self._fetch("release_want", claim.did, claim.id, again, shown, int(fell_short))

    async def put_identity(
        self, did: str, key: str, pds: str | None, handle: str | None, began: datetime, now: datetime
    ) -> bool:
        """Store a resolved identity; False if the account's identity changed again since ``began``."""
        return bool(await self._fetch("put_identity", did, key, pds, handle, began, now))

    async def due_checks(self, now: datetime, limit: int) -> list[Check]:
        """Accounts to be asked about, those due longest first."""
        return [Check(**dict(row)) for row in await self._fetch("due_checks", now, limit)]

    async def postpone_check(self, did: str, began: datetime, again: datetime) -> None:
        """Ask about an account again later, unless more is to be asked since ``began``."""
        await self._fetch("postpone_check", did, again, began)

    async def end_check(self, did: str, began: datetime) -> None:
        """An account's state is confirmed as of ``began``."""
        await self._fetch("end_check", did, began)

    async def due_probes(self, now: datetime, limit: int) -> list[tuple[str, int]]:
        """Untracked accounts to be asked whether they hold what we follow, with the tries so far."""
        return [(row["did"], row["attempts"]) for row in await self._fetch("due_probes", now, limit)]

    async def postpone_probe(self, did: str, again: datetime) -> None:
        """Probe an account again later."""
        await self._fetch("postpone_probe", did, again)

    async def end_probe(self, did: str) -> None:
        """Forget a probe that was answered, or never will be."""
        await self._fetch("end_probe", did)

    async def untrack(self, did: str) -> bool:
        """Stop following an account that doesn't exist, with what is pending of it.

        False if something of it is kept: then it is to be fetched, should it be there again.
        """
        async with self._store.connection("repair") as connection, connection.transaction():
            await connection.execute(statement("lock_accounts"), [did], [], False)
            if await fetch(connection, "untrack", did):
                await connection.execute(statement("purge_pending"), [did])
                return True
            await connection.execute(statement("fetch_instead"), did)
            return False

    async def change_account(self, change: AccountChange, now: datetime, want: Want | None = None) -> Applied:
        """Write an account's confirmed state, and with it what is wanted because of it."""
        return await self._store.apply(Batch(accounts={change.did: change}, wants=[want] if want else []), now)

    async def purge(self, check: Check, rev: str, now: datetime) -> Applied | None:
        """Take all of an account at or below a rev away; None, and nothing, if its state isn't what was checked."""

        async def before(context: Context) -> None:
            state = (await context.fetch("account_states", [check.did]))[0]
            if (state["status"], state["status_time"]) != (check.status, check.status_time):
                raise ClaimLostError

        change = AccountChange(check.did, check.status_time, check.active, check.status, purge_rev=rev)
        try:
            return (await self._transact(Batch(accounts={check.did: change}), check.did, now, before))[0]
        except ClaimLostError:
            return None

    async def want(self, wants: list[Want], now: datetime) -> None:
        """Record wants."""
        await self._store.apply(Batch(wants=wants), now)

    async def restart_discovery(self, source: str) -> None:
        """Let a source's host be asked anew, unless it has yet to be asked to the end."""
        await self._fetch("restart_ended_discovery", source)

    async def open_discoveries(self, source: str, collections: Sequence[str]) -> list[str]:
        """The collections that a source's host has not been asked for to the end."""
        await self._fetch("start_discovery", source, list(collections))
        return [row["collection"] for row in await self._fetch("open_discoveries", source)]

    async def discovery_page(self, source: str, collection: str) -> str | None:
        """The page to go on from."""
        rows = await self._fetch("discovery_page", source, collection)
        return rows[0]["page"] if rows else None

    async def note_discovery(self, source: str, collection: str, page: str | None) -> None:
        """Note the page to go on from; None: that was the last."""
        await self._fetch("note_discovery", source, collection, page)

    async def widen(
        self, source: str, patterns: Sequence[str], covers: Callable[[Sequence[str]], bool], lease: Lease | None
    ) -> bool:
        """Store the filter that a source is read with; whether it is wider than the one before (``covers`` tells).

        Where it is, discovery begins again. A source without a filter yet is not widened: it is new.
        Raises LeaseLostError.
        """
        rows = await self._fetch("source_filter", source)
        before = rows[0]["filter"] if rows else None
        widened = before is not None and not covers(before.split())
        if widened:
            await self._fetch("restart_discovery", source)
        await self._put_filter(source, patterns, lease)
        return widened

    async def _put_filter(self, source: str, patterns: Sequence[str], lease: Lease | None) -> None:
        async with self._store.connection("repair") as connection, connection.transaction():
            await fetch(connection, "put_source_filter", source, " ".join(patterns))
            await hold_lease(connection, lease)

    async def filters(self) -> dict[str, list[str]]:
        """The patterns that each source was read with last."""
        return {row["source"]: row["filter"].split() for row in await self._fetch("source_filters")}

    async def narrow(
        self, patterns: Sequence[str], covers: Callable[[Sequence[str]], bool], lease: Lease | None
    ) -> None:
        """Note that repositories are fetched under these patterns from now on, whatever source they are wanted by.

        A source that was read with more (``covers`` tells) is widened when it is read so again. Raises LeaseLostError.
        """
        for source, before in (await self.filters()).items():
            if not covers(before):
                await self._put_filter(source, patterns, lease)

    async def tracked(self) -> list[tuple[str, str, str | None]]:
        """Every tracked account: its last proven rev, and its key where one is known."""
        return [(row["did"], row["rev"], row["signing_key"]) for row in await self._fetch("tracked")]

    async def wants(self) -> tuple[dict[str, int], int]:
        """Open wants by reason, and how many commits are pending."""
        async with self._store.connection("count") as connection:
            reasons = {row["reason"]: row["repos"] for row in await fetch(connection, "wants_by_reason")}
            (total,) = await fetch(connection, "pending_total")
        return reasons, total["frames"]

    async def open_wants(
        self, tries: int, now: datetime, dids: Sequence[str] | None = None, without: Sequence[str] = ()
    ) -> tuple[int, int]:
        """How many wants are open (of ``dids``; None: of all), and how many were tried ``tries`` times in vain.

        Those of the accounts ``without`` don't count.
        """
        (row,) = await self._fetch("open_wants", tries, now, None if dids is None else list(dids), list(without))
        return row["open"], row["failed"]

    async def forgotten(self, dids: Sequence[str]) -> list[str]:
        """Those of these accounts that are forgotten."""
        return [row["did"] for row in await self._fetch("forgotten", list(dids))]

    async def cids(self, did: str) -> dict[str, tuple[str, str]]:
        """CID and rev of every public row of one repository, by path."""
        found: dict[str, tuple[str, str]] = {}
        for table in RECORD_TABLES:
            rows = await self._fetch("repo_cids", did, table=table)
            found.update((row["path"], (row["cid"], row["rev"])) for row in rows)
        return found

    async def records(self, dids: Sequence[str] | None = None) -> int:
        """How many records are kept (of ``dids``; None: of all)."""
        (row,) = await self._fetch("kept_records", None if dids is None else list(dids))
        return int(row["records"])

    async def retry(self) -> None:
        """Have every want tried anew, whatever earlier tries came to."""
        await self._fetch("retry_wants")


def _claim(row: asyncpg.Record) -> Claim:
    return Claim(
        id=row["claim_id"],
        did=row["did"],
        rev=row["rev"],
        want=row["want"],
        want_no=row["want_no"],
        reasons=frozenset(map(WantReason, row["want_reasons"])),
        wanted_rev=row["wanted_rev"],
        attempts=row["attempts"],
        behind=row["behind"],
        status=row["status"],
        hidden=row["hidden"],
        status_time=row["status_time"],
        purged_rev=row["purged_rev"],
        signing_key=row["signing_key"],
    )
