"""Which repositories a source's host is asked for, when, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import time

import pytest

from indexer.config import load_settings
from indexer.daemon import build_pipeline, opened_store
from indexer.metrics import Metrics
from indexer.model import Want, WantReason
from indexer.simulator import World
from indexer.simulator.http_faults import Refuse
from indexer.simulator.pds import Pds
from indexer.verification import Verification, opened_verification
from tests.daemon_process import eventually
from tests.frames import PROMPT, key, prompt
from tests.indexing import Sql
from tests.trust.parts import wants

SOURCE = "firehose:test"
ASKED = "listReposByCollection"


@pytest.fixture
def world() -> World:
    """A network of three accounts with a prompt each."""
    world = World(seed=5, accounts=3, clock=lambda: datetime.now(UTC))
    for did in world.accounts:
        world.put(did, f"{PROMPT}/{key(1)}", prompt())
    return world


@pytest.fixture
async def relay(world: World) -> AsyncIterator[Pds]:
    """A relay that knows them all."""
    async with Pds(world, everything=True) as relay:
        yield relay


@asynccontextmanager
async def verification(database: str, **more: object) -> AsyncIterator[Verification]:
    """The parts of a daemon on that database, none of them running."""
    settings = load_settings({"database_url": database, "allow_private_hosts": True, **more}, {}, None)
    async with opened_store(settings, makes=True) as store:
        pipeline = build_pipeline(settings, store, Metrics(clock=time))
        async with opened_verification(settings, store, pipeline) as parts:
            yield parts


def address(relay: Pds) -> str:
    """The relay's firehose."""
    return relay.url.replace("http://", "ws://")


def asked(relay: Pds) -> int:
    """How often the relay was asked for the holders of a collection."""
    return sum(ASKED in request for request in relay.requests)


async def test_host_is_asked_once_for_each_collection(database: str, sql: Sql, world: World, relay: Pds) -> None:
    """A new source's host is asked for the holders of each known collection; a restart asks nothing again."""
    for _ in range(2):
        async with verification(database, once=True) as parts:
            await parts.discover(SOURCE, address(relay))
        assert asked(relay) == 4
    assert sorted(await wants(sql)) == sorted(world.accounts)


async def test_only_narrows_discovery_to_nothing(database: str, sql: Sql, world: World, relay: Pds) -> None:
    """With ``--only`` nobody is asked: the accounts are named already, and wanted."""
    one, *_ = world.accounts
    async with verification(database, once=True, only=[one]) as parts:
        await parts.load()
        await parts.discover(SOURCE, address(relay))
    assert (asked(relay), list(await wants(sql))) == (0, [one])


@pytest.mark.parametrize("reason", [WantReason.OUTDATED_CURSOR, WantReason.SEQUENCE_RESET])
async def test_loss_on_the_stream_begins_discovery_again(
    database: str, sql: Sql, world: World, relay: Pds, reason: WantReason
) -> None:
    """When events are lost, accounts may have come up unheard of: the host is asked anew, by a daemon that runs."""
    async with verification(database) as parts:
        task = asyncio.ensure_future(parts.discover(SOURCE, address(relay)))
        await relay.requested(ASKED, 4)
        newcomer = world.create_account().did
        world.put(newcomer, f"{PROMPT}/{key(1)}", prompt())
        parts.trust.want(Want("", reason))

        async def noticed() -> bool:
            return newcomer in await wants(sql)

        await eventually(noticed)
        task.cancel()
    assert sorted(await wants(sql)) == sorted(world.accounts)


@pytest.mark.parametrize("changed", [{"collections": ["xyz.quasigod.lab.*"]}, {}])
async def test_wider_filter_wants_everything_again(
    database: str, sql: Sql, world: World, relay: Pds, changed: dict[str, object]
) -> None:
    """A source read with more collections than before, or without its cursor, has its repositories looked at anew."""
    async with verification(database, once=True) as parts:
        await parts.begin(SOURCE)
        await parts.discover(SOURCE, address(relay))
    await sql.execute("update letta_store.repo set want = null, want_reasons = '{}'")
    async with verification(database, once=True, **changed) as parts:
        await parts.begin(SOURCE, missed=not changed)
        reason = "filter_widened" if changed else "outdated_cursor"
        assert await wants(sql) == {did: [reason] for did in world.accounts}
        await parts.discover(SOURCE, address(relay))
    assert asked(relay) == 8
    async with verification(database, once=True, **changed) as parts:
        await sql.execute("update letta_store.repo set want = null, want_reasons = '{}'")
        await parts.begin(SOURCE)
        assert await wants(sql) == {}


async def test_host_that_fails_is_asked_from_where_it_stopped(
    database: str, sql: Sql, world: World, relay: Pds
) -> None:
    """What was listed before a failure isn't asked for again; what wasn't is, by the next run."""
    relay.inject(Refuse("collection=xyz.quasigod.lab.letta.compiledPrompt", status=500, times=3))
    async with verification(database, once=True) as parts:
        await parts.discover(SOURCE, address(relay))
        assert (asked(relay), await wants(sql)) == (6, {})
        await parts.discover(SOURCE, address(relay))
    assert asked(relay) == 7
    assert sorted(await wants(sql)) == sorted(world.accounts)
