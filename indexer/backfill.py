"""A run without sources: the repositories that are wanted are fetched, and that is all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from time import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from indexer.config import Settings
from indexer.daemon import build_pipeline, opened_store
from indexer.metrics import Metrics
from indexer.pipeline import utc_now
from indexer.verification import Verification, opened_verification

TICK = 0.5  # seconds between looks at the progress


async def backfill_repos(settings: Settings, dids: Sequence[str]) -> int:
    """Want these repositories, or those the relay lists, and fetch them; how many could not be had."""
    once = settings.model_copy(update={"once": True, "only": ()})
    async with opened_store(settings) as store:
        await store.open()
        pipeline = build_pipeline(once, store, Metrics(clock=time))
        async with opened_verification(once, store, pipeline) as parts:
            await parts.load()
            if dids:
                await parts.discovery.want_all(dids)
            else:
                await parts.discover("backfill:" + settings.relay_url, "ws" + settings.relay_url.removeprefix("http"))
            return await _fetch_all(parts)


async def _fetch_all(parts: Verification) -> int:
    """Run the repair jobs until every want is met or has failed, saying how far they are."""
    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(job(), name=name) for name, job in parts.jobs()]
        shown = group.create_task(_show_progress(parts), name="progress")
        failed = await parts.settled()
        for task in (*jobs, shown):
            task.cancel()
    sys.stdout.write(f"done: {failed} repositories could not be fetched\n" if failed else "done\n")
    return failed


async def _show_progress(parts: Verification) -> None:
    total, _ = await parts.repairs.open_wants(1, utc_now())
    columns = (
        TextColumn("repositories"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    if not sys.stdout.isatty():
        sys.stdout.write(f"{total} repositories to fetch\n")
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("repositories", total=total)
        shown = -1
        while True:
            left, _ = await parts.repairs.open_wants(1, utc_now())
            progress.update(bar, completed=max(0, total - left), total=max(total, left))
            if not sys.stdout.isatty() and left != shown:
                sys.stdout.write(f"{total - left} of {total} repositories\n")
                sys.stdout.flush()
                shown = left
            await asyncio.sleep(TICK)
