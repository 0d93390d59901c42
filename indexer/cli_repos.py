"""The commands about repositories: ``backfill``, ``check`` and ``forget``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from time import time
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from indexer.audit import Difference, audit_index, audit_remote
from indexer.config import Settings
from indexer.daemon import build_pipeline, opened_store
from indexer.errors import SettingsError
from indexer.metrics import Metrics
from indexer.model import Want, WantReason
from indexer.pipeline import utc_now
from indexer.store import Store
from indexer.store.audits import Audits
from indexer.store.repairs import Repairs
from indexer.store.reports import to_json
from indexer.syntax import CollectionFilter, is_did
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


async def audit(settings: Settings, *, remote: bool, repair: bool) -> list[Difference]:
    """What differs, within the index and with ``remote`` from the hosts; with ``repair`` it is wanted anew."""
    async with opened_store(settings) as store:
        audits = Audits(store)
        found = [difference async for difference in audit_index(audits)]
        if remote:
            found += await _audit_hosts(settings, store, audits)
        if repair:
            dids = sorted({difference.did for difference in found if difference.did})
            await Repairs(store).want([Want(did, WantReason.CHECK) for did in dids], utc_now())
        return found


async def _audit_hosts(settings: Settings, store: Store, audits: Audits) -> list[Difference]:
    pipeline = build_pipeline(settings, store, Metrics(clock=time))
    async with opened_verification(settings, store, pipeline) as parts:
        prefixes = CollectionFilter(settings.collections).prefixes
        async with aclosing(audit_remote(audits, parts.resolver, parts.host, prefixes)) as differences:  # type: ignore[type-var]
            return [difference async for difference in differences]


async def forget(settings: Settings, did: str) -> None:
    """Purge an account, and don't index it again. Raises SettingsError for what is no DID."""
    if not is_did(did):
        raise SettingsError("forget: expected a DID, such as did:plc:…")
    async with opened_store(settings) as store:
        await Audits(store).forget(did, utc_now())


def show_differences(found: list[Difference], *, as_json: bool) -> None:
    """Print what differs, one line each, or as JSON."""
    if as_json:
        sys.stdout.write(to_json([asdict(difference) for difference in found]) + "\n")
        return
    for difference in found:
        sys.stdout.write(f"{difference.kind:12} {difference.subject}\n{'':12} {difference.detail}\n")
    sys.stdout.write(f"{len(found)} differences\n" if found else "no differences\n")


Dids = Annotated[list[str] | None, typer.Argument(metavar="[DID]...", help="Repositories; without any: discover them")]
