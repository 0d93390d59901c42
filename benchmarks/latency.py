"""How long after a frame was sent its row is seen by somebody who asks, against one bare commit.

The sender notes when each frame went, on the clock that all processes of a machine share. We read through our own parts
in a process of its own; here a second connection asks for the committed position again and again (it is committed with
the rows). What that adds is on our side: up to one round of asking, two milliseconds or three.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from bisect import bisect_left
from pathlib import Path

import asyncpg

from benchmarks.drain import job_of
from benchmarks.load import FIRST, Capture, relevant_frames, save_keys, write_capture
from benchmarks.parts import Server, Sql
from benchmarks.processes import LIMIT, report_of, sender
from benchmarks.table import Row, Table, quantile
from indexer.model import COMPILED_PROMPT

RATES = (10, 1_000, 3_000)  # events a second
SECONDS = 10.0
WARM_UP = 0.3  # of the events: until plans are made and caches filled, as in a daemon that has run
FLOOR_RATE = 1_000
EXCESS = 25.0  # milliseconds
PAUSE = 0.002  # seconds between questions, which take processors from what is measured
COMMITS = 200
QUANTILES = ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))


async def watch(sql: Sql, last: int) -> tuple[list[int], list[float]]:
    """Positions as they became visible, and when."""
    statement = await sql.prepare("select coalesce(max(seq), 0) from letta_store.cursor")
    seen, moments = [0], [0.0]
    until = time.monotonic() + LIMIT
    while seen[-1] < last and time.monotonic() < until:
        position = await statement.fetchval()
        if position > seen[-1]:
            seen.append(position)
            moments.append(time.monotonic())
        await asyncio.sleep(PAUSE)
    return seen, moments


async def latencies(server: Server, capture: Capture, keys: Path, rate: float) -> list[float]:
    """Milliseconds from sent to visible, of each event."""
    async with server.database() as database:
        sql = await asyncpg.connect(database)
        with sender(capture.path, rate, capture.frames) as (url, process):
            job = job_of("indexer", url, capture, database=database, keys=str(keys))
            words = ("-m", "benchmarks.consumer", json.dumps(job))
            reader = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
            seen, moments = await watch(sql, capture.last)
            await asyncio.wait_for(reader.communicate(), LIMIT)
            sent = await asyncio.to_thread(report_of, process)
        await sql.close()
    return [(moments[bisect_left(seen, FIRST + number)] - went) * 1_000 for number, went in enumerate(sent)][
        int(WARM_UP * len(sent)) :
    ]


async def bare_commits(server: Server) -> list[float]:
    """Milliseconds that a commit of one small row takes, alone."""
    async with server.database() as database:
        sql = await asyncpg.connect(database)
        await sql.execute("create table plain (number integer primary key, moment text)")
        statement = await sql.prepare("insert into plain values ($1, $2)")
        took = []
        for number in range(COMMITS):
            started = time.monotonic()
            await statement.fetch(number, "")
            took.append((time.monotonic() - started) * 1_000)
        await sql.close()
        return took


async def measure(table: Table, server: Server, folder: Path, rounds: int, scale: float) -> None:
    """Every rate, rounds interleaved with bare commits."""
    for rate in RATES:
        count = max(20, int(rate * SECONDS * scale))
        frames, keys = relevant_frames(count, COMPILED_PROMPT, 1_000)
        capture = write_capture(folder / f"latency-{rate}.ws", iter(frames), keys, count)
        kept = save_keys(folder / "keys.json", keys)
        ours: dict[str, list[float]] = {name: [] for _, name in QUANTILES}
        bare: list[float] = []
        for _ in range(rounds):
            bare.append(quantile(await bare_commits(server), 0.5))
            found = await latencies(server, capture, kept, rate)
            for share, name in QUANTILES:
                ours[name].append(quantile(found, share))
        for _, name in QUANTILES:
            limit = EXCESS if rate == FLOOR_RATE and name == "p99" else None
            label = f"latency at {rate:,}/s, {name}"
            table.add(Row(label, "ms", ours[name], "bare commit (p50)", bare, at_most=limit, excess=True))
        capture.path.unlink()
