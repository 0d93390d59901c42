"""The gauges read from the database say what the database says, and reading them leaves it time for its work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from indexer import gauges
from indexer.gauges import read_gauges
from indexer.metrics import DEFINITIONS, Metrics
from indexer.model import Want, WantReason
from indexer.store.reports import read_ages, read_issues, read_place, read_records
from tests.daemon_process import eventually
from tests.indexing import Indexing, Sql, indexing, read_capture

NOW = datetime(2027, 1, 1, tzinfo=UTC)  # after all that was captured
READ = (
    *("prompts", "stale_prompts", "records", "invalid_records", "integrity_issues", "stalest_prompt_seconds"),
    *("failing_wants", "oldest_want_seconds", "database_bytes", "data_dir_size_bytes", "data_dir_free_bytes"),
)


@pytest.fixture
async def index(database: str, pds_a: Path) -> AsyncIterator[Indexing]:
    """An index of the capture, written at ``NOW``; all of its accounts are shown."""
    async with indexing(database, clock=lambda: NOW) as index:
        await index.take(read_capture(pds_a / "frames.bin"))
        async with index.store.connection("count") as connection:
            await connection.execute("update letta_store.account set active = true, status = 'active'")
        yield index


@asynccontextmanager
async def reading(index: Indexing) -> AsyncIterator[Metrics]:
    """The loop at work; the wants are measured by nobody."""

    async def nothing() -> None:
        return

    task = asyncio.create_task(read_gauges(index.store, index.metrics, nothing))
    try:
        yield index.metrics
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def shown(metrics: Metrics) -> dict[str, float]:
    """The sum of each gauge's samples; gauges without a sample left out."""
    families = [family for family in metrics.collect() if family.samples]
    return {family.name.removeprefix("letta_indexer_"): sum(s.value for s in family.samples) for family in families}


async def test_all_are_read(index: Indexing, sql: Sql) -> None:
    """Each gauge that comes from the database is there after the first round, and agrees with the views."""
    async with reading(index) as metrics:

        async def complete() -> bool:
            return set(READ) <= set(shown(metrics))

        await eventually(complete)
    said = shown(metrics)
    assert said["records"] == await sql.fetchval("select count(*) from letta.record")
    assert said["invalid_records"] == await sql.fetchval("select count(*) from letta.record where not valid")
    assert said["prompts"] == await sql.fetchval("select count(*) from letta.compiled_prompt")
    assert said["integrity_issues"] == await sql.fetchval("select count(*) from letta.integrity_issue")
    assert 0 < said["data_dir_free_bytes"] <= said["data_dir_size_bytes"]
    assert set(READ) <= {definition.name for definition in DEFINITIONS}


async def test_records_by_collection_and_proof(index: Indexing, sql: Sql) -> None:
    """Every record counts once, under its collection and the proof it has."""
    await sql.execute("update letta_store.message set proof = 'repo', valid = false where seq <= 2")
    async with index.store.connection("count") as connection:
        by_proof, invalid = await read_records(connection)
    counted = "count(*), count(*) filter (where not valid)"
    rows = await sql.fetch(f"select collection, coalesce(proof, ''), {counted} from letta.record group by 1, 2")
    assert by_proof == {(collection, proof): count for collection, proof, count, _ in rows}
    assert len({proof for _, proof in by_proof}) == 2
    assert sum(invalid.values()) == sum(row[3] for row in rows) > 0


async def test_issues_by_severity(index: Indexing, sql: Sql) -> None:
    """Issues are those that the view lists."""
    async with index.store.connection("count") as connection:
        issues = await read_issues(connection)
    rows = await sql.fetch("select severity, count(*) from letta.integrity_issue group by severity")
    assert issues == dict(map(tuple, rows))
    assert issues


async def test_ages_grow_from_what_waits_longest(index: Indexing, sql: Sql) -> None:
    """The stalest prompt's and the oldest want's age are as of the time given; a want recorded again keeps its age."""
    did = await sql.fetchval("select did from letta.repo where not hidden order by did limit 1")
    since = await sql.fetchval("select min(stale_since) from letta.stale_prompt")

    async def ages(hours: int) -> dict[str, float]:
        async with index.store.connection("count") as connection:
            return await read_ages(connection, NOW + timedelta(hours=hours))

    before = await ages(1)
    assert before["stalest_prompt_seconds"] == pytest.approx((NOW + timedelta(hours=1) - since).total_seconds())
    assert (before["oldest_want_seconds"], before["failing_wants"]) == (0, 0)
    for want in (Want(did, WantReason.GAP), Want("", WantReason.OUTDATED_CURSOR)):
        index.pipeline.batch.wants.append(want)
        await index.take([])
    assert (await ages(1))["oldest_want_seconds"] == 3600
    assert await sql.fetchval("select count(*) from letta.repo where want is not null and wanted_since is null") == 0
    await sql.execute("update letta_store.repo set wanted_since = $1, attempts = 3 where did = $2", NOW, did)
    index.pipeline.batch.wants.append(Want(did, WantReason.SYNC))
    await index.take([])
    assert await ages(48) == {**(await ages(48)), "oldest_want_seconds": 48 * 3600, "failing_wants": 1}


async def test_wants_of_hidden_accounts_have_no_age(index: Indexing, sql: Sql) -> None:
    """A deactivated account's repository can't be fetched until it returns: nobody is called for that."""
    did = await sql.fetchval("select did from letta.repo where not hidden order by did limit 1")
    index.pipeline.batch.wants.append(Want(did, WantReason.SYNC))
    await index.take([])
    await sql.execute("update letta_store.account set active = false, status = 'deactivated' where did = $1", did)
    async with index.store.connection("count") as connection:
        assert (await read_ages(connection, NOW + timedelta(days=3)))["oldest_want_seconds"] == 0


async def test_the_disk_is_that_of_the_database(index: Indexing, sql: Sql) -> None:
    """A database reached over a socket by one who may know tells its folder; to others it tells its size alone."""
    async with index.store.connection("count") as connection:
        size, folder = await read_place(connection)
    assert size > 1 << 20
    assert folder is not None
    assert os.path.isdir(folder)  # noqa: PTH112, ASYNC240
    await sql.execute("set role letta_reader")
    assert (await read_place(sql))[1] is None


async def test_a_slow_reading_waits_longer(index: Indexing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long is read rarely, and keeps nothing else waiting for its turn."""
    monkeypatch.setattr(gauges, "INTERVAL", 0.01)
    rounds = {"quick": 0, "slow": 0}

    async def quick() -> None:
        rounds["quick"] += 1

    async def slow(store: object, metrics: object) -> None:
        rounds["slow"] += 1
        await asyncio.sleep(0.2)

    monkeypatch.setattr(gauges, "_read_issues", slow)
    task = asyncio.create_task(read_gauges(index.store, index.metrics, quick))

    async def many() -> bool:
        return rounds["quick"] >= 20

    await eventually(many)
    task.cancel()
    assert rounds["slow"] == 1
