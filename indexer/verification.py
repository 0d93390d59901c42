"""The parts that ``--trust verify`` needs beside the stream, built from the settings and joined.

What runs is for the daemon to start: this only says which jobs there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from indexer.accounts import Accounts, Discovery
from indexer.config import Settings
from indexer.errors import DatabaseUnavailable
from indexer.identity import Resolver
from indexer.keys import PublicKey
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, MESSAGE, Want, WantReason
from indexer.outbound import Outbound
from indexer.pds import RepoHost
from indexer.pipeline import Pipeline
from indexer.repair import Pace, Repair
from indexer.store import Store
from indexer.store.repairs import Repairs
from indexer.syntax import CollectionFilter
from indexer.trust import Proof, Tracked

WORKERS = 4
TRIES = 3  # at a want under --once, all within 20 s
ONCE_PACE = Pace(first=0.5, longest=3.0)
KNOWN_COLLECTIONS = (AGENT, CONVERSATION, COMPILED_PROMPT, MESSAGE)
STATES_KEPT = timedelta(days=7)  # of accounts that hold nothing here

Job = Callable[[], Coroutine[Any, Any, None]]


class Verification:
    """Proofs on the stream, repair beside it. Made by :func:`opened_verification`."""

    def __init__(self, settings: Settings, store: Store, pipeline: Pipeline, outbound: Outbound) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._filter = CollectionFilter(settings.collections)
        self.repairs = Repairs(store)
        self.tracked = Tracked()
        self.trust = Proof(pipeline, self.tracked)
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
        """Learn what is tracked, and want what ``--only`` names and isn't."""
        for did, rev, key in await self.repairs.tracked():
            self.tracked.follow(did, rev)
            if key is not None:
                self.tracked.learn_key(did, PublicKey.parse(key))
        await self.discovery.want_all([did for did in self._settings.only if did not in self.tracked])

    async def begin(self, source: str) -> None:
        """Note the filter that a source is read with; want everything again where it is wider than before."""
        if await self.repairs.widen(source, self._settings.collections, self._is_covered):
            await self.repairs.want([Want("", WantReason.FILTER_WIDENED)], self._pipeline.clock())

    def _is_covered(self, before: Sequence[str]) -> bool:
        return CollectionFilter(before).covers(self._filter)

    def jobs(self) -> list[tuple[str, Job]]:
        """What has to run beside the stream until the daemon ends."""
        repairs = [(f"repair {number}", self._repair.work) for number in range(WORKERS)]
        return [*repairs, ("accounts", self._accounts.work)]

    async def discover(self, source: str, url: str) -> None:
        """Ask a socket source's own host for the repositories it knows; nothing is asked twice."""
        if self._settings.only:
            return
        parts = urlsplit(url)
        origin = f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc.rpartition('@')[2]}"
        wanted = [name for name in KNOWN_COLLECTIONS if self._filter.matches(name)]
        with suppress(DatabaseUnavailable):
            await self.discovery.ask(source, origin, wanted, tries=TRIES if self._settings.once else None)

    async def settled(self) -> int:
        """Wait until every want is met or has been tried three times in vain; how many were in vain."""
        while True:
            await self._pipeline.flush()
            count, failed = await self.repairs.open_wants(TRIES, self._pipeline.clock())
            if count == failed:
                return failed
            await asyncio.sleep(0.1)

    async def measure(self) -> None:
        """Bring the gauges of wants and pending up to date, and forget states that are of no use any more."""
        self._pipeline.metrics.set_work(*await self.repairs.wants())
        await self.repairs.prune(self._pipeline.clock() - STATES_KEPT)


@asynccontextmanager
async def opened_verification(settings: Settings, store: Store, pipeline: Pipeline) -> AsyncIterator[Verification]:
    """The parts, joined; their connections are closed at the end."""
    outbound = Outbound(allow_private_hosts=settings.allow_private_hosts)
    try:
        yield Verification(settings, store, pipeline, outbound)
    finally:
        await outbound.aclose()
