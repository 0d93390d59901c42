"""What one recompile costs in an index of many prompts, and what it costs to work all flags out anew.

The index is filled by SQL, a thousand accounts' agents with their prompts, then analysed as autovacuum would. A
recompile is one batch with one proven prompt, written by the store: locks, row, history, flags, position, commit.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from random import Random

import asyncpg

from benchmarks.load import TIME, prompt
from benchmarks.parts import Server, Sql
from benchmarks.table import Row, Table, quantile
from indexer.batch import Batch, Position
from indexer.cbor import cid_of, cid_text, encode_json
from indexer.lexicon import record_of
from indexer.model import AGENT, COMPILED_PROMPT, Change
from indexer.store import Store
from indexer.store.audits import Audits
from indexer.syntax import tid_of

COUNTS = (10_000, 100_000, 1_000_000)
PROMPTS_OF_AGENT = 20
RECOMPILES = 100
WARM_UP = 10
NUMBERS = itertools.count(1)  # of all recompiles: each is later than those before
MICROS = 1_780_000_000_000_000  # later than every prompt's own
FILL = """
insert into letta_store.compiled_prompt (did, collection, rkey, cid, rev, value, size, valid, proof)
select did, $2, rkey, 'bafy' || n, rev, jsonb_build_object(
        '$type', $2::text, 'agent', 'at://' || did || '/' || $3::text || '/a',
        'conversation', 'at://' || did || '/xyz.quasigod.lab.letta.conversation/' || rkey,
        'content', repeat(md5(n::text), 16), 'coreMemory', md5(n::text), 'rawSystemHash', $4::text,
        'memfsRevision', md5((n % 3)::text), 'compiledAt', $5::text), 700, true, 'repo'
from (
    select n, 'did:plc:' || translate(lpad((n / $6::integer)::text, 24, 'a'), '0189', 'wxyz') as did,
        '3k' || translate(lpad(n::text, 11, 'a'), '0189', 'wxyz') as rkey, '3kaaaaaaaaaaa' as rev
    from generate_series(0, $1::integer - 1) as n) numbers
"""
ACCOUNTS = """
insert into letta_store.account (did) select distinct did from letta_store.compiled_prompt
"""
AGENTS = """
insert into letta_store.agent (did, collection, rkey, cid, rev, value, size, valid, proof, system_sha256)
select did, $1, 'a', 'bafyagent', '3kaaaaaaaaaaa', '{"system": "template", "name": "bench"}', 60, null, 'repo', $2
from letta_store.account
"""
REPOS = "insert into letta_store.repo (did, rev) select did, '3kaaaaaaaaaaa' from letta_store.account"
REFRESH = """
merge into letta_store.freshness as kept
using (select did, space, rkey, freshness, stale_reasons from letta_store.freshness_truth) t
    on kept.did = t.did and kept.space = t.space and kept.rkey = t.rkey
when matched and (kept.freshness <> t.freshness or kept.stale_reasons <> t.stale_reasons) then
    update set freshness = t.freshness, stale_reasons = t.stale_reasons, was = kept.freshness
when not matched then
    insert (did, space, rkey, freshness, stale_reasons) values (t.did, t.space, t.rkey, t.freshness, t.stale_reasons)
"""


async def fill(sql: Sql, count: int, of_account: int) -> None:
    """``count`` prompts, ``of_account`` in each account, all of one agent there; their flags are still to be set."""
    template = hashlib.sha256(b"template").hexdigest()
    await sql.execute(FILL, count, COMPILED_PROMPT, AGENT, template, TIME, of_account)
    await sql.execute(ACCOUNTS)
    await sql.execute(AGENTS, AGENT, template)
    await sql.execute(REPOS)
    await sql.execute("vacuum analyze")


async def set_anew(sql: Sql) -> float:
    """Seconds that it takes to work out all flags and store those that differ from what is there."""
    started = time.monotonic()
    await sql.execute(REFRESH)
    return time.monotonic() - started


async def audited(url: str) -> float:
    """Seconds that the audit takes to work out all flags and compare them with those stored. Raises if one differs."""
    async with opened_store(url) as store:
        started = time.monotonic()
        untrue = await Audits(store).untrue_flags()
        if untrue:
            raise AssertionError(f"{len(untrue)} flags are not what they should be")
        return time.monotonic() - started


@asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[Store]:
    """The store over a database."""

    async def dsn() -> str:
        return url

    store = Store(dsn)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def recompile(did: str, rkey: str, number: int) -> Batch:
    """A batch that compiles one prompt anew."""
    value = prompt(did, rkey, number, 1_000)
    block = encode_json(value)  # type: ignore[arg-type]
    rev = tid_of(MICROS + number)
    batch = Batch()
    record = record_of(COMPILED_PROMPT, rkey, block)
    batch.add(Change(did, "", COMPILED_PROMPT, rkey, rev, cid_text(cid_of(block)), record, "repo"))
    batch.positions["bench"] = Position(number, datetime.now(UTC))
    return batch


async def recompiles(url: str, sql: Sql, count: int) -> list[float]:
    """Milliseconds of each of ``count`` recompiles of prompts drawn from the whole index."""
    keys = await sql.fetch("select did, rkey from letta_store.compiled_prompt order by did, rkey")
    took = []
    async with opened_store(url) as store:
        for key in Random(1).sample(keys, count + WARM_UP):
            batch = recompile(key["did"], key["rkey"], next(NUMBERS))
            started = time.monotonic()
            applied = await store.apply(batch, datetime.now(UTC))
            took.append((time.monotonic() - started) * 1_000)
            assert sum(applied.recompiles.values()) == 1
    return took[WARM_UP:]


async def measure(table: Table, server: Server, rounds: int, scale: float) -> None:
    """Recompiles by size of the index, rounds interleaved between the indexes; then all flags of the largest."""
    async with AsyncExitStack() as stack:
        filled: dict[int, tuple[str, Sql]] = {}
        for count in COUNTS:
            filled[count] = await opened(stack, server, int(count * scale), PROMPTS_OF_AGENT)
        crowded = await opened(stack, server, int(100_000 * scale), int(100_000 * scale))
        least, largest = COUNTS[0], COUNTS[-1]
        written = await set_anew(filled[largest][1])
        for _, sql in (*(filled[count] for count in COUNTS[:-1]), crowded):
            await set_anew(sql)
        for _, sql in (*filled.values(), crowded):
            await sql.execute("vacuum analyze")
        took: dict[int, list[float]] = {count: [] for count in (*COUNTS, 0)}
        for _ in range(rounds):
            for count, (url, sql) in (*filled.items(), (0, crowded)):
                took[count].append(quantile(await recompiles(url, sql, RECOMPILES), 0.5))
        for count in COUNTS:
            limit = 1.5 if count == largest else None
            peer = (f"at {least:,}", took[least]) if count != least else ("", [])
            table.add(Row(f"recompile among {count:,} prompts", "ms", took[count], *peer, at_most=limit))
        name = "recompile, 100,000 prompts of one agent"
        table.add(Row(name, "ms", took[0], f"at {least:,}", took[least]))
        compared = [await audited(filled[largest][0]) for _ in range(min(rounds, 3))]
        table.add(Row(f"all flags of {largest:,} compared", "s", compared, ceiling=10))
        table.add(Row(f"all flags of {largest:,} set anew", "s", [written], ceiling=10, note="every row changes"))


async def opened(stack: AsyncExitStack, server: Server, count: int, of_account: int) -> tuple[str, Sql]:
    """A filled index and a connection to it."""
    url = await stack.enter_async_context(server.database())
    sql = await asyncpg.connect(url, server_settings={"jit": "off", "search_path": "pg_catalog"})
    stack.push_async_callback(sql.close)
    await fill(sql, count, of_account)
    return url, sql
