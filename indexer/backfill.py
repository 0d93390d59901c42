"""A run without sources: the repositories that are wanted are fetched, and that is all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from time import monotonic, time
from typing import NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from indexer.config import Settings
from indexer.daemon import build_pipeline, opened_store
from indexer.errors import SettingsError
from indexer.metrics import Metrics
from indexer.model import Reason
from indexer.pipeline import Pipeline
from indexer.verification import Verification, opened_verification

TICK = 0.5  # seconds between looks at the progress


async def backfill_repos(settings: Settings, dids: Sequence[str]) -> int:
    """Want these repositories, or those the relay lists, and fetch them; how many could not be had.

    Without ``dids`` those that ``--only`` names are taken before the relay is asked; a relay that doesn't answer counts
    as one failure. Raises SettingsError for what is no DID, for an account that is kept out or was forgotten, and for a
    filter narrower than that of a source: what is fetched so would pass for all that is followed.
    """
    once = settings.model_copy(update={"once": True})
    async with opened_store(settings, makes=True) as store:
        await store.open()
        pipeline = build_pipeline(once, store, Metrics(clock=time))
        _refuse(dids, pipeline)
        async with opened_verification(once, store, pipeline) as parts:
            for source in await parts.wider():
                raise SettingsError(f"backfill: --collections leaves out what {source} is read with: name that too")
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
    meter = await Meter.begin(parts, dids)
    with Display() as display:
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(job(), name=name) for name, job in parts.jobs()]
            jobs.append(group.create_task(_keep_shown(meter, display), name="progress"))
            failed = await parts.settled(dids)
            for task in jobs:
                task.cancel()
        display.show(await meter.read())
    sys.stdout.write(f"done: {failed} repositories could not be fetched\n" if failed else "done\n")
    return failed


async def _keep_shown(meter: Meter, display: Display) -> None:
    """Bring what is shown up to date until cancelled."""
    while True:
        display.show(await meter.read())
        await asyncio.sleep(TICK)


class Reading(NamedTuple):
    """Repositories fetched and to fetch in all, records that came with them, and how many a second."""

    done: int
    total: int
    records: int
    rate: float


class Meter:
    """How far the wants (of ``dids``; None: all) have come since it was made by :meth:`begin`."""

    def __init__(self, parts: Verification, dids: Sequence[str] | None, before: int) -> None:
        self._parts = parts
        self._dids = dids
        self._before = before
        self._started = monotonic()
        self._total = 0

    @classmethod
    async def begin(cls, parts: Verification, dids: Sequence[str] | None) -> Meter:
        """Measure from now on."""
        meter = cls(parts, dids, await parts.repairs.records(dids))
        await meter.read()
        return meter

    async def read(self) -> Reading:
        """What has been done so far."""
        left, _ = await self._parts.open_wants(1, self._dids)
        records = max(0, await self._parts.repairs.records(self._dids) - self._before)
        self._total = max(self._total, left)
        return Reading(self._total - left, self._total, records, records / max(monotonic() - self._started, TICK))


class Display:
    """Shows readings: a bar on a terminal, a line for each that is new elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._bar = Progress(
            *(TextColumn("repositories"), BarColumn(), MofNCompleteColumn()),
            *(TextColumn("{task.fields[records]} records, {task.fields[rate]:.0f}/s"), TimeRemainingColumn()),
            disable=not self._terminal,
        )
        self._task = self._bar.add_task("repositories", total=None, records=0, rate=0.0)
        self._line = ""

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, now: Reading) -> None:
        """Show a reading."""
        self._bar.update(self._task, completed=now.done, total=now.total, records=now.records, rate=now.rate)
        line = f"{now.done} of {now.total} repositories, {now.records} records"
        if not self._terminal and line != self._line:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            self._line = line
