"""Account states with proofs demanded: who says that an account is away, who is believed, and what is then kept."""

from __future__ import annotations

import pytest

from indexer.model import Want, WantReason
from tests.frames import PROMPT, key, prompt
from tests.trust.parts import kept_of, wants
from tests.trust.scene import Scene

HIDDEN = ("deactivated", "suspended", "takendown")


@pytest.mark.parametrize("status", HIDDEN)
async def test_hidden_account_returns_with_a_resync(one: Scene, status: str) -> None:
    """It vanishes at once and keeps its rows; back again it is shown at once, and fetched: nothing is missed."""
    one.network.set_status(one.did, status)
    await one.happen()
    assert (await one.shown(), (await kept_of(one.sql, one.did))["compiled_prompt"]) == (0, 1)
    await one.settle()
    assert (await one.shown(), await one.status()) == (0, status)
    one.network.accounts[one.did].status = "active"
    one.write(2)
    one.network.take()  # what was written on the way back went past us
    one.network.set_status(one.did, "active")
    await one.happen()
    assert (await one.shown(), "returned" in (await wants(one.sql))[one.did]) == (2, True)
    await one.settle()
    await one.equal()
    assert await wants(one.sql) == {}


@pytest.mark.parametrize("status", ["desynchronized", "throttled"])
async def test_state_of_a_host_hides_nothing(one: Scene, status: str) -> None:
    """A relay that is behind with an account says so; the account is not away."""
    await one.parts.take([one.told(status)])
    assert (await one.shown(), await one.status()) == (2, status)
    await one.settle()
    assert (await one.shown(), await one.status()) == (2, "active")


async def test_deleted_account_is_purged_when_its_host_confirms(one: Scene) -> None:
    """It vanishes at once; once its own host knows it no more nothing of it is kept, and no replay brings it back."""
    one.write(2)
    history = one.network.take()
    await one.parts.take(history)
    one.network.delete_account(one.did)
    await one.happen()
    assert (await one.shown(), (await kept_of(one.sql, one.did))["compiled_prompt"]) == (0, 2)
    await one.settle()
    assert await kept_of(one.sql, one.did) == {"repo": 1, "account": 1}
    await one.parts.take(history)
    await one.settle()
    assert await kept_of(one.sql, one.did) == {"repo": 1, "account": 1}
    assert (await one.shown(), await one.status()) == (0, "deleted")


async def test_deleted_account_whose_host_is_silent_is_purged_a_day_later(alone: Scene) -> None:
    """Where nobody answers for an account its rows are hidden, kept for 24 hours, and then gone."""
    alone.network.delete_account(alone.did)
    await alone.happen()
    await alone.settle()
    for hours in (1.0, 22.5):
        alone.clock.turn(hours=hours)
        await alone.settle()
        assert (await alone.shown(), (await kept_of(alone.sql, alone.did))["compiled_prompt"]) == (0, 1)
    alone.clock.turn(hours=1)
    await alone.settle()
    assert await kept_of(alone.sql, alone.did) == {"repo": 1, "account": 1}


async def test_deleted_account_is_purged_when_its_did_is_gone(alone: Scene) -> None:
    """A tombstone in the directory confirms a deletion without any host."""
    alone.network.delete_account(alone.did, tombstone=True)
    await alone.happen()
    await alone.settle()
    assert await kept_of(alone.sql, alone.did) == {"repo": 1, "account": 1}


@pytest.mark.parametrize("status", ["deactivated", "deleted"])
async def test_former_host_does_not_win(one: Scene, status: str) -> None:
    """After a migration the old host's word hides the account until its own has been asked, and purges nothing."""
    one.network.migrate(one.did, one.other.url)
    await one.happen()
    await one.settle()
    word = one.told(status)
    await one.parts.take([word])
    assert await one.shown() == 0
    one.write(2)
    one.network.take()
    await one.settle()
    await one.equal()
    assert (await one.status(), await wants(one.sql)) == ("active", {})
    await one.parts.take([word])  # a replay of what was corrected changes nothing
    assert (await one.shown(), await one.status()) == (3, "active")


async def test_state_told_before_the_first_commit_is_asked_about(one: Scene) -> None:
    """A deletion heard of while the account was unknown is confirmed when an old replay brings its commits."""
    two = one.network.create_account().did
    one.network.put(two, f"{PROMPT}/{key(1)}", prompt())
    commits = one.network.take()
    one.network.delete_account(two)
    await one.happen()
    await one.settle()
    assert await kept_of(one.sql, two) == {"account": 1}
    await one.parts.take(commits)
    await one.parts.mend()
    await one.settle()
    left = await kept_of(one.sql, two)
    assert {table: left[table] for table in left if table not in ("account", "repo")} == {}


async def test_state_told_with_the_first_commit_is_asked_about(one: Scene) -> None:
    """A deletion in the very batch that made the account known is confirmed like any other."""
    two = one.network.create_account().did
    one.network.put(two, f"{PROMPT}/{key(1)}", prompt())
    one.network.delete_account(two)
    await one.happen()
    await one.parts.mend()
    await one.settle()
    assert set(await kept_of(one.sql, two)) == {"repo", "account"}


@pytest.mark.parametrize("status", [*HIDDEN, "deleted"])
async def test_missed_event_is_noticed_by_the_fetch(one: Scene, status: str) -> None:
    """A host that doesn't give a repository out says why: the account is hidden as if the event had been heard."""
    if status == "deleted":
        one.network.delete_account(one.did)
    else:
        one.network.accounts[one.did].status = status
    one.network.take()
    await one.parts.repairs.want([Want("", WantReason.OUTDATED_CURSOR)], one.clock())
    await one.parts.mend(tries=2)
    await one.settle()
    assert (await one.shown(), await one.status()) == (0, status)
    assert ("compiled_prompt" in await kept_of(one.sql, one.did)) is (status != "deleted")


async def test_missed_return_is_noticed_after_a_loss(one: Scene) -> None:
    """When events were lost the accounts that were away are asked about too."""
    one.network.set_status(one.did, "deactivated")
    await one.happen()
    await one.settle()
    one.network.accounts[one.did].status = "active"
    one.write(2)
    one.network.take()
    await one.parts.repairs.want([Want("", WantReason.OUTDATED_CURSOR)], one.clock())
    await one.settle()
    await one.equal()


async def test_tombstoned_did_is_noticed_by_the_fetch(one: Scene) -> None:
    """An account whose DID was given up while nobody listened is taken for deleted, and purged."""
    one.network.delete_account(one.did, tombstone=True)
    one.network.take()
    await one.parts.repairs.want([Want(one.did, WantReason.BACKFILL)], one.clock())
    await one.parts.mend(tries=2)
    await one.settle()
    left = await kept_of(one.sql, one.did)
    assert {table for table in left if table not in ("account", "repo")} == set()
    assert await one.status() == "deleted"


async def test_new_key_counts_from_its_identity_event_on(one: Scene) -> None:
    """After ``#identity`` no commit is judged by the old key; those under the new one wait until it is known."""
    one.network.rotate_key(one.did, resign=False)
    one.write(2)
    await one.happen()
    assert (await one.shown(), await wants(one.sql)) == (2, {one.did: ["unknown_key"]})
    await one.settle()
    await one.equal()
    assert await wants(one.sql) == {}


async def test_rotation_that_was_missed_is_noticed_by_the_signature(one: Scene) -> None:
    """Without the ``#identity`` event a commit under a new key waits for the identity to be resolved afresh."""
    one.network.rotate_key(one.did, resign=False)
    one.network.take()
    one.write(2)
    await one.happen()
    assert await wants(one.sql) == {one.did: ["bad_signature"]}
    await one.settle()
    await one.equal()
    assert await wants(one.sql) == {}
