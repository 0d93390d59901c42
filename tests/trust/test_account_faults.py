"""What happens to accounts while the network lives on: keys change, hosts change, accounts go and come back."""

from __future__ import annotations

import pytest

from indexer.model import Reason
from indexer.simulator import events
from indexer.simulator.clock import iso
from indexer.simulator.oracle import PREFIX
from tests.indexing import Sql
from tests.trust.network import Simulation, simulation
from tests.trust.parts import kept_of

STEADY = {"hide": 0, "come_back": 0, "delete_account": 0}


def write(sim: Simulation, did: str) -> None:
    """Let an account write a record."""
    sim.world.put(did, f"{PREFIX}note/{sim.world.rkey()}", {"$type": f"{PREFIX}note"})


@pytest.mark.parametrize("resign", [True, False])
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("each", [True, False])
async def test_rotation_between_two_commits(database: str, sql: Sql, resign: bool, heard: bool, each: bool) -> None:
    """The old key's commits before it and the new key's after it count, whether ``#identity`` is heard or lost."""
    async with simulation(database, sql, seed=41) as sim:
        await sim.begin()
        did = sim.did
        write(sim, did)
        sim.world.rotate_key(did, resign=resign)
        write(sim, did)
        frames = sim.emitted()
        identity = events.identity(did, sim.world.accounts[did].handle, seq=0, time="")
        kept = [frame for frame in frames if heard or events.parse(frame)[0] != events.parse(identity)[0]]
        await sim.hear(kept, each=each)
        await sim.settle()
        assert ("unknown_key" if heard else "bad_signature") in sim.wanted
        await sim.equal()
        await sim.end()


async def test_migration_in_mid_stream(database: str, sql: Sql) -> None:
    """An account that moves is read at its new host; what its old host still says of it doesn't count."""
    async with simulation(database, sql, seed=42, weights=STEADY) as sim:
        await sim.begin()
        did = sim.did
        write(sim, did)
        sim.world.migrate(did, sim.other.url)
        write(sim, did)
        await sim.hear()
        for status in ("deactivated", "deleted"):
            await sim.hear([events.account(did, status, seq=sim.world.seq, time=iso(sim.world.clock()))])
            assert did not in {row["did"] for row in await sql.fetch("select distinct did from letta.record")}
            await sim.settle()
            await sim.equal()
        sim.world.apply(did, [])
        sim.world.sync(did)
        await sim.hear()
        await sim.settle()
        assert any("sync.getRepo?" in request for request in sim.other.requests)
        await sim.end()


@pytest.mark.parametrize("status", ["deactivated", "suspended", "takendown"])
async def test_away_and_back(database: str, sql: Sql, status: str) -> None:
    """An account that is away is hidden, its agents are no evidence; back again it is as if it had never been away."""
    async with simulation(database, sql, seed=43, weights=STEADY) as sim:
        await sim.begin(60)
        did = sim.did
        sim.world.set_status(did, status)
        sim.live(20)
        await sim.hear()
        await sim.settle()
        await sim.equal()
        sim.world.set_status(did, "active")
        sim.live(20)
        await sim.hear()
        assert "returned" in sim.wanted
        await sim.settle()
        await sim.equal()


async def test_deletion_then_an_old_replay(database: str, sql: Sql) -> None:
    """Nothing of an account that was deleted comes back, whatever is replayed."""
    async with simulation(database, sql, seed=44) as sim:
        sim.live(40)
        past = sim.emitted()
        await sim.hear(past)
        await sim.settle()
        did = sim.did
        sim.world.delete_account(did)
        await sim.hear()
        await sim.settle()
        assert (await kept_of(sql, did)).keys() == {"account", "repo"}
        before = sim.dropped(Reason.DUPLICATE)
        for _ in range(2):
            await sim.hear(past, each=True)
            await sim.settle()
            await sim.equal()
        assert sim.dropped(Reason.DUPLICATE) > before


async def test_deletion_without_a_did(database: str, sql: Sql) -> None:
    """An account that is deleted with its DID is purged, though nobody can be asked about it any more."""
    async with simulation(database, sql, seed=45) as sim:
        await sim.begin()
        did = sim.did
        sim.world.delete_account(did, tombstone=True)
        await sim.hear()
        await sim.settle()
        assert (await kept_of(sql, did)).keys() == {"account", "repo"}
        await sim.end()
