"""Claims, wants, chains and pending on PostgreSQL itself: who may write, what continues, when a want is met."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from indexer.batch import Batch
from indexer.model import Reason, Want, WantReason
from indexer.simulator.dagcbor import cid_text
from indexer.store import Store, chain
from indexer.store.claims import ClaimLostError
from indexer.store.repairs import LEASE, Repairs
from tests import frames
from tests.frames import DID, STRANGER
from tests.indexing import Sql
from tests.trust.parts import wants
from tests.trust.steps import (
    EMPTY,
    NOW,
    claim,
    commit,
    fetch_wanted,
    head,
    history,
    put,
    rev,
    rows,
    snapshot,
    undecided,
    write,
)

# Claims


async def test_no_want_is_claimed_twice(store: Store, repairs: Repairs, others: Repairs, sql: Sql) -> None:
    """However many workers reach for the wants at the same time, over whatever connections, each want goes to one."""
    dids = [f"did:plc:{letter * 24}" for letter in "abcdefgh"]
    await write(store, wanted=tuple(Want(did, WantReason.BACKFILL) for did in dids))
    taken = await asyncio.gather(*(worker.claim(NOW, 1) for worker in (repairs, others) * 20))
    claimed = [claim.did for claims in taken for claim in claims]
    assert sorted(claimed) == dids
    assert await sql.fetchval("select count(distinct claim_id) from letta_store.repo") == len(dids)


async def test_claim_ends_with_its_lease(store: Store, repairs: Repairs, others: Repairs, sql: Sql) -> None:
    """A claim whose lease ran out goes to another, and who held it writes nothing any more."""
    first = await fetch_wanted(store, repairs)
    assert await others.claim(NOW + LEASE - timedelta(seconds=1), 1) == []
    second = await claim(others, NOW + LEASE)
    with pytest.raises(ClaimLostError):
        await repairs.reconcile(first, snapshot(5, put("a", "one", 5)), NOW)
    with pytest.raises(ClaimLostError):
        await repairs.settle(first, Batch(), [], NOW)
    assert await rows(sql) == {}
    await others.reconcile(second, snapshot(5, put("a", "one", 5)), NOW)
    assert await rows(sql) == {"a": ("one", rev(5), "repo")}
    assert await wants(sql) == {}


async def test_claim_in_use_is_kept(store: Store, repairs: Repairs, others: Repairs) -> None:
    """A claim that is extended outlives its lease: a fetch may take as long as it likes."""
    held = await fetch_wanted(store, repairs)
    await repairs.extend([held], NOW + LEASE - timedelta(seconds=1))
    assert await others.claim(NOW + LEASE, 1) == []
    assert (await repairs.renew(held, NOW + LEASE)).id == held.id
    assert await others.claim(NOW + LEASE * 2 - timedelta(seconds=1), 1) == []


async def test_failed_want_waits_for_its_time(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A claim given back is due again when its holder says, and says why in ``letta.repo``."""
    held = await fetch_wanted(store, repairs)
    await repairs.release(held, NOW + timedelta(seconds=30), "no answer")
    assert await sql.fetchval("select last_error from letta.repo where did = $1", DID) == "no answer"
    assert await repairs.claim(NOW + timedelta(seconds=29), 1) == []
    again = await claim(repairs, NOW + timedelta(seconds=30))
    assert (again.attempts, again.reasons) == (2, frozenset({WantReason.BACKFILL}))


async def test_what_is_asked_for_does_not_wait(store: Store, repairs: Repairs) -> None:
    """A repository that somebody asks for is due at once, however long its host had failed before."""
    await repairs.release(await fetch_wanted(store, repairs), NOW + timedelta(hours=1), "no answer")
    await write(store, wanted=(Want(DID, WantReason.SYNC, rev(9)),))
    assert await repairs.claim(NOW, 1) == []
    again = await fetch_wanted(store, repairs, Want(DID, WantReason.CHECK))
    assert (again.attempts, again.wanted_rev) == (1, rev(9))


# When a want is met


async def test_want_recorded_during_a_fetch_is_not_lost(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A fetch meets what was wanted when it began; what was wanted while it ran stays wanted, and is due at once."""
    held = await fetch_wanted(store, repairs)
    await write(store, wanted=(Want(DID, WantReason.SYNC, rev(8)),))
    _, met = await repairs.reconcile(held, snapshot(5, put("a", "one", 5)), NOW)
    await repairs.end(held, NOW)
    assert not met
    assert await rows(sql) == {"a": ("one", rev(5), "repo")}
    again = await claim(repairs)
    assert (again.wanted_rev, WantReason.SYNC in again.reasons, again.attempts) == (rev(8), True, 1)


async def test_renewed_claim_meets_what_was_wanted_before_the_fetch(store: Store, repairs: Repairs, sql: Sql) -> None:
    """What is wanted between the claim and the begin of the fetch is met by the fetch."""
    held = await fetch_wanted(store, repairs)
    await write(store, wanted=(Want(DID, WantReason.SYNC, rev(4)),))
    held = await repairs.renew(held, NOW)
    _, met = await repairs.reconcile(held, snapshot(5), NOW)
    assert met
    assert await wants(sql) == {}


async def test_decide_want_raises_no_bar_for_a_fetch(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A commit put off while a fetch runs doesn't make the fetch vain: what is above it is decided next."""
    held = await fetch_wanted(store, repairs)
    await write(store, held=(undecided(6), undecided(4)))
    _, met = await repairs.reconcile(held, snapshot(5), NOW)
    assert met
    assert [row["rev"] for row in await sql.fetch("select rev from letta_store.pending")] == [rev(6)]
    assert await sql.fetchval("select want from letta_store.repo") == "decide"


@pytest.mark.parametrize("change", ["deactivated", "purged"])
async def test_fetch_from_before_the_account_went_is_given_up(
    store: Store, repairs: Repairs, sql: Sql, change: str
) -> None:
    """An account that was hidden or purged while its repository was fetched gets no rows from that fetch."""
    held = await fetch_wanted(store, repairs)
    if change == "purged":
        await sql.execute("update letta_store.account set purged_rev = $1", rev(9))
    else:
        await sql.execute("update letta_store.account set active = false, status = 'deactivated'")
    with pytest.raises(ClaimLostError):
        await repairs.reconcile(held, snapshot(5, put("a", "one", 5)), NOW)
    assert await sql.fetchval("select count(*) from letta_store.compiled_prompt") == 0


async def test_account_that_came_back_is_indexed_as_of_its_host(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A host that gives a purged account's repository out again is believed, though nothing was written since."""
    await write(store, commit(1, put("a", "one", 1)))
    await sql.execute("update letta_store.account set purged_rev = $1", rev(9))
    held = await fetch_wanted(store, repairs)
    await repairs.reconcile(held, snapshot(5, put("b", "two", 5)), NOW)
    assert await rows(sql) == {"b": ("two", rev(5), "repo")}
    await write(store, commit(2, put("c", "old", 2)))
    assert await rows(sql) == {"b": ("two", rev(5), "repo")}


@pytest.mark.parametrize("reason", [WantReason.SYNC, WantReason.GAP])
async def test_equal_head_meets_a_fetch_want(store: Store, sql: Sql, reason: WantReason) -> None:
    """A verified ``#sync`` equal to what is held meets what was wanted up to it, and nothing else does."""
    await write(store, commit(1), commit(2))
    await write(store, wanted=(Want(DID, WantReason.SYNC, rev(2)),))
    for number, data, met in ((1, "data-1", False), (2, "data-2", True)):
        await store.apply(Batch(confirmed={DID: (rev(number), data)}), NOW)
        assert (await wants(sql) == {}) is met
    await write(store, wanted=(Want(DID, WantReason.SYNC, rev(2)), Want(DID, reason, rev(3))))
    await store.apply(Batch(confirmed={DID: (rev(2), "data-2")}), NOW)
    assert DID in await wants(sql)


async def test_head_does_not_meet_what_names_no_rev(store: Store, sql: Sql) -> None:
    """A want of what is current isn't lost in one of a certain rev: the head held says nothing of it."""
    await write(store, commit(1), commit(2))
    await write(store, wanted=(Want(DID, WantReason.SYNC, rev(2)),))
    await write(store, wanted=(Want(DID, WantReason.UNPROVEN),))
    await store.apply(Batch(confirmed={DID: (rev(2), "data-2")}), NOW)
    assert await wants(sql) == {DID: ["sync", "unproven"]}


async def test_proven_head_that_is_not_held_is_wanted(store: Store, sql: Sql) -> None:
    """A verified ``#sync`` is weighed against what is held when it is written, commits of the same batch included."""
    await write(store, commit(1))
    await store.apply(Batch(proposals=[commit(2)], confirmed={DID: (rev(2), "data-2")}), NOW)
    assert await wants(sql) == {}
    await store.apply(Batch(confirmed={DID: (rev(1), "data-0")}), NOW)
    assert await wants(sql) == {}
    await store.apply(Batch(confirmed={DID: (rev(2), "another")}), NOW)
    assert await wants(sql) == {DID: ["sync"]}


async def test_claim_on_a_met_want_is_over(store: Store, repairs: Repairs, sql: Sql) -> None:
    """Who fetches what has been met meanwhile is told so; the next want doesn't wait for that lease to end."""
    await write(store, commit(1))
    held = await fetch_wanted(store, repairs, Want(DID, WantReason.SYNC, rev(1)))
    await store.apply(Batch(confirmed={DID: (rev(1), "data-1")}), NOW)
    with pytest.raises(ClaimLostError):
        await repairs.reconcile(held, snapshot(1), NOW)
    assert (await fetch_wanted(store, repairs)).reasons == {WantReason.BACKFILL}


# Chains


def test_empty_tree_is_the_root_of_a_repository_without_records() -> None:
    """The constant is the CID of an MST node with no entries and no subtree."""
    node = frames.cid_of(frames.dag_cbor({"e": [], "l": None}))
    assert cid_text(node) == EMPTY


async def test_first_commit_of_an_empty_repository_wants_nothing(store: Store, sql: Sql) -> None:
    """An account seen from its first record on is complete; one whose tree held something before is fetched."""
    applied = await write(store, commit(1, put("a", "one", 1)))
    assert applied.heads == {DID: rev(1)}
    assert await wants(sql) == {}
    await write(store, commit(7, put("a", "one", 7, did=STRANGER), did=STRANGER))
    assert await wants(sql) == {STRANGER: ["first_seen"]}
    assert len(await sql.fetch("select from letta.record where verified")) == 2


async def test_commits_chain_in_any_order_within_a_batch(store: Store, sql: Sql) -> None:
    """Commits of one batch are taken by rev; each moves the head, the ones that touch nothing of ours too."""
    await write(store, commit(3, put("a", "three", 3)), commit(1, put("a", "one", 1)), commit(2))
    assert await head(sql) == (rev(3), "data-3", "")
    assert await rows(sql) == {"a": ("three", rev(3), "repo")}
    assert await history(sql) == [("a", "one"), ("a", "three")]
    assert await wants(sql) == {}


async def test_duplicate_is_counted_and_never_wanted(store: Store, sql: Sql) -> None:
    """A commit not newer than what is held does nothing, whatever it says it continues."""
    await write(store, commit(1), commit(2, put("a", "two", 2)))
    applied = await write(store, commit(2, put("a", "false", 2)), commit(1, put("b", "false", 1), since=7))
    assert applied.dropped == {Reason.DUPLICATE: 2}
    assert await rows(sql) == {"a": ("two", rev(2), "repo")}
    assert await wants(sql) == {}
    assert await sql.fetchval("select count(*) from letta_store.pending") == 0


@pytest.mark.parametrize("wrong", ["since", "prev_data"])
async def test_gap_waits_until_the_chain_is_whole(store: Store, repairs: Repairs, sql: Sql, wrong: str) -> None:
    """What doesn't continue the state held waits; when the missing commit has come, it is settled without a fetch."""
    await write(store, commit(1))
    late = commit(3, put("a", "three", 3))
    await write(store, late)
    assert (await rows(sql), await wants(sql)) == ({}, {DID: ["gap"]})
    forged = replace(commit(2), since="another") if wrong == "since" else replace(commit(2), prev_data="another")
    await write(store, forged)
    assert await head(sql) == (rev(1), "data-1", "")
    await write(store, commit(2, put("b", "two", 2)))
    assert set(await rows(sql)) == {"b"}
    held = await claim(repairs)
    _, met = await repairs.settle(held, Batch(proposals=[late, forged]), [], NOW)
    assert met
    assert await wants(sql) == {}
    assert await head(sql) == (rev(3), "data-3", "")
    assert set(await rows(sql)) == {"a", "b"}
    assert await sql.fetchval("select count(*) from letta_store.pending") == 0


async def test_gap_that_stays_needs_a_fetch(store: Store, repairs: Repairs, sql: Sql) -> None:
    """Where pending alone doesn't chain, the want isn't met by it, and nothing of it is written or forgotten."""
    await write(store, commit(1), commit(3, put("a", "three", 3)))
    _, met = await repairs.settle(await claim(repairs), Batch(proposals=[commit(3, put("a", "three", 3))]), [], NOW)
    assert not met
    assert (await rows(sql), await wants(sql)) == ({}, {DID: ["gap"]})
    assert await sql.fetchval("select count(*) from letta_store.pending") == 1


async def test_what_is_pending_already_needs_no_room(
    store: Store, repairs: Repairs, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that goes on waiting takes its own place: it isn't counted twice, and nothing is dropped."""
    monkeypatch.setattr(chain, "REPO_FRAMES", 1)
    await write(store, commit(1), commit(3))
    applied, met = await repairs.settle(await claim(repairs), Batch(proposals=[commit(3)]), [], NOW)
    assert (applied.dropped, met) == ({}, False)
    assert await wants(sql) == {DID: ["gap"]}


async def test_given_up_commit_needs_a_fetch(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A pending commit that its own content contradicts is forgotten, and its repository is wanted all the more."""
    await write(store, held=(undecided(1),))
    held = await claim(repairs)
    pending = await repairs.pending(DID)
    _, met = await repairs.settle(held, Batch(wants=[Want(DID, WantReason.UNPROVEN)]), pending, NOW)
    assert not met
    assert await sql.fetchval("select count(*) from letta_store.pending") == 0
    assert await sql.fetchval("select want from letta_store.repo") == "fetch"


async def test_chain_up_to_the_wanted_rev_meets_a_fetch_want(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A fetch wanted for a rev that pending chains up to isn't made; one wanted for another reason is."""
    for reason, met in ((WantReason.SYNC, True), (WantReason.RETURNED, False)):
        await sql.execute("truncate letta_store.repo, letta_store.pending")
        await write(store, held=(undecided(1),), wanted=(Want(DID, reason, rev(1)),))
        _, settled = await repairs.settle(await claim(repairs), Batch(proposals=[commit(1)]), [], NOW)
        assert settled is met


# Pending is bounded


@pytest.mark.parametrize("bound", ["REPO_FRAMES", "REPO_BYTES", "TOTAL_FRAMES", "TOTAL_BYTES"])
async def test_pending_is_bounded(store: Store, sql: Sql, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """What finds no room is dropped and counted, and its repository is to be fetched; what was there stays."""
    monkeypatch.setattr(chain, bound, 4 if bound.endswith("FRAMES") else 450)
    for number in range(1, 5):
        await write(store, held=(undecided(number, size=100),))
    assert await wants(sql) == {DID: ["unknown_key"]}
    who = STRANGER if bound.startswith("TOTAL") else DID
    applied = await write(store, held=(undecided(5, size=100, did=who), undecided(6, size=100, did=who)))
    assert applied.dropped == {Reason.PENDING_FULL: 2}
    assert await sql.fetchval("select count(*) from letta_store.pending") == 4
    assert (await wants(sql))[who][-1] == "pending_full"
    assert await sql.fetchval("select want from letta_store.repo where did = $1", who) == "fetch"


async def test_one_full_repository_leaves_room_for_others(
    store: Store, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository that has used its share up takes nothing from others."""
    monkeypatch.setattr(chain, "REPO_FRAMES", 2)
    applied = await write(store, held=(*map(undecided, range(1, 6)), undecided(1, did=STRANGER)))
    assert applied.dropped == {Reason.PENDING_FULL: 3}
    pending = await sql.fetch("select did, count(*) as frames from letta_store.pending group by did")
    assert {row["did"]: row["frames"] for row in pending} == {DID: 2, STRANGER: 1}


async def test_crowded_repository_is_not_settled(
    store: Store, repairs: Repairs, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling what found room doesn't meet the want for what didn't."""
    monkeypatch.setattr(chain, "REPO_FRAMES", 1)
    await write(store, held=(undecided(1), undecided(2)))
    _, met = await repairs.settle(await claim(repairs), Batch(proposals=[commit(1)]), [], NOW)
    assert not met
    assert await wants(sql) == {DID: ["unknown_key", "pending_full"]}
