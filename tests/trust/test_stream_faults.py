"""Faults of the stream: what is lost, repeated, disordered or forged on its way is noticed and made good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from indexer.model import Reason
from indexer.simulator.alterations import ALTERATIONS
from indexer.simulator.faults import Alter, Drop, Duplicate, FrameFault, Reorder, Replay, concerns_letta
from tests.indexing import Sql
from tests.trust.network import Simulation, simulation


async def endure(sim: Simulation, fault: FrameFault, *, steps: int = 40, each: bool = False) -> None:
    """Live without a fault on the stream, then with it, then without; the index ends up right."""
    await sim.begin(steps)
    for _ in range(4):
        sim.live(steps // 4)
        await sim.hear(fault.pass_on(sim.emitted()), each=each)
        await sim.settle()
    assert fault.injected
    await sim.end()


@pytest.mark.parametrize("name", ALTERATIONS)
async def test_altered_commit(database: str, sql: Sql, name: str) -> None:
    """A commit that was tampered with leaves nothing wrong behind: it is noticed, and its repository made right."""
    noticed, wanted = NOTICED[name]
    async with simulation(database, sql, seed=11) as sim:
        await endure(sim, Alter(name, where=concerns_letta, chance=0.3, times=5))
        assert noticed is None or sim.dropped(noticed)
        assert wanted in sim.wanted


NOTICED = {
    "wrong_signature": (None, "bad_signature"),
    "high_s": (None, "bad_signature"),
    "future_rev": (Reason.FUTURE_REV, "unproven"),
    "missing_record": (Reason.MISSING_BLOCK, "missing_block"),
    "missing_node": (Reason.MISSING_BLOCK, "missing_block"),
    "missing_commit": (Reason.MISSING_BLOCK, "missing_block"),
    "forged_record": (Reason.WRONG_CID, "unproven"),
    "swapped_record": (Reason.UNPROVEN, "unproven"),
    "altered_path": (Reason.UNPROVEN, "unproven"),
    "hidden_op": (Reason.UNPROVEN, "unproven"),
    "wrong_prev_data": (Reason.UNPROVEN, "unproven"),
    "cut_inside": (Reason.UNPROVEN, "unproven"),
    "cut_between": (Reason.MISSING_BLOCK, "missing_block"),
    "flipped_bit": (Reason.WRONG_CID, "unproven"),
    "too_big": (Reason.TOO_BIG, "too_big"),
}

# What each leaves behind, where every frame is a transaction of its own. (Within one, commits are put in order.)
FAULTS: dict[str, tuple[Callable[[], FrameFault], Callable[[Simulation], bool]]] = {
    "dropped": (lambda: Drop(chance=0.2), lambda sim: "gap" in sim.wanted),
    "duplicated": (lambda: Duplicate(chance=0.3), lambda sim: sim.dropped(Reason.DUPLICATE) > 0),
    "reordered": (lambda: Reorder(4, chance=0.3), lambda sim: "gap" in sim.wanted),
    "replayed": (lambda: Replay(15, chance=0.2), lambda sim: sim.dropped(Reason.DUPLICATE) > 0),
}


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("name", FAULTS)
async def test_disturbed_stream(database: str, sql: Sql, name: str, each: bool) -> None:
    """Commits lost, doubled, overtaken or replayed, in one transaction or in many, make no difference in the end."""
    make, noticed = FAULTS[name]
    async with simulation(database, sql, seed=12) as sim:
        await endure(sim, make(), each=each)
        assert noticed(sim) or (name == "reordered" and not each)
