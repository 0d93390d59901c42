"""How many bytes on disk a record takes: ``python -m tests.scaling.disk prompt 1000 20000`` (kind, bytes, commits)."""

from __future__ import annotations

import asyncio
import sys

import asyncpg

from benchmarks.load import relevant_frames
from indexer.model import COMPILED_PROMPT, MESSAGE
from indexer.store.statements import schema_sql
from tests.indexing import indexing
from tests.postgres import TestCluster

KINDS = {"prompt": COMPILED_PROMPT, "message": MESSAGE}
BATCH = 2_000
SIZES = """
    select relname, pg_total_relation_size(oid) as size from pg_class
    where relnamespace = 'letta_store'::regnamespace and relkind = 'r'
"""
RECORDS = "select count(*) from letta.record where collection = $1"


async def measure(kind: str, length: int, commits: int) -> dict[str, float]:
    """Bytes a record that each table took, indexes and long texts included, after a vacuum; below one left out."""
    cluster = TestCluster()
    await cluster.start()
    try:
        await cluster.create_template(schema_sql())
        url = await cluster.clone()
        connection = await asyncpg.connect(url)
        before = {row["relname"]: row["size"] for row in await connection.fetch(SIZES)}
        frames, _ = relevant_frames(commits, KINDS[kind], length)
        async with indexing(url) as index:
            for start in range(0, commits, BATCH):
                await index.take(frames[start : start + BATCH])
        await connection.execute("vacuum")
        records = await connection.fetchval(RECORDS, KINDS[kind])
        after = {row["relname"]: row["size"] for row in await connection.fetch(SIZES)}
        await connection.close()
    finally:
        await cluster.stop()
    taken = {name: (now - before[name]) / records for name, now in after.items()}
    return {name: bytes_ for name, bytes_ in taken.items() if bytes_ >= 1}


def main() -> None:
    """Print a line for each table, and their sum."""
    taken = asyncio.run(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    for name, bytes_ in sorted((taken | {"in all": sum(taken.values())}).items(), key=lambda pair: pair[1]):
        print(f"{bytes_:9,.0f} {name}")


if __name__ == "__main__":
    main()
