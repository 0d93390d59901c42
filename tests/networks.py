"""A daemon on simulated networks, and the judgement whether its index holds what they hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit

from indexer.simulator import Relay, World
from tests.daemon_process import DaemonProcess, daemon, eventually
from tests.indexing import Sql, untrue_flags


def world(seed: int) -> World:
    """A simulated network of today: the daemon refuses what is written in the future."""
    return World(seed=seed, accounts=4, clock=lambda: datetime.now(UTC))


async def indexed(sql: Sql) -> dict[str, str]:
    """URI and CID of every record that the index shows."""
    return {row["uri"]: row["cid"] for row in await sql.fetch("select uri, cid from letta.record")}


async def holds(sql: Sql, *worlds: World) -> None:
    """Wait until the index shows exactly what these networks hold, and its flags are what they have to be."""
    truths = [world.expected() for world in worlds]
    records = {uri: record.cid for truth in truths for uri, record in truth.records.items()}
    hidden = {did for truth in truths for did in truth.hidden}
    verdicts = {
        uri: (prompt.judgement.freshness, list(prompt.judgement.stale_reasons))
        for truth in truths
        for uri, prompt in truth.prompts.items()
        if urlsplit(uri).netloc not in hidden
    }

    async def equal() -> bool:
        return await indexed(sql) == records

    assert records
    await eventually(equal)
    rows = await sql.fetch("select uri, freshness, stale_reasons from letta.compiled_prompt")
    assert {row["uri"]: (row["freshness"], row["stale_reasons"]) for row in rows} == verdicts
    assert await untrue_flags(sql) == []


@asynccontextmanager
async def following(relay: Relay, database: str, *arguments: str) -> AsyncIterator[DaemonProcess]:
    """The daemon on a relay whose word it takes, ready."""
    async with daemon("--source", relay.url, "--trust", "relay", "--database-url", database, *arguments) as process:
        await process.ready()
        yield process


def key_of(relay: Relay) -> str:
    """The name of a relay's cursor."""
    return relay.url.replace("ws://", "firehose:")


async def cursor_at(sql: Sql, seq: int) -> None:
    """Wait until the only source has been committed up to this sequence number."""

    async def there() -> bool:
        return bool(await sql.fetchval("select seq from letta.source") == seq)

    await eventually(there)
