"""A drill under way: its faults counted, its recoveries timed, and in the end what is left judged by the simulator.

*Recovered* means that the first event published once the fault was over is committed, and all before it: the time is
that from the end of the fault (from a kill or the death of a connection on, where nothing but the daemon ends it).
*Lost* counts rows and compiles of prompts that the simulated network holds and the index doesn't, *duplicated* those
that the index has too many, a wrong version among them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias, TypeVar

import asyncpg

from indexer.simulator.oracle import Expected
from tests.daemon_process import eventually
from tests.indexing import untrue_flags

LONG = os.environ.get("INDEXER_TEST_DRILL") == "long"
PATIENCE = 600.0 if LONG else 60.0  # seconds until a recovery that does not come counts as none

POSITION = "select max(seq) from letta.source"
ROWS = "select uri, cid from letta.record"
COMPILES = "select uri, rev, cid, kind from letta.recompile"
FLAGS = "select uri, freshness, stale_reasons from letta.compiled_prompt"
UNVERIFIED = "select count(*) from letta.record where not verified"
GONE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

T = TypeVar("T")


def size(short: T, long: T) -> T:
    """What a drill takes: the first in its short form, the second in its long one."""
    return long if LONG else short


@dataclass(frozen=True, slots=True)
class Judgement:
    """An index beside what it should be: its rows, those that are missing, those that are too many, wrong flags."""

    rows: int
    lost: int
    duplicated: int
    wrong: int


async def position(url: str) -> int:
    """The committed position of the only source; 0 while there is none, or no database."""
    with suppress(*GONE):
        connection = await asyncpg.connect(url, timeout=2)
        try:
            return await connection.fetchval(POSITION) or 0
        finally:
            await connection.close(timeout=2)
    return 0


async def judged(url: str, truth: Expected, *, history: bool = True) -> Judgement:
    """Compare an index with what the network holds; ``history``: every compile was seen, and has to be there."""
    sql = await asyncpg.connect(url)
    try:
        shown = Counter[tuple[str, ...]](tuple(row) for row in await sql.fetch(ROWS))
        wanted = Counter[tuple[str, ...]]((uri, record.cid) for uri, record in truth.records.items())
        rows = shown.total()
        visible = {uri: prompt for uri, prompt in truth.prompts.items() if uri in truth.records}
        if history:
            shown.update(tuple(row) for row in await sql.fetch(COMPILES))
            wanted.update((uri, *made) for uri, prompt in visible.items() for made in prompt.compiles)
        flags = {row["uri"]: (row["freshness"], tuple(row["stale_reasons"])) for row in await sql.fetch(FLAGS)}
        judgements = ((uri, prompt.judgement) for uri, prompt in visible.items())
        verdicts = {uri: (verdict.freshness, verdict.stale_reasons) for uri, verdict in judgements}
        wrong = len(dict(flags.items() ^ verdicts.items())) + len(await untrue_flags(sql))
    finally:
        await sql.close()
    return Judgement(rows, (wanted - shown).total(), (shown - wanted).total(), wrong)


@dataclass(slots=True)
class Drill:
    """One drill; ``note`` takes its line of figures."""

    name: str
    note: Callable[[str], None]
    faults: int = 0
    recoveries: list[float] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)

    async def recovered(self, url: str, seq: int, *, since: float | None = None) -> None:
        """Wait until the database at ``url`` holds everything up to ``seq``; note the seconds ``since`` (now)."""
        begun = monotonic() if since is None else since
        await self.reached(url, seq)
        self.recoveries.append(monotonic() - begun)

    async def reached(self, url: str, seq: int) -> None:
        """Wait until the database at ``url`` holds everything up to ``seq``."""

        async def there() -> bool:
            return await position(url) >= seq

        await eventually(there, within=PATIENCE)

    async def judge(self, url: str, truth: Expected, *, history: bool = True, within: float = 0.0) -> None:
        """Note the figures; AssertionError unless the index holds exactly what the network does.

        ``within`` seconds, if what is missing may still be on its way by another way than the stream.
        """
        deadline = monotonic() + within
        while (found := await judged(url, truth, history=history)).lost or found.duplicated or found.wrong:
            if monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        self.note(self._line(found))
        assert truth.records
        assert (found.lost, found.duplicated, found.wrong) == (0, 0, 0)

    def _line(self, found: Judgement) -> str:
        back = f", recovered within {max(self.recoveries):.1f} s" if self.recoveries else ""
        faults = "1 fault" if self.faults == 1 else f"{self.faults} faults"
        figures = f"{faults}{back}, {found.rows} rows, {found.lost} lost, {found.duplicated} duplicated"
        return ", ".join([f"{self.name}: {figures}", *self.extras])


Drills: TypeAlias = Callable[[str], Drill]
