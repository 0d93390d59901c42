"""Snapshots on PostgreSQL itself: what a repository's state at one rev decides, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from indexer.model import Want, WantReason
from indexer.store import Store, context
from indexer.store.repairs import Repairs
from indexer.store.statements import statement
from tests import frames
from tests.frames import AGENT, CONVERSATION, DID, MESSAGE, PROMPT
from tests.indexing import Sql, untrue_flags
from tests.trust.steps import (
    NOW,
    claim,
    commit,
    fetch_wanted,
    gone,
    head,
    history,
    put,
    rev,
    rows,
    snapshot,
    undecided,
    write,
)


async def test_snapshot_decides_all_up_to_its_rev_and_nothing_above(store: Store, repairs: Repairs, sql: Sql) -> None:
    """At or below R: insert, replace, raise the proof, delete what vanished with its history. Above R: nothing."""
    old = (
        put("same", "one", 1, proof=None),
        put("other", "one", 1),
        put("vanished", "one", 1),
        put("newer", "one", 1),
    )
    await write(store, commit(1, *old[1:]), changes=old[:1])
    held = await fetch_wanted(store, repairs)
    later = (put("newer", "two", 7), put("fresh", "two", 7), gone("deleted", 7))
    await write(store, *(commit(number) for number in range(2, 7)), commit(7, *later))
    names = ("same", "other", "newer", "missed", "deleted")
    content = {"same": "one", "newer": "one"}
    present = [put(name, content.get(name, "other"), 5) for name in names]
    await repairs.reconcile(held, snapshot(5, *present), NOW)
    assert await rows(sql) == {
        "same": ("one", rev(1), "repo"),
        "other": ("other", rev(5), "repo"),
        "newer": ("two", rev(7), "repo"),
        "missed": ("other", rev(5), "repo"),
        "fresh": ("two", rev(7), "repo"),
    }
    assert await head(sql) == (rev(7), "data-7", rev(5))
    assert [key for key, _ in await history(sql)].count("vanished") == 0
    assert await untrue_flags(sql) == []


async def test_snapshot_leaves_a_row_that_is_right_as_it_is(store: Store, repairs: Repairs, sql: Sql) -> None:
    """The same CID raises the proof and changes nothing else; there is no new compile in the history either."""
    await write(store, changes=(put("a", "one", 1, proof=None),))
    before = await sql.fetchrow("select rev, value, indexed_at from letta_store.compiled_prompt")
    await repairs.reconcile(await fetch_wanted(store, repairs), snapshot(5, put("a", "one", 5)), NOW)
    assert await sql.fetchrow("select rev, value, indexed_at from letta_store.compiled_prompt") == before
    assert await rows(sql) == {"a": ("one", rev(1), "repo")}
    assert await history(sql) == [("a", "one")]


async def test_doubted_rows_are_written_again(store: Store, repairs: Repairs, sql: Sql) -> None:
    """Where an audit found rows that don't hash to their CIDs, a snapshot writes the values anew, flags included."""
    await write(store, commit(1, put("a", "one", 1)), commit(2, put("b", "two", 2)))
    await sql.execute("update letta_store.compiled_prompt set value = '{}'")
    await sql.execute("update letta_store.freshness set freshness = 'fresh'")
    held = await fetch_wanted(store, repairs, Want(DID, WantReason.CHECK))
    whole = snapshot(2, put("a", "one", 2), put("b", "two", 2))
    await repairs.reconcile(held, replace(whole, rewrites=True), NOW)
    values = {row["content"] for row in await sql.fetch("select content from letta.compiled_prompt")}
    assert values == {"one", "two"}
    assert await sql.fetch("select freshness from letta_store.freshness where freshness <> 'unverified'") == []


async def test_events_up_to_a_snapshot_are_ignored_and_later_ones_applied(
    store: Store, repairs: Repairs, sql: Sql
) -> None:
    """No event with rev ≤ snapshot_rev touches a row, proven or not; the commit that follows the snapshot does."""
    await repairs.reconcile(await fetch_wanted(store, repairs), snapshot(5, put("a", "five", 5)), NOW)
    for proof in ("repo", None):
        await write(store, changes=(put("a", "late", 5, proof=proof), put("b", "late", 4, proof=proof)))
        await write(store, changes=(gone("a", 5, proof=proof),))
    assert await rows(sql) == {"a": ("five", rev(5), "repo")}
    assert await sql.fetchval("select count(*) from letta_store.tombstone") == 0
    await write(store, commit(6, put("a", "six", 6), gone("b", 6)))
    assert await rows(sql) == {"a": ("six", rev(6), "repo")}


async def test_tombstones_go_with_the_snapshot_that_decides_them(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A tombstone at or below R has nothing left to guard; one above R stays, and still keeps its record away."""
    await write(store, commit(1, put("a", "one", 1)), commit(2, gone("a", 2)), commit(3, gone("b", 3)))
    held = await fetch_wanted(store, repairs)
    await repairs.reconcile(held, snapshot(2, put("b", "one", 2)), NOW)
    assert [row["rkey"] for row in await sql.fetch("select rkey from letta_store.tombstone")] == ["b"]
    assert await rows(sql) == {}
    assert await sql.fetchval("select marks from letta_store.repo") == 1


async def test_empty_snapshot_takes_everything_away(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A repository that holds nothing of ours any more leaves nothing, in every table."""
    kinds = (AGENT, CONVERSATION, PROMPT, MESSAGE, frames.OTHER)
    await write(store, commit(1, *(put("a", "one", 1, collection=kind) for kind in kinds)))
    await repairs.reconcile(await fetch_wanted(store, repairs), snapshot(5), NOW)
    assert await rows(sql) == {}
    assert await history(sql) == []
    counts = await sql.fetchrow("select records, bytes, marks from letta_store.repo")
    assert counts is not None
    assert tuple(counts) == (0, 0, 0)


async def test_what_nobody_signed_counts_for_nothing(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A snapshot that overrules goes over unproven rows and tombstones above its rev, with their history."""
    await write(store, commit(1, put("a", "one", 1), put("b", "one", 1), put("c", "one", 1)))
    forged = (put("a", "forged", 9, proof=None), put("x", "forged", 9, proof=None), gone("b", 9, proof=None))
    await write(store, changes=forged)
    held = await fetch_wanted(store, repairs)
    await write(store, commit(2, put("c", "two", 2)))
    whole = snapshot(1, *(put(name, "one", 1) for name in "abc"))
    await repairs.reconcile(held, replace(whole, overrules=True), NOW)
    assert {name: content for name, (content, _, _) in (await rows(sql)).items()} == {
        "a": "one",
        "b": "one",
        "c": "two",
    }
    assert await history(sql) == [("a", "one"), ("b", "one"), ("c", "one"), ("c", "two")]
    assert (await head(sql))[0] == rev(2)


async def test_rewound_repository_is_replaced_whole(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A host that went back to an earlier state is followed: rows, tombstones, history and head above it go."""
    await write(store, commit(1, put("a", "one", 1), put("b", "one", 1)))
    await write(store, commit(2, put("a", "two", 2)), commit(3, gone("b", 3), put("c", "three", 3)))
    held = await fetch_wanted(store, repairs)
    whole = snapshot(1, put("a", "one", 1), put("b", "one", 1))
    await repairs.reconcile(held, replace(whole, replaces=True, overrules=True), NOW)
    assert await rows(sql) == {"a": ("one", rev(1), "repo"), "b": ("one", rev(1), "repo")}
    assert await history(sql) == [("a", "one"), ("b", "one")]
    assert await head(sql) == (rev(1), "data-1", rev(1))
    await write(store, commit(4, put("a", "four", 4), since=1))
    assert (await rows(sql))["a"] == ("four", rev(4), "repo")


async def test_commits_that_came_during_the_fetch_outlive_a_rewound_snapshot(
    store: Store, repairs: Repairs, sql: Sql
) -> None:
    """Only what its host had been asked about is overruled with the snapshot; what came since is decided next."""
    await write(store, commit(1), commit(2), held=(undecided(5),))
    held = await claim(repairs)
    (known,) = await repairs.pending(DID)
    await write(store, held=(undecided(6),))
    whole = replace(snapshot(1), replaces=True, overrules=True, overruled=(known.digest,))
    _, met = await repairs.reconcile(held, whole, NOW)
    assert met
    assert [waiting.rev for waiting in await repairs.pending(DID)] == [rev(6)]
    assert await sql.fetchval("select want from letta_store.repo") == "decide"


async def test_large_snapshot_is_no_silence(store: Store, repairs: Repairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is to go through, the server hears of us all along: else it would take us for paused."""
    monkeypatch.setattr(context, "PART_ROWS", 2)
    held = await fetch_wanted(store, repairs)
    asked: list[str] = []
    async with store.connection("repair") as connection:
        connection.add_query_logger(lambda query: asked.append(query.query))
    await repairs.reconcile(held, snapshot(5, *(put(f"key-{number}", "one", 5) for number in range(8))), NOW)
    words = asked.count(statement("still_here"))
    assert words >= 5 * 4  # taken in, compared, left over, admitted, remembered
