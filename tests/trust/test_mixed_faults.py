"""All faults at once, drawn by fixed seeds: when they stop, the index is what the network is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest

from indexer.simulator.alterations import ALTERATIONS, cut_car
from indexer.simulator.faults import Alter, Drop, Duplicate, FrameFault, Reorder, Replay, RestoredBackup, Suitable
from indexer.simulator.http_faults import AlterBody, BreakOff, Refuse, RequestFault
from tests.indexing import Sql
from tests.trust.network import Simulation, simulation

LASTING = {"hide": 1, "delete_account": 0.3, "unknown": 0}
ROUNDS, STEPS = 12, 12  # of faults; things that happen in each


class Trouble:
    """Everything that can go wrong in a simulation, drawn by a seed; ``faults`` counts what did, by name."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self.sim = sim
        self.rng = rng = Random(seed)
        self.backup = RestoredBackup(sim.world)
        self.backed_up = ""
        self.happenings: list[Callable[[], object]] = [
            sim.unseen,
            lambda: sim.world.rotate_key(self._did(), resign=rng.random() < 0.5),
            lambda: sim.world.migrate(self._did(), rng.choice((sim.pds.url, sim.other.url))),
            self._remember,
            self._restore,
        ]
        often: Suitable = {"chance": 0.3, "seed": seed}
        self.frame_faults: list[FrameFault] = [
            *(Alter(name, chance=0.3, seed=seed + number) for number, name in enumerate(ALTERATIONS)),
            Drop(**often), Duplicate(**often), Replay(10, **often), Reorder(3, **often),
        ]  # fmt: skip

    def _did(self) -> str:
        return self.rng.choice(self.sim.accounts).did

    def _remember(self) -> None:
        self.backed_up = self.sim.did
        self.backup.remember(self.backed_up)

    def _restore(self) -> None:
        if self.backed_up in {account.did for account in self.sim.accounts}:
            self.backup.inject(self.backed_up)

    def _cut(self, body: bytes) -> bytes:
        refusal = body.startswith(b"{")
        return body if refusal else cut_car(body, self.rng, inside=self.rng.random() < 0.5)

    def host_faults(self) -> list[RequestFault]:
        """New faults of hosts, each for a request or two."""
        return [
            Refuse("", status=self.rng.choice((429, 500, 503)), times=2),
            AlterBody("getRepo", self._cut, times=1),
            BreakOff("getRepo", times=1),
        ]

    def pass_on(self, frames: Iterable[bytes]) -> list[bytes]:
        """Frames as they come through the faults of the stream, each through one."""
        return [out for frame in frames for out in self.rng.choice(self.frame_faults).pass_on([frame])]


@pytest.mark.parametrize("seed", range(101, 105))
async def test_everything_at_once(database: str, sql: Sql, seed: int) -> None:
    """Whatever the stream, the hosts and the accounts have been through, rows, flags and history come out right."""
    async with simulation(database, sql, seed=seed, accounts=6, weights=LASTING) as sim:
        await sim.begin(30)
        trouble = Trouble(sim, seed)
        for _ in range(ROUNDS):
            sim.live(STEPS)
            trouble.rng.choice(trouble.happenings)()
            fault = trouble.rng.choice([sim.pds, sim.other, sim.plc]).inject(trouble.rng.choice(trouble.host_faults()))
            assert fault.injected == 0
            frames = trouble.pass_on(sim.emitted())
            match trouble.rng.randrange(6):
                case 0:
                    await sim.miss(frames)
                    await sim.connect()
                case 1:
                    await sim.miss(frames)
                    sim.stream.forget(sim.world.seq - 5)
                    await sim.connect()
                case _:
                    await sim.hear(frames, each=trouble.rng.random() < 0.5)
            await sim.parts.ask()
            await sim.parts.mend()
        await sim.end()
        assert sum(fault.injected for fault in trouble.frame_faults) > 10
        assert sim.errors
