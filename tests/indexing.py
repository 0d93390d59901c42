"""Driving the real pipeline and store over frames, in a test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from indexer.intake import Intake
from indexer.metrics import Metrics
from indexer.pipeline import Clock, Pipeline, utc_now
from indexer.route import Router
from indexer.sources.base import Chunk, Item, Opened
from indexer.store import Limits, Store
from indexer.syntax import CollectionFilter
from indexer.trust import Word

if TYPE_CHECKING:
    Sql: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Sql = asyncpg.Connection

LETTA = "xyz.quasigod.lab.letta.*"


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A source whose frames a test hands over itself; positions count frames."""

    key: str = "file:test"
    label: str = "file:test"
    live: bool = False
    positions: str = "count"

    async def items(self, cursor: int | None) -> AsyncIterator[Item]:
        """Nothing: the test calls ``Intake.take``."""
        return
        yield Opened(cursor)


@dataclass(slots=True)
class Indexing:
    """A pipeline over a database: take frames in, commit when the test says so."""

    store: Store
    metrics: Metrics
    pipeline: Pipeline
    intake: Intake
    taken: int = 0

    async def take(self, frames: Iterable[bytes]) -> None:
        """Take frames in and commit them, as one batch."""
        chunk = list(frames)
        if chunk:
            await self.intake.take(Chunk(chunk, self.taken))
            self.taken += len(chunk)
        await self.pipeline.flush()

    def sample(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 where it has none."""
        value = self.metrics.registry.get_sample_value(f"letta_indexer_{name}", labels)
        return 0.0 if value is None else value


@asynccontextmanager
async def indexing(
    url: str,
    *,
    collections: Iterable[str] = (LETTA,),
    only: Iterable[str] = (),
    deny: Iterable[str] = (),
    limits: Limits | None = None,
    clock: Clock = utc_now,
) -> AsyncIterator[Indexing]:
    """The real parts, joined as the daemon joins them, over the database at ``url``."""

    async def dsn() -> str:
        return url

    store = Store(dsn, limits=limits)
    await store.open()
    metrics = Metrics(clock=time)
    router = Router(CollectionFilter(collections), only=only, deny=deny)
    # Batches end where the test flushes, never by size.
    pipeline = Pipeline(store, metrics, router, batch_rows=1 << 40, batch_bytes=1 << 50, clock=clock)
    try:
        yield Indexing(store, metrics, pipeline, Intake(pipeline, MemorySource(), Word(pipeline), None))  # type: ignore[arg-type]
    finally:
        await store.close()


def read_capture(path: Path) -> list[bytes]:
    """The frames of a capture file: each preceded by its length, 4 bytes big-endian."""
    data = path.read_bytes()
    frames, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return frames


ROWS = """
    select uri, cid, value, valid, proof is not null as verified from letta.record order by uri
"""
FLAGS = """
    select uri, freshness, stale_reasons, stale_since, evidence from letta.compiled_prompt order by uri
"""
HISTORY = """
    select uri, rev, cid, kind, previous_cid from letta.recompile order by uri, rev, cid
"""
UNTRUE_FLAGS = """
    select letta_store.uri_of(did, space, 'compiled_prompt', rkey) as uri
    from letta_store.freshness f full join letta_store.freshness_truth t using (did, space, rkey)
    where (f.freshness, f.stale_reasons) is distinct from (t.freshness, t.stale_reasons)
        or t.stale_reasons <> array(select distinct e ->> 'reason' from jsonb_array_elements(t.evidence) e order by 1)
        or t.stale_since is distinct from (
            select min(letta_store.rev_time(e ->> 'rev')) from jsonb_array_elements(t.evidence) e)
"""


async def contents(sql: Sql) -> dict[str, list[tuple[object, ...]]]:
    """All that has to be equal between two indexes of the same events: rows, flags and history."""
    return {
        "rows": [tuple(row) for row in await sql.fetch(ROWS)],
        "flags": [tuple(row) for row in await sql.fetch(FLAGS)],
        "history": [tuple(row) for row in await sql.fetch(HISTORY)],
    }


async def untrue_flags(sql: Sql) -> list[str]:
    """The prompts whose stored flags differ from what the defining view computes: none, at any time."""
    return [row["uri"] for row in await sql.fetch(UNTRUE_FLAGS)]
