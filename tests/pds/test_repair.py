"""Proofs and repair against the real PDS: what the daemon missed is fetched, and every row is proven in the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.daemon_process import Outcome, command, daemon, eventually
from tests.indexing import Sql, untrue_flags
from tests.pds.letta import COLLECTIONS, MESSAGE, Letta
from tests.pds.real import PdsError, RealPds
from tests.trust.parts import kept_of


@dataclass(slots=True)
class Proven:
    """A PDS with the accounts of one test, and the database that they are indexed into with proofs."""

    pds: RealPds
    database: str
    sql: Sql
    lettas: list[Letta]

    @property
    def network(self) -> tuple[str, ...]:
        """The arguments that lead to the PDS's directory."""
        return ("--database-url", self.database, "--plc-url", self.pds.plc_url, "--allow-private-hosts")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the daemon."""
        return ("--trust", "verify", "--source", self.pds.firehose_url, *self.network)

    async def join(self, name: str) -> Letta:
        """A new account with an agent, a conversation, a prompt and two messages."""
        letta = Letta(await self.pds.create_account(name))
        self.lettas.append(letta)
        await letta.begin()
        await letta.say("hello", 1)
        await letta.say("again", 2)
        return letta

    async def backfill(self) -> Outcome:
        """Fetch the accounts of this test."""
        return await command("backfill", *(letta.account.did for letta in self.lettas), *self.network)

    async def listed(self) -> dict[str, tuple[str, object]]:
        """CID and value of every Letta record that the PDS shows of these accounts, by URI."""
        found: dict[str, tuple[str, object]] = {}
        for letta in self.lettas:
            for collection in COLLECTIONS:
                try:
                    records = await self.pds.list_records(letta.account.did, collection)
                except PdsError:  # deactivated or deleted
                    continue
                found |= {record.uri: (record.cid, record.value) for record in records}
        return found

    async def shown(self) -> dict[str, tuple[str, object]]:
        """CID and value of every row that is verified, by URI."""
        rows = await self.sql.fetch("select uri, cid, value from letta.record where verified")
        return {row["uri"]: (row["cid"], json.loads(row["value"])) for row in rows}

    async def complete(self) -> None:
        """Wait until the index is what the PDS shows, all of it verified and nothing wanted; an audit agrees."""
        truth = await self.listed()

        async def equal() -> bool:
            return await self.shown() == truth and not await self.sql.fetchval(
                "select count(*) from letta.repo where want is not null and not hidden"
            )

        await eventually(equal)
        assert await self.sql.fetchval("select count(*) from letta.record where not verified") == 0
        assert await untrue_flags(self.sql) == []
        audit = await command("check", "--remote", *self.network)
        assert (audit.code, audit.output) == (0, "no differences\n")

    async def content_of(self, letta: Letta) -> set[str]:
        """The tables in which anything of an account is left beside its state."""
        return set(await kept_of(self.sql, letta.account.did)) - {"account", "repo"}

    async def until(self, letta: Letta, condition: str) -> None:
        """Wait until this holds of the account's row in ``letta.repo``."""
        query = f"select count(*) from letta.repo where did = $1 and {condition}"

        async def holds() -> bool:
            return bool(await self.sql.fetchval(query, letta.account.did))

        await eventually(holds)


@pytest.fixture
def proven(pds: RealPds, database: str, sql: Sql) -> Proven:
    """The PDS and an empty index."""
    return Proven(pds, database, sql, [])


@pytest.fixture
async def alice(proven: Proven) -> Letta:
    """An account that was there before any indexer."""
    return await proven.join("alice")


@pytest.fixture
async def following(proven: Proven, alice: Letta) -> AsyncIterator[Proven]:
    """A daemon that follows the PDS, after what was there before was fetched."""
    assert (await proven.backfill()).code == 0
    async with daemon(*proven.arguments) as process:
        await process.logged("source", state="live")
        yield proven


async def test_accounts_from_before_are_fetched(proven: Proven, alice: Letta) -> None:
    """``backfill`` takes whole repositories out of ``getRepo``: agent, conversation, prompt, messages, all proven."""
    await proven.join("bob")
    writes = [{"seq": n, "content": "x" * 1000, "$type": MESSAGE} for n in range(3, 60)]
    for write in writes:
        await alice.account.create_record(MESSAGE, write)
    outcome = await proven.backfill()
    assert (outcome.code, outcome.output.splitlines()[-1]) == (0, "done")
    await proven.complete()


async def test_account_from_before_is_fetched_when_it_writes(proven: Proven, alice: Letta) -> None:
    """An account first seen live has a past: it is fetched, so that what it wrote before is there too."""
    async with daemon(*proven.arguments) as process:
        await process.logged("source", state="live")
        await alice.say("seen", 3)
        await proven.complete()


async def test_account_seen_from_its_beginning_needs_no_fetch(following: Proven) -> None:
    """What an account does under the daemon's eyes is proven on the stream."""
    bob = await following.join("bob")
    await bob.compile_with("knows more", "b" * 40)
    await bob.account.delete_record(MESSAGE, (await bob.say("oops", 3)).uri.rpartition("/")[2])
    await following.complete()


async def test_deactivated_account_is_hidden_and_returns(following: Proven, alice: Letta) -> None:
    """It vanishes and comes back with all its rows, proven, and its repository is fetched anew on the way."""
    before = await following.listed()
    await alice.account.deactivate()
    await following.until(alice, "hidden and status = 'deactivated'")
    assert await following.shown() == {}
    assert "compiled_prompt" in await following.content_of(alice)
    snapshot = await following.sql.fetchval("select snapshot_rev from letta.repo where did = $1", alice.account.did)
    await alice.account.activate()
    await following.complete()
    assert await following.shown() == before
    assert snapshot <= await following.sql.fetchval("select snapshot_rev from letta.repo")


async def test_taken_down_account_is_hidden_and_returns(following: Proven, alice: Letta) -> None:
    """What its host takes down is hidden until the host shows it again."""
    await following.pds.take_down(alice.account.did)
    await following.until(alice, "hidden and status = 'takendown'")
    await following.pds.take_down(alice.account.did, applied=False)
    await following.complete()


async def test_deleted_account_is_purged_when_confirmed(following: Proven, alice: Letta) -> None:
    """Hidden at once; when the PDS says that it has no such account, nothing of it is kept."""
    bob = await following.join("bob")
    await following.complete()
    await alice.account.delete_account()

    async def purged() -> bool:
        return not await following.content_of(alice)

    await eventually(purged)
    await following.until(alice, "hidden and status = 'deleted'")
    await bob.say("still here", 3)
    await following.complete()


async def test_claimed_handle_is_not_believed(following: Proven, alice: Letta) -> None:
    """A handle counts only if it leads back to the account; these lead nowhere, so none is shown, old or new."""
    resolved = "select resolved_at from letta_store.account where did = $1"
    before = await following.sql.fetchval(resolved, alice.account.did)
    await alice.account.update_handle("carol")

    async def resolved_again() -> bool:
        return bool(await following.sql.fetchval(resolved, alice.account.did) > before)

    await eventually(resolved_again)
    assert await following.sql.fetchval("select handle from letta.repo where did = $1", alice.account.did) is None
    await alice.say("under a new name", 3)
    await following.complete()


async def live_on(proven: Proven, alice: Letta, bob: Letta, carol: Letta) -> None:
    """What three accounts do while nobody listens."""
    await alice.set_template("You are bold.")
    await alice.compile_with("knows more", "b" * 40)
    await alice.account.delete_record(MESSAGE, (await alice.say("oops", 3)).uri.rpartition("/")[2])
    first = (await proven.pds.list_records(alice.account.did, MESSAGE))[0].uri
    await alice.account.delete_record(MESSAGE, first.rpartition("/")[2])
    await bob.account.deactivate()
    await carol.account.delete_account()


async def test_daemon_that_was_away_catches_up(proven: Proven, alice: Letta) -> None:
    """With its cursor it hears what it missed: writes, deletes, a deactivation, a deletion. All is proven again."""
    bob, carol = await proven.join("bob"), await proven.join("carol")
    assert (await proven.backfill()).code == 0
    async with daemon(*proven.arguments) as process:
        await process.logged("source", state="live")
        await alice.say("before", 9)
        await proven.complete()
        assert await process.stop() == 0
    await live_on(proven, alice, bob, carol)
    async with daemon(*proven.arguments):
        await proven.until(carol, "status = 'deleted'")
        await proven.until(bob, "status = 'deactivated'")
        await proven.complete()
    assert await proven.content_of(carol) == set()


async def test_daemon_that_lost_its_cursor_fetches(proven: Proven, alice: Letta) -> None:
    """Without a cursor it hears from now on only: every repository is looked at, and what went is noticed too."""
    bob, carol = await proven.join("bob"), await proven.join("carol")
    assert (await proven.backfill()).code == 0
    async with daemon(*proven.arguments) as process:
        await process.logged("source", state="live")
        await alice.say("before", 9)
        await proven.complete()
        assert await process.stop() == 0
    await live_on(proven, alice, bob, carol)
    await proven.sql.execute("delete from letta_store.cursor")
    async with daemon(*proven.arguments):
        await proven.until(carol, "status = 'deleted'")
        await proven.until(bob, "status = 'deactivated'")
        await proven.complete()
        await bob.account.activate()
        await proven.complete()

        async def purged() -> bool:
            return not await proven.content_of(carol)

        await eventually(purged)
