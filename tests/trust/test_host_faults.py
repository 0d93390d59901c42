"""Faults of hosts: whatever an account's host answers, or doesn't, costs that account some time and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from indexer.model import Reason, Want, WantReason
from indexer.repair import Repair
from indexer.simulator import events
from indexer.simulator.alterations import cut_car
from indexer.simulator.archive import read_car, write_car
from indexer.simulator.clock import microseconds, tid
from indexer.simulator.dagcbor import cid_of, decode, encode
from indexer.simulator.faults import RestoredBackup
from indexer.simulator.http_faults import AlterBody, BreakOff, Hang, Refuse, RequestFault
from indexer.simulator.keys import Secp256k1Key
from indexer.simulator.oracle import PREFIX
from indexer.simulator.repository import Repository
from indexer.store.repairs import Repairs
from tests.indexing import Sql
from tests.trust.network import During, Simulation, compiles, simulation
from tests.trust.steps import connected

GET_REPO = "sync.getRepo?"


def _cut_inside(car: bytes) -> bytes:
    """The CAR ends within a block."""
    return cut_car(car, Random(5), inside=True)


def _cut_between(car: bytes) -> bytes:
    """The CAR ends after its second block, without a record."""
    roots, blocks = read_car(car)
    return write_car(roots, blocks[:2])


def _flip(car: bytes) -> bytes:
    """One bit of the tree's root is another."""
    roots, (commit, (cid, node), *others) = read_car(car)
    return write_car(roots, [commit, (cid, node[:-1] + bytes((node[-1] ^ 1,))), *others])


def _resign(car: bytes) -> bytes:
    """The same repository under a stranger's signature."""
    _, ((_, block), *others) = read_car(car)
    unsigned = {name: value for name, value in decode(block)[0].items() if name != "sig"}
    commit = encode(unsigned | {"sig": Secp256k1Key(b"stranger").sign(encode(unsigned))})
    return write_car([cid_of(commit)], [(cid_of(commit), commit), *others])


FAULTS: dict[str, tuple[Callable[[], RequestFault], str]] = {
    "a CAR cut within a block": (lambda: AlterBody(GET_REPO, _cut_inside, times=2), ""),
    "a CAR cut between blocks": (lambda: AlterBody(GET_REPO, _cut_between, times=2), ""),
    "a flipped bit": (lambda: AlterBody(GET_REPO, _flip, times=2), ""),
    "a connection cut off": (lambda: BreakOff(GET_REPO, times=2), ""),
    "no CAR at all": (lambda: AlterBody(GET_REPO, lambda car: b"<html>", times=2), ""),
    "a stranger's signature": (lambda: AlterBody(GET_REPO, _resign, times=2), "not signed"),
    "429": (lambda: Refuse(GET_REPO, status=429, retry_after="120", times=2), "429"),
    "503": (lambda: Refuse(GET_REPO, status=503, times=2), "503"),
    "500": (lambda: Refuse(GET_REPO, status=500, times=2), "500"),
    "silence": (lambda: Hang(GET_REPO, times=1), ""),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_host_that_fails(database: str, sql: Sql, name: str) -> None:
    """A repository that can't be fetched is asked for again, the reason can be read, and nothing false is indexed."""
    make, reason = FAULTS[name]
    async with simulation(database, sql, seed=21) as sim:
        await sim.begin()
        fault = sim.pds.inject(make())
        sim.unseen()
        await sim.hear()
        await sim.settle()
        assert fault.injected
        assert any(reason in error for error in sim.errors)
        await sim.end()


async def test_host_that_gives_another_repository(database: str, sql: Sql) -> None:
    """A repository that is another account's, however well signed, isn't taken for the one asked for."""
    async with simulation(database, sql, seed=19) as sim:
        await sim.begin()
        did = sim.unseen()
        other = next(account.repository for account in sim.accounts if account.did != did)
        sim.pds.inject(AlterBody(GET_REPO, lambda _: other.export(), times=2))
        await sim.hear()
        await sim.end()
        assert any("another account's" in error for error in sim.errors)


async def test_host_that_trickles(database: str, sql: Sql) -> None:
    """An answer that comes too slowly is given up, and asked for again."""
    async with simulation(database, sql, seed=20) as sim:
        await sim.begin()
        sim.unseen()
        await sim.hear()
        sim.drag = 60.0
        assert await sim.parts.repair.attend()
        sim.drag = 0.0
        await sim.end()
        assert any("too slow" in error for error in sim.errors)


async def test_failing_directory(database: str, sql: Sql) -> None:
    """Where the directory doesn't answer commits wait, and count once it does."""
    async with simulation(database, sql, seed=22) as sim:
        fault = sim.plc.inject(Refuse(status=503, times=8))
        sim.live(40)
        await sim.hear()
        await sim.settle()
        assert fault.injected == 8
        assert "unknown_key" in sim.wanted
        assert any("503" in error for error in sim.errors)
        await sim.equal()


async def test_sync_to_a_state_nobody_saw(database: str, sql: Sql) -> None:
    """A head without operations is fetched."""
    async with simulation(database, sql, seed=23) as sim:
        await sim.begin()
        before = sim.fetches
        sim.unseen()
        await sim.hear()
        assert "sync" in sim.wanted
        await sim.settle()
        assert sim.fetches == before + 1
        await sim.equal()


async def test_repository_too_busy_to_be_caught(database: str, sql: Sql) -> None:
    """Commits that come while a repository is on its way chain on from it: it needn't ever stand still."""
    async with simulation(database, sql, seed=24) as sim:
        await sim.begin()
        did = sim.unseen()

        async def go_on() -> None:
            for _ in range(3):
                sim.world.put(did, f"{PREFIX}note/{sim.world.rkey()}", {"$type": f"{PREFIX}note"})
                await sim.hear()

        fault = sim.pds.inject(During(GET_REPO, go_on))
        before = sim.fetches
        await sim.hear()
        await sim.settle()
        assert fault.injected == sim.fetches - before == 1
        assert "gap" in sim.wanted
        await sim.equal()


async def test_commits_that_a_fetch_overtakes_again_and_again(database: str, sql: Sql) -> None:
    """Where commits go missing during every fetch, each fetch still brings the index as far as it reached."""
    async with simulation(database, sql, seed=25) as sim:
        await sim.begin()

        async def lose_some() -> None:
            sim.unseen()
            sim.world.put(sim.did, f"{PREFIX}note/{sim.world.rkey()}", {"$type": f"{PREFIX}note"})
            await sim.hear()

        fault = sim.pds.inject(During(GET_REPO, lose_some, times=3))
        sim.unseen()
        await sim.hear()
        await sim.settle()
        assert fault.injected == 3
        await sim.equal()


async def test_account_deleted_while_it_is_fetched(database: str, sql: Sql) -> None:
    """A repository that was on its way when its account went brings nothing back."""
    async with simulation(database, sql, seed=26) as sim:
        await sim.begin()
        did = sim.unseen()

        async def go() -> None:
            sim.world.delete_account(did)
            await sim.hear()
            await sim.parts.ask()  # its host confirms, and it is purged

        fault = sim.pds.inject(During(GET_REPO, go, times=1))
        await sim.hear()
        await sim.settle()
        assert fault.injected
        await sim.end()
        assert not await sql.fetchval("select count(*) from letta_store.compiled_prompt where did = $1", did)


@asynccontextmanager
async def another_repair(sim: Simulation, database: str) -> AsyncIterator[Repair]:
    """One more repair worker, with a connection to the database of its own."""
    store = connected(database)
    try:
        yield Repair(Repairs(store), sim.resolver, sim.host, sim.parts.index.pipeline, sim.parts.tracked)
    finally:
        await store.close()


async def test_two_repairs_of_one_repository(database: str, sql: Sql) -> None:
    """A repair whose claim ran out while it hung writes nothing over what another has fetched meanwhile."""
    async with simulation(database, sql, seed=27) as sim, another_repair(sim, database) as other:
        await sim.begin()
        hang, before = sim.pds.inject(Hang(GET_REPO, times=1)), sim.fetches
        sim.unseen()
        await sim.hear()
        first = asyncio.ensure_future(sim.parts.repair.attend())
        await sim.pds.requested(GET_REPO, before + 1)
        sim.clock.turn(minutes=20)
        sim.unseen()
        await sim.hear()
        assert await other.attend()
        assert sim.fetches == before + 2
        hang.release()
        assert await first
        await sim.equal()
        await sim.end()


async def test_many_repairs_at_once(database: str, sql: Sql) -> None:
    """Several workers over several connections, while the stream goes on: every repository is made right."""
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(simulation(database, sql, seed=28, accounts=8))
        await sim.begin(60)
        sim.live(40)
        sim.emitted()  # nobody hears of it
        await sim.parts.repairs.want([Want("", WantReason.OUTDATED_CURSOR)], sim.clock.now)
        workers = [await stack.enter_async_context(another_repair(sim, database)) for _ in range(3)]

        async def work(repair: Repair) -> None:
            while await repair.attend():
                sim.live(1)
                await sim.hear()

        await asyncio.gather(*map(work, workers))
        await sim.settle()
        assert "outdated_cursor" in sim.wanted
        await sim.end()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_restored_backup(database: str, sql: Sql, goes_on: bool) -> None:
    """A host that lost an account's latest commits is followed, whether the account writes on from there or not."""
    async with simulation(database, sql, seed=29) as sim:
        await sim.begin()
        did, backup = sim.did, RestoredBackup(sim.world)
        backup.remember(did)
        sim.live(30)
        for _ in range(3):
            sim.world.put(did, f"{PREFIX}note/{sim.world.rkey()}", {"$type": f"{PREFIX}note"})
        await sim.hear()
        await sim.settle()
        backup.inject(did)
        undone = {made for made in sim.written if made[0].split("/")[2] == did} - compiles(sim.world.expected())
        if goes_on:
            await sim.end()
        else:
            await sim.parts.repairs.want([Want(did, WantReason.BACKFILL)], sim.clock.now)
            await sim.settle()
            assert sim.dropped(Reason.REWOUND) == 1
            await sim.equal()
            assert not undone & await sim.history()


async def test_forged_far_rev(database: str, sql: Sql) -> None:
    """A revision that nobody signed binds nobody: after three fetches below it the host's signed head is accepted."""
    async with simulation(database, sql, seed=30) as sim:
        await sim.begin()
        did = sim.unseen()
        far = tid(microseconds(sim.clock.now) + 240_000_000, 0)
        forged = Repository(did, sim.world.new_key(), far)
        await sim.hear([events.sync(forged, **sim.world.stamp())])
        await sim.settle()
        assert sim.dropped(Reason.UNSIGNED_REV) == 1
        await sim.equal()
        await sim.end()
