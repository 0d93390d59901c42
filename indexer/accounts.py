"""Beside wants: accounts to be asked about, strangers to be probed, repositories to be discovered.

None of these is a want, and none ever fails a run: they are asked again for a while, then left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from indexer.errors import BatchRefused, DatabaseUnavailable, IdentityError
from indexer.identity import IdentityGone, Resolver
from indexer.model import AccountChange, Want, WantReason
from indexer.outbound import FetchFailed
from indexer.pds import NOT_FOUND, RepoHost
from indexer.pipeline import Pipeline, micros
from indexer.repair import Pace
from indexer.route import Router
from indexer.store.repairs import Check, Repairs
from indexer.syntax import tid_of
from indexer.trust import Tracked

PROBES = 3  # tries to ask a stranger's host what it holds
ROUND = 20  # accounts looked at in one go
IDLE = 1.0  # seconds between rounds
PURGE_AFTER = timedelta(hours=24)  # that a deleted account's host may be unreachable before its rows go anyway

_log = structlog.stdlib.get_logger("indexer.accounts")


class Accounts:
    """Confirms account states with the hosts that answer for them, and asks about strangers."""

    def __init__(
        self,
        repairs: Repairs,
        resolver: Resolver,
        host: RepoHost,
        pipeline: Pipeline,
        tracked: Tracked,
        *,
        pace: Pace | None = None,
        purge_after: timedelta = PURGE_AFTER,
    ) -> None:
        self._repairs = repairs
        self._resolver = resolver
        self._host = host
        self._pipeline = pipeline
        self._tracked = tracked
        self._pace = pace or Pace(first=2.0)
        self._purge_after = purge_after
        self._in_hand: set[str] = set()

    async def work(self) -> None:
        """Attend to checks and probes that are due, one at a time. Run as many of these as there shall be workers."""
        while True:
            attended = False
            with suppress(DatabaseUnavailable):
                attended = await self.attend()
            if not attended:
                await asyncio.sleep(IDLE)

    async def attend(self) -> bool:
        """Take on what is due longest and in nobody's hands; False if there is nothing. Raises DatabaseUnavailable."""
        now = self._pipeline.clock()
        for check in await self._repairs.due_checks(now, ROUND):
            if check.did not in self._in_hand:
                await self._take(check.did, self._check(check))
                return True
        for did, attempts in await self._repairs.due_probes(now, ROUND):
            if did not in self._in_hand:
                await self._take(did, self._probe(did, attempts))
                return True
        return False

    async def _take(self, did: str, work: Coroutine[object, object, None]) -> None:
        self._in_hand.add(did)
        try:
            await work
        finally:
            self._in_hand.discard(did)

    async def _check(self, check: Check) -> None:
        """Ask about an account; where nobody answers, or answers what can't be kept, again later."""
        began = self._pipeline.clock()
        try:
            await self._ask(check, began)
        except (BatchRefused, FetchFailed, IdentityError) as error:
            _log.info("account not confirmed yet", did=check.did, status=check.status, error=str(error))
            pause = timedelta(seconds=self._pace.after(check.checks))
            await self._repairs.postpone_check(check.did, began, self._pipeline.clock() + pause)
        else:
            await self._repairs.end_check(check.did, began)

    async def _ask(self, check: Check, began: datetime) -> None:
        """Ask who an account is now, and where it is away whether its current host says so too."""
        try:
            identity = await self._resolver.resolve(check.did, fresh=True)
            now = self._pipeline.clock()
            key = identity.signing_key
            if await self._repairs.put_identity(check.did, key.did_key(), identity.pds, identity.handle, began, now):
                self._tracked.learn_key(check.did, key)
            if not check.active:
                await self._confirm(check, identity.pds)
        except IdentityGone:
            await self._gone(check)
        except (FetchFailed, IdentityError):
            if not self._is_overdue(check):
                raise
            await self._purge(check)

    async def _confirm(self, check: Check, pds: str | None) -> None:
        if pds is None:
            raise FetchFailed(f"{check.did} names no host")
        status = await self._host.get_repo_status(pds, check.did)
        if status.active:
            await self._correct(check, "active", active=True)  # an old host's word doesn't count
        elif status.status in ("deleted", NOT_FOUND):
            await self._gone(check)
        elif status.status not in (check.status, None):
            await self._correct(check, status.status, active=False)

    async def _gone(self, check: Check) -> None:
        """The account is no more: purge it, but where nobody had told of it only if that is so the next time too."""
        if check.status == "deleted":
            await self._purge(check)
        else:
            await self._correct(check, "deleted", active=False)
            raise FetchFailed(f"{check.did} is gone, which is to be confirmed")

    async def _correct(self, check: Check, status: str, *, active: bool) -> None:
        """The current host says otherwise: its word is a moment younger than the event that it corrects.

        A repository that is back by that is fetched, but not before its time: a host that contradicts itself gains
        nothing by it.
        """
        later = check.status_time + timedelta(microseconds=1)
        change = AccountChange(check.did, later, active, status)
        returned = active and check.hidden and check.did in self._tracked
        want = Want(check.did, WantReason.OUTDATED_CURSOR) if returned else None
        self._pipeline.learn(await self._repairs.change_account(change, self._pipeline.clock(), want))

    def _is_overdue(self, check: Check) -> bool:
        """Whether a deleted account's host has not been reached for too long."""
        return check.status == "deleted" and self._pipeline.clock() - check.status_time >= self._purge_after

    async def _purge(self, check: Check) -> None:
        """Take everything of an account away, unless it has been heard of again since it was to be asked about."""
        rev = tid_of(max(0, micros(check.status_time)), 1023)  # of its host's clock, which its revs may be ahead of
        applied = await self._repairs.purge(check, max(rev, check.rev), self._pipeline.clock())
        if applied is not None:
            self._pipeline.learn(applied)

    async def _probe(self, did: str, attempts: int) -> None:
        """Ask a stranger's host whether it holds what we follow; only then is the account tracked."""
        try:
            identity = await self._resolver.resolve(did)
            if identity.pds is None:
                raise FetchFailed(f"{did} names no host")
            collections = await self._host.describe_repo(identity.pds, did)
        except (FetchFailed, IdentityError):
            if attempts + 1 >= PROBES:
                await self._repairs.end_probe(did)
            else:
                pause = timedelta(seconds=self._pace.after(attempts + 1))
                await self._repairs.postpone_probe(did, self._pipeline.clock() + pause)
            return
        if any(f"{name}/".startswith(self._pipeline.router.prefixes) for name in collections):
            self._tracked.follow(did)
            await self._repairs.want([Want(did, WantReason.FIRST_SEEN)], self._pipeline.clock())
        await self._repairs.end_probe(did)


class Discovery:
    """Asks a source's own host for the repositories that hold what we follow, page by page, resumable."""

    def __init__(
        self, repairs: Repairs, host: RepoHost, pipeline: Pipeline, tracked: Tracked, *, pace: Pace | None = None
    ) -> None:
        self._repairs = repairs
        self._host = host
        self._pipeline = pipeline
        self._tracked = tracked
        self._pace = pace or Pace(first=2.0)

    async def want_all(self, dids: Sequence[str], reason: WantReason = WantReason.BACKFILL) -> int:
        """Want these repositories, those that the filter lets in; how many they are."""
        router: Router = self._pipeline.router
        wanted = [did for did in dids if router.refusal(did) is None]
        for did in wanted:
            self._tracked.follow(did)
        if wanted:
            await self._repairs.want([Want(did, reason) for did in wanted], self._pipeline.clock())
        return len(wanted)

    async def ask(self, source: str, origin: str, collections: Sequence[str], *, tries: int | None = None) -> int:
        """Want every repository that the host at ``origin`` lists for a collection, from where it was left off.

        Returns how many were named. After ``tries`` failures in a row it is left for another run (None: never).
        """
        found = 0
        for collection in await self._repairs.open_discoveries(source, collections):
            found += await self._collection(source, origin, collection, tries)
        return found

    async def _collection(self, source: str, origin: str, collection: str, tries: int | None) -> int:
        found = failures = 0
        while tries is None or failures < tries:
            page = await self._repairs.discovery_page(source, collection)
            try:
                async for answer in self._host.list_repos_by_collection(origin, collection, page, trusted=True):
                    found += await self.want_all(answer.dids)
                    await self._repairs.note_discovery(source, collection, answer.cursor)
                    failures = 0
            except FetchFailed as error:
                failures += 1
                _log.info("discovery interrupted", source=source, collection=collection, error=str(error))
                pause = max(error.retry_after or 0.0, self._pace.after(failures))
            except (BatchRefused, DatabaseUnavailable):
                failures += 1
                pause = self._pace.after(failures)
            else:
                break
            if failures != tries:
                await asyncio.sleep(pause)
        return found
