"""Polls of the captured repository: wherever they begin and are cut into pages, one index comes of them."""

from __future__ import annotations

import pytest

from indexer import lthash
from indexer.spaces.commit import Judgement
from indexer.spaces.dialects import ALPHA_2026_08
from indexer.spaces.repo import Applied, Outcome, Poll, Reload, ReloadReason, RepoState, Silent
from tests.spaces import captured
from tests.spaces.captured import DID, PREFIXES, SPACE, Body
from tests.spaces.held import Held

HEADS = list(captured.commits())
START = RepoState(SPACE, DID)
REVS = [op["rev"] for op in captured.step(captured.WHOLE_LOG)["ops"]]


def read(state: RepoState, *bodies: Body, prefixes: tuple[str, ...] = PREFIXES) -> Outcome:
    """What comes of a poll that is answered with these pages; it has to want all of them and no more."""
    poll = Poll(state, prefixes=prefixes, dialect=ALPHA_2026_08)
    more = [poll.take(body) for body in bodies]
    assert more[:-1] == [True] * (len(bodies) - 1)
    assert not more[-1]
    return poll.finish(captured.key())


def applied(state: RepoState, *bodies: Body, prefixes: tuple[str, ...] = PREFIXES) -> Applied:
    """As :func:`read`, of what leads on."""
    outcome = read(state, *bodies, prefixes=prefixes)
    assert isinstance(outcome, Applied)
    assert outcome.rejected == ()
    return outcome


def state_at(rev: str) -> RepoState:
    """The state of who has read up to ``rev``."""
    operations = [op for op in captured.log(max(HEADS)) if op["rev"] <= rev]
    paths = [f"{op['collection']}/{op['rkey']}" for op in operations]
    came = [lthash.element(path, op["cid"]) for path, op in zip(paths, operations, strict=True) if op["cid"]]
    went = [lthash.element(path, op["prev"]) for path, op in zip(paths, operations, strict=True) if op["prev"]]
    return RepoState(SPACE, DID, rev, lthash.fold(lthash.EMPTY, came, went))


def test_the_exchanges_as_they_were() -> None:
    """The polls of the capture, one after the other, lead to exactly what the PDS listed, all of it proven."""
    held = Held(START, PREFIXES)
    for steps in captured.POLLS:
        held.take(applied(held.state, *map(captured.step, steps)))
    assert held.cids() == captured.expected()
    assert {row.proof for row in held.rows.values()} == {"space"}
    assert held.state.rev == max(HEADS)


def test_the_whole_log_at_once() -> None:
    """One poll since before everything leads to the same rows, state and number of versions."""
    held = Held(START, PREFIXES)
    outcome = applied(held.state, captured.step(captured.WHOLE_LOG))
    held.take(outcome)
    assert held.cids() == captured.expected()
    assert held.state == state_at(max(HEADS))
    assert outcome.operations == len(REVS)


@pytest.mark.parametrize("limit", range(1, 58))
def test_every_page_size(limit: int) -> None:
    """Wherever the pages end, also exactly at the head, the rows, versions and state are the same."""
    whole = applied(START, *captured.pages(max(HEADS), "", 1000))
    assert applied(START, *captured.pages(max(HEADS), "", limit)) == whole


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_every_beginning(head: str, limit: int) -> None:
    """A reader that stopped at any rev comes to each head's state, whatever the size of the pages."""
    for rev in ["", *(rev for rev in REVS if rev <= head)]:
        state = state_at(rev)
        outcome = applied(state, *captured.pages(head, rev, limit))
        assert outcome.state == state_at(head)
        assert {change.proof for change in outcome.changes} <= {"space"}


def test_repeated_answers_change_nothing() -> None:
    """At the head there is nothing new, however often it is asked."""
    head = state_at(HEADS[0])
    for _ in range(2):
        assert applied(head, captured.step(5)) == Applied(head, (), (), (), 0)


def test_a_poll_that_is_cut_off_counts_for_nothing() -> None:
    """Pages that don't come to a commit lead nowhere, whether the host stops or falls silent midway."""
    for head, steps in zip(HEADS, captured.POLLS[2:], strict=False):
        for last in range(1, len(steps)):
            poll = Poll(state_at(head), prefixes=PREFIXES, dialect=ALPHA_2026_08)
            assert all(poll.take(captured.step(number)) for number in steps[:last])
            assert poll.finish(captured.key()) == Silent()
            assert not poll.take({"ops": []})
            assert poll.finish(captured.key()) == Silent()


def test_silence_is_no_deletion() -> None:
    """An answer without operations, cursor and commit says nothing, whether something is held or not."""
    for state in (START, state_at(HEADS[0])):
        assert read(state, {"ops": []}) == Silent()
        assert read(state, captured.step(2)) == Silent()


def test_superseded_versions_are_named_without_a_value() -> None:
    """What the host no longer has is history without content; nothing is made up for it."""
    outcome = applied(START, captured.step(captured.WHOLE_LOG))
    assert outcome.superseded
    bare = {op["cid"] for op in captured.step(captured.WHOLE_LOG)["ops"] if op["cid"] and "value" not in op}
    assert {one.cid for one in outcome.superseded} <= bare
    assert all(one.record is None for one in outcome.superseded)


def test_versions_with_values_keep_them() -> None:
    """A version that was still the last word when its page was read has its content."""
    first = captured.page(HEADS[0], "", "", 10)
    rest = captured.page(HEADS[1], "", first["cursor"], 1000)
    outcome = applied(START, first, rest)
    with_value = {one.cid for one in outcome.superseded if one.record is not None}
    expected = {op["prev"] for op in rest["ops"]} & {op["cid"] for op in first["ops"] if "value" in op}
    deleted = {f"{op['collection']}/{op['rkey']}" for op in rest["ops"] if op["cid"] is None}
    kept = {op["cid"] for op in first["ops"] if f"{op['collection']}/{op['rkey']}" not in deleted}
    assert with_value == expected & kept
    assert with_value


def test_deleted_records_leave_no_versions() -> None:
    """Of what was deleted within the poll there is the delete, and neither a row nor a version."""
    outcome = applied(START, captured.step(captured.WHOLE_LOG))
    gone = {(change.collection, change.rkey) for change in outcome.changes if change.cid is None}
    assert {rkey for _, rkey in gone} == {"3n2q7w5ozqkre"}
    assert not gone & {(one.collection, one.rkey) for one in outcome.superseded}
    assert not gone & {(one.collection, one.rkey) for one in outcome.changes if one.cid is not None}


def test_unwanted_collections_count_in_the_hash_alone() -> None:
    """The filter decides what is kept; the proof is of the whole repository all the same."""
    agents = ("xyz.quasigod.lab.letta.agent/",)
    outcome = applied(START, captured.step(captured.WHOLE_LOG), prefixes=agents)
    assert {change.collection for change in outcome.changes} == {"xyz.quasigod.lab.letta.agent"}
    assert outcome.state == state_at(max(HEADS))
    assert applied(START, captured.step(captured.WHOLE_LOG), prefixes=()).changes == ()


def test_log_cut_short_is_found_out() -> None:
    """A log that was compacted, wherever it now begins or ends, leads to a load."""
    body = captured.step(captured.WHOLE_LOG)
    for cut in range(1, len(REVS) + 1):
        assert read(START, body | {"ops": body["ops"][cut:]}) in (
            Reload(ReloadReason.WRONG_HASH),
            Reload(ReloadReason.WRONG_HEAD),
        )
        assert read(START, body | {"ops": body["ops"][:-cut]}) == Reload(ReloadReason.WRONG_HEAD)


def test_host_that_went_back_is_found_out() -> None:
    """A head before ours leads to a load."""
    ahead = state_at(HEADS[1])
    assert read(ahead, captured.step(5)) == Reload(ReloadReason.REWOUND)


@pytest.mark.parametrize(
    ("commit", "judgement"), [({"ver": 2}, Judgement.UNKNOWN_VERSION), ({"mac": 5}, Judgement.UNKNOWN_FORM)]
)
def test_commits_of_another_form_are_followed_unproven(commit: Body, judgement: Judgement) -> None:
    """What the commit proves is settled by a load; then polls go on, unproven, for as long as it stays like this."""
    body = captured.step(captured.WHOLE_LOG)
    moved = body | {"commit": body["commit"] | commit}
    assert read(START, moved) == Reload(ReloadReason.JUDGED_OTHERWISE)
    outcome = applied(RepoState(SPACE, DID, judgement=judgement), moved)
    assert {change.proof for change in outcome.changes} == {None}
    assert {one.proof for one in outcome.superseded} == {None}
    assert outcome.state.judgement is judgement
    assert read(outcome.state, captured.step(23) | {"ops": []}) == Reload(ReloadReason.JUDGED_OTHERWISE)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"ops": None},
        {"ops": [5]},
        {"ops": [], "cursor": ""},
        {"ops": [], "cursor": 5},
        {"ops": [], "commit": None},
        {"ops": [], "commit": {}, "cursor": "x"},
        {"ops": captured.step(4)["ops"]},
    ],
)
def test_answers_of_another_form_lead_to_a_load(body: Body) -> None:
    """What can't be read is never guessed at."""
    assert read(START, body) == Reload(ReloadReason.MALFORMED)


def test_a_list_that_goes_in_circles_ends() -> None:
    """A host that gives the same cursor for ever is asked twice."""
    poll = Poll(START, prefixes=PREFIXES, dialect=ALPHA_2026_08)
    assert poll.take({"ops": [], "cursor": "x"})
    assert not poll.take({"ops": [], "cursor": "x"})
    assert poll.finish(captured.key()) == Reload(ReloadReason.OUT_OF_ORDER)


def test_polls_are_bounded() -> None:
    """What is more than memory should hold is fetched as a file instead."""
    body = captured.step(captured.WHOLE_LOG)
    for limits in ({"max_operations": len(REVS) - 1}, {"max_bytes": 1000}):
        poll = Poll(START, prefixes=PREFIXES, dialect=ALPHA_2026_08, **limits)
        assert not poll.take(body)
        assert poll.finish(captured.key()) == Reload(ReloadReason.TOO_MUCH)
    poll = Poll(START, prefixes=PREFIXES, dialect=ALPHA_2026_08, max_operations=len(REVS))
    poll.take(body)
    assert isinstance(poll.finish(captured.key()), Applied)
