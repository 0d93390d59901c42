"""The index is a function of the set of events: neither their order nor their number nor their batching matters.

Each example goes through the real pipeline and store into a real PostgreSQL. What has to come out is worked out twice
without the code under test: rows and history from the frames (``tests.histories.held``) and from the simulated network
that emitted them, flags by the simulator's judge, which was written from the description of the domain alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hypothesis
from hypothesis import strategies as st

from indexer.simulator.freshness import judge
from indexer.simulator.oracle import Expected
from tests import frames
from tests.frames import DID, PROMPT
from tests.histories import (
    KEYS,
    NOW,
    REFERENCES,
    Batches,
    Committed,
    Lived,
    Put,
    Told,
    Version,
    arrivals,
    arriving,
    batching,
    examples,
    families,
    held,
    hostile,
    lives,
    quarrels,
    values_in,
)
from tests.indexing import Indexing, Sql, indexing, untrue_flags

RECORD_TABLES = ("conversation", "compiled_prompt", "agent", "message", "other_record")
HISTORY = ("tombstone", "recompile", "conversation_version")
TABLES = (*RECORD_TABLES, "freshness", "account", "repo", *HISTORY, "cursor", "dead_letter")
SHOWN = ("active", "desynchronized", "throttled")  # every other status hides an account

WIPE = "; ".join(f"delete from letta_store.{table}" for table in TABLES)
ROWS = " union all ".join(f"select uri, cid, rev from letta_store.{table}" for table in RECORD_TABLES)
SIZES = " union all ".join(f"select did, size from letta_store.{table}" for table in RECORD_TABLES)
COUNTS = f"select did, count(*) as records, sum(size) as bytes from ({SIZES}) kept group by did"
MARKED = (f"select did from letta_store.{table}" for table in HISTORY)
MARKS = f"select did, count(*) from ({' union all '.join(MARKED)}) marked group by did"
FLAGS = "select p.uri, f.* from letta_store.compiled_prompt p join letta_store.freshness f using (did, space, rkey)"
COMPILES = f"select letta_store.uri_of(did, space, '{PROMPT}', rkey) as uri, rev, cid from letta_store.recompile"
# All that may not depend on how the events arrived: everything kept but when it was.
STATE = {
    **{table: f"select to_jsonb(r) - 'indexed_at' from letta_store.{table} r" for table in RECORD_TABLES},
    "history": "select to_jsonb(h) - 'seen_at' from letta_store.recompile h",
    "flags": "select to_jsonb(f) - 'was' from letta_store.freshness f",
    "versions": "select to_jsonb(h) - 'seen_at' from letta_store.conversation_version h",
    "tombstones": "select to_jsonb(t) from letta_store.tombstone t",
    "accounts": "select jsonb_build_array(did, active, status, status_time, hidden, purged_rev)"
    " from letta_store.account where status_time > '0001-01-02' or purged_rev <> ''",
    "repos": "select jsonb_build_array(did, records, bytes) from letta_store.repo where records > 0",
}


async def state(sql: Sql) -> dict[str, list[str]]:
    """Everything the index holds, as text."""
    return {name: sorted(str(row[0]) for row in await sql.fetch(query)) for name, query in STATE.items()}


async def rows(sql: Sql) -> set[Version]:
    """Every row, those of hidden accounts too."""
    return {Version(**dict(row)) for row in await sql.fetch(ROWS)}


async def assert_true_flags(sql: Sql, values: Mapping[str, Any]) -> None:
    """Stored flags are what their view says and what the judge says of the rows that are there (values by CID)."""
    assert await untrue_flags(sql) == []
    records = {row.uri: values[row.cid] for row in await rows(sql)}
    accounts = await sql.fetch("select did, status from letta_store.account")
    verdicts = judge(records, {row["did"] for row in accounts if row["status"] not in SHOWN})
    flags = {row["uri"]: (row["freshness"], tuple(row["stale_reasons"])) for row in await sql.fetch(FLAGS)}
    assert flags == {uri: (verdict.freshness, verdict.stale_reasons) for uri, verdict in verdicts.items()}


async def assert_true_counts(sql: Sql) -> None:
    """What quotas go by is what is there."""
    counts = {row["did"]: (row["records"], row["bytes"]) for row in await sql.fetch(COUNTS)}
    repos = await sql.fetch("select did, records, bytes from letta_store.repo where (records, bytes) <> (0, 0)")
    assert {row["did"]: (row["records"], row["bytes"]) for row in repos} == counts
    marks = dict(map(tuple, await sql.fetch(MARKS)))
    assert dict(map(tuple, await sql.fetch("select did, marks from letta_store.repo where marks <> 0"))) == marks


async def arrive(index: Indexing, sql: Sql, batches: Batches, values: Mapping[str, Any]) -> None:
    """Take the batches in, one transaction each, and look at the flags after each of them."""
    for batch in batches:
        await index.take(batch)
        await assert_true_flags(sql, values)
        await assert_true_counts(sql)


async def index_anew(database: str, sql: Sql, batches: Batches, values: Mapping[str, Any], life: Lived | None) -> None:
    """Empty the database and let the batches arrive in it."""
    await sql.execute(WIPE)
    clock = (lambda: NOW) if life is None else (lambda: life.now)
    async with indexing(database, clock=clock) as index:
        await arrive(index, sql, batches, values)


@examples(20)
@hypothesis.given(data=st.data(), life=lives)
async def test_a_life_in_order_gives_exactly_what_the_network_holds(
    database: str, sql: Sql, data: st.DataObject, life: Lived
) -> None:
    """Records, account states, flags and the kinds of all compiles are those of the network itself."""
    batches = arriving(data.draw(batching(range(len(life.frames)))), life.frames)
    await index_anew(database, sql, batches, values_in(life.frames), life)
    expected = life.world.expected()
    wanted = [record for account in expected.accounts.values() for record in account.records.values()]
    assert await rows(sql) == {Version(record.uri, record.rev, record.cid) for record in wanted}
    await assert_as_shown(sql, expected)


async def assert_as_shown(sql: Sql, expected: Expected) -> None:
    """The views show what the network holds: records, prompts, compiles and accounts."""
    shown = await sql.fetch("select uri, did, collection, rkey, cid, rev from letta.record")
    wanted = expected.records.values()
    assert {tuple(row) for row in shown} == {(r.uri, r.did, r.collection, r.rkey, r.cid, r.rev) for r in wanted}
    accounts = await sql.fetch("select did, status from letta_store.account")
    assert {tuple(row) for row in accounts} == {(account.did, account.status) for account in expected.accounts.values()}
    visible = {uri: prompt for uri, prompt in expected.prompts.items() if uri in expected.records}
    flags = await sql.fetch("select uri, freshness, stale_reasons from letta.compiled_prompt")
    assert {row["uri"]: (row["freshness"], tuple(row["stale_reasons"])) for row in flags} == {
        uri: (prompt.judgement.freshness, prompt.judgement.stale_reasons) for uri, prompt in visible.items()
    }
    compiles = await sql.fetch("select uri, rev, cid, kind from letta.recompile")
    assert {tuple(row) for row in compiles} == {(uri, *made) for uri, p in visible.items() for made in p.compiles}


@examples(20)
@hypothesis.given(data=st.data(), life=lives)
async def test_a_life_in_any_order_gives_the_same_index(
    database: str, sql: Sql, data: st.DataObject, life: Lived
) -> None:
    """Shuffled, repeated and cut into any batches, the frames of a life end in the index of those in order."""
    values = values_in(life.frames)
    await index_anew(database, sql, [life.frames], values, life)
    in_order = await state(sql)
    await index_anew(database, sql, arriving(data.draw(arrivals(len(life.frames))), life.frames), values, life)
    assert await state(sql) == in_order


async def converge(database: str, sql: Sql, data: st.DataObject, events: list[Committed | Told]) -> None:
    """Two arrivals of these events end in one index: what the frames come to."""
    given = [event.frame() for event in events]
    values = values_in(given)
    await index_anew(database, sql, arriving(data.draw(arrivals(len(given))), given), values, None)
    first, wanted = await state(sql), held(given)
    assert await rows(sql) == wanted.rows
    assert {Version(**dict(row)) for row in await sql.fetch(COMPILES)} == wanted.compiles
    accounts = await sql.fetch("select did, status from letta_store.account where status_time > '0001-01-02'")
    assert dict(map(tuple, accounts)) == {did: status for did, (_, status) in wanted.statuses.items()}
    await index_anew(database, sql, arriving(data.draw(arrivals(len(given))), given), values, None)
    assert await state(sql) == first


@examples(30)
@hypothesis.given(data=st.data(), events=hostile)
async def test_hostile_histories_converge(
    database: str, sql: Sql, data: st.DataObject, events: list[Committed | Told]
) -> None:
    """Any JSON in any field, many agents, deletes of keys never seen: the order of arrival makes no difference."""
    await converge(database, sql, data, events)


@examples(30)
@hypothesis.given(data=st.data(), events=quarrels)
async def test_quarrels_over_a_key_converge(
    database: str, sql: Sql, data: st.DataObject, events: list[Committed | Told]
) -> None:
    """Writes, deletes and purges of the same keys, also at equal revs and times, are decided by what they say."""
    await converge(database, sql, data, events)


@examples(40)
@hypothesis.given(data=st.data(), events=families)
async def test_flags_of_siblings_converge(
    database: str, sql: Sql, data: st.DataObject, events: list[Committed | Told]
) -> None:
    """Prompts of one agent that overtake, leave and join one another have true flags after every transaction."""
    await converge(database, sql, data, events)


async def test_prompt_that_leaves_its_agent_takes_its_evidence_along(database: str, sql: Sql) -> None:
    """A sibling that named the same agent until now counts no longer, in the transaction in which it turns away."""
    early = frames.prompt(memfsRevision="r1", compiledAt="2023-01-01T00:00:00Z")
    late, turned = frames.prompt(memfsRevision="r2"), frames.prompt(memfsRevision="r2", agent=REFERENCES[0])
    both = (Put(PROMPT, KEYS[0], early), Put(PROMPT, KEYS[1], late))
    events = [Committed(DID, 0, both), Committed(DID, 1, (Put(PROMPT, KEYS[1], turned),))]
    given = [event.frame() for event in events]
    await index_anew(database, sql, [[frame] for frame in given], values_in(given), None)
    assert {row["freshness"] for row in await sql.fetch(FLAGS)} == {"unverified"}
