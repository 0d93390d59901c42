"""The gauges that are read from the database, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic

from indexer.errors import DatabaseUnavailable
from indexer.metrics import Metrics
from indexer.store import Store

INTERVAL = 15.0  # seconds between readings
PAUSE = 20  # or as many times as long as the reading took: counting shall take little of the database's time


async def read_gauges(store: Store, metrics: Metrics, measure_wants: Callable[[], Awaitable[None]]) -> None:
    """Read them until cancelled. While the database is away they stay as they are."""
    while True:
        started = monotonic()
        with suppress(DatabaseUnavailable):
            metrics.set_prompts(*await store.counts())
            await measure_wants()
        await asyncio.sleep(max(INTERVAL, PAUSE * (monotonic() - started)))
