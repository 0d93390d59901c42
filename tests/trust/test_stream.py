"""What the stream alone says with proofs demanded: strangers, damaged frames, accounts that were forgotten."""

from __future__ import annotations

import pytest

from indexer.model import Want, WantReason
from indexer.simulator.http_faults import Refuse
from indexer.store.audits import Audits
from tests import frames
from tests.frames import MESSAGE, PROMPT, STRANGER, key, message, prompt, put
from tests.trust.parts import kept_of, wants
from tests.trust.scene import Scene

OTHERS = "app.bsky.feed.post"


def told(one: Scene, did: str, event: str) -> bytes:
    """A frame of an account that doesn't say what it did: ``#sync``, or a commit without its content."""
    if event == "tooBig":
        account = one.network.accounts[did].repository
        return frames.commit(did=did, rev=account.rev, blocks=b"", tooBig=True)
    one.network.take()
    one.network.sync(did)
    (frame,) = one.network.take()
    return frame


@pytest.mark.parametrize("event", ["#sync", "tooBig"])
async def test_stranger_that_holds_ours_is_fetched(one: Scene, event: str) -> None:
    """An unknown account is asked once what it holds; only if it holds what we follow is it tracked, and fetched."""
    holder, other = one.network.create_account().did, one.network.create_account().did
    one.network.put(holder, f"{PROMPT}/{key(1)}", prompt())
    one.network.put(other, f"{OTHERS}/{key(1)}", {"$type": OTHERS})
    await one.parts.take([told(one, holder, event), told(one, other, event)])
    assert await wants(one.sql) == {}
    await one.settle()
    asked = [request for request in one.pds.requests if "describeRepo" in request]
    assert sorted(request.rpartition("=")[2].replace("%3A", ":") for request in asked) == sorted([holder, other])
    await one.equal()
    assert await kept_of(one.sql, other) == {}


async def test_stranger_whose_host_is_silent_is_let_be(one: Scene) -> None:
    """A probe that fails three times is dropped, and has made nothing of the account known."""
    did = one.network.create_account().did
    fault = one.pds.inject(Refuse("describeRepo", status=500))
    await one.parts.take([told(one, did, "#sync")])
    for _ in range(5):
        await one.parts.ask()
        one.clock.turn(hours=1)
    assert fault.injected == 3
    assert await kept_of(one.sql, did) == {}


@pytest.mark.parametrize("damage", ["action", "no text", "too many operations"])
async def test_damaged_frame_wants_its_repository(one: Scene, damage: str) -> None:
    """A commit that can't be read is set aside, and the account that it seems to be of is looked at."""
    operation = put(MESSAGE, key(1), message())
    if damage == "too many operations":
        frame = frames.commit(*[operation] * 201, did=one.did)
    else:
        frame = frames.commit(operation, did=one.did)
        good, bad = (b"faction", b"gaction") if damage == "action" else (b"\x66create", b"\x66cr\xe5ate")
        assert good in frame
        frame = frame.replace(good, bad)
    await one.parts.take([frame])
    assert await wants(one.sql) == {one.did: ["unproven"]}
    assert await one.sql.fetchval("select count(*) from letta_store.dead_letter") == 1
    await one.settle()
    assert await wants(one.sql) == {}
    await one.equal()


async def test_damaged_frame_of_a_stranger_counts_only_if_it_concerns_us(one: Scene) -> None:
    """Whoever is not tracked is looked at only where the frame holds the name of a collection that we follow."""
    for collection, wanted in ((OTHERS, {}), (MESSAGE, {STRANGER: ["unproven"]})):
        operation = put(collection, key(1), {"$type": collection})
        frame = frames.commit(operation, did=STRANGER).replace(b"faction", b"gaction")
        await one.parts.take([frame])
        assert await wants(one.sql) == wanted


async def test_forgotten_account_is_dropped_and_counted(one: Scene) -> None:
    """Every kind of event of a forgotten account leaves nothing behind but a number."""
    one.write(2)
    replay = one.network.take()
    await Audits(one.parts.index.store).forget(one.did, one.clock())
    assert await kept_of(one.sql, one.did) == {"account": 1}
    one.write(3)
    one.network.sync(one.did)
    one.network.set_handle(one.did, "another.test")
    one.network.set_status(one.did, "deactivated")
    one.network.set_status(one.did, "active")
    damaged = frames.commit(put(PROMPT, key(1), prompt()), did=one.did, rev="none")
    for frame in (*replay, *one.network.take(), damaged):
        await one.parts.take([frame])
    await one.parts.repairs.want([Want(one.did, WantReason.BACKFILL)], one.clock())
    await one.settle()
    assert await kept_of(one.sql, one.did) == {"account": 1}
    assert one.parts.index.sample("dropped_total", reason="forgotten") >= 2
    assert await one.sql.fetchval("select handle from letta_store.account where did = $1", one.did) is None
    assert await one.sql.fetchval("select count(*) from letta_store.account where check_at is not null") == 0
