"""Private stays private: who may only read learns nothing of spaces that aren't granted, by whatever way of asking."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product

import asyncpg
import pytest

from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, MESSAGE, PREFIX
from indexer.store import Store
from indexer.store.spaces import Spaces
from tests.frames import DID
from tests.indexing import Sql
from tests.spaces.letta import RKEY, agent, conversation, prompt
from tests.spaces.test_store import move
from tests.store.batches import NOW, batch_of, change, opened
from tests.store.test_schema import relations

CANARY = "secret"  # in everything of the spaces; nothing public has it
AUTHOR = "did:plc:secretauthorsecretauthor"
SPACES = [f"at://{AUTHOR}/space/com.secret.space/secret{number}" for number in (1, 2)]
COLLECTIONS = (AGENT, CONVERSATION, COMPILED_PROMPT, MESSAGE, PREFIX + "secret")
VALUES = ("uri", "did", "space", "collection", "rkey", "cid", "rev")
PLANS = [
    ["set enable_seqscan = off"],
    ["set enable_indexscan = off", "set enable_bitmapscan = off", "set enable_indexonlyscan = off"],
    ["set enable_hashjoin = off", "set enable_mergejoin = off"],
]


@pytest.fixture
async def filled(database: str, sql: Sql) -> AsyncIterator[Store]:
    """A store with public records of one account, and two spaces of which another account's records are full."""
    async with opened(database) as store:
        public = f"at://{DID}"
        await store.apply(
            batch_of(
                change(AGENT, "a", agent("new")),
                change(CONVERSATION, RKEY, conversation(f"{public}/{AGENT}/a")),
                change(COMPILED_PROMPT, RKEY, prompt(f"{public}/{AGENT}/a", repo=public)),
                change(COMPILED_PROMPT, "q", prompt(f"{SPACES[0]}/{AUTHOR}/{AGENT}/a", repo=public)),
                change(MESSAGE, "m", {"conversation": f"{public}/{CONVERSATION}/{RKEY}", "seq": 1}),
                change(PREFIX + "other", "o"),
            ),
            NOW,
        )
        for space in SPACES:
            for did in (AUTHOR, DID):
                repo = f"{space}/{did}"
                rows = [
                    change(AGENT, "a", agent("secret new"), space=space, did=did),
                    change(
                        CONVERSATION, "secret", conversation(f"{repo}/{AGENT}/a", title="secret"), space=space, did=did
                    ),
                    *(
                        change(
                            COMPILED_PROMPT, key, prompt(f"{repo}/{AGENT}/a", "secret", repo=repo), space=space, did=did
                        )
                        for key in ("secret", RKEY)
                    ),
                    change(MESSAGE, "secret", {"conversation": f"{repo}/{CONVERSATION}/x"}, space=space, did=did),
                    change(PREFIX + "secret", "secret", {"text": "secret"}, space=space, did=did),
                ]
                first = move(None, 1, *rows, space=space, did=did)
                await Spaces(store).move(first, NOW)
                again = move(1, 2, replace(rows[2], rev="3kzzzzzzzzz22", cid="secretcid"), space=space, did=did)
                await Spaces(store).move(again, NOW)
                await Spaces(store).note(did, space, "waiting", "secret", NOW)
        await Spaces(store).note("secret.example", "", "refused", "secret", NOW)
        await analyze(sql)
        yield store


async def analyze(sql: Sql) -> None:
    """What autovacuum does: every table that holds rows, none of those above them."""
    for table in await relations(sql, "letta_store"):
        if not table.endswith("freshness_truth"):
            await sql.execute(f"vacuum analyze {table}")


@pytest.fixture
async def reader(database: str) -> AsyncIterator[Sql]:
    """A connection that may read the views and nothing else."""
    connection = await asyncpg.connect(database)
    await connection.execute("set role letta_reader")
    yield connection
    await connection.close()


@asynccontextmanager
async def role(sql: Sql, name: str) -> AsyncIterator[str]:
    """A role of the server's, for one test."""
    await sql.execute(f'create role "{name}"')
    try:
        yield name
    finally:
        await sql.execute(f'reset role; drop owned by "{name}"; drop role "{name}"')


async def seen(sql: Sql) -> dict[str, list[str]]:
    """All that each view shows, as text."""
    views = await relations(sql, "letta")
    assert len(views) > 12
    return {view: [row["t"] for row in await sql.fetch(f"select v::text as t from {view} v")] for view in views}


def told(shown: dict[str, list[str]], word: str = CANARY) -> list[str]:
    """The views that show a word. What a public record itself says is public."""
    own = f"{SPACES[0]}/{AUTHOR}/{AGENT}/a"
    return sorted(view for view, rows in shown.items() if any(word in row.replace(own, "") for row in rows))


async def test_views_show_public_records_only(filled: Store, reader: Sql, sql: Sql) -> None:
    """No view shows the reader a row, a count, a source or an issue of any space; their owner sees them everywhere."""
    shown = await seen(reader)
    assert told(shown) == []
    assert all(not row or "space" not in row.split(",")[0] for rows in shown.values() for row in rows)
    assert {"letta.record", "letta.recompile", "letta.repo", "letta.source", "letta.integrity_issue"} <= {
        *told(await seen(sql))
    }
    for view in await relations(reader, "letta"):
        if "space" in dict(await reader.fetchrow(f"select * from {view} limit 1") or {}):
            assert await reader.fetchval(f"select count(*) from {view} where space <> ''") == 0


async def test_evidence_of_a_public_prompt_is_public(filled: Store, reader: Sql) -> None:
    """A public prompt whose agent is in a space has no evidence from there, though its agent contradicts it."""
    row = await reader.fetchrow("select freshness, stale_reasons, evidence from letta.compiled_prompt where rkey = 'q'")
    assert row is not None
    assert (row["freshness"], row["stale_reasons"], row["evidence"]) == ("unverified", [], None)


async def test_reader_finds_evidence_by_key(filled: Store, reader: Sql) -> None:
    """The row policies of a reader leave it the indexes: evidence is not looked for among all there is."""
    await reader.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    asked = "select evidence, stale_since from letta.compiled_prompt where did = $1 and space = '' and rkey = $2"
    row = await reader.fetchrow(asked, DID, RKEY)
    assert row is not None
    assert all(row)
    plan = "\n".join(row[0] for row in await reader.fetch(f"explain {asked}", DID, RKEY))
    assert plan.count("Index Cond: ((agent_hash = ") == 2
    assert "Seq Scan" not in plan


def questions() -> Iterator[str]:
    """Ways to ask for what isn't to be seen."""
    for view in ("record", "agent", "conversation", "compiled_prompt", "message", "recompile", "repo", "thread"):
        yield f"select * from letta.{view}"
        yield f"select * from letta.{view} where did = '{DID}'"
        yield f"select * from letta.{view} where space like 'at:%'"
        yield f"select * from letta.{view} where space = '{SPACES[0]}'"
        yield f"select * from letta.{view} where did = '{AUTHOR}' and space > ''"
    for name in VALUES:
        yield f"select * from letta.record where {name} >= 'secret' or {name} like '%secret%'"
    yield "select * from letta.conversation where title = 'secret'"
    yield f"select * from letta.thread where conversation = '{SPACES[0]}/{AUTHOR}/{CONVERSATION}/x'"
    yield "select distinct space from letta.record"
    yield "select * from letta.integrity_issue"
    yield "select * from letta.stale_prompt"
    yield "select * from letta.source where source like 'space:%'"
    yield "select * from letta.dead_letter"


async def plans(sql: Sql) -> list[str]:
    """What EXPLAIN says of every question, estimates and counted rows included, under different plans."""
    found = []
    for settings, question in product([[], *PLANS], questions()):
        async with sql.transaction():
            for setting in settings:
                await sql.execute(setting.replace("set ", "set local "))
            explain = "explain (analyze, verbose, timing off, summary off, buffers off)"
            found.append("\n".join(row[0] for row in await sql.fetch(f"{explain} {question}")))
    return found


async def test_plans_tell_nothing_of_spaces(filled: Store, reader: Sql, sql: Sql) -> None:
    """EXPLAIN (ANALYZE) says the same to the reader, to the last estimate, whether there are private rows or not."""
    with_private = await plans(reader)
    assert not [plan for plan in with_private if "_private" in plan]
    for table in await partitions(sql):
        await sql.execute(f"delete from letta_store.{table}")
    await sql.execute("delete from letta_store.space_source")
    await analyze(sql)
    assert [one for one, other in zip(with_private, await plans(reader), strict=True) if one != other] == []


async def partitions(sql: Sql) -> list[str]:
    """The tables that hold what is private."""
    rows = await sql.fetch("select relname from pg_class where relname like '%\\_private' and relkind = 'r'")
    assert len(rows) == 9
    return [row["relname"] for row in rows]


async def test_statistics_are_not_shown(filled: Store, reader: Sql) -> None:
    """The planner's samples, which hold values, are open for no table that has anything of a space."""
    shown = {
        row["tablename"] for row in await reader.fetch("select tablename from pg_stats where schemaname like 'letta%'")
    }
    assert shown == set()


async def test_errors_and_functions_of_ones_own_see_nothing(filled: Store, reader: Sql) -> None:
    """Neither an error that quotes values nor a function that tells all it is given gets hold of a private row."""
    notices: list[str] = []
    reader.add_log_listener(lambda _, message: notices.append(str(message)))
    await reader.execute(
        "create function pg_temp.tell(text) returns boolean language plpgsql cost 0.0000001 "
        "as $$ begin raise notice '%', $1; return true; end $$"
    )
    for view, name in product(("record", "recompile", "repo", "compiled_prompt", "message"), ("did", "space", "rev")):
        await reader.execute(f"select * from letta.{view} where pg_temp.tell({name}::text)")
    await reader.execute("select * from letta.source where pg_temp.tell(source) and pg_temp.tell(detail)")
    assert any(DID in notice for notice in notices)
    assert not [notice for notice in notices if CANARY in notice]
    for name in VALUES:
        with pytest.raises(asyncpg.DataError) as caught:
            await reader.fetch(f"select ({name} || '!')::integer from letta.record order by 1 desc")
        assert CANARY not in str(caught.value)
        query = f"select 1 / (case when {name} like '%secret%' then 0 else 1 end) from letta.record"
        await reader.fetch(query)


async def test_no_function_is_open(filled: Store, reader: Sql) -> None:
    """No function of ours can be called by who may only read, least of all the one that grants."""
    rows = await reader.fetch(
        "select proname, has_function_privilege(oid, 'execute') as may from pg_proc "
        "where pronamespace = to_regnamespace('letta')"
    )
    assert {row["proname"]: row["may"] for row in rows} == {"grant_space": False, "revoke_space": False}
    for call in (
        "letta.grant_space('x', 'y')",
        "letta_store.space_of('x')",
        "letta_store.refresh_freshness('{}', '{}', '{}')",
    ):
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError)):
            await reader.fetch(f"select {call}")


@pytest.mark.parametrize("name", ["letta_one_space", "r" * 63, 'a "quoted" näme'])
async def test_a_role_sees_the_spaces_it_is_granted(filled: Store, sql: Sql, name: str) -> None:
    """Who is granted one space sees it, whole, beside what is public, and no other; taken back, it is not seen."""
    spelled = SPACES[0].replace(f"at://{AUTHOR}/space/", f"at:space/{AUTHOR}/")
    async with role(sql, name.replace('"', "")) as reader:
        for space in (SPACES[0], spelled):  # twice, in both spellings
            await sql.execute("select letta.grant_space($1, $2)", space, reader)
        await sql.execute(f'set role "{reader}"')
        mine = await seen(sql)
        await sql.execute("reset role")
        everything = await seen(sql)
        for view, rows in everything.items():
            assert sorted(mine[view]) == sorted(row for row in rows if is_of(row, SPACES[0])), view
        await sql.execute("select letta.grant_space($1, $2)", SPACES[1], reader)
        await sql.execute("select letta.revoke_space($1, $2)", spelled, reader)
        await sql.execute(f'set role "{reader}"')
        assert {row["space"] for row in await sql.fetch("select distinct space from letta.record")} == {"", SPACES[1]}
        await sql.execute("reset role")
        await sql.execute("select letta.revoke_space($1, $2)", SPACES[1], reader)
        await sql.execute(f'set role "{reader}"')
        assert {row["space"] for row in await sql.fetch("select distinct space from letta.record")} == {""}
        assert told(await seen(sql)) == []


def is_of(row: str, space: str) -> bool:
    """Whether a view's row is public or of this space."""
    others = [one for one in SPACES if one != space]
    return not any(other in row for other in others) and "secret.example" not in row


@pytest.mark.parametrize("space", ["", "x", "at://did:plc:x/space/", "at://did:plc:x/com.example.x/y", "' or true --"])
async def test_what_is_no_space_is_not_granted(filled: Store, sql: Sql, space: str) -> None:
    """Only a space can be granted, and only to a role of its own: never to everybody, nor to all readers."""
    before = await sql.fetchval("select count(*) from pg_policy")
    async with role(sql, "letta_nobody") as reader:
        with pytest.raises(asyncpg.RaiseError):
            await sql.execute("select letta.grant_space($1, $2)", space, reader)
    for name in ("public", "letta_reader", "nobody.at.all", "none", "current_user"):
        with pytest.raises(asyncpg.RaiseError):
            await sql.execute("select letta.grant_space($1, $2)", SPACES[0], name)
    assert await sql.fetchval("select count(*) from pg_policy") == before


async def test_nobody_is_notified_of_spaces(database: str, sql: Sql) -> None:
    """What happens in a space is announced to no listener; what happens in public is."""
    heard: list[str] = []
    await sql.add_listener("letta", lambda *args: heard.append(str(args[-1])))
    space = SPACES[0]
    repo = f"{space}/{AUTHOR}"
    async with opened(database) as store:
        rows = [
            change(AGENT, "a", agent("new"), space=space, did=AUTHOR),
            change(COMPILED_PROMPT, "secret", prompt(f"{repo}/{AGENT}/a"), space=space, did=AUTHOR),
        ]
        await Spaces(store).move(move(None, 1, *rows, space=space, did=AUTHOR), NOW)
        await Spaces(store).move(move(1, 2, replace(rows[1], cid=None, record=None), space=space, did=AUTHOR), NOW)
        await store.apply(batch_of(change(AGENT, "a", agent("new"))), NOW)
        await store.apply(batch_of(change(COMPILED_PROMPT, "p", prompt(f"at://{DID}/{AGENT}/a"))), NOW)
    await sql.fetch("select 1")
    assert [json.loads(one)["event"] for one in heard] == ["stale"]
    assert CANARY not in heard[0]
