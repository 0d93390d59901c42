"""When the open batch is written."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

from indexer.sources.base import Chunk
from tests.daemon_process import eventually
from tests.indexing import Sql, indexing, read_capture

BLOCKED = """
    select count(*) from pg_locks l join pg_database d on d.oid = l.database
    where not l.granted and d.datname = current_database()
"""
HOUR = 3600.0


async def test_a_batch_is_as_old_as_its_first_change(database: str, sql: Sql, pds_a: Path) -> None:
    """What came while another batch was written has waited by then: it isn't made to wait once more."""
    frames = read_capture(pds_a / "frames.bin")
    half = len(frames) // 2
    async with indexing(database) as index:
        pipeline = index.pipeline
        pipeline._batch_age = 0.0
        writer = asyncio.create_task(pipeline.write())
        async with sql.transaction():
            await sql.execute("lock table letta_store.account in exclusive mode")
            await index.intake.take(Chunk(frames[:half], 0))
            await eventually(partial(sql.fetchval, BLOCKED))
            pipeline._batch_age = HOUR
            await index.intake.take(Chunk(frames[half:], half))
            pipeline._begun -= HOUR  # it came an hour ago

        async def is_committed() -> bool:
            return index.intake.committed == len(frames)

        await eventually(is_committed)
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
    assert await sql.fetchval("select count(*) from letta.record") > 0
