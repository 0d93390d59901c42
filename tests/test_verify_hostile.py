"""Proofs of commits made up for the purpose: hosts that leave things out, and lies under a right signature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indexer.car import Car, read_car
from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.model import Commit, Operation, Reason
from indexer.mst import EMPTY_ROOT
from indexer.verify import (
    Failed,
    Failure,
    Proven,
    ProvenOperation,
    Verdict,
    check_commit,
    check_head,
    check_signature,
    decode_commit,
)
from tests import trees
from tests.trees import DID, PRIVATE_KEY, REV, build, cid, commit_block, commit_event, encode, link, record, value

KEY = PublicKey.from_point("secp256k1", PRIVATE_KEY.public_key.format())
PATHS = [f"com.example.record/{number:03}" for number in range(40)]
CONTENT = {path.encode(): value(number) for number, path in enumerate(PATHS[:20])}
CREATE = Operation("create", PATHS[30], value(30), None)
UPDATE = Operation("update", PATHS[3], value(31), value(3))
DELETE = Operation("delete", PATHS[4], None, value(4))
OPERATIONS = (CREATE, UPDATE, DELETE)
AFTER = {**CONTENT, PATHS[30].encode(): value(30), PATHS[3].encode(): value(31)}
del AFTER[PATHS[4].encode()]


def check(event: Commit) -> Verdict:
    """Verifies by the test account's key."""
    return check_commit(event, read_car(event.blocks), KEY)


def failure(event: Commit) -> Failure:
    """Why an event isn't proven."""
    verdict = check(event)
    assert isinstance(verdict, Failed), verdict
    return verdict.failure


def good(**changes: Any) -> Commit:
    """A right commit of three operations; ``changes`` replace fields of its commit object before it is signed."""
    return commit_event(CONTENT, AFTER, OPERATIONS, **changes)


def test_a_right_commit_is_proven() -> None:
    """What the cases below change is proven unchanged, with its records."""
    event = good()
    assert check(event) == Proven(
        did=DID,
        rev=REV,
        data=build(AFTER).root,
        prev_data=build(CONTENT).root,
        operations=(
            ProvenOperation(CREATE, record(30)),
            ProvenOperation(UPDATE, record(31)),
            ProvenOperation(DELETE, None),
        ),
    )


def test_a_host_without_prev_data_is_believed_as_far_as_its_tree_goes() -> None:
    """Without prevData the tree before is computed; where that can't be, the records are proven, the chain isn't."""
    event = replace(good(), prev_data=None)
    assert check(event) == check(good())
    bare = replace(event, operations=tuple(replace(operation, prev=None) for operation in OPERATIONS))
    verdict = check(bare)
    assert isinstance(verdict, Proven)
    assert verdict.prev_data is None
    assert [block for _, block in verdict.operations] == [record(30), record(31), None]
    assert failure(replace(bare, prev_data=good().prev_data)) is Failure.NOT_INVERTIBLE


def test_a_host_that_sends_the_ways_to_its_keys_alone_proves_the_records() -> None:
    """Without the nodes beside its keys a commit can't be undone: not proven if prevData is claimed, else no chain."""
    path = next(path for n in range(999) if trees.depth((path := f"{PATHS[10]}-{n}").encode()) >= 2)
    top = Operation("create", path, value(60), None)
    content = {**CONTENT, path.encode(): value(60)}
    tree, event = build(content), commit_event(CONTENT, content, [top])
    car = read_car(event.blocks)
    beside = {*tree.blocks} - tree.way_to(path.encode())
    narrow = Car(car.roots, {target: block for target, block in car.blocks.items() if target not in beside})
    claimed = check_commit(event, narrow, KEY)
    assert isinstance(claimed, Failed)
    assert claimed.failure is Failure.MISSING_BLOCK
    verdict = check_commit(replace(event, prev_data=None), narrow, KEY)
    assert isinstance(verdict, Proven)
    assert (verdict.prev_data, verdict.operations) == (None, ((top, record(60)),))


def test_a_first_commit_starts_from_the_empty_tree() -> None:
    """A commit that creates all there is leads back to the empty tree, prevData or not."""
    event = commit_event({}, {CREATE.path.encode(): value(30)}, [CREATE])
    for given_event in (event, replace(event, prev_data=None)):
        verdict = check(given_event)
        assert isinstance(verdict, Proven)
        assert verdict.prev_data == EMPTY_ROOT


def test_one_path_may_be_written_twice() -> None:
    """Operations on one path are undone in turn, the last first; only the last counts, and all must fit together."""
    path, key = PATHS[30], PATHS[30].encode()
    twice = (
        Operation("create", path, value(50), None),
        Operation("update", path, value(51), value(50)),
        Operation("delete", path, None, value(51)),
        Operation("create", path, value(52), None),
    )
    event = commit_event(CONTENT, {**CONTENT, key: value(52)}, twice)
    verdict = check(event)
    assert isinstance(verdict, Proven)
    assert verdict.operations == ((twice[-1], record(52)),)
    assert verdict.prev_data == build(CONTENT).root
    for order in ((twice[1], twice[0], *twice[2:]), twice[:3], twice[1:], (*twice, twice[0])):
        assert isinstance(check(replace(event, operations=order)), Failed)


LIES = [
    (Operation("create", PATHS[30], value(5), None), Failure.NOT_INCLUDED),
    (Operation("create", PATHS[31], value(30), None), Failure.NOT_INCLUDED),
    (Operation("update", PATHS[30], value(5), value(6)), Failure.NOT_INCLUDED),
    (Operation("update", PATHS[31], value(30), value(6)), Failure.NOT_INCLUDED),
    (Operation("delete", PATHS[30], None, value(6)), Failure.NOT_EXCLUDED),
    (Operation("update", PATHS[30], value(30), value(6)), Failure.WRONG_PREV_DATA),
    (Operation("delete", PATHS[31], None, value(6)), Failure.WRONG_PREV_DATA),
    (Operation("update", PATHS[30], value(30), None), Failure.NOT_INVERTIBLE),
    (Operation("delete", PATHS[31], None, None), Failure.NOT_INVERTIBLE),
    (Operation("create", PATHS[30], None, None), Failure.MALFORMED),
    (Operation("create", PATHS[30], value(30), value(6)), Failure.MALFORMED),
    (Operation("update", PATHS[30], None, value(6)), Failure.MALFORMED),
    (Operation("delete", PATHS[30], value(30), value(6)), Failure.MALFORMED),
    (Operation("destroy", PATHS[30], value(30), None), Failure.MALFORMED),
    (Operation("", PATHS[30], value(30), None), Failure.MALFORMED),
    (Operation("create", "com.example.record", value(30), None), Failure.MALFORMED),
    (Operation("create", "a/b/c", value(30), None), Failure.MALFORMED),
    (Operation("create", "a/é", value(30), None), Failure.MALFORMED),
    (Operation("create", "a/\ud800", value(30), None), Failure.MALFORMED),
    (Operation("create", "a/" + "x" * 1023, value(30), None), Failure.MALFORMED),
    (Operation("update", PATHS[30], value(30), b""), Failure.MALFORMED),
    (Operation("create", PATHS[30], b"", None), Failure.NOT_INCLUDED),
]


@pytest.mark.parametrize(("lie", "why"), LIES)
def test_a_signed_tree_contradicts_a_lying_event(lie: Operation, why: Failure) -> None:
    """Under a right commit with all blocks, an operation that says another thing than the tree is found out."""
    content = {**CONTENT, PATHS[30].encode(): value(30)}
    event = commit_event(CONTENT, content, [CREATE])
    whole = {**read_car(event.blocks).blocks, **build(content).blocks, value(5): record(5)}
    verdict = check_commit(replace(event, operations=(lie,)), Car((event.commit,), whole), KEY)
    assert isinstance(verdict, Failed)
    # A CID of a form that never stands in a tree is refused when it would be put there.
    assert verdict.failure is (Failure.WRONG_BLOCK if lie.prev == b"" else why)


def test_a_lie_is_found_out_without_prev_data_too() -> None:
    """A host that sends no prev is still held to the tree: present or absent, and by which CID."""
    content = {**CONTENT, PATHS[30].encode(): value(30)}
    event = replace(commit_event(CONTENT, content, [CREATE]), prev_data=None)
    whole = Car((event.commit,), {**read_car(event.blocks).blocks, **build(content).blocks})
    for lie, why in (
        (Operation("update", PATHS[30], value(5), None), Failure.NOT_INCLUDED),
        (Operation("update", PATHS[31], value(5), None), Failure.NOT_INCLUDED),
        (Operation("delete", PATHS[30], None, None), Failure.NOT_EXCLUDED),
    ):
        verdict = check_commit(replace(event, operations=(lie,)), whole, KEY)
        assert isinstance(verdict, Failed)
        assert verdict.failure is why


def test_a_commit_has_to_be_the_one_named() -> None:
    """Repo, revision, commit CID and key each have to be those of the signed commit object."""
    assert failure(good(did="did:plc:somebody")) is Failure.WRONG_DID
    assert failure(good(rev="3n3k7rbonkz22")) is Failure.WRONG_REV
    assert failure(replace(good(), commit=value(1))) is Failure.WRONG_COMMIT
    assert failure(replace(good(), prev_data=EMPTY_ROOT)) is Failure.WRONG_PREV_DATA
    stranger = PublicKey.parse("did:key:zDnaembgSGUhZULN2Caob4HLJPaxBh92N7rtH21TErzqf8HQo")
    event = good()
    assert check_commit(event, read_car(event.blocks), stranger) == Failed(Failure.BAD_SIGNATURE)


def test_nothing_below_an_unsigned_commit_is_read() -> None:
    """A tree is work; without a right signature nobody gets any done."""
    event = good()
    car = read_car(event.blocks)
    bare = Car(car.roots, {event.commit: car.blocks[event.commit]})
    other = PublicKey.parse("did:key:zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwc")
    assert check_commit(event, bare, other) == Failed(Failure.BAD_SIGNATURE)


@pytest.mark.parametrize("root", [b"\xa0", trees.node([], value(1)), encode([]), b""])
def test_a_signed_tree_may_be_nonsense(root: bytes) -> None:
    """An account may sign a root that is no tree: that is malformed, no error."""
    block = commit_block(cid(root))
    event = replace(good(), commit=cid(block))
    verdict = check_commit(event, Car((cid(block),), {cid(block): block, cid(root): root}), KEY)
    assert isinstance(verdict, Failed)
    assert verdict.failure is Failure.MALFORMED


# Commit objects.

ROOT = build(CONTENT).root


@pytest.mark.parametrize("changes", [{}, {"prev": ...}, {"prev": link(value(1))}, {"did": "did:web:" + "x" * 300}])
def test_commit_objects_are_read(changes: dict[str, Any]) -> None:
    """A commit object of version 3 is read, with or without prev, and what was signed is what is checked."""
    block = commit_block(ROOT, **changes)
    commit = decode_commit(block)
    fields = cbor2.loads(block)
    assert (commit.did, commit.rev, commit.data) == (fields["did"], REV, ROOT)
    assert commit.prev == (value(1) if changes.get("prev") not in (None, ...) else None)
    assert check_signature(commit, KEY)
    assert not check_signature(replace(commit, unsigned=commit.unsigned + b"\0"), KEY)


BLOCK = commit_block(ROOT)
COMMITS = {
    "nothing": b"",
    "a list": encode([]),
    "an empty map": encode({}),
    "version 2": commit_block(ROOT, version=2),
    "version 4": commit_block(ROOT, version=4),
    "no version": commit_block(ROOT, version=...),
    "version as text": commit_block(ROOT, version="3"),
    "no did": commit_block(ROOT, did=...),
    "did as bytes": commit_block(ROOT, did=DID.encode()),
    "no rev": commit_block(ROOT, rev=...),
    "rev that is no TID": commit_block(ROOT, rev="9"),
    "rev as number": commit_block(ROOT, rev=3),
    "no data": commit_block(ROOT, data=...),
    "data as bytes": commit_block(ROOT, data=b"\0" + ROOT),
    "data null": commit_block(ROOT, data=None),
    "data of another codec": commit_block(ROOT, data=link(b"\x01\x55" + ROOT[2:])),
    "data as text": commit_block(ROOT, data="x"),
    "prev as text": commit_block(ROOT, prev="x"),
    "prev as number": commit_block(ROOT, prev=0),
    "a field too many": commit_block(ROOT, extra=1),
    "no signature": encode({"did": DID, "version": 3, "rev": REV, "prev": None, "data": link(ROOT)}),
    "signature as text": encode({"did": DID, "version": 3, "rev": REV, "prev": None, "data": link(ROOT), "sig": "x"}),
    "something behind it": BLOCK + b"\0",
    "a version in a longer form": BLOCK.replace(b"version\x03", b"version\x18\x03"),
    "a length in a longer form": BLOCK.replace(b"\x63rev\x6d", b"\x63rev\x78\x0d"),
    "nested without end": b"\xa1\x63did" + b"\x81" * 100_000,
}


@pytest.mark.parametrize("block", COMMITS.values(), ids=COMMITS.keys())
def test_commit_objects_out_of_form_are_refused(block: bytes) -> None:
    """What isn't the canonical encoding of a commit object of version 3 is refused, signed or not."""
    with pytest.raises(Rejected) as caught:
        decode_commit(block)
    assert caught.value.reason is Reason.MALFORMED_CAR
    verdict = check_head(trees.car(cid(block), [block]), DID, None, KEY)
    assert isinstance(verdict, Failed)
    assert verdict.failure is Failure.MALFORMED


@given(st.integers(0, 8 * len(BLOCK) - 1))
def test_no_bit_of_a_commit_object_is_free(bit: int) -> None:
    """A commit object with one bit flipped under its own right CID is malformed or not signed."""
    block = (int.from_bytes(BLOCK, "big") ^ (1 << bit)).to_bytes(len(BLOCK), "big")
    verdict = check_head(trees.car(cid(block), [block]), DID, REV, KEY)
    assert isinstance(verdict, Failed)
    assert verdict.failure in {Failure.MALFORMED, Failure.BAD_SIGNATURE, Failure.WRONG_DID, Failure.WRONG_REV}


@given(st.binary(max_size=300))
@example(b"\x01\xa0")
def test_heads_of_any_bytes_fail_calmly(data: bytes) -> None:
    """Whatever comes in place of a CAR: a verdict, never an error."""
    assert isinstance(check_head(data, DID, None, KEY), Failed)
