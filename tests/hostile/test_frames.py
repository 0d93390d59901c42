"""Frames that are none, or lie about what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from indexer.sources.base import Chunk
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
    "seq": ["1", None, 1.5, True],
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


async def test_malformed_frames(target: Target) -> None:
    """What is no header and body in DAG-CBOR is set aside whole, and the frames around it are taken."""
    for name, raw in BODIES.items():
        assert await target.reasons_for(raw) == ["malformed_frame"], name
    assert await target.rev_of(AGENT, key(1)) is None


@pytest.mark.parametrize("name", WRONG_FIELDS)
async def test_field_of_the_wrong_type(target: Target, name: str) -> None:
    """A commit with any field of another type than the specification's is set aside, with its reason."""
    for value in WRONG_FIELDS[name]:
        raw = commit(put(AGENT, key(1), agent(CANARY)), **{name: value})
        assert await target.reasons_for(raw) == ["malformed_frame"], value
    assert await target.rev_of(AGENT, key(1)) is None


async def test_missing_fields(target: Target) -> None:
    """A commit without a field it must have is set aside."""
    whole = {"seq": 1, "repo": DID, "rev": rev(0), "time": TIME, "commit": cid_of(b""), "blocks": b""}
    whole["ops"] = [delete(AGENT, key(1)).entry()]
    for name in sorted(whole.keys() - {"blocks"}):
        lacking = {other: value for other, value in whole.items() if other != name}
        assert await target.reasons_for(frame("#commit", lacking)) == ["malformed_frame"], name


async def test_malformed_cars(target: Target) -> None:
    """A commit whose blocks are no CAR is set aside; the account's next one is taken."""
    for name, blocks in BAD_CARS.items():
        raw = commit(put(AGENT, key(1), agent(CANARY)), blocks=blocks)
        assert await target.reasons_for(raw) == ["malformed_car"], name


async def test_position_of_what_was_set_aside(target: Target) -> None:
    """The cursor passes over frames that are none, and their dead letters say where they were."""
    await target.take(commit(BYSTANDER), b"", b"\xff")
    assert await target.sql.fetchval("select seq from letta.source") == 3
    assert await target.kept("position") == [(2,), (3,)]


async def test_ten_megabytes_of_garbage(target: Target) -> None:
    """A frame of 10 MB is set aside without keeping its bytes."""
    await target.take(b"\xa1" * 10_000_000, HEADER + dag_cbor({"repo": DID, "x": bytes(10_000_000)}), commit(BYSTANDER))
    assert await target.letters() == ["malformed_frame", "malformed_frame"]
    size = len(HEADER) + len(dag_cbor({"repo": DID, "x": bytes(10_000_000)}))
    assert await target.kept("size, length(frame)") == [(10_000_000, 0), (size, 0)]


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


@pytest.mark.parametrize("position", ["count", "sequence"])
async def test_error_frames(target: Target, position: str) -> None:
    """An error frame says a word that may be anything; it ends at most its connection."""
    await target.take(commit(BYSTANDER))
    if position == "sequence":
        target.index.intake._sequenced = True
    for word in ("FutureCursor", CANARY, "\0\0", "é" * 500, 7, None, {"a": 1}, [[[1]]], "x" * 100_000):
        await target.index.intake.take(Chunk([error_frame(word, CANARY)], 1 if position == "count" else None))
        await target.index.pipeline.flush()
    assert set(await target.letters()) == ({"error_frame"} if position == "sequence" else set())


async def test_events_of_no_account(target: Target) -> None:
    """An event of what is no DID, or of one too long for a key, is set aside."""
    for did in ("", "did:plc", "did:web:\0", "alice.example.com", "did:plc:" + "a" * 2_000, "did:plc:é", "did:plc:a\n"):
        raw = commit(put(AGENT, key(1), agent(CANARY)), did=did)
        gone, named = account(did, active=False, status="deleted"), identity(did, "a.example.com")
        assert await target.reasons_for(raw, gone, named) == ["bad_did"] * 3, did
        silent = [frame(kind, {"seq": 1, "did": did, "time": TIME}) for kind in ("#sync", "#info")]
        assert set(await target.reasons_for(*silent)) <= {"bad_did", "malformed_frame"}, did


async def test_account_status_of_any_text(target: Target) -> None:
    """An account's status may be any text: an unknown one hides its records as any inactive state does."""
    await target.take(commit(put(AGENT, key(1), agent())))
    for number, status in enumerate(("\0", "a\0b", "é" * 1_000, "", "deleted\0", "a" * 100_000)):
        time = f"2024-01-02T04:{number:02}"
        await target.take(account(active=False, status=status, time=f"{time}:00Z"))
        assert await target.rev_of(AGENT, key(1)) is None, status
        await target.take(account(time=f"{time}:30Z"))
        assert await target.rev_of(AGENT, key(1)) == rev(0), status


async def test_handles_that_are_none(target: Target) -> None:
    """What is no handle is not kept as one."""
    await target.take(commit(BYSTANDER))
    for number, handle in enumerate(("\0", "no dots", "a" * 10_000, "é.example", "", ".", "a.b\n")):
        time = f"2024-01-02T04:{number:02}"
        await target.take(identity(handle="right.example.com", time=f"{time}:00Z"))
        await target.take(identity(handle=handle, time=f"{time}:30Z"))
        assert await target.sql.fetchval("select handle from letta.repo where did = $1", DID) is None, handle


async def test_events_at_no_time(target: Target) -> None:
    """An event without a date, or dated where none can be from, changes no account, least of all for ever."""
    times = ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "1969-12-31T23:59:59.999999Z"]
    for time in (*times, "9999-12-31T23:59:59Z", "2024-02-30T00:00:00Z", "now", "\0", "", CANARY):
        away, named = account(active=False, status="deleted", time=time), identity(time=time)
        expected = "future_rev" if time.startswith("9999") else "malformed_frame"
        assert await target.reasons_for(away, named) == [expected] * 2, time


async def test_position_at_no_time(target: Target) -> None:
    """A commit dated before there were any moves the cursor all the same, and the cursor can be read again."""
    for time in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "\0"):
        await target.take(commit(BYSTANDER, time=time))
        (position,) = (await target.index.store.positions(["file:test"])).values()
        assert position.event_time is None, time
    assert position.seq == 4


async def test_revs_that_are_none(target: Target) -> None:
    """A commit whose rev is no TID orders nothing: it is set aside."""
    for wrong in ("", "3", "\0" * 13, "z" * 13, "3KAAAAAAAAAAA", rev(0) + "2", rev(0) + "\n", "a" * 100_000):
        raw = commit(put(AGENT, key(1), agent(CANARY)), rev=wrong)
        assert await target.reasons_for(raw) == ["bad_rev"], wrong
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
    await intake.take(Chunk([commit(BYSTANDER, seq=1), commit(put(AGENT, key(1), agent(CANARY)), seq=seq)]))
    await intake.take(Chunk([commit(BYSTANDER, seq=2, rev=rev(2))]))
    await target.index.pipeline.flush()
    assert await target.letters() == ["sequence_jump"]
    assert await target.sql.fetchval("select seq from letta.source") == 2
    assert await target.rev_of(OTHER, "bystander") == rev(2)
