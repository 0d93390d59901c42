"""Proofs of commits: a real server's all hold, and nothing that was tampered with does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from indexer.car import Car, read_car
from indexer.errors import Rejected
from indexer.frames import commit_event, decode_frame, sync_event
from indexer.keys import PublicKey, signing_key
from indexer.model import Commit, Operation, Sync
from indexer.mst import EMPTY_ROOT
from indexer.verify import (
    Failed,
    Failure,
    Proven,
    Verdict,
    check_commit,
    check_head,
    check_sync,
    decode_commit,
)
from tests import trees

CAPTURE = Path(__file__).parent / "captures" / "pds-a"


@cache
def keys() -> dict[str, PublicKey]:
    """The accounts' signing keys."""
    documents = json.loads((CAPTURE / "did-docs.json").read_text())
    return {did: signing_key(document, did) for did, document in documents.items()}


@cache
def captured() -> tuple[Commit | Sync, ...]:
    """Every ``#commit`` and ``#sync`` of the capture, in order."""
    return tuple(_captured())


def _captured() -> Iterator[Commit | Sync]:
    data, position = (CAPTURE / "frames.bin").read_bytes(), 0
    while position < len(data):
        start, position = position + 4, position + 4 + int.from_bytes(data[position : position + 4], "big")
        kind, body = decode_frame(data[start:position])
        if kind in ("#commit", "#sync"):
            yield commit_event(body) if kind == "#commit" else sync_event(body)


@cache
def commits() -> tuple[Commit, ...]:
    """Every ``#commit`` of the capture."""
    return tuple(event for event in captured() if isinstance(event, Commit))


def sample(random: Random, count: int) -> list[Commit]:
    """Commits of the capture with at least one operation, of every number and kind of operations."""
    kinds: dict[tuple[str, ...], list[Commit]] = {}
    for event in commits():
        if event.operations:
            kinds.setdefault(tuple(sorted(operation.action for operation in event.operations)), []).append(event)
    chosen = [random.choice(events) for events in kinds.values()]
    return chosen + random.sample([event for event in commits() if event.operations], count)


def check(event: Commit) -> Verdict:
    """Verifies a commit by the account's key; a broken CAR fails as malformed."""
    try:
        car = read_car(event.blocks)
    except Rejected:
        return Failed(Failure.MALFORMED)
    return check_commit(event, car, keys()[event.did])


def proven(event: Commit) -> Proven:
    """The verdict on a commit that must be good."""
    verdict = check(event)
    assert isinstance(verdict, Proven), verdict
    return verdict


def flipped(data: bytes, bit: int) -> bytes:
    """``data`` with one bit changed."""
    return (int.from_bytes(data, "big") ^ (1 << bit)).to_bytes(len(data), "big")


def test_every_captured_commit_is_proven_and_undone() -> None:
    """Of a real server's 387 commits each is proven, says what its event says, and leads back to the tree before."""
    assert len(commits()) == 387
    held: dict[str, bytes] = {}
    for event in commits():
        verdict = proven(event)
        assert verdict.prev_data == held.get(event.did, EMPTY_ROOT)
        assert event.prev_data in (None, verdict.prev_data)
        assert [operation for operation, _ in verdict.operations] == [*event.operations]
        assert all((block is None) == (operation.cid is None) for operation, block in verdict.operations)
        held[event.did] = verdict.data


def test_every_captured_sync_is_proven() -> None:
    """A ``#sync`` proves the head that the commits led to."""
    heads = {(event.did, event.rev): proven(event).data for event in commits()}
    syncs = [event for event in captured() if isinstance(event, Sync)]
    assert len(syncs) == 10
    for event in syncs:
        verdict = check_sync(event, keys()[event.did])
        assert isinstance(verdict, Proven)
        assert (verdict.rev, verdict.operations, verdict.prev_data) == (event.rev, (), None)
        assert verdict.data == heads.get((event.did, event.rev), verdict.data)


def test_captured_repositories_have_proven_heads() -> None:
    """The head of a ``getRepo`` CAR is proven, of any revision unless one is asked for."""
    for path in CAPTURE.glob("*.car"):
        did = path.stem.replace("_", ":")
        verdict = check_head(path.read_bytes(), did, None, keys()[did])
        assert isinstance(verdict, Proven)
        assert check_head(path.read_bytes(), did, verdict.rev, keys()[did]) == verdict
        assert check_head(path.read_bytes(), did, "2222222222222", keys()[did]) == Failed(Failure.WRONG_REV)
        assert check_head(path.read_bytes(), did + "x", None, keys()[did]) == Failed(Failure.WRONG_DID)


def test_only_records_asked_for_are_handed_back() -> None:
    """With prefixes, the records of other collections are neither handed back nor needed; their proof still is."""
    mixed = next(event for event in commits() if len({op.path.split("/")[0] for op in event.operations}) > 1)
    prefix = mixed.operations[0].path.split("/")[0] + "/"
    wanted = [operation for operation in mixed.operations if operation.path.startswith(prefix)]
    others = {operation.cid for operation in mixed.operations if operation not in wanted}
    car = read_car(mixed.blocks)
    without = Car(car.roots, {cid: block for cid, block in car.blocks.items() if cid not in others})
    verdict = check_commit(mixed, without, keys()[mixed.did], (prefix,))
    assert isinstance(verdict, Proven)
    assert [operation for operation, _ in verdict.operations] == wanted
    assert verdict.prev_data == mixed.prev_data
    whole = check_commit(mixed, without, keys()[mixed.did])
    assert isinstance(whole, Failed)
    assert whole.failure is Failure.MISSING_BLOCK


@pytest.mark.parametrize("seed", range(3))
def test_no_bit_of_the_blocks_can_change_what_is_proven(seed: int) -> None:
    """One bit flipped anywhere in a commit's CAR, and it fails or proves exactly the same."""
    random = Random(seed)
    for event in sample(random, 10):
        verdict = proven(event)
        for _ in range(40):
            damaged = flipped(event.blocks, random.randrange(8 * len(event.blocks)))
            assert isinstance(found := check(replace(event, blocks=damaged)), Failed) or found == verdict


def test_no_bit_of_a_needed_block_is_free() -> None:
    """One bit flipped in any block that the proof reads, and the block is found to be another."""
    random = Random(0)
    for event in sample(random, 10):
        car = read_car(event.blocks)
        needed = _needed(event, car)
        for cid in needed:
            for bit in random.sample(range(8 * len(car.blocks[cid])), 8):
                damaged = Car(car.roots, {**car.blocks, cid: flipped(car.blocks[cid], bit)})
                verdict = check_commit(event, damaged, keys()[event.did])
                assert isinstance(verdict, Failed)
                assert verdict.failure is Failure.WRONG_BLOCK


def test_no_needed_block_may_be_missing() -> None:
    """Without any one of the blocks that the proof reads it says that one is missing."""
    for event in sample(Random(0), 10):
        car = read_car(event.blocks)
        for cid in _needed(event, car):
            rest = Car(car.roots, {other: block for other, block in car.blocks.items() if other != cid})
            verdict = check_commit(event, rest, keys()[event.did])
            assert isinstance(verdict, Failed)
            assert verdict.failure is Failure.MISSING_BLOCK


def _needed(event: Commit, car: Car) -> set[bytes]:
    """CIDs of the blocks without which the commit isn't proven, found by leaving out each."""
    needed = set()
    for cid in car.blocks:
        rest = Car(car.roots, {other: block for other, block in car.blocks.items() if other != cid})
        if isinstance(check_commit(event, rest, keys()[event.did]), Failed):
            needed.add(cid)
    assert {car.roots[0]} | {operation.cid for operation in event.operations if operation.cid} <= needed
    return needed


def test_no_bit_of_an_events_own_fields_is_free() -> None:
    """One bit flipped in repo, rev, commit, prevData, or in any field of any operation: nothing is proven."""
    for event in sample(Random(0), 5):
        assert isinstance(check(event), Proven)
        for name in ("commit", "prev_data"):
            data = getattr(event, name)
            for bit in range(0, 8 * len(data), 3):
                changes: dict[str, Any] = {name: flipped(data, bit)}
                assert isinstance(check(replace(event, **changes)), Failed), (name, bit)
        for at, operation in enumerate(event.operations):
            for changed in _flipped_operations(operation):
                operations = (*event.operations[:at], changed, *event.operations[at + 1 :])
                assert isinstance(check(replace(event, operations=operations)), Failed), changed
        key = keys()[event.did]
        for bit in range(0, 8 * len(event.did), 3):
            changed_event = replace(event, did=_flipped_text(event.did, bit))
            assert check_commit(changed_event, read_car(event.blocks), key) == Failed(Failure.WRONG_DID)
        for bit in range(8 * len(event.rev)):
            assert check(replace(event, rev=_flipped_text(event.rev, bit))) == Failed(Failure.WRONG_REV)


def _flipped_operations(operation: Operation) -> Iterator[Operation]:
    for name in ("cid", "prev"):
        data = getattr(operation, name)
        for bit in range(0, 8 * len(data or b""), 5):
            changes: dict[str, Any] = {name: flipped(data, bit)}
            yield replace(operation, **changes)
    for name in ("action", "path"):
        text = getattr(operation, name)
        for bit in range(0, 8 * len(text), 3):
            changes = {name: _flipped_text(text, bit)}
            yield replace(operation, **changes)


def _flipped_text(text: str, bit: int) -> str:
    return flipped(text.encode(), bit).decode(errors="surrogateescape")


def test_operations_can_be_neither_left_out_nor_put_in() -> None:
    """The list of operations is not signed, yet a commit with one less, one more or two exchanged isn't proven."""
    several = [event for event in commits() if len(event.operations) > 1]
    assert several
    for event in several[:40]:
        for at in range(len(event.operations)):
            fewer = (*event.operations[:at], *event.operations[at + 1 :])
            assert check(replace(event, operations=fewer)) == Failed(Failure.WRONG_PREV_DATA)
        more = replace(event.operations[0], path="com.example.other/1")
        assert isinstance(check(replace(event, operations=(*event.operations, more))), Failed)
        assert isinstance(check(replace(event, operations=(*event.operations, event.operations[-1]))), Failed)
        first, second, *rest = event.operations
        exchanged = (replace(first, path=second.path), replace(second, path=first.path), *rest)
        assert first.cid == second.cid or isinstance(check(replace(event, operations=exchanged)), Failed)


@pytest.mark.parametrize("start", ["01707925", "01e1dc7e", "01711220", "00017112", "12207925"])
def test_a_signature_may_begin_like_a_cid(start: str) -> None:
    """A commit object is read whatever bytes its signature begins with: encoders take some of them for links."""
    signature = bytes.fromhex(start).ljust(64, b"\x20")
    fields = {"did": trees.DID, "version": 3, "rev": trees.REV, "prev": None, "data": trees.link(EMPTY_ROOT)}
    assert decode_commit(trees.encode({**fields, "sig": signature})).signature == signature


def test_another_accounts_key_proves_nothing() -> None:
    """A commit fails by every key but its account's own."""
    for event in commits()[:20]:
        for did, key in keys().items():
            verdict = check_commit(event, read_car(event.blocks), key)
            assert isinstance(verdict, Proven) if did == event.did else verdict == Failed(Failure.BAD_SIGNATURE)


def test_a_commit_whose_blocks_were_left_out_says_so() -> None:
    """``tooBig`` is a failure of its own: nobody is to blame, the repository has to be fetched."""
    event = replace(commits()[0], too_big=True)
    assert check(event) == Failed(Failure.TOO_BIG)
