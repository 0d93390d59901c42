"""History: every compile of a prompt since its last delete, and what kind each was."""

from __future__ import annotations

import pytest

from indexer.store import Limits
from tests.frames import AGENT, PROMPT, agent, commit, delete, key, prompt, put, rev, uri
from tests.indexing import Sql, indexing

A = prompt("template {CORE_MEMORY}", "memory A")
NEXT = {
    "full": prompt("another {CORE_MEMORY}", "memory A"),
    "full and memory": prompt("template {CORE_MEMORY}", "memory B"),
    "memory": A | {"coreMemory": "memory B", "memfsRevision": "1" * 40},
    "memory text alone": A | {"coreMemory": "memory B"},
    "revision alone": A | {"memfsRevision": "1" * 40},
    "revision gone": {name: value for name, value in A.items() if name != "memfsRevision"},
    "compiled again": A | {"compiledAt": "2024-01-02T03:04:06Z"},
    "another hash": A | {"rawSystemHash": "0" * 64},
    "an unknown field": A | {"more": True},
    "content gone": {name: value for name, value in A.items() if name != "content"},
}
KINDS = {
    "full": "full",
    "full and memory": "full",
    "memory": "memory",
    "memory text alone": "memory",
    "revision alone": "memory",
    "revision gone": "memory",
    "compiled again": "touch",
    "another hash": "touch",
    "an unknown field": "touch",
    "content gone": "full",
}


async def kinds(sql: Sql) -> list[str]:
    """The kinds of all compiles, by rev."""
    return [row["kind"] for row in await sql.fetch("select kind from letta.recompile order by rev, cid")]


@pytest.mark.parametrize("name", NEXT)
@pytest.mark.parametrize("together", [True, False])
async def test_kind_of_a_recompile(database: str, sql: Sql, name: str, together: bool) -> None:
    """What changed decides the kind, whether both versions come in one batch or in two."""
    frames = [commit(put(PROMPT, key(1), record), rev=rev(n)) for n, record in enumerate((A, NEXT[name]))]
    async with indexing(database) as index:
        for batch in [frames] if together else [[frame] for frame in frames]:
            await index.take(batch)
        if not together:
            assert index.sample("recompiles_total", kind=KINDS[name]) == 1
    assert await kinds(sql) == ["first", KINDS[name]]


async def test_back_and_forth(database: str, sql: Sql) -> None:
    """A, then B, then A again are three compiles and two recompiles; the current one's predecessor is B."""
    b = NEXT["full"]
    async with indexing(database) as index:
        for n, record in enumerate((A, b, A)):
            await index.take([commit(put(PROMPT, key(1), record), rev=rev(n))])
    history = await sql.fetch("select cid, previous_cid, kind from letta.recompile order by rev")
    first, second, third = (row["cid"] for row in history)
    assert (first == third, first == second) == (True, False)
    assert [row["kind"] for row in history] == ["first", "full", "full"]
    row = await sql.fetchrow("select cid, previous_cid, recompiles from letta.compiled_prompt")
    assert row is not None
    assert tuple(row) == (third, second, 2)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1, 1, 0)])
async def test_history_in_any_order(database: str, sql: Sql, order: tuple[int, ...]) -> None:
    """The same compiles in any order and number give the same history."""
    records = (A, NEXT["memory"], NEXT["full"])
    async with indexing(database) as index:
        for n in order:
            await index.take([commit(put(PROMPT, key(1), records[n]), rev=rev(n))])
    assert await kinds(sql) == ["first", "memory", "full"]


async def test_same_cid_at_a_later_rev(database: str, sql: Sql) -> None:
    """A record written again as it was is no recompile."""
    async with indexing(database) as index:
        for n in range(3):
            await index.take([commit(put(PROMPT, key(1), A), rev=rev(n))])
    assert await kinds(sql) == ["first"]
    assert await sql.fetchval("select recompiles from letta.compiled_prompt") == 0


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2), (3, 0, 2, 1)])
async def test_delete_ends_history(database: str, sql: Sql, order: tuple[int, ...]) -> None:
    """What came before a delete is forgotten, whatever order it arrives in; what came after starts anew."""
    frames = [
        commit(put(PROMPT, key(1), A), rev=rev(0)),
        commit(put(PROMPT, key(1), NEXT["memory"]), rev=rev(1)),
        commit(delete(PROMPT, key(1)), rev=rev(2)),
        commit(put(PROMPT, key(1), NEXT["full"]), rev=rev(3)),
    ]
    async with indexing(database) as index:
        for n in order:
            await index.take([frames[n]])
    assert await kinds(sql) == ["first"]
    assert await sql.fetchval("select previous_cid from letta.compiled_prompt") is None


@pytest.mark.parametrize("keep", [True, False])
async def test_texts_of_old_prompts(database: str, sql: Sql, keep: bool) -> None:
    """The texts of old prompts are kept only where that was asked for."""
    async with indexing(database, limits=Limits(keep_content=keep)) as index:
        for n, record in enumerate((A, NEXT["full"])):
            await index.take([commit(put(PROMPT, key(1), record), rev=rev(n))])
    rows = await sql.fetch("select content, core_memory from letta.recompile order by rev")
    expected = [(record["content"], record["coreMemory"]) if keep else (None, None) for record in (A, NEXT["full"])]
    assert [tuple(row) for row in rows] == expected


async def test_prompt_of_an_agent_that_comes_later(database: str, sql: Sql) -> None:
    """A prompt seen before its agent is unverified until that comes, then what the agent's record makes it."""
    async with indexing(database) as index:
        await index.take([commit(put(PROMPT, key(1), A), rev=rev(1))])
        assert await sql.fetchval("select freshness from letta.compiled_prompt") == "unverified"
        await index.take([commit(put(AGENT, key(1), agent("other")), rev=rev(2))])
        row = await sql.fetchrow("select freshness, stale_since, evidence ->> 0 as evidence from letta.stale_prompt")
    assert row is not None
    assert uri(AGENT, key(1)) in row["evidence"]
