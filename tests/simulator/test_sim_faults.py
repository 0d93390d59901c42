"""Injected faults: each does what it says, counts, and is one that a careful reader can notice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from coincurve import PublicKey
from coincurve.ecdsa import cdata_to_der, deserialize_compact

from indexer.simulator import World, events, tree
from indexer.simulator.alterations import ALTERATIONS, FAR_FUTURE, high_s
from indexer.simulator.archive import read_car
from indexer.simulator.dagcbor import cid_of, decode, encode
from indexer.simulator.faults import (
    Alter,
    Drop,
    Duplicate,
    FrameFault,
    Reorder,
    Replay,
    RestoredBackup,
    SequenceReset,
    ShortMemory,
    UnseenSync,
    concerns_letta,
)
from indexer.simulator.oracle import PREFIX
from indexer.simulator.partial import UnshownError, load, undo
from indexer.simulator.repository import Write
from indexer.simulator.stream import Stream


@pytest.fixture(scope="module")
def lived() -> tuple[World, list[bytes]]:
    """A world of secp256k1 accounts and what it emitted; tests only read it."""
    world = World(seed=8, weights={"batch": 20})
    return world, world.run(400)


def seqs(frames: list[bytes]) -> list[int | None]:
    """The sequence numbers of frames."""
    return [events.seq_of(frame) for frame in frames]


def proves(world: World, body: dict[str, Any]) -> bool:
    """Whether a commit proves itself to a reader who believes nothing: hashes, signature, tree, and the way back."""
    try:
        roots, blocks = read_car(body["blocks"])
        commit, _ = decode(dict(blocks)[roots[0]])
        signature = commit.pop("sig")
        public = PublicKey(world.accounts[body["repo"]].key.public(compressed=True))
        root = load(commit["data"].cid, dict(blocks))
        before = undo(root, [(op["path"], op["prev"].cid if "prev" in op else None) for op in body["ops"]])
        return (
            not body["tooBig"]
            and roots == [body["commit"].cid]
            and all(cid_of(block) == cid for cid, block in blocks)
            and (commit["did"], commit["rev"]) == (body["repo"], body["rev"])
            and bool(public.verify(cdata_to_der(deserialize_compact(signature)), encode(commit)))
            and all(tree.get(root, op["path"]) == (op["cid"] and op["cid"].cid) for op in body["ops"])
            and all(op["cid"].cid in dict(blocks) for op in body["ops"] if op["cid"])
            and ("prevData" not in body or before.cid == body["prevData"].cid)
        )
    except (UnshownError, KeyError, IndexError, ValueError, TypeError, AttributeError):
        return False


def commits(frames: list[bytes]) -> list[dict[str, Any]]:
    """The bodies of the ``#commit`` frames."""
    return [body for header, body in map(events.parse, frames) if header["t"] == "#commit"]


def test_what_the_world_emits_proves_itself(lived: tuple[World, list[bytes]]) -> None:
    """Without faults every commit is complete: hashes, signature, records, and the previous root by undoing it."""
    bodies = commits(lived[1])
    assert len(bodies) > 400
    assert all(proves(lived[0], body) for body in bodies)


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_commit_proves_nothing(lived: tuple[World, list[bytes]], name: str) -> None:
    """Every alteration changes the frame, is counted, can be read as a frame, and does not survive checking."""
    fault = Alter(name, where=lambda body: bool(body["ops"]))
    frames = lived[1]
    altered = fault.pass_on(frames)
    changed = [new for old, new in zip(frames, altered, strict=True) if old != new]
    assert len(changed) == fault.injected > 100
    assert seqs(altered) == seqs(frames)
    survivors = [body for body in commits(changed) if proves(lived[0], body)]
    # the other s verifies with a lenient library, though no reader may accept it
    assert not survivors or name == "high_s"


def test_a_malleable_signature_has_a_high_s(lived: tuple[World, list[bytes]]) -> None:
    """``high_s`` gives the mathematically valid twin that AT Protocol forbids."""
    body = commits(lived[1])[0]
    altered = high_s(lived[0].rng, body)
    assert altered is not None
    signatures = [decode(read_car(one["blocks"])[1][0][1])[0]["sig"] for one in (body, altered)]
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    assert signatures[0][:32] == signatures[1][:32]
    assert sum(int.from_bytes(signature[32:], "big") for signature in signatures) == order


def test_a_forged_revision_lies_in_the_far_future(lived: tuple[World, list[bytes]]) -> None:
    """The frame and its commit both claim a revision above any the account will make."""
    (body,) = commits(
        Alter("future_rev", times=1).pass_on([frame for frame in lived[1] if b"#commit" in frame[:20]][:1])
    )
    assert body["rev"] == decode(read_car(body["blocks"])[1][0][1])[0]["rev"] == FAR_FUTURE
    assert lived[0].accounts[body["repo"]].repository.rev < FAR_FUTURE


def test_frames_are_dropped_doubled_replayed_and_overtaken(lived: tuple[World, list[bytes]]) -> None:
    """Each changes the order or number of frames as it says, never their bytes."""
    frames = lived[1][30:60]
    numbers = seqs(frames)
    drop, double, replay, reorder = Drop(times=3), Duplicate(times=3), Replay(5, times=1), Reorder(2, times=1)
    assert len(drop.pass_on(frames)) == 27
    assert sorted(Counter(double.pass_on(frames)).values())[-4:] == [1, 2, 2, 2]
    replayed = seqs(replay.pass_on(frames))
    assert len(replayed) == 31
    assert set(replayed) == set(numbers)
    overtaken = seqs(reorder.pass_on(frames) + reorder.flush())
    assert overtaken != numbers
    assert sorted(overtaken, key=lambda seq: seq or 0) == numbers
    assert [fault.injected for fault in (drop, double, replay, reorder)] == [3, 3, 1, 1]


def test_a_frame_still_held_back_is_not_lost(lived: tuple[World, list[bytes]]) -> None:
    """What nothing overtook in time goes out at the end."""
    fault = Reorder(1000)
    frames = lived[1][30:60]
    out = fault.pass_on(frames)
    assert len(out) == 29
    assert sorted(out + fault.flush()) == sorted(frames)
    assert fault.flush() == []


def test_faults_can_be_rare_bounded_and_aimed(lived: tuple[World, list[bytes]]) -> None:
    """Chance, limit and aim narrow down what is hit; equal seeds hit the same frames."""
    frames = lived[1]
    first, second = (Drop(chance=0.3, where=concerns_letta, seed=4) for _ in range(2))
    kept = first.pass_on(frames)
    assert second.pass_on(frames) == kept
    assert first.injected == len(frames) - len(kept)
    lost = commits([frame for frame in frames if frame not in kept])
    assert 0 < len(lost) < len(commits(frames)) / 2
    assert all(concerns_letta(body) for body in lost)


def test_the_base_of_faults_does_nothing_by_itself(lived: tuple[World, list[bytes]]) -> None:
    """A fault must say what it does."""
    with pytest.raises(NotImplementedError):
        FrameFault().pass_on(lived[1])


def test_a_sync_to_a_state_nobody_saw() -> None:
    """The repository moves on, and all there is to see is a ``#sync`` with its signed head."""
    world = World(seed=1, accounts=1)
    (did,) = world.accounts
    world.take()
    fault = UnseenSync(world)
    fault.inject(did, [Write(f"{PREFIX}agent/a", {"system": "x"})])
    ((header, body),) = map(events.parse, world.take())
    assert (header["t"], body["rev"], fault.injected) == ("#sync", world.accounts[did].repository.rev, 1)
    assert f"at://{did}/{PREFIX}agent/a" in world.expected().records


def test_a_restored_backup_has_a_head_below_what_was_emitted() -> None:
    """The host goes back, knows nothing of what it lost, and goes on from there with valid commits."""
    world = World(seed=6, accounts=2, weights={"delete_account": 0, "hide": 0})
    world.run(150)
    did = next(iter(world.accounts))
    fault = RestoredBackup(world)
    fault.remember(did)
    before = world.expected().accounts[did]
    emitted = [body["rev"] for body in commits(world.run(150)) if body["repo"] == did]
    fault.inject(did)
    assert world.expected().accounts[did] == before
    assert max(emitted) > before.rev
    assert fault.injected == 1
    revs = {made.rev for prompt in world.expected().prompts.values() for made in prompt.compiles if did in prompt.uri}
    assert max(revs) <= before.rev
    bodies = [body for body in commits(world.run(400)) if body["repo"] == did]
    assert bodies[0]["since"] == before.rev
    assert all(proves(world, body) for body in bodies)


def test_a_sequence_that_begins_anew_and_one_that_forgets() -> None:
    """A reset numbers events from the start, with nothing before; a short memory keeps the numbers."""
    world, stream = World(seed=1, accounts=2), Stream()
    stream.publish(world.take())
    short = ShortMemory(stream)
    short.inject(before=5)
    assert (stream.seq, short.injected) == (8, 1)
    fault = SequenceReset(world, stream)
    fault.inject()
    assert stream.seq == 0
    world.set_handle(next(iter(world.accounts)), "new.test")
    stream.publish(world.take())
    assert (stream.seq, fault.injected) == (1, 1)


def test_a_new_key_signs_what_follows() -> None:
    """After a rotation the head is signed by the new key at once, or only with the next commit."""
    world = World(seed=1, accounts=1)
    (did,) = world.accounts
    world.put(did, "com.example.note/a", {})
    old = commits(world.take())[-1]
    assert proves(world, old)
    world.rotate_key(did, resign=False)
    assert not proves(world, old)
    assert [events.parse(frame)[0]["t"] for frame in world.take()] == ["#identity"]
    world.put(did, "com.example.note/b", {})
    assert proves(world, commits(world.take())[-1])
    rev = world.accounts[did].repository.rev
    world.rotate_key(did)
    assert [events.parse(frame)[0]["t"] for frame in world.take()] == ["#identity", "#sync"]
    assert world.accounts[did].repository.rev > rev
