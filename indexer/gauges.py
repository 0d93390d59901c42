"""The gauges that are read from the database and its disk, again and again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from indexer.errors import DatabaseUnavailable
from indexer.metrics import Metrics
from indexer.pipeline import utc_now
from indexer.store import Store
from indexer.store.reports import read_ages, read_issues, read_place, read_records

INTERVAL = 15.0  # seconds between two readings of the same
PAUSE = 60  # or as many times as long as the reading took: counting shall take little of the database's time


async def read_gauges(store: Store, metrics: Metrics, measure_wants: Callable[[], Awaitable[None]]) -> None:
    """Read each at its own pace until cancelled, one at a time. While the database is away they stay as they are."""
    parts = (_read_ages, _read_place, _read_prompts, _read_records, _read_issues)
    readings: list[Callable[[], Awaitable[None]]] = [measure_wants, *(partial(part, store, metrics) for part in parts)]
    due = dict.fromkeys(range(len(readings)), monotonic())
    while True:
        number = min(due, key=due.__getitem__)
        await asyncio.sleep(max(0.0, due[number] - monotonic()))
        started = monotonic()
        with suppress(DatabaseUnavailable):
            await readings[number]()
        due[number] = monotonic() + max(INTERVAL, PAUSE * (monotonic() - started))


async def _read_ages(store: Store, metrics: Metrics) -> None:
    async with store.connection("count") as connection:
        ages = await read_ages(connection, utc_now())
    for name, value in ages.items():
        metrics.set_gauge(name, value)


async def _read_place(store: Store, metrics: Metrics) -> None:
    """How much the database takes, and how much room there is where it lies, if that is on this machine."""
    async with store.connection("count") as connection:
        size, folder = await read_place(connection)
    metrics.set_gauge("database_bytes", size)
    if folder is not None:
        with suppress(OSError):  # of another user, or of another container
            disk = await asyncio.to_thread(os.statvfs, folder)
            metrics.set_gauge("data_dir_size_bytes", disk.f_blocks * disk.f_frsize)
            metrics.set_gauge("data_dir_free_bytes", disk.f_bavail * disk.f_frsize)


async def _read_prompts(store: Store, metrics: Metrics) -> None:
    metrics.set_prompts(*await store.counts())


async def _read_records(store: Store, metrics: Metrics) -> None:
    async with store.connection("count") as connection:
        metrics.set_records(*await read_records(connection))


async def _read_issues(store: Store, metrics: Metrics) -> None:
    async with store.connection("count") as connection:
        metrics.set_issues(await read_issues(connection))
