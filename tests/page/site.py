"""The page as it is served: the real HTTP server and store, over a test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from indexer.config_values import Listen
from indexer.http import HttpServer
from indexer.metrics import Metrics
from indexer.page import page_routes
from indexer.page.shown import link
from indexer.store import Limits, Store
from indexer.store.pages import Pages
from tests.indexing import Indexing, indexing
from tests.page.garden import BEDS, GARDENER, ROSA, garden
from tests.store.batches import NOW

KEEPING = Limits(keep_content=True)


@dataclass
class Site:
    """A running page: its address, the index behind it, and what it is told of the daemon's readiness."""

    url: str
    index: Indexing
    reasons: list[str] = field(default_factory=list)

    async def readiness(self) -> list[str]:
        """What the test says."""
        return self.reasons

    @property
    def store(self) -> Store:
        """The store behind it."""
        return self.index.store


@asynccontextmanager
async def served(
    database: str,
    *,
    listen: str = "127.0.0.1",
    token: str | None = None,
    file: Path | None = None,
    limits: Limits = KEEPING,
) -> AsyncIterator[Site]:
    """The page over the database, as the daemon serves it for these settings; on loopback, whatever ``listen`` says."""
    async with indexing(database, limits=limits) as index:
        site = Site("", index)
        word = None if token is None else SecretStr(token)
        routes = page_routes(Pages(index.store), Listen(listen, 0), word, file, site.readiness)
        server = HttpServer(Listen("127.0.0.1", 0), Metrics(lambda: 0.0), readiness=site.readiness, routes=routes)
        await server.start()
        site.url = server.url
        try:
            yield site
        finally:
            await server.stop()


@asynccontextmanager
async def garden_site(database: str) -> AsyncIterator[Site]:
    """The page over the records of :mod:`tests.page.garden`."""
    async with served(database) as site:
        for frame in garden():
            await site.index.take([frame])
        await site.store.set_source_state("firehose:relay.example", "live", None, NOW)
        yield site


KINDS = {
    "overview": "/",
    "stale": "/stale",
    "agents": "/agents",
    "agent": link("/agent", did=ROSA, rkey=GARDENER.rkey),
    "repositories": link("/repos", state="current"),
    "repository": link("/repo", did=ROSA),
    "prompt": link("/prompt", did=ROSA, rkey=BEDS),
    "difference": link("/difference", did=ROSA, rkey=BEDS),
    "trouble": link("/repo", did="did:plc:nobody"),
}
