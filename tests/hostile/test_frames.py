"""Frames that are none, or lie about what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frames import (
    AGENT,
    DID,
    MESSAGE,
    OTHER,
    TIME,
    account,
    agent,
    car,
    cid_of,
    commit,
    dag_cbor,
    delete,
    error_frame,
    frame,
    identity,
    key,
    message,
    put,
    rev,
    tid,
)
from tests.hostile.target import BYSTANDER, CANARY, Target

GOOD = commit(put(AGENT, key(1), agent(CANARY)))
HEADER = dag_cbor({"op": 1, "t": "#commit"})
BODIES: dict[str, bytes] = {
    "no frame at all": b"",
    "one byte": b"\xa2",
    "cut in the header": GOOD[:7],
    "cut after the header": GOOD[: len(HEADER)],
    "cut in the body": GOOD[: len(GOOD) // 2],
    "last byte missing": GOOD[:-1],
    "one byte too many": GOOD + b"\x00",
    "a third object": GOOD + dag_cbor({"more": CANARY}),
    "JSON": b'{"op":1,"t":"#commit"}',
    "HTML": b"<html>" + CANARY.encode() + b"</html>",
    "zeroes": bytes(1_000),
    "all ones": b"\xff" * 1_000,
    "header no map": dag_cbor([1]) + dag_cbor({}),
    "header without a type": dag_cbor({"op": 1}) + dag_cbor({}),
    "type no text": dag_cbor({"op": 1, "t": 7}) + dag_cbor({}),
    "body no map": frame("#commit", ["repo", DID]),
    "body null": frame("#commit", None),
    "empty body": frame("#commit", {}),
    "nested 100,000 deep": HEADER + b"\x81" * 100_000 + b"\x00",
    "maps nested 50,000 deep": HEADER + b"\xa1\x61a" * 50_000 + b"\x00",
    "an array said to hold 2^62 items": HEADER + b"\x9b\x40" + bytes(7),
    "a text said to be 2^63 bytes long": HEADER + b"\x7b\x80" + bytes(7) + b"x",
    "bad UTF-8 in a key": HEADER + b"\xa1\x62\xff\xfe\x00",
    "a tag that is no link": HEADER + b"\xa1\x61a\xc1\x00",
}
WRONG_FIELDS: dict[str, Any] = {
    "seq": ["1", None, 1.5, -1, 1 << 63, True],
    "repo": [None, 7, b"did", [DID], {"did": DID}],
    "rev": [None, 7, b"3k"],
    "time": [None, 7, {"a": CANARY}],
    "ops": [None, 7, "ops", {"a": 1}, [None], [7], ["path"], [{}], [{"path": 1}], [[["path"]]]],
    "commit": [None, "bafy", 7],
    "blocks": ["car", 7, {"$bytes": "AA"}],
    "tooBig": ["yes", 1],
    "since": [7, b"3k"],
    "prevData": ["bafy", 7],
}
BAD_CARS: dict[str, bytes] = {
    "empty": b"",
    "no varint": b"\xff" * 20,
    "header cut": car([cid_of(b"\xa0")], [])[:-3],
    "no roots": car([], [(cid_of(b"\xa0"), b"\xa0")]),
    "version 2": b"\x0a" + dag_cbor({"roots": [], "version": 2}),
    "block cut": car([cid_of(b"\xa0")], [(cid_of(b"\xa0"), b"\xa0" * 50)])[:-10],
    "block longer than all memory": car([cid_of(b"\xa0")], []) + b"\xff" * 8 + b"\x7f",
    "block shorter than a CID": car([cid_of(b"\xa0")], []) + b"\x05hello",
    "a CID of another kind": car([cid_of(b"\xa0")], [(b"\x01\x71\x1b\x20" + bytes(32), b"\xa0")]),
}


@pytest.mark.parametrize("name", BODIES)
async def test_malformed_frame(target: Target, name: str) -> None:
    """What is no header and body in DAG-CBOR is set aside whole, and the frames around it are taken."""
    await target.take(commit(put(OTHER, "before", {})), BODIES[name], commit(BYSTANDER))
    assert await target.letters() == ["malformed_frame"]
    assert await target.rev_of(OTHER, "before") == await target.rev_of(OTHER, "bystander") == rev(0)
    assert await target.rev_of(AGENT, key(1)) is None


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG_FIELDS for value in WRONG_FIELDS[name]])
async def test_field_of_the_wrong_type(target: Target, name: str, value: object) -> None:
    """A commit with any field of another type than the specification's never stops the stream."""
    await target.take(commit(put(AGENT, key(1), agent(CANARY)), **{name: value}), commit(BYSTANDER))
    letters = await target.letters()
    assert letters == ["malformed_frame"] or (letters, name) == ([], "seq")
    assert await target.rev_of(OTHER, "bystander")


@pytest.mark.parametrize("name", ["repo", "rev", "time", "ops", "commit"])
async def test_missing_field(target: Target, name: str) -> None:
    """A commit without a field it must have is set aside."""
    whole: dict[str, object] = {"seq": 1, "repo": DID, "rev": rev(0), "time": TIME, "ops": [], "commit": b"", "blocks": b""}
    whole["ops"] = [delete(AGENT, key(1)).entry()]
    del whole[name]
    await target.take(frame("#commit", whole), commit(BYSTANDER))
    assert await target.letters() == ["malformed_frame"]


@pytest.mark.parametrize("name", BAD_CARS)
async def test_malformed_car(target: Target, name: str) -> None:
    """A commit whose blocks are no CAR is set aside; the account's next one is taken."""
    await target.take(commit(put(AGENT, key(1), agent(CANARY)), blocks=BAD_CARS[name]), commit(BYSTANDER))
    assert await target.letters() == ["malformed_car"]
    assert await target.rev_of(OTHER, "bystander")


async def test_ten_megabytes_of_garbage(target: Target) -> None:
    """A frame of 10 MB is set aside without keeping its bytes."""
    await target.take(b"\xa1" * 10_000_000, HEADER + dag_cbor({"repo": DID, "x": bytes(10_000_000)}), commit(BYSTANDER))
    assert await target.letters() == ["malformed_frame", "malformed_frame"]
    assert await target.sql.fetch("select size, length(frame) as kept from letta_store.dead_letter order by id") == [
        (10_000_000, 0),
        (len(HEADER) + len(dag_cbor({"repo": DID, "x": bytes(10_000_000)})), 0),
    ]


async def test_ten_megabytes_of_blocks(target: Target) -> None:
    """A commit frame of 10 MB (five times what is legal) is no reason to fail: its records are taken."""
    ballast = [(cid_of(block), block) for block in (dag_cbor({"n": n, "x": "y" * 1_000_000}) for n in range(10))]
    await target.attack(put(AGENT, key(1), agent()), extra=ballast)
    assert await target.rev_of(AGENT, key(1))


async def test_unknown_event_types(target: Target) -> None:
    """Events of types we don't know, old and new, are counted and skipped."""
    kinds = ["#handle", "#migrate", "#tombstone", "#" + CANARY, "", "commit", "\0", "#COMMIT", "é" * 1_000]
    await target.take(*(frame(kind, {"seq": 1, "did": DID}) for kind in kinds), commit(BYSTANDER))
    assert await target.letters() == []
    assert target.index.sample("dropped_total", reason="unknown_event") == len(kinds)


@pytest.mark.parametrize("word", ["FutureCursor", CANARY, "\0\0", "é" * 500, 7, None, {"a": 1}])
async def test_error_frame_in_a_capture(target: Target, word: object) -> None:
    """An error frame that a capture holds ends nothing."""
    await target.take(error_frame(word, CANARY), commit(BYSTANDER))
    assert await target.rev_of(OTHER, "bystander")


@pytest.mark.parametrize("name", ["#commit", "#account", "#identity", "#sync", "#info"])
@pytest.mark.parametrize("did", ["", "did:plc", "did:web:\0", "alice.example.com", "did:plc:" + "a" * 2_000, "did:plc:é"])
async def test_no_did(target: Target, name: str, did: str) -> None:
    """An event of what is no DID, or of one too long for a key, is set aside."""
    frames = {
        "#commit": commit(put(AGENT, key(1), agent(CANARY)), did=did),
        "#account": account(did, active=False, status="deleted"),
        "#identity": identity(did, "a.example.com"),
    }
    await target.take(frames.get(name, frame(name, {"seq": 1, "did": did, "time": TIME})), commit(BYSTANDER))
    assert await target.letters() == (["bad_did"] if name in frames else [])


@pytest.mark.parametrize("status", ["\0", "a\0b", "é" * 1_000, "", "deleted\0", "a" * 100_000])
async def test_account_status_of_any_text(target: Target, status: str) -> None:
    """An account's status may be any text: unknown ones hide its records as any inactive state does."""
    await target.take(commit(put(AGENT, key(1), agent())), account(active=False, status=status))
    assert await target.sql.fetchval("select hidden from letta.repo where did = $1", DID)
    await target.take(account(time="2024-01-02T03:05:00Z"))
    assert await target.rev_of(AGENT, key(1))


@pytest.mark.parametrize("handle", ["\0", "no dots", "a" * 10_000, "é.example", "", ".", "a.b\n"])
async def test_handle_that_is_none(target: Target, handle: str) -> None:
    """What is no handle is not kept as one."""
    await target.take(commit(BYSTANDER), identity(handle="right.example.com"))
    await target.take(identity(handle=handle, time="2024-01-02T03:05:00Z"))
    assert await target.sql.fetchval("select handle from letta.repo where did = $1", DID) is None


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2024-02-30T00:00:00Z", "now", "\0"])
@pytest.mark.parametrize("name", ["#account", "#identity"])
async def test_event_at_no_time(target: Target, name: str, time: str) -> None:
    """An account can't be hidden for ever by an event dated where nothing comes after it, nor by one without a date."""
    event = account(active=False, status="deactivated", time=time) if name == "#account" else identity(time=time)
    await target.take(commit(BYSTANDER), event)
    assert await target.letters() in (["malformed_frame"], ["future_rev"])
    assert await target.rev_of(OTHER, "bystander") == rev(0)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999+14:00"])
async def test_account_deleted_before_the_epoch(target: Target, time: str) -> None:
    """A deletion dated before any TID purges nothing that came later, and is no error."""
    await target.take(commit(BYSTANDER), account(active=False, status="deleted", time=time))
    assert await target.sql.fetchval("select count(*) from letta_store.other_record") == 1


@pytest.mark.parametrize("wrong", ["", "3", "\0" * 13, "zzzzzzzzzzzzz", "3KAAAAAAAAAAA", rev(0) + "2", "a" * 100_000])
async def test_rev_that_is_none(target: Target, wrong: str) -> None:
    """A commit whose rev is no TID orders nothing: it is set aside."""
    await target.take(commit(put(AGENT, key(1), agent(CANARY)), rev=wrong), commit(BYSTANDER))
    assert await target.letters() == ["bad_rev"]
    assert await target.rev_of(AGENT, key(1)) is None


async def test_rev_in_the_far_future(target: Target) -> None:
    """A rev that nothing could ever follow is set aside, so that it can't freeze a record."""
    await target.take(commit(put(AGENT, key(1), agent(CANARY)), rev=tid((1 << 53) - 1, 1023)))
    assert await target.letters() == ["future_rev"]
    await target.attack(put(AGENT, key(1), agent()))
    assert await target.rev_of(AGENT, key(1)) == rev(1)


async def test_too_many_operations(target: Target) -> None:
    """A commit of 201 operations breaks the specification and is set aside; one of 200 is taken whole."""
    ops = [put(MESSAGE, key(number), message(seq=number)) for number in range(201)]
    await target.take(commit(*ops), commit(*ops[:200], rev=rev(1)))
    assert await target.letters() == ["too_many_operations"]
    assert await target.sql.fetchval("select count(*) from letta.message") == 200


async def test_blocks_left_out(target: Target) -> None:
    """A commit too big for its host to carry says so and is set aside."""
    await target.take(commit(put(AGENT, key(1), agent()), tooBig=True, blocks=b""), commit(BYSTANDER))
    assert await target.letters() == ["too_big"]


@pytest.mark.parametrize("seq", [10**9 + 2, (1 << 63) - 1])
async def test_sequence_jump(target: Target, seq: int) -> None:
    """On a stream, a frame far ahead of its neighbours is set aside and the cursor stays where it can be followed."""
    intake = target.index.intake
    intake._sequenced = True
    from indexer.sources.base import Chunk

    await intake.take(Chunk([commit(BYSTANDER, seq=1), commit(put(AGENT, key(1), agent(CANARY)), seq=seq)]))
    await intake.take(Chunk([commit(BYSTANDER, seq=2, rev=rev(2))]))
    await target.index.pipeline.flush()
    assert await target.letters() == ["sequence_jump"]
    assert await target.sql.fetchval("select seq from letta.source") == 2
    assert await target.rev_of(OTHER, "bystander") == rev(2)
