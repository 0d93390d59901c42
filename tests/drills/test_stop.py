"""SIGTERM under load: an orderly end in time, with everything committed that was read."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from indexer.simulator import Relay
from indexer.simulator.events import seq_of
from tests.daemon_process import DaemonProcess, daemon, eventually
from tests.drills.drill import ROWS, Drills, size
from tests.drills.traffic import Day, flowing, followed
from tests.histories import held
from tests.indexing import Sql
from tests.networks import key_of

STOPS = size(2, 20)
SECONDS = 1.0  # of traffic around each stop
STOP_SECONDS = 10.0  # within which the daemon has to have ended


def shown_at(frames: Iterable[bytes], seq: int) -> set[tuple[str, str]]:
    """URI and CID of every record that an index shows which has read the frames up to ``seq`` and no other."""
    past = held(frame for frame in frames if (seq_of(frame) or 0) <= seq)
    hidden = {did for did, (_, status) in past.statuses.items() if status != "active"}
    return {(row.uri, row.cid) for row in past.rows if row.uri.split("/")[2] not in hidden}


def _commits(frames: Iterable[bytes], after: int, until: int) -> int:
    """How many of these frames are commits, with numbers between those."""
    return sum(after < (seq_of(frame) or 0) <= until and b"#commit" in frame[:32] for frame in frames)


async def _read(process: DaemonProcess, relay: Relay) -> float:
    """How many commits the daemon says it has read."""
    return await process.metric(f'frames_total{{source="{key_of(relay)}",type="commit"}}') or 0


async def test_stopped_under_load(day: Day, database: str, sql: Sql, drill: Drills) -> None:
    """SIGTERM while frames pour in ends the daemon within ten seconds, all it had read committed, and nothing else."""
    here = drill("SIGTERM under load")
    slowest, cursor = 0.0, 0
    async with Relay() as relay:
        arguments = (*followed(relay), "--database-url", database)
        for part in day.parts(STOPS):
            async with daemon(*arguments) as process:
                await process.ready()
                async with flowing(relay.publish, part, SECONDS) as flow:
                    await flow.moment()
                    read = await eventually(lambda: _read(process, relay))
                    asked = monotonic()
                    assert await process.stop() == 0
                    slowest = max(slowest, monotonic() - asked)
            here.faults += 1
            before, cursor = cursor, await sql.fetchval("select seq from letta.source")
            assert read <= _commits(day.frames, before, cursor)
            assert {tuple(row) for row in await sql.fetch(ROWS)} == shown_at(day.frames, cursor)
        async with daemon(*arguments):
            await here.recovered(database, relay.seq)
    here.extras.append(f"ended within {slowest:.1f} s")
    await here.judge(database, day.truth)
    assert slowest <= STOP_SECONDS
