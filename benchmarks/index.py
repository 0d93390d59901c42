"""Relevant commits into SQL, against the bare insert of the same values.

Ours: frames as they came, decoded, proven or not, validated, written with flags, history, chain, counts and position.
The peer: one ``insert … select from unnest`` a batch into a table with a primary key and nothing else, the JSON made
beforehand, batches of the size that ours are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from benchmarks.load import relevant_frames, values_of
from benchmarks.parts import Server, opened_parts
from benchmarks.table import Row, Table
from indexer.model import COMPILED_PROMPT, MESSAGE
from indexer.sources.base import Chunk, Opened

BATCH = 2_000  # rows: the default of the setting batch_rows
CHUNK = 256  # frames: some 300 KB, what one read of a socket may bring
PLAIN = """
create table plain (
    did text collate "C", path text collate "C", cid text, rev text, value jsonb, primary key (did, path))
"""
INSERT = """
insert into plain (did, path, cid, rev, value)
select did, path, cid, rev, value::jsonb
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) as new (did, path, cid, rev, value)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load: what is written, how long it is, how many commits a round, and the limits."""

    name: str
    collection: str
    size: int
    commits: int
    without_proof: float | None
    with_proof: float | None


CASES = (
    Case("prompts 1 KB", COMPILED_PROMPT, 1_000, 8_000, 0.4, 0.2),
    Case("prompts 20 KB", COMPILED_PROMPT, 20_000, 3_000, 0.75, 0.75),
    Case("messages 1 KB", MESSAGE, 1_000, 8_000, 0.4, 0.2),
)


@dataclass(frozen=True, slots=True)
class Frames:
    """A source whose frames are handed over by the benchmark itself; positions count frames."""

    key: str = "file:bench"
    label: str = "file:bench"
    live: bool = False
    positions: str = "count"


async def insert_plain(url: str, rows: Sequence[tuple[str, ...]], batch: int = BATCH) -> float:
    """Seconds to insert the values, one transaction a batch."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PLAIN)
        batches = [list(zip(*rows[at : at + batch], strict=True)) for at in range(0, len(rows), batch)]
        statement = await connection.prepare(INSERT)
        started = time.monotonic()
        for columns in batches:
            await statement.fetch(*columns)
        return time.monotonic() - started
    finally:
        await connection.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds from the first frame to the committed position; processor time of this process and of the server's."""

    seconds: float
    ours: float
    server: float


async def index(url: str, frames: list[bytes], keys: dict[str, str], trust: str) -> Outcome:
    """Frames into SQL."""
    async with opened_parts(url, Frames(), trust, keys) as parts:  # type: ignore[arg-type]
        started, ours = time.monotonic(), time.process_time()
        await parts.intake.take(Opened(None))
        for at in range(0, len(frames), CHUNK):
            await parts.intake.take(Chunk(frames[at : at + CHUNK], at))
        await parts.pipeline.flush()
        outcome = Outcome(time.monotonic() - started, time.process_time() - ours, parts.server_time())
        parts.check(len(frames))
        return outcome


async def measure(table: Table, server: Server, rounds: int, scale: float) -> None:
    """Every case, rounds interleaved: the plain insert, then ours without and with proof."""
    for case in CASES:
        commits = max(100, int(case.commits * scale))
        frames, keys = relevant_frames(commits, case.collection, case.size)
        rows = values_of(frames)
        plain = []
        ours: dict[str, list[Outcome]] = {"relay": [], "verify": []}
        for _ in range(rounds):
            async with server.database() as url:
                plain.append(commits / await insert_plain(url, rows))
            for trust, outcomes in ours.items():
                async with server.database() as url:
                    outcomes.append(await index(url, frames, keys, trust))
        limits = {"relay": case.without_proof, "verify": case.with_proof}
        for trust, outcomes in ours.items():
            name = f"index, {case.name}, {'with' if trust == 'verify' else 'no'} proof"
            rates = [commits / one.seconds for one in outcomes]
            python, postgres = (
                statistics.median(times) / commits * 1e6
                for times in ([one.ours for one in outcomes], [one.server for one in outcomes])
            )
            note = f"{python:.0f} us Python, {postgres:.0f} us server"
            table.add(Row(name, "commits/s", rates, "bare insert", plain, at_least=limits[trust], note=note))
