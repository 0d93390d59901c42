"""``NOTIFY letta``: what happens to public prompts is told when it is committed, and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.frames import AGENT, CONVERSATION, DID, PROMPT, account, agent, commit, delete, key, prompt, put, rev, uri
from tests.indexing import Sql, indexing
from tests.store.batches import NOW, SPACE, batch_of, change, opened

HERE = uri(PROMPT, key(1))


@pytest.fixture
async def news(sql: Sql) -> asyncio.Queue[str]:
    """The payloads that a listener on ``letta`` receives, in order."""
    received: asyncio.Queue[str] = asyncio.Queue()
    await sql.add_listener("letta", lambda *heard: received.put_nowait(str(heard[-1])))
    return received


async def told(sql: Sql, news: asyncio.Queue[str]) -> list[dict[str, Any]]:
    """What was told up to now."""
    await sql.execute("select pg_notify('letta', 'end')")
    payloads = []
    while (payload := await asyncio.wait_for(news.get(), 30)) != "end":
        assert len(payload.encode()) <= 7_900
        payloads.append(json.loads(payload))
    return payloads


async def test_life_of_a_prompt(database: str, sql: Sql, news: asyncio.Queue[str]) -> None:
    """A prompt goes stale, is recompiled, fresh again, deleted: each is told once, with what it takes to act."""
    async with indexing(database) as index:
        await index.take([commit(put(AGENT, key(1), agent()), put(PROMPT, key(1), prompt()), rev=rev(1))])
        assert await told(sql, news) == []
        await index.take([commit(put(AGENT, key(1), agent("new")), rev=rev(2))])
        (stale,) = await told(sql, news)
        assert (stale["event"], stale["uri"], stale["stale_reasons"]) == ("stale", HERE, ["template_changed"])
        assert stale["agent"] == uri(AGENT, key(1))
        await index.take([commit(put(PROMPT, key(1), prompt("new")), rev=rev(3))])
        recompiled, fresh = await told(sql, news)
        assert (recompiled["event"], recompiled["uri"], recompiled["kind"]) == ("recompiled", HERE, "full")
        assert recompiled["previous_cid"] == stale["cid"]
        assert (fresh["event"], fresh["uri"], fresh["cid"]) == ("fresh", HERE, recompiled["cid"])
        await index.take([commit(delete(PROMPT, key(1)), rev=rev(4))])
        assert await told(sql, news) == [{"event": "deleted", "uri": HERE}]


async def test_nothing_happened(database: str, sql: Sql, news: asyncio.Queue[str]) -> None:
    """The same frames again, and what concerns no prompt, are told to nobody."""
    frames = [commit(put(PROMPT, key(1), prompt()), put(CONVERSATION, key(1), {}), rev=rev(1))]
    async with indexing(database) as index:
        for _ in range(3):
            await index.take(frames)
        await index.take([commit(delete(CONVERSATION, key(1)), delete(PROMPT, key(2)), rev=rev(2))])
        assert await told(sql, news) == []


async def test_deleted_account(database: str, sql: Sql, news: asyncio.Queue[str]) -> None:
    """What a deleted account takes along is told as deleted."""
    async with indexing(database) as index:
        await index.take([commit(put(PROMPT, key(1), prompt()), rev=rev(1))])
        await index.take([account(active=False, status="deleted", time="2024-02-01T00:00:00Z")])
        assert await told(sql, news) == [{"event": "deleted", "uri": HERE}]


async def test_spaces_are_not_told_of(database: str, sql: Sql, news: asyncio.Queue[str]) -> None:
    """Anyone may listen, so nothing of a space is told."""
    async with opened(database) as store:
        for at, template in enumerate(("old", "new"), 1):
            record = prompt(template, agent=f"{SPACE}/{DID}/{AGENT}/{key(1)}")
            await store.apply(batch_of(change(PROMPT, key(1), record, space=SPACE, at=at)), NOW)
        await store.apply(batch_of(change(AGENT, key(1), agent("other"), space=SPACE)), NOW)
    assert await sql.fetchval("select count(*) from letta.stale_prompt") == 1
    assert await told(sql, news) == []


async def test_longest_payload(database: str, sql: Sql, news: asyncio.Queue[str]) -> None:
    """The longest keys that there are make payloads that PostgreSQL carries."""
    did, rkey = "did:web:" + "a" * 1_016, "k" * 512
    reference = uri(AGENT, "r" * 400, did)
    async with indexing(database) as index:
        for at, template in ((1, "old"), (2, "new")):
            await index.take([commit(put(PROMPT, rkey, prompt(template, agent=reference)), did=did, rev=rev(at))])
        await index.take([commit(put(AGENT, "r" * 400, agent("other")), did=did, rev=rev(3))])
    assert [one["event"] for one in await told(sql, news)] == ["recompiled", "stale"]


async def test_refused_batch_is_not_told_of(database: str, sql: Sql, news: asyncio.Queue[str]) -> None:
    """What is parted on its way in is told once."""
    async with opened(database) as store:
        await store.apply(batch_of(change(PROMPT, key(1), prompt("old"))), NOW)
        bad = change(PROMPT, key(2), text='{"a": "\\u0000"}')
        await store.apply(batch_of(change(PROMPT, key(1), prompt("new"), at=2), bad), NOW)
    assert [one["event"] for one in await told(sql, news)] == ["recompiled"]
