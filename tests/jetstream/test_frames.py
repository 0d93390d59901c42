"""Frames of Jetstream as events: the same as the firehose's, and nothing from outside that isn't refused by reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.car import read_car
from indexer.changes import changes_of
from indexer.errors import Rejected
from indexer.frames import account_event, commit_event, decode_frame, identity_event, sync_event
from indexer.jetstream_frames import damaged_account, decode_event, told_commit
from indexer.model import Account, Change, Identity, Reason, Sync
from indexer.simulator import World
from indexer.simulator.dagcbor import cid_of, cid_text, encode
from indexer.simulator.witness import LEXICON, Witness
from tests.frames import AGENT, DID, PREFIX, TIME
from tests.histories import examples

Event = Account | Identity | Sync
READERS: dict[str, Callable[[dict[str, object]], Event]] = {
    "#account": account_event,
    "#identity": identity_event,
    "#sync": sync_event,
}
RECORD = {"$type": AGENT, "name": "test", "n": 1}
CID = cid_text(cid_of(encode(RECORD)))


def told(raw: bytes) -> list[Change | Rejected]:
    """The changes of a commit frame."""
    commit, car = told_commit(decode_event(raw)[1])
    return list(changes_of(commit, car, (PREFIX,)))


def version_2(**fields: Any) -> bytes:
    """A commit frame of version 2, right but for the fields given."""
    payload = {"$type": f"{LEXICON}#commit", "seq": 5, "did": DID, "time": TIME, "rev": "3kabcdefghij2"}
    payload |= {"operation": "create", "collection": AGENT, "rkey": "self", "cid": CID, "record": RECORD}
    return json.dumps({"$type": "message", "payload": payload | fields}).encode()


@pytest.mark.parametrize("version", [1, 2])
def test_the_same_events_and_changes_as_from_the_firehose(version: int) -> None:
    """Of a whole life every event reads the same, but for its number, and every change but for what is illegal."""
    world, witness = World(11, accounts=4, quirks=0.3), Witness()
    compared = 0
    for frame in world.run(300):
        seen = [one.version_1 if version == 1 else one.version_2 for one in witness.see(frame)]
        kind, body = decode_frame(frame)
        for raw in filter(None, seen):
            if kind != "#commit":
                name, content = decode_event(raw)
                assert name == kind
                assert READERS[kind](content | {"seq": 0}) == READERS[kind](body | {"seq": 0})
                compared += 1
        if kind == "#commit":
            commit = commit_event(body)
            ours = list(changes_of(commit, read_car(commit.blocks), (PREFIX,)))
            theirs = [change for raw in filter(None, seen) for change in told(raw)]
            refused = [one for one in theirs if isinstance(one, Rejected)]
            assert {one.reason for one in refused} <= {Reason.WRONG_CID}
            assert [one for one in theirs if isinstance(one, Change)] == [one for one in ours if one in theirs]
            assert len(theirs) == len(ours)
            compared += len(theirs) - len(refused)
    assert compared > 200


def test_a_time_is_version_1s_number_and_instant() -> None:
    """``time_us`` is both."""
    frame = {"did": DID, "time_us": 1_700_000_000_000_001, "kind": "commit"}
    frame["commit"] = {"rev": "3kabcdefghij2", "operation": "delete", "collection": AGENT, "rkey": "self"}
    commit, _ = told_commit(decode_event(json.dumps(frame).encode())[1])
    assert commit.seq == 1_700_000_000_000_001
    assert datetime.fromisoformat(commit.time) == datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=1)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"null", b"[]", b"1", b"{", b"\xff{}", b'{"$type":"message"}', b'{"kind":"commit"}', b"{}"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"$type":"message","payload":{"$type":7}}',
        b'{"$type":"message","payload":{"$type":"x#commit","n":' + b"9" * 5000 + b"}}",
        b'{"$type":"message","payload":{"$type":"x","n":NaN}}',
        b'{"$type":"message","payload":{"$type":"x","n":"\xed\xa0\x80"}}',
        b'{"kind":"commit","did":"did:x:y","time_us":99999999999999999999,"commit":{}}',
        b'{"kind":"account","did":"did:x:y","time_us":1,"account":{"did":"did:x:z"}}',
        b'{"kind":"identity","did":"did:x:y","time_us":1}',
        '{"a":1}'.encode("utf-16"),
        version_2(cid="bafy"),
        version_2(cid=None),
        version_2(collection=[]),
        version_2(operation={}),
        version_2(rev=1),
        version_2(did=None),
        json.dumps(
            {"$type": "message", "payload": {"$type": f"{LEXICON}#sync", "did": DID, "sync": {"did": DID, "blocks": 1}}}
        ).encode(),
    ],
    ids=lambda raw: raw[:40].decode("latin-1"),
)
def test_what_is_no_event_is_malformed(raw: bytes) -> None:
    """Deep nesting, bad UTF-8, endless numbers, wrong types: one reason, and no other error."""
    with pytest.raises(Rejected) as caught:
        told_commit(decode_event(raw)[1])
    assert caught.value.reason is Reason.MALFORMED_FRAME


@pytest.mark.parametrize(
    "record",
    [
        *({**RECORD, "n": 2}, {**RECORD, "n": 1.0}, {**RECORD, "n": 1 << 65}, {**RECORD, "s": "\ud800"}, [], "x", None),
        {"deep": json.loads("[" * 500 + "]" * 500)},
    ],
    ids=lambda record: str(record)[:30],
)
def test_a_record_that_is_not_its_cids_is_refused(record: object) -> None:
    """Whatever its JSON is, only what encodes to the block of the CID counts."""
    (refused,) = told(version_2(record=record))
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.WRONG_CID


def test_a_status_of_half_a_character_is_made_whole() -> None:
    """JSON can name what no database keeps."""
    raw = (
        b'{"kind":"account","did":"d","time_us":1,"account":{"did":"d","status":"a\\ud800b","active":false,"time":""}}'
    )
    assert account_event(decode_event(raw)[1]).status == "a?b"


def test_whose_a_damaged_frame_is() -> None:
    """The first DID that is called one, wherever the frame is cut off; none, if it is none."""
    raw = version_2(record={"did": "did:web:other.example"})
    assert [damaged_account(raw[:size]) for size in (len(raw) - 9, 200)] == [DID, DID]
    assert [damaged_account(text) for text in (b"", b'"did": "x"', b'"did":"did:PLC:x"', raw[:40])] == [None] * 4


_json: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from([DID, AGENT])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["$link", "did", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_NAMES = ("seq", "did", "time", "rev", "operation", "collection", "rkey", "cid", "record", "$type", "account", "sync")


@examples(300)
@given(fields=st.dictionaries(st.sampled_from(_NAMES), _json, max_size=4), cut=st.integers(0, 20))
def test_any_json_anywhere_gives_an_event_or_a_reason(fields: dict[str, Any], cut: int) -> None:
    """Nothing from outside raises anything but Rejected."""
    raw = version_2(**fields)
    raw = raw[: len(raw) - cut]
    try:
        kind, body = decode_event(raw)
        outcome: object = told(raw) if kind == "#commit" else READERS.get(kind, lambda body: body)(body)
    except Rejected as rejected:
        outcome = rejected.reason
    assert outcome is not None
    assert damaged_account(raw) is None or isinstance(damaged_account(raw), str)


def test_a_record_that_is_its_cids_is_taken_unproven() -> None:
    """The frame that all the others are made from is a change, without a proof."""
    (change,) = told(version_2())
    assert isinstance(change, Change)
    assert (change.rkey, change.cid, change.proof) == ("self", CID, None)
