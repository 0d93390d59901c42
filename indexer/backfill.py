"""A run without sources: the repositories that are wanted are fetched, and that is all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from time import monotonic, time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from indexer.config import Settings
from indexer.daemon import build_pipeline, opened_store
from indexer.errors import SettingsError
from indexer.metrics import Metrics
from indexer.model import Reason
from indexer.pipeline import Pipeline, utc_now
from indexer.verification import Verification, opened_verification

TICK = 0.5  # seconds between looks at the progress


async def backfill_repos(settings: Settings, dids: Sequence[str]) -> int:
    """Want these repositories, or those the relay lists, and fetch them; how many could not be had.

    Without ``dids`` those that ``--only`` names are taken before the relay is asked; a relay that doesn't answer counts
    as one failure. Raises SettingsError for what is no DID, and for an account that is kept out or was forgotten.
    """
    once = settings.model_copy(update={"once": True})
    async with opened_store(settings) as store:
        await store.open()
        pipeline = build_pipeline(once, store, Metrics(clock=time))
        _refuse(dids, pipeline)
        async with opened_verification(once, store, pipeline) as parts:
            await parts.load()
            if named := list(dids or settings.only):
                for did in await parts.repairs.forgotten(named):
                    raise SettingsError(f"backfill: {did} was forgotten, which is for good")
                await parts.discovery.want_all(named)
                return await _fetch_all(parts, named)
            complete = await parts.discover_anew(settings.relay_url)
            if not complete:
                sys.stdout.write(
                    f"{settings.relay_url} did not list all repositories; the next run goes on from there\n"
                )
            return await _fetch_all(parts, None) + (not complete)


def _refuse(dids: Sequence[str], pipeline: Pipeline) -> None:
    """Raise SettingsError if any of these accounts isn't let in."""
    for did in dids:
        refusal = pipeline.router.refusal(did)
        if refusal is not None:
            raise SettingsError(
                f"backfill: {did!r} is {'kept out by --only or --deny' if refusal is Reason.DENIED else 'no DID'}"
            )


async def _fetch_all(parts: Verification, dids: Sequence[str] | None) -> int:
    """Run the repair jobs until every want (of ``dids``; None: of all) is met or has failed; say how far they are."""
    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(job(), name=name) for name, job in parts.jobs()]
        shown = group.create_task(_show_progress(parts, dids), name="progress")
        failed = await parts.settled(dids)
        for task in (*jobs, shown):
            task.cancel()
    sys.stdout.write(f"done: {failed} repositories could not be fetched\n" if failed else "done\n")
    return failed


async def _show_progress(parts: Verification, dids: Sequence[str] | None) -> None:
    """A bar on a terminal, a line for each change elsewhere; until cancelled."""
    terminal = sys.stdout.isatty()
    columns = (
        *(TextColumn("repositories"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[records]} records, {task.fields[rate]:.0f}/s"), TimeRemainingColumn()),
    )
    with Progress(*columns, disable=not terminal) as progress:
        bar = progress.add_task("repositories", total=None, records=0, rate=0.0)
        shown = ""
        async for done, total, records, rate in _progress(parts, dids):
            progress.update(bar, completed=done, total=total, records=records, rate=rate)
            line = f"{done} of {total} repositories, {records} records"
            if not terminal and line != shown:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
                shown = line


async def _progress(parts: Verification, dids: Sequence[str] | None) -> AsyncIterator[tuple[int, int, int, float]]:
    """Repositories fetched and to fetch in all, records that came with them, and how many a second."""
    started = monotonic()
    total, _ = await parts.repairs.open_wants(1, utc_now(), dids)
    before = await parts.repairs.records(dids)
    while True:
        left, _ = await parts.repairs.open_wants(1, utc_now(), dids)
        records = max(0, await parts.repairs.records(dids) - before)
        total = max(total, left)
        yield total - left, total, records, records / max(monotonic() - started, TICK)
        await asyncio.sleep(TICK)
