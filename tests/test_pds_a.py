"""A capture of the reference PDS, replayed: what the index holds is what that PDS itself reported at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.indexing import Indexing, Sql, contents, indexing, read_capture, untrue_flags


def reported(pds_a: Path) -> set[tuple[str, str]]:
    """URI and CID of every record that the PDS listed at the end of the capture."""
    accounts = json.loads((pds_a / "expected.json").read_text())
    return {(record["uri"], record["cid"]) for account in accounts.values() for record in account["records"]}


async def indexed(sql: Sql) -> set[tuple[str, str]]:
    return {(row["uri"], row["cid"]) for row in await sql.fetch("select uri, cid from letta.record")}


async def test_replay_gives_what_the_pds_reported(database: str, sql: Sql, pds_a: Path) -> None:
    """Replaying the capture gives exactly the records and account states of the server it was taken from."""
    async with indexing(database) as index:
        await index.take(read_capture(pds_a / "frames.bin"))
    assert await indexed(sql) == reported(pds_a)
    accounts = json.loads((pds_a / "expected.json").read_text())
    states = {row["did"]: row["status"] for row in await sql.fetch("select did, status from letta_store.account")}
    assert {did: states[did] for did in accounts} == {did: a["gone"] or "active" for did, a in accounts.items()}
    assert await untrue_flags(sql) == []


async def test_second_replay_changes_nothing(database: str, sql: Sql, pds_a: Path) -> None:
    """A replay with the cursor table emptied in between leaves rows, flags and history as they were."""
    frames = read_capture(pds_a / "frames.bin")
    async with indexing(database) as index:
        await index.take(frames)
    before = await contents(sql)
    await sql.execute("delete from letta_store.cursor")
    async with indexing(database) as index:
        await index.take(frames)
    assert await contents(sql) == before


@pytest.mark.parametrize("tenth", range(10))
async def test_resuming_from_any_cursor_changes_nothing(database: str, sql: Sql, pds_a: Path, tenth: int) -> None:
    """Resuming from an older cursor on the filled database ends in the same index."""
    frames = read_capture(pds_a / "frames.bin")
    async with indexing(database) as index:
        await index.take(frames)
    before = await contents(sql)
    async with indexing(database) as index:
        await index.take(frames[len(frames) * tenth // 10 :])
    assert await contents(sql) == before


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_batching_changes_nothing(database: str, sql: Sql, pds_a: Path, size: int) -> None:
    """Batches of any size end in the same index, and after every one of them the flags are true."""
    frames = read_capture(pds_a / "frames.bin")
    async with indexing(database) as index:
        for at in range(0, len(frames), size):
            await index.take(frames[at : at + size])
            assert await untrue_flags(sql) == []
    assert await indexed(sql) == reported(pds_a)


async def test_deleted_account_leaves_no_content(database: str, sql: Sql, pds_a: Path) -> None:
    """Of an account that was deleted nothing is kept: no row, no history, also after its commits come again."""
    frames = read_capture(pds_a / "frames.bin")
    accounts = json.loads((pds_a / "expected.json").read_text())
    (deleted,) = [did for did, account in accounts.items() if account["gone"] == "deleted"]
    async with indexing(database) as index:
        await index.take(frames)
        await _assert_nothing_of(sql, deleted)
        await index.take(frames)
        await _assert_nothing_of(sql, deleted)


async def _assert_nothing_of(sql: Sql, did: str) -> None:
    for table in ("conversation", "compiled_prompt", "agent", "message", "other_record", "recompile", "tombstone"):
        assert await sql.fetchval(f"select count(*) from letta_store.{table} where did = $1", did) == 0, table


async def test_the_cursor_is_the_number_of_frames(database: str, sql: Sql, pds_a: Path) -> None:
    """The cursor advances over skipped frames too."""
    frames = read_capture(pds_a / "frames.bin")
    async with indexing(database) as index:
        await _take_in_parts(index, frames)
    assert await sql.fetchval("select seq from letta.source where source = 'file:test'") == len(frames)


async def _take_in_parts(index: Indexing, frames: list[bytes]) -> None:
    for at in range(0, len(frames), 100):
        await index.take(frames[at : at + 100])
