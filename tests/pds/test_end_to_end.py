"""From the real PDS through the real daemon into SQL: what happens over there is seen here, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from tests.daemon_process import DaemonProcess, daemon, eventually
from tests.indexing import Sql, untrue_flags
from tests.pds import real
from tests.pds.letta import COLLECTIONS, MESSAGE, PROMPT, Letta, hash_of
from tests.pds.real import PdsError, RealPds, Written

RECORDS = ("conversation", "compiled_prompt", "agent", "message", "other_record")
TABLES = (*RECORDS, "recompile", "conversation_version", "freshness")


@dataclass(slots=True)
class Index:
    """The database the daemon writes: asked over SQL, and heard over its notifications."""

    sql: Sql
    news: asyncio.Queue[dict[str, Any]]

    async def holds(self, written: Written) -> None:
        """Wait until the record is there in this very version."""

        async def found() -> bool:
            kept = await self.sql.fetchval("select cid from letta.record where uri = $1", written.uri)
            return bool(kept == written.cid)

        await eventually(found)

    async def lacks(self, uri: str) -> None:
        """Wait until there is no such record."""

        async def gone() -> bool:
            return not await self.sql.fetchval("select count(*) from letta.record where uri = $1", uri)

        await eventually(gone)

    async def told(self, event: str, uri: str) -> dict[str, Any]:
        """The next announcement of this kind about this record; others are passed over."""
        async with asyncio.timeout(60):
            while True:
                news = await self.news.get()
                if (news["event"], news["uri"]) == (event, uri):
                    return news

    async def prompt(self, uri: str) -> dict[str, Any]:
        """The one row of a prompt."""
        (row,) = await self.sql.fetch("select * from letta.compiled_prompt where uri = $1", uri)
        return dict(row)

    async def kinds(self, uri: str) -> list[str]:
        """The kinds of a prompt's compiles, in order."""
        return [
            row["kind"]
            for row in await self.sql.fetch("select kind from letta.recompile where uri = $1 order by rev", uri)
        ]

    async def kept_of(self, did: str) -> dict[str, int]:
        """How many rows the store keeps of an account, by table, seen by nobody or not; tables without any left out."""
        counts = {
            table: await self.sql.fetchval(f"select count(*) from letta_store.{table} where did = $1", did)
            for table in TABLES
        }
        return {table: count for table, count in counts.items() if count}


@pytest.fixture
async def index(sql: Sql) -> Index:
    """The database of this test, listened to."""
    news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def hear(connection: object, pid: int, channel: str, payload: object) -> None:
        news.put_nowait(json.loads(str(payload)))

    await sql.add_listener("letta", hear)
    return Index(sql, news)


@pytest.fixture(params=["relay", "verify"])
def arguments(request: pytest.FixtureRequest, pds: RealPds, database: str) -> tuple[str, ...]:
    """What the daemon is started with: subscribed to the PDS, whose word it takes or of which it demands proofs."""
    there = ("--source", pds.firehose_url, "--plc-url", pds.plc_url, "--allow-private-hosts")
    return (*there, "--trust", request.param, "--database-url", database)


@pytest.fixture
async def subscribed(arguments: tuple[str, ...]) -> AsyncIterator[DaemonProcess]:
    """The daemon, subscribed to the PDS from now on."""
    async with daemon(*arguments) as process:
        await process.logged("source", state="live")
        yield process


@pytest.fixture
async def letta(pds: RealPds, index: Index, subscribed: DaemonProcess) -> Letta:
    """An agent whose prompt was just compiled and has arrived in the index."""
    letta = Letta(await pds.create_account("alice"))
    await index.holds(await letta.begin())
    return letta


async def test_new_record_is_in_sql_at_once(letta: Letta, index: Index) -> None:
    """What the PDS has accepted is in SQL, whole, a moment later (how long is printed)."""
    delays = []
    for seq in range(1, 6):
        written = await letta.say(f"hello {seq}", seq)
        accepted = monotonic()
        await index.holds(written)
        delays.append(1000 * (monotonic() - accepted))
    print("from the PDS's answer to SQL, ms: " + ", ".join(f"{delay:.1f}" for delay in delays))
    (row,) = await index.sql.fetch("select * from letta.message where uri = $1", written.uri)
    listed = await letta.account.pds.get_record(letta.account.did, MESSAGE, row["rkey"])
    assert listed is not None
    assert json.loads(row["value"]) == listed.value
    assert (row["did"], row["conversation"], row["seq"]) == (letta.account.did, letta.conversation, 5)


async def test_recompiling_in_place_keeps_one_row(letta: Letta, index: Index) -> None:
    """A putRecord on a prompt's key leaves one row with the new CID, the old one behind it, and what kind it was."""
    before = await index.prompt(letta.prompt)
    assert (before["previous_cid"], before["recompiles"]) == (None, 0)
    steps = [
        ("full", letta.compile_with("knows more", "b" * 40)),
        ("memory", letta.update_memory("knows even more", "c" * 40)),
        ("touch", letta.touch()),
    ]
    kinds = ["first"]
    for kind, step in steps:
        written = await step
        news = await index.told("recompiled", letta.prompt)
        assert (news["kind"], news["cid"], news["previous_cid"]) == (kind, written.cid, before["cid"])
        after = await index.prompt(letta.prompt)
        assert (after["cid"], after["previous_cid"]) == (written.cid, before["cid"])
        assert after["recompiles"] == before["recompiles"] + 1
        assert after["core_memory_in_content"] is (kind == "full")
        kinds.append(kind)
        assert await index.kinds(letta.prompt) == kinds
        before = after


async def test_a_new_template_makes_the_prompt_stale_until_it_is_recompiled(letta: Letta, index: Index) -> None:
    """A changed template lists the prompt as stale, with reason and evidence; compiling it again takes it off."""
    assert (await index.prompt(letta.prompt))["freshness"] == "fresh"
    old = letta.template
    changed = await letta.set_template("You are bold.\n\n{CORE_MEMORY}")
    assert (await index.told("stale", letta.prompt))["stale_reasons"] == ["template_changed"]
    (stale,) = await index.sql.fetch("select * from letta.stale_prompt")
    assert (stale["uri"], stale["agent"], stale["conversation"]) == (letta.prompt, letta.agent, letta.conversation)
    assert stale["stale_reasons"] == ["template_changed"]
    (fact,) = json.loads(stale["evidence"])
    assert (fact["record"], fact["cid"], fact["rev"]) == (changed.uri, changed.cid, changed.rev)
    assert (fact["found"], fact["expected"]) == (hash_of(old), hash_of(letta.template))
    await letta.compile()
    assert (await index.told("fresh", letta.prompt))["freshness"] == "fresh"
    assert await index.sql.fetch("select * from letta.stale_prompt") == []


async def test_a_newer_memory_elsewhere_makes_the_prompt_stale(letta: Letta, index: Index) -> None:
    """The memory is the agent's: another conversation compiled later with a new revision is evidence here."""
    sibling = Letta(letta.account, revision="f" * 40, key="3kaaaaaaaaa2c")
    written = await sibling.compile()
    assert (await index.told("stale", letta.prompt))["stale_reasons"] == ["memory_changed"]
    (stale,) = await index.sql.fetch("select * from letta.stale_prompt")
    (fact,) = json.loads(stale["evidence"])
    assert (stale["uri"], fact["record"], fact["cid"]) == (letta.prompt, sibling.prompt, written.cid)
    assert (fact["found"], fact["expected"]) == ("a" * 40, "f" * 40)


async def test_deleted_record_leaves_nothing(letta: Letta, index: Index) -> None:
    """A deleted prompt is gone with its history; its conversation stays; one compiled anew begins anew."""
    await letta.touch()
    await index.told("recompiled", letta.prompt)
    await letta.account.delete_record(PROMPT, letta.key)
    await index.told("deleted", letta.prompt)
    await index.lacks(letta.prompt)
    assert await index.kept_of(letta.account.did) == {"agent": 1, "conversation": 1, "conversation_version": 1}
    await index.holds(await letta.compile())
    assert await index.kinds(letta.prompt) == ["first"]


async def test_deleted_account_leaves_nothing(letta: Letta, index: Index) -> None:
    """Of a deleted account no content and no history is kept."""
    await letta.touch()
    await index.told("recompiled", letta.prompt)
    assert (await index.kept_of(letta.account.did))["recompile"] == 2
    await letta.account.delete_account()

    async def emptied() -> bool:
        return await index.kept_of(letta.account.did) == {}

    await eventually(emptied)
    assert await index.sql.fetchval("select status from letta.repo where did = $1", letta.account.did) == "deleted"


async def test_deactivated_account_is_hidden_until_it_returns(letta: Letta, index: Index) -> None:
    """A deactivated account vanishes from every view, also as evidence, and comes back as it was."""
    before = await index.prompt(letta.prompt)
    await letta.account.deactivate()
    await index.lacks(letta.prompt)
    assert await index.kinds(letta.prompt) == []
    await letta.account.activate()

    async def back() -> bool:
        return bool(await index.kinds(letta.prompt))

    await eventually(back)
    assert await index.prompt(letta.prompt) == before


async def test_taken_down_account_is_hidden_until_it_returns(letta: Letta, index: Index) -> None:
    """What the host takes down isn't shown, until the host shows it again."""
    await letta.account.pds.take_down(letta.account.did)
    await index.lacks(letta.prompt)
    await letta.account.pds.take_down(letta.account.did, applied=False)

    async def back() -> bool:
        return bool(await index.kinds(letta.prompt))

    await eventually(back)


@pytest.mark.parametrize("arguments", ["relay"], indirect=True)  # a proof would need the handle in the public DNS
async def test_new_handle_is_seen(letta: Letta, index: Index) -> None:
    """A repository is listed with the handle its account has now."""
    handle = await letta.account.update_handle("carol")

    async def seen() -> bool:
        kept = await index.sql.fetchval("select handle from letta.repo where did = $1", letta.account.did)
        return bool(kept == handle)

    await eventually(seen)


async def test_daemon_that_was_away_catches_up(pds: RealPds, arguments: tuple[str, ...], index: Index) -> None:
    """Stopped, and started again later, it goes on where it was: nothing that happened meanwhile is missing."""
    letta = Letta(await pds.create_account("alice"))
    async with daemon(*arguments) as process:
        await process.logged("source", state="live")
        await index.holds(await letta.begin())
        assert await process.stop() == 0
    await letta.set_template("You are bold.")
    written = [await letta.say(f"unheard {seq}", seq) for seq in range(3)]
    await letta.touch()
    last = await letta.compile()
    async with daemon(*arguments):
        await index.holds(last)
    for message in written:
        await index.holds(message)
    assert await index.kinds(letta.prompt) == ["first", "touch", "full"]


async def test_index_equals_the_pds(pds: RealPds, arguments: tuple[str, ...], index: Index) -> None:
    """Read from the host's first event on, the index holds what the PDS lists in the end: all and nothing else."""
    beginning = pds.firehose_url.replace("ws://", "firehose:", 1) + "=0"
    async with daemon(*arguments, "--cursor", beginning):
        lettas = [Letta(await pds.create_account(name)) for name in ("alice", "bob", "carol")]
        for letta in lettas:
            await letta.begin()
            await letta.say("hello", 1)
        alice, bob, carol = lettas
        writes = [real.create(MESSAGE, f"3kaaaaaaaab{n:02}", {"$type": MESSAGE, "seq": n}) for n in range(40)]
        await alice.account.apply_writes(writes)
        gone = [real.delete(MESSAGE, f"3kaaaaaaaab{n:02}") for n in range(10, 20)]
        await alice.account.apply_writes([*gone, real.update(MESSAGE, "3kaaaaaaaab00", {"$type": MESSAGE, "seq": 99})])
        await alice.set_template("Another.")
        await bob.account.delete_account()
        await carol.account.delete_record(PROMPT, carol.key)
        await index.holds(await carol.say("the last word", 2))
        listed = await _listed(pds)

        async def equal() -> bool:  # proofs take their time: what has no key yet is fetched
            return await _indexed(index.sql) == listed

        await eventually(equal)
    assert await untrue_flags(index.sql) == []


async def _indexed(sql: Sql) -> dict[str, tuple[str, object]]:
    rows = await sql.fetch("select uri, cid, value from letta.record")
    return {row["uri"]: (row["cid"], json.loads(row["value"])) for row in rows}


async def _listed(pds: RealPds) -> dict[str, tuple[str, object]]:
    """Every Letta record of every account that the PDS shows."""
    found: dict[str, tuple[str, object]] = {}
    for repo in await pds.list_repos():
        for collection in COLLECTIONS if repo["active"] else ():
            try:
                records = await pds.list_records(repo["did"], collection)
            except PdsError:  # taken down between the two questions
                continue
            found |= {record.uri: (record.cid, record.value) for record in records}
    return found
