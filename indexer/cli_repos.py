"""The commands about repositories: ``backfill``, ``check`` and ``forget``."""

from __future__ import annotations

import sys
from contextlib import aclosing
from dataclasses import asdict
from time import time
from typing import Annotated

import typer

from indexer.audit import UNREACHABLE, Difference, audit_index, audit_remote
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
from indexer.store.spaces import Spaces
from indexer.syntax import CollectionFilter, is_did, parse_space_uri
from indexer.verification import opened_verification


async def audit(settings: Settings, *, remote: bool, repair: bool) -> list[Difference]:
    """What differs, within the index and with ``remote`` from the hosts.

    With ``repair`` flags are computed anew, and the repositories of wrong records wanted.
    """
    async with opened_store(settings, makes=False) as store:
        audits = Audits(store)
        found = [difference async for difference in audit_index(audits)]
        if remote:
            found += await _audit_hosts(settings, store, audits)
        if repair:
            await audits.refresh([one.subject for one in found if one.kind == "flags"], utc_now())
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
    """Purge an account or a space, and don't index it again. Raises SettingsError for what is neither."""
    space = parse_space_uri(did)
    if space is not None:
        async with opened_store(settings, makes=False) as store:
            await Spaces(store).remove(space, (), utc_now(), forget=True)
        return
    if not is_did(did):
        raise SettingsError("forget: expected a DID, such as did:plc:…, or a space's URI")
    async with opened_store(settings, makes=False) as store:
        await Audits(store).forget(did, utc_now())


def show_differences(found: list[Difference], *, as_json: bool) -> None:
    """Print what differs, one line each, or as JSON."""
    if as_json:
        sys.stdout.write(to_json([asdict(difference) for difference in found]) + "\n")
        return
    for one in found:
        sys.stdout.write(f"{one.kind:12} {one.subject}\n{'':12} {one.detail}\n")
    differences, unasked = counted(found)
    sys.stdout.write(f"{differences or 'no'} differences\n")
    if unasked:
        sys.stdout.write(f"{unasked} could not be asked\n")


def counted(found: list[Difference]) -> tuple[int, int]:
    """How many differences there are, and how many repositories could not be compared."""
    unasked = sum(one.kind == UNREACHABLE for one in found)
    return len(found) - unasked, unasked


Dids = Annotated[list[str] | None, typer.Argument(metavar="[DID]...", help="Repositories; without any: discover them")]
