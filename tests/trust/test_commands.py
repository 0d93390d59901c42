"""``backfill``, ``check`` and ``forget`` as commands: what they do, what they print, how they end."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from indexer.backfill import backfill_repos
from indexer.config import load_settings
from indexer.simulator import World
from indexer.simulator.capture import write_capture
from indexer.simulator.http_faults import Refuse
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from tests import frames
from tests.daemon_process import Outcome, command
from tests.frames import AGENT, PREFIX, PROMPT, STRANGER, TYPED, agent, key, prompt
from tests.indexing import Sql, untrue_flags
from tests.trust.parts import kept_of, wants

DONE, FOUND, USAGE, DATABASE = 0, 1, 2, 3


@dataclass(slots=True)
class Site:
    """A simulated network on loopback, and a database to index it into."""

    world: World
    pds: Pds
    relay: Pds
    plc: Directory
    database: str
    sql: Sql
    folder: Path

    async def command(self, name: str, *arguments: str) -> Outcome:
        """Run a command on the database."""
        return await command(name, *arguments, "--database-url", self.database)

    async def outward(self, name: str, *arguments: str) -> Outcome:
        """Run a command that asks the network."""
        return await self.command(name, *arguments, "--plc-url", self.plc.url, "--allow-private-hosts")

    async def fill(self) -> None:
        """Fetch everything, without the start of a process."""
        given = {"database_url": self.database, "plc_url": self.plc.url, "relay_url": self.relay.url}
        assert await backfill_repos(load_settings(given | {"allow_private_hosts": True}, {}, None), []) == 0

    async def backfill(self, *arguments: str) -> Outcome:
        """Run ``backfill``."""
        return await self.outward("backfill", *arguments, "--relay-url", self.relay.url)

    async def run_once(self, *given: bytes) -> Outcome:
        """Run the daemon to the end of a capture of these frames."""
        path = self.folder / "given.bin"
        write_capture(path, given or [frames.identity(STRANGER)])
        return await self.outward(
            "run", "--once", "--trust", "verify", "--listen", "127.0.0.1:0", "--source", f"file:{path}"
        )

    def truth(self, *dids: str) -> dict[str, str]:
        """URI and CID of what the network holds of these accounts; of :attr:`dids`, if none is named."""
        records = self.world.expected().records
        return {uri: record.cid for uri, record in records.items() if record.did in (dids or self.dids)}

    async def shown(self) -> dict[str, str]:
        """URI and CID of every row, all of which have to be verified, with true flags."""
        rows = await self.sql.fetch("select uri, cid, verified from letta.record")
        assert all(row["verified"] for row in rows)
        assert await untrue_flags(self.sql) == []
        return {row["uri"]: row["cid"] for row in rows}

    @property
    def dids(self) -> list[str]:
        """The accounts that can be discovered: they hold a collection that is known by name."""
        return sorted({record.did for record in self.world.expected().records.values() if record.collection in TYPED})

    def write(self, did: str, number: int = 900) -> None:
        """Write a prompt that nobody has seen."""
        self.world.put(did, f"{PROMPT}/{key(number)}", prompt(memory=f"memory {number}"))


@pytest.fixture
async def site(database: str, sql: Sql, tmp_path: Path) -> AsyncIterator[Site]:
    """A network with a life behind it, and an empty index."""
    weights = {"hide": 0.0, "delete_account": 0.0, "new_account": 0.0}
    world = World(seed=11, accounts=4, clock=lambda: datetime.now(UTC), weights=weights)
    async with AsyncExitStack() as stack:
        plc = await stack.enter_async_context(Directory(world))
        pds = await stack.enter_async_context(Pds(world))
        relay = await stack.enter_async_context(Pds(world, everything=True))
        world.run(150)
        yield Site(world, pds, relay, plc, database, sql, tmp_path)


# backfill


async def test_backfill_discovers_and_fetches_everything(site: Site) -> None:
    """Without arguments every repository that the relay lists is fetched and proven; a second run asks anew."""
    outcome = await site.backfill()
    assert outcome.code == DONE, outcome.errors
    assert await site.shown() == site.truth()
    assert await wants(site.sql) == {}
    newcomer = site.world.create_account().did
    site.write(newcomer)
    site.write(site.dids[0])
    assert (await site.backfill()).code == DONE
    assert await site.shown() == site.truth()
    assert newcomer in site.dids


async def test_progress_is_plain_where_no_terminal_is(site: Site) -> None:
    """Progress is whole lines with repositories and records, no control characters, and the last one says done."""
    outcome = await site.backfill()
    lines = outcome.output.splitlines()
    count = len(site.dids)
    assert "\x1b" not in outcome.output
    assert "\r" not in outcome.output
    assert all(re.fullmatch(rf"\d+ of {count} repositories, \d+ records", line) for line in lines[:-1]), lines
    assert len(lines) > 1
    assert lines[-1] == "done"


async def test_backfill_of_one_account_takes_that_one_alone(site: Site) -> None:
    """Of the accounts named exactly those are fetched, whatever else is wanted and fails."""
    one, other, *_ = site.dids
    site.pds.inject(Refuse(other, status=500))
    assert (await site.backfill(other)).code == FOUND
    assert (await site.backfill(one)).code == DONE
    assert await site.shown() == site.truth(one)
    assert set(await wants(site.sql)) == {other}


async def test_backfill_tries_anew_what_had_failed(site: Site) -> None:
    """A host that failed before is asked again by the next run: neither its failures nor its backoff count."""
    one, *_ = site.dids
    fault = site.pds.inject(Refuse("getRepo", status=500))
    failed = await site.backfill(one)
    assert (failed.code, failed.output.splitlines()[-1]) == (FOUND, "done: 1 repositories could not be fetched")
    assert fault.injected >= 3
    assert "500" in str(await site.sql.fetchval("select last_error from letta.repo where did = $1", one))
    site.pds.cure(fault)
    assert (await site.backfill(one)).code == DONE
    assert await site.shown() == site.truth(one)


async def test_backfill_says_that_the_relay_was_silent(site: Site) -> None:
    """A relay that doesn't list its repositories is a failure, and is asked again from there by the next run."""
    fault = site.relay.inject(Refuse("listReposByCollection", status=500))
    outcome = await site.backfill()
    assert (outcome.code, await site.shown()) == (FOUND, {})
    assert f"{site.relay.url} did not list all repositories" in outcome.output
    site.relay.cure(fault)
    assert (await site.backfill()).code == DONE
    assert await site.shown() == site.truth()


async def test_backfill_keeps_to_the_filter(site: Site) -> None:
    """``--only`` says what is fetched; an account that it keeps out, or what is no DID, is refused by name."""
    one, other, *_ = site.dids
    assert (await site.backfill("--only", one)).code == DONE
    assert await site.shown() == site.truth(one)
    for wrong, arguments in ((other, ("--only", one, other)), ("did:plc", ("did:plc",)), (one, ("--deny", one, one))):
        outcome = await site.backfill(*arguments)
        assert (outcome.code, wrong in outcome.errors) == (USAGE, True)
    assert await site.shown() == site.truth(one)


async def test_backfill_refuses_a_filter_narrower_than_that_of_a_source(site: Site) -> None:
    """A repository fetched under a part of what is followed would pass for whole: the command says what is missing."""
    await site.sql.execute("insert into letta_store.cursor (source, filter) values ('firehose:a', $1)", PREFIX + "*")
    outcome = await site.backfill("--collections", AGENT)
    assert (outcome.code, "firehose:a" in outcome.errors) == (USAGE, True)
    assert await site.shown() == {}


# check


async def test_check_of_a_true_index_finds_nothing(site: Site) -> None:
    """An index that is what its records and their hosts say has no differences; the exit code says so."""
    await site.fill()
    outcome = await site.outward("check", "--remote")
    assert (outcome.code, outcome.output) == (DONE, "no differences\n")
    outcome = await site.command("check", "--json")
    assert (outcome.code, json.loads(outcome.output)) == (DONE, [])


async def test_check_finds_rows_and_flags_that_are_wrong(site: Site) -> None:
    """A row that doesn't hash to its CID and a flag that isn't what the view computes are told, each by its URI."""
    await site.fill()
    changed, flagged = await damage(site)
    outcome = await site.command("check")
    assert outcome.code == FOUND
    assert re.search(rf"hash +{re.escape(changed)}\n", outcome.output)
    assert re.search(rf"flags +{re.escape(flagged)}\n", outcome.output)
    assert outcome.output.splitlines()[-1] == "2 differences"
    told = json.loads((await site.command("check", "--json")).output)
    assert {(row["kind"], row["subject"]) for row in told} == {("hash", changed), ("flags", flagged)}


async def test_check_repairs_what_is_wrong_within(site: Site) -> None:
    """``--repair`` has the repositories of wrong rows fetched by the next run, and what is wrong is right again."""
    await site.fill()
    await damage(site)
    assert (await site.command("check", "--repair")).code == FOUND
    assert list((await wants(site.sql)).values()) in ([["check"]], [["check"], ["check"]])
    assert (await site.run_once()).code == DONE
    assert (await site.command("check")).code == DONE
    assert await site.shown() == site.truth()


async def test_check_compares_with_the_hosts(site: Site) -> None:
    """What a host signs and we lack, what we have and it doesn't, what differs: each is told, then repaired."""
    one, *_ = site.dids
    gone = next(iter(site.truth(one))).removeprefix(f"at://{one}/")
    site.world.put(one, f"{AGENT}/{key(901)}", agent())
    await site.fill()
    site.write(one)
    site.world.put(one, f"{AGENT}/{key(901)}", agent("Another template."))
    site.world.delete(one, gone)
    outcome = await site.outward("check", "--remote", "--json", "--repair")
    assert outcome.code == FOUND
    assert {(row["kind"], row["subject"]) for row in json.loads(outcome.output)} == {
        ("missing", f"at://{one}/{PROMPT}/{key(900)}"),
        ("changed", f"at://{one}/{AGENT}/{key(901)}"),
        ("extra", f"at://{one}/{gone}"),
    }
    assert set(await wants(site.sql)) == {one}
    assert (await site.run_once()).code == DONE
    assert await site.shown() == site.truth()


async def test_host_that_cannot_be_compared_with_is_told(site: Site) -> None:
    """A host that doesn't answer is no difference, and not passed over either: it is counted apart."""
    await site.fill()
    one, other, *_ = site.dids
    site.pds.inject(Refuse(one, status=500))
    outcome = await site.outward("check", "--remote")
    assert outcome.code == FOUND
    assert re.search(rf"^unreachable +{re.escape(one)}\n", outcome.output)
    assert outcome.output.splitlines()[-2:] == ["no differences", "1 could not be asked"]
    site.write(other)
    outcome = await site.outward("check", "--remote")
    assert outcome.code == FOUND
    assert outcome.output.splitlines()[-2:] == ["1 differences", "1 could not be asked"]
    told = json.loads((await site.outward("check", "--remote", "--json")).output)
    found = {(row["kind"], row["subject"]) for row in told}
    assert found == {("unreachable", one), ("missing", f"at://{other}/{PROMPT}/{key(900)}")}


async def test_check_without_a_database_ends_with_3(empty_database: str) -> None:
    """A database without our schema is no index, and neither is one that isn't there."""
    for url in (empty_database, "postgresql://nobody@127.0.0.1:9/nothing"):
        assert (await command("check", "--database-url", url)).code == DATABASE


# forget


async def test_forgotten_account_leaves_nothing_and_stays_away(site: Site) -> None:
    """Nothing of it is in any table; no replay, no discovery and no request brings it back."""
    history = site.world.run(30)
    await site.fill()
    one, *others = site.dids
    damaged = frames.commit(did=one, rev="no revision", ops=[])
    assert (await site.run_once(*history, damaged)).code == DONE
    outcome = await site.command("forget", one)
    assert (outcome.code, outcome.output) == (DONE, f"forgotten: {one}\n")
    assert await kept_of(site.sql, one) == {"account": 1}
    assert await site.sql.fetchval("select forgotten and handle is null from letta_store.account where did = $1", one)
    await site.sql.execute("delete from letta_store.cursor")
    assert (await site.run_once(*history, damaged, frames.identity(one, "some.handle"))).code == DONE
    assert (await site.backfill()).code == DONE
    refused = await site.backfill(one)
    assert (refused.code, one in refused.errors) == (USAGE, True)
    assert await kept_of(site.sql, one) == {"account": 1}
    assert await site.sql.fetchval("select handle from letta_store.account where did = $1", one) is None
    assert await site.shown() == site.truth(*others)


async def test_only_accounts_can_be_forgotten(site: Site) -> None:
    """What is no DID is refused."""
    outcome = await site.command("forget", "alice.example.com")
    assert (outcome.code, "DID" in outcome.errors) == (USAGE, True)


async def damage(site: Site) -> tuple[str, str]:
    """Make one row's value and another prompt's flag wrong; the URIs of both."""
    changed = await site.sql.fetchval("select uri from letta.message order by uri limit 1")
    await site.sql.execute(
        "update letta_store.message set value = value || jsonb_build_object('seq', 77) where uri = $1", changed
    )
    flagged = await site.sql.fetchval("select uri from letta.compiled_prompt order by uri limit 1")
    wrong = "update letta_store.freshness f set stale_reasons = '{x}' from letta_store.compiled_prompt p"
    await site.sql.execute(f"{wrong} where p.uri = $1 and (f.did, f.space, f.rkey) = (p.did, p.space, p.rkey)", flagged)
    return changed, flagged
