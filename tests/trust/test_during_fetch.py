"""What happens while a repository is on its way from its host: nothing of it is lost, and nothing false comes of it."""

from __future__ import annotations

import pytest

from indexer.model import Want, WantReason
from tests.frames import PROMPT, key, prompt
from tests.trust.parts import kept_of, wants
from tests.trust.scene import Scene


async def fetch(one: Scene) -> None:
    """Have the repository fetched."""
    await one.parts.repairs.want([Want(one.did, WantReason.BACKFILL)], one.clock())
    await one.parts.mend(tries=2)
    await one.settle()


async def test_commits_during_a_fetch_are_kept(one: Scene) -> None:
    """What is proven on the stream meanwhile is newer than the repository fetched, and stays."""

    async def happen() -> None:
        one.write(2)
        one.network.delete(one.did, f"{PROMPT}/{key(1)}")
        await one.happen()

    one.hosts.during = happen
    await fetch(one)
    await one.equal()
    assert await wants(one.sql) == {}


async def test_key_that_changes_during_a_fetch_is_learnt(one: Scene) -> None:
    """A commit under a new key isn't judged, and given up, by the key that was known when the fetch began."""

    async def happen() -> None:
        one.network.rotate_key(one.did, resign=False)
        one.write(2)
        await one.happen()

    one.hosts.during = happen
    await fetch(one)
    await one.equal()
    assert await wants(one.sql) == {}
    assert await one.sql.fetchval("select count(*) from letta_store.pending") == 0


@pytest.mark.parametrize("announced", [True, False])
async def test_commit_put_off_during_a_fetch_is_not_given_up(one: Scene, announced: bool) -> None:
    """What came after the fetch began was not there for its host to deny: it waits, even for a late directory."""
    account = one.network.accounts[one.did]
    before = account.key

    async def happen() -> None:
        one.network.rotate_key(one.did, resign=False)
        if not announced:
            one.network.take()
        one.write(2)
        account.key = before  # as the directory still has it
        await one.happen()

    one.hosts.during = happen
    await fetch(one)
    assert one.did in await wants(one.sql)
    account.key = account.repository.key
    await one.parts.mend(tries=3)
    await one.equal()
    assert await wants(one.sql) == {}


async def test_loss_during_a_fetch_is_fetched_again(one: Scene) -> None:
    """A repository that is wanted anew while it is fetched is fetched once more: the first could lack it."""

    async def happen() -> None:
        one.write(2)
        one.network.take()
        one.network.sync(one.did)
        await one.happen()

    one.hosts.during = happen
    await fetch(one)
    await one.equal()
    assert await wants(one.sql) == {}
    assert sum("getRepo?" in request for request in one.pds.requests) >= 2


@pytest.mark.parametrize("status", ["deactivated", "deleted"])
async def test_account_that_goes_during_a_fetch_is_gone(one: Scene, status: str) -> None:
    """Neither a hidden nor a purged account gets rows from a fetch that was begun before."""

    async def happen() -> None:
        if status == "deleted":
            one.network.delete_account(one.did)
        else:
            one.network.set_status(one.did, status)
        await one.happen()
        await one.parts.ask()

    one.hosts.during = happen
    await fetch(one)
    assert (await one.shown(), await one.status()) == (0, status)
    assert ("compiled_prompt" in await kept_of(one.sql, one.did)) is (status == "deactivated")


async def test_account_that_goes_and_returns_during_a_fetch_is_complete(one: Scene) -> None:
    """A deletion that was taken back while the repository was fetched leaves the index what the host says."""

    async def happen() -> None:
        one.network.set_status(one.did, "suspended")
        await one.happen()
        one.network.set_status(one.did, "active")
        one.network.put(one.did, f"{PROMPT}/{key(5)}", prompt(memory="on the way back"))
        await one.happen()

    one.hosts.during = happen
    await fetch(one)
    await one.equal()
    assert await wants(one.sql) == {}
