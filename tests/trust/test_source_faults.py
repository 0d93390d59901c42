"""Faults of the source as a whole: it forgets, counts anew, or was not heard for a while."""

from __future__ import annotations

import pytest

from indexer.sources.base import ReconnectReason
from tests.indexing import Sql
from tests.trust.network import Simulation, simulation

LISTED = {"unknown": 0}  # an account that has nothing but collections nobody knows of can't be discovered


async def away(sim: Simulation, steps: int = 30) -> None:
    """Live on unheard: with new accounts, and others that go."""
    sim.live(steps)
    sim.world.life.happen("new_account")
    sim.live(steps)
    await sim.miss()


async def test_interruption(database: str, sql: Sql) -> None:
    """After a pause the stream is taken up where it was left: nothing is missing, nothing has to be fetched."""
    async with simulation(database, sql, seed=51) as sim:
        await sim.begin()
        await away(sim)
        await sim.connect()
        await sim.settle()
        await sim.equal()
        assert "gap" not in sim.wanted
        await sim.end()


async def test_outdated_cursor(database: str, sql: Sql) -> None:
    """A host that no longer has what was missed says so: every repository is looked at, and others are discovered."""
    async with simulation(database, sql, seed=52, weights=LISTED) as sim:
        await sim.begin()
        await away(sim)
        sim.stream.forget(sim.world.seq - 3)
        await sim.connect()
        assert sim.stream.outdated
        await sim.settle()
        assert "outdated_cursor" in sim.wanted
        await sim.equal()
        await sim.end()


@pytest.mark.parametrize("heard", [0, 10])
async def test_sequence_reset(database: str, sql: Sql, heard: int) -> None:
    """A host that counts anew makes our cursor one of the future, or of the past: all it has is read."""
    async with simulation(database, sql, seed=53, weights=LISTED) as sim:
        await sim.begin()
        await away(sim)
        sim.world.reset_sequence()
        sim.stream.reset()
        sim.live(heard)
        await sim.miss()
        await sim.connect()
        assert sim.lost == [ReconnectReason.FUTURE_CURSOR]
        await sim.settle()
        assert "sequence_reset" in sim.wanted
        await sim.equal()
        await sim.end()


async def test_sequence_that_fell_back(database: str, sql: Sql) -> None:
    """A connection that begins at or below the cursor asked for shows that the host counts anew."""
    async with simulation(database, sql, seed=54, weights=LISTED) as sim:
        await sim.begin()
        await away(sim)
        sim.stream.reset()
        sim.world.reset_sequence(2)
        sim.live(20)
        await sim.miss()
        await sim.connect(blind=True)
        assert sim.lost == [ReconnectReason.SEQUENCE_RESET]
        await sim.settle()
        assert "sequence_reset" in sim.wanted
        await sim.equal()


async def test_cursor_of_the_future(database: str, sql: Sql) -> None:
    """A cursor that the host has not reached yet is forgotten."""
    async with simulation(database, sql, seed=55) as sim:
        await sim.begin()
        await away(sim)
        await sim.connect(sim.world.seq + 1_000)
        assert sim.stream.refused
        assert sim.lost == [ReconnectReason.FUTURE_CURSOR]
        await sim.settle()
        await sim.equal()
