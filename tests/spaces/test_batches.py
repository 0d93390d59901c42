"""Batches of a simulated host: operations that share a rev, identical puts, records that come back."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.spaces.dialects import ALPHA_2026_08
from indexer.spaces.repo import Applied, Outcome, Poll, Reload, ReloadReason
from tests.spaces.authors import OTHER, PREFIXES, PROMPT, Author
from tests.spaces.held import Held, truth_of


def applied(outcome: Outcome) -> Applied:
    """An outcome that leads on."""
    assert isinstance(outcome, Applied)
    return outcome


def test_the_last_word_of_a_batch_is_the_row() -> None:
    """Of two puts on one record in one batch the second is the row, the first a version, whatever their CIDs."""
    for first, second in (("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")):
        author = Author()
        rev = author.write((PROMPT, {"x": first}), (OTHER, {}), (PROMPT, {"x": second}))
        outcome = applied(author.poll(author.state()))
        (row,) = outcome.changes
        (version,) = outcome.superseded
        assert row.record is not None
        assert (row.rev, row.record.value) == (rev, json.dumps({"x": second}, separators=(",", ":")))
        assert (version.rev, version.ordinal, version.record) == (rev, 0, None)
        assert version.cid != row.cid


def test_an_identical_put_is_an_operation() -> None:
    """A put that changes nothing moves the rev, keeps the CID and leaves the hash provable."""
    author = Author()
    author.write((PROMPT, {"x": 1}))
    state = applied(author.poll(author.state())).state
    rev = author.write((PROMPT, {"x": 1}))
    outcome = applied(author.poll(state))
    assert [(change.rev, change.proof) for change in outcome.changes] == [(rev, "space")]
    assert outcome.state.lthash == state.lthash


def test_what_comes_back_in_one_batch_is_deleted_before() -> None:
    """Delete and put in one batch: the delete counts as of the rev before, so that it takes what was, not what is."""
    author = Author()
    before = author.write((PROMPT, {"x": 1}))
    state = applied(author.poll(author.state())).state
    rev = author.write((PROMPT, {"x": 2}), (PROMPT, None), (PROMPT, {"x": 3}))
    outcome = applied(author.poll(state))
    assert [(change.rev, change.cid is None) for change in outcome.changes] == [(before, True), (rev, False)]
    assert outcome.superseded == ()


def test_what_comes_back_later_is_deleted_at_its_rev() -> None:
    """Delete, then a put in a later batch: both are told, each at its own rev."""
    author = Author()
    author.write((PROMPT, {"x": 1}))
    state = applied(author.poll(author.state())).state
    revs = author.write((PROMPT, None)), author.write((PROMPT, {"x": 2}))
    outcome = applied(author.poll(state))
    assert [(change.rev, change.cid is None) for change in outcome.changes] == [(revs[0], True), (revs[1], False)]


def test_what_came_and_went_leaves_a_tombstone() -> None:
    """A record made and deleted between two polls was never a row; its delete is told all the same."""
    author = Author()
    author.write((OTHER, {}))
    state = applied(author.poll(author.state())).state
    rev = author.write((PROMPT, {"x": 1}), (PROMPT, None))
    outcome = applied(author.poll(state))
    assert [(change.rev, change.cid) for change in outcome.changes] == [(rev, None)]
    assert outcome.superseded == ()


def test_values_of_every_kind_survive_json() -> None:
    """Links, byte strings, large integers and odd text re-encode to the block that their CID names."""
    author = Author()
    value = {
        "$type": "x",
        "bytes": b"\x00\xff" * 9,
        "integers": [2**53, -(2**53), 0, 2**63 - 1],
        "text": "naïve 記憶 🧠 \u0000",
        "nested": {"a": [{"b": None, "c": True}], "": {}},
        "aa": 1,
        "b": 2,
    }
    author.write((PROMPT, value))
    (row,) = applied(author.poll(author.state())).changes
    assert row.record is not None
    assert row.proof == "space"


@pytest.mark.parametrize("path", ["xyz.quasigod.lab.letta.9/x", "xyz.quasigod.lab.letta.agent/a b"])
def test_paths_that_are_none_are_set_aside_alone(path: str) -> None:
    """A record whose key can't be one is left out, with a reason; the rest of the repository is proven."""
    author = Author()
    author.write((path, {"x": 1}), (PROMPT, {"x": 1}))
    outcome = applied(author.poll(author.state()))
    assert [change.collection for change in outcome.changes] == [PROMPT.partition("/")[0]]
    assert [rejected.reason.value for rejected in outcome.rejected] == ["bad_path"]


def test_a_last_word_without_its_value_is_fetched() -> None:
    """A record whose value the host keeps back isn't made up: the repository is loaded."""
    author = Author()
    author.write((PROMPT, {"x": 1}))
    poll = Poll(author.state(), prefixes=PREFIXES, dialect=ALPHA_2026_08)
    body = author.page("", "", 10)
    for operation in body["ops"]:
        del operation["value"]
    poll.take(body)
    assert poll.finish(author.key()) == Reload(ReloadReason.MISSING_VALUE)


def test_operations_continue_one_another() -> None:
    """An operation that starts from another version than the last one left leads to a load, whatever the hash says."""
    author = Author()
    author.write((PROMPT, {"x": 1}), (PROMPT, {"x": 2}))
    body = author.page("", "", 10)
    body["ops"].reverse()
    poll = Poll(author.state(), prefixes=PREFIXES, dialect=ALPHA_2026_08)
    poll.take(body)
    assert poll.finish(author.key()) == Reload(ReloadReason.OUT_OF_ORDER)


PATHS = [PROMPT, PROMPT + "x", "xyz.quasigod.lab.letta.agent/self", OTHER]
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=5), max_size=8
)


@given(batches, st.integers(1, 4), st.sets(st.integers(0, 8)))
def test_any_history_leads_to_what_the_host_holds(
    history: Sequence[Sequence[tuple[str, int | None]]], limit: int, polled: set[int]
) -> None:
    """Whatever was written, in whatever batches, pages and polls: the rows are what the host holds, proven."""
    author = Author()
    held = Held(author.state(), PREFIXES)
    for number, batch in enumerate(history):
        writes: list[tuple[str, object]] = []
        present = set(author.repository.records)
        for path, value in batch:
            if value is not None or path in present:
                writes.append((path, None if value is None else {"x": value}))
                (present.discard if value is None else present.add)(path)
        if writes:
            author.write(*writes)
            if number in polled:
                held.take(applied(author.poll(held.state, limit)))
    if author.repository.rev:
        held.take(applied(author.poll(held.state, limit)))
    assert held.cids() == truth_of(author.repository, PREFIXES)
    assert {row.proof for row in held.rows.values()} <= {"space"}
    assert held.state.rev == author.repository.rev
