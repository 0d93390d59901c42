"""The parts that ``--trust verify`` needs beside the stream, built from the settings and joined.

What runs is for the daemon to start: this only says which jobs there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from indexer.accounts import Accounts, Discovery
from indexer.config import Settings
from indexer.errors import DatabaseUnavailable
from indexer.identity import Resolver
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, MESSAGE, Want, WantReason
from indexer.outbound import Outbound
from indexer.pds import RepoHost
from indexer.pipeline import Pipeline
from indexer.repair import Pace, Repair
from indexer.store import Store
from indexer.store.repairs import Repairs
from indexer.syntax import CollectionFilter
from indexer.trust import Proof, Tracked

WORKERS = 16  # most of their time they wait for a host
TRIES = 3  # at a want under --once, all within 20 s
ONCE_PACE = Pace(first=0.5, longest=3.0)
KNOWN_COLLECTIONS = (AGENT, CONVERSATION, COMPILED_PROMPT, MESSAGE)

Job = Callable[[], Coroutine[Any, Any, None]]


class Verification:
    """Proofs on the stream, repair beside it. Made by :func:`opened_verification`."""

    def __init__(self, settings: Settings, store: Store, pipeline: Pipeline, outbound: Outbound) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._filter = CollectionFilter(settings.collections)
        self.repairs = Repairs(store)
        self.tracked = Tracked()
        self.trust = Proof(pipeline, self.tracked, on_loss=self._discover_again)
        self._discoveries: list[asyncio.Event] = []  # set: to be gone through again
        pipeline.listen(self.tracked.learn)
        self.resolver = resolver = Resolver(outbound, settings.plc_url)
        self.host = host = RepoHost(outbound)
        pace = ONCE_PACE if settings.once else None
        self._repair = Repair(self.repairs, resolver, host, pipeline, self.tracked, pace=pace)
        self._accounts = Accounts(
            self.repairs,
            resolver,
            host,
            pipeline,
            self.tracked,
            pace=pace,
            purge_after=timedelta(seconds=settings.purge_after),
        )
        self.discovery = Discovery(self.repairs, host, pipeline, self.tracked, pace=pace)

    async def load(self) -> None:
        """Learn what is tracked, forgetting what was known; want what ``--only`` names and isn't."""
        if self._settings.once:
            await self.repairs.retry()  # what earlier runs failed at counts for nothing
        tracked = await self.repairs.tracked()
        for did in list(self.tracked.revs):
            self.tracked.forget(did)
        for did, rev, key in tracked:
            self.tracked.follow(did, rev, key)
        await self.discovery.want_all([did for did in self._settings.only if did not in self.tracked])

    async def begin(self, source: str, *, missed: bool = False) -> None:
        """Note the filter that a source is read with; want everything again where it is wider than before.

        Any other source that was read with more is wanted again when that is done again.
        ``missed``: it is read from now on, whatever it gave before.
        """
        lease = self._pipeline.lease
        await self.repairs.narrow(self._settings.collections, self._covers, lease)
        widened = await self.repairs.widen(source, self._settings.collections, self._is_covered, lease)
        if widened or missed:
            reason = WantReason.FILTER_WIDENED if widened else WantReason.OUTDATED_CURSOR
            await self.repairs.want([Want("", reason)], self._pipeline.clock())

    def _is_covered(self, before: Sequence[str]) -> bool:
        return CollectionFilter(before).covers(self._filter)

    def _covers(self, before: Sequence[str]) -> bool:
        return self._filter.covers(CollectionFilter(before))

    async def wider(self) -> list[str]:
        """The sources that are read with more than this run's filter."""
        return [source for source, before in (await self.repairs.filters()).items() if not self._covers(before)]

    def jobs(self) -> list[tuple[str, Job]]:
        """What has to run beside the stream until the daemon ends."""
        return [*self.repair_jobs(), *self.account_jobs()]

    def repair_jobs(self) -> list[tuple[str, Job]]:
        """What meets wants: any number of daemons may, since each is claimed.

        Half of the workers keep clear of hosts that have failed: those that hang can't have all of them.
        """
        works = [partial(self._repair.work, fresh=number % 2 == 0) for number in range(WORKERS)]
        repairs = [(f"repair {number}", work) for number, work in enumerate(works)]
        return [*repairs, ("claims", self._repair.keep_claims)]

    def account_jobs(self) -> list[tuple[str, Job]]:
        """What asks about accounts: one daemon does, which has to know what is tracked, since nothing is claimed."""
        return [(f"accounts {number}", self._accounts.work) for number in range(WORKERS)]

    async def discover(self, source: str, url: str) -> None:
        """Ask a socket source's own host for the repositories it knows, and again when the stream has lost some.

        Under ``once`` it ends when that is done; nothing is asked twice.
        """
        if self._settings.only:
            return
        again = asyncio.Event()
        self._discoveries.append(again)
        origin = _origin(url)
        try:
            await self._ask(source, origin)
            while not self._settings.once:
                await again.wait()
                again.clear()
                await self._pipeline.flush()  # with it the store forgets how far it had come
                await self._ask(source, origin)
        finally:
            self._discoveries.remove(again)

    async def discover_anew(self, origin: str) -> bool:
        """Ask a host for all that it knows now; False if it didn't answer to the end."""
        source = f"backfill:{origin}"
        await self.repairs.restart_discovery(source)
        await self._ask(source, origin)
        return not await self.repairs.open_discoveries(source, ())

    def _discover_again(self) -> None:
        for again in self._discoveries:
            again.set()

    async def _ask(self, source: str, origin: str) -> None:
        named = [pattern for pattern in self._filter.patterns if not pattern.endswith("*")]
        wanted = list(dict.fromkeys([*filter(self._filter.matches, KNOWN_COLLECTIONS), *named]))
        with suppress(DatabaseUnavailable):
            await self.discovery.ask(source, origin, wanted, tries=TRIES if self._settings.once else None)

    async def settled(self, dids: Sequence[str] | None = None) -> int:
        """Wait until every want (of ``dids``; None: of all) is met or was tried three times in vain: how many were."""
        while True:
            await self._pipeline.flush()
            count, failed = await self.open_wants(TRIES, dids)
            if count == failed:
                return failed
            await asyncio.sleep(0.1)

    async def open_wants(self, tries: int, dids: Sequence[str] | None = None) -> tuple[int, int]:
        """How many wants that concern us (of ``dids``) are open, and how many were tried ``tries`` times in vain."""
        let_in = dids if dids is not None else self._settings.only or None
        return await self.repairs.open_wants(tries, self._pipeline.clock(), let_in, self._settings.deny)

    async def measure(self) -> None:
        """Bring the gauges of wants and pending up to date."""
        self._pipeline.metrics.set_work(*await self.repairs.wants())


def _origin(url: str) -> str:
    """Where the host of a firehose answers requests."""
    parts = urlsplit(url)
    return f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc.rpartition('@')[2]}"


@asynccontextmanager
async def opened_verification(settings: Settings, store: Store, pipeline: Pipeline) -> AsyncIterator[Verification]:
    """The parts, joined; their connections are closed at the end."""
    outbound = Outbound(allow_private_hosts=settings.allow_private_hosts)
    try:
        yield Verification(settings, store, pipeline, outbound)
    finally:
        await outbound.aclose()
