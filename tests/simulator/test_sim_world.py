"""The simulated world: the same for the same seed, legal for every reader, and known in full."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import libipld
import pytest
from coincurve import PublicKey
from coincurve.ecdsa import cdata_to_der, deserialize_compact

from indexer.simulator import World, events
from indexer.simulator.archive import read_car
from indexer.simulator.capture import read_capture, write_capture
from indexer.simulator.content import QUIRKS
from indexer.simulator.dagcbor import cid_of, cid_text, decode, encode
from indexer.simulator.life import WEIGHTS
from indexer.simulator.network import Account
from indexer.simulator.oracle import PREFIX
from indexer.simulator.repository import Write

SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
NOTE = "com.example.note"


@pytest.fixture(scope="module")
def lived() -> tuple[World, list[bytes]]:
    """A world after a good while, and all it emitted; tests only read it."""
    world = World(seed=3, quirks=0.1)
    return world, world.run(1500)


def signed_by(account: Account, block: bytes) -> bool:
    """Whether a commit block is signed by the account's key, checked against the point itself."""
    value, _ = decode(block)
    signature = value.pop("sig")
    public = PublicKey(account.key.public(compressed=True))
    return bool(public.verify(cdata_to_der(deserialize_compact(signature)), encode(value)))


def test_two_runs_of_one_seed_are_equal_to_the_byte() -> None:
    """Everything follows from the seed: a failure found once can be found again."""
    first, second, other = (World(seed=seed, p256=0.3, legacy=0.3) for seed in (11, 11, 12))
    frames = first.take() + first.run(300)
    assert second.take() + second.run(300) == frames
    assert second.expected() == first.expected()
    assert other.take() + other.run(300) != frames


def test_time_comes_from_the_callers_clock_alone() -> None:
    """With a clock that stands still every event has its time, and revisions rise all the same."""
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    world = World(seed=1, clock=lambda: noon)
    bodies = [events.parse(frame)[1] for frame in world.take() + world.run(50)]
    assert {body["time"] for body in bodies} == {"2030-01-01T12:00:00.000Z"}
    revs = [body["rev"] for body in bodies if body.get("repo") == next(iter(world.accounts)) and "ops" in body]
    assert len(revs) > 2
    assert all(old < new for old, new in pairwise(revs))


def test_everything_that_can_happen_does(lived: tuple[World, list[bytes]]) -> None:
    """A run long enough contains each kind of event, each outcome and each kind of overwrite."""
    world = World(seed=5, weights=dict.fromkeys(WEIGHTS, 1))
    happened = Counter(world.life.step() for _ in range(600))
    assert set(happened) == set(WEIGHTS)
    kinds = Counter(events.parse(frame)[0]["t"] for frame in world.take())
    assert set(kinds) == {"#commit", "#identity", "#account", "#sync"}
    expected = lived[0].expected()
    verdicts = {(prompt.judgement.freshness, prompt.judgement.stale_reasons) for prompt in expected.prompts.values()}
    assert len(verdicts) == 5
    assert {compiled.kind for prompt in expected.prompts.values() for compiled in prompt.compiles} == {
        "first",
        "full",
        "memory",
        "touch",
    }


def test_weights_decide_what_happens_and_a_typo_is_an_error() -> None:
    """A thing with weight 0 never happens; a name that is none is refused."""
    world = World(seed=5, weights={name: 0 for name in WEIGHTS if name != "agent"})
    assert {world.life.step() for _ in range(20)} == {"agent"}
    with pytest.raises(KeyError, match="agnet"):
        World(weights={"agnet": 1})


@pytest.mark.parametrize("quirk", QUIRKS)
def test_every_quirk_of_a_prompt_can_be_written(quirk: str) -> None:
    """Each odd variant is a legal record: it encodes, and another implementation reads it."""
    world = World(seed=2, quirks=0, weights={"hide": 0, "delete_account": 0})
    world.run(200)
    thread = next(thread for thread in world.life.threads if thread.prompt)
    odd = QUIRKS[quirk](world.rng, thread.prompt or {}, thread.agent)
    world.put(thread.did, thread.prompt_path, odd)
    assert odd != thread.prompt
    assert libipld.decode_dag_cbor(world.accounts[thread.did].repository.records[thread.prompt_path].block)


def test_another_implementation_decodes_every_frame(lived: tuple[World, list[bytes]]) -> None:
    """Frames are two canonical DAG-CBOR objects; their CARs open, start with the commit and hash to their CIDs."""
    for frame in lived[1]:
        header, body = libipld.decode_dag_cbor_multi(frame)
        assert header["op"] == 1
        if "blocks" in body:
            car, blocks = libipld.decode_car(body["blocks"])
            assert blocks[car["roots"][0]]["rev"] == body["rev"]
            assert all(cid_of(block) == cid for cid, block in read_car(body["blocks"])[1])


def test_the_events_tell_the_whole_story(lived: tuple[World, list[bytes]]) -> None:
    """Replaying the operations, in order, ends at the records expected; revisions and roots chain without a gap."""
    world, frames = lived
    records: dict[str, dict[str, bytes]] = {}
    heads: dict[str, tuple[str | None, bytes | None]] = {}
    seqs = []
    for frame in frames:
        header, body = libipld.decode_dag_cbor_multi(frame)
        seqs.append(body["seq"])
        if header["t"] == "#account" and body.get("status") == "deleted":
            records.pop(body["did"], None)
        if header["t"] != "#commit":
            continue
        blocks = libipld.decode_car(body["blocks"])[1]
        assert (body["since"], body.get("prevData")) == heads.get(body["repo"], (body["since"], body.get("prevData")))
        heads[body["repo"]] = body["rev"], blocks[body["commit"]]["data"]
        repo = records.setdefault(body["repo"], {})
        for op in body["ops"]:
            assert op.get("prev") == repo.get(op["path"])
            assert (op["action"] == "create") == (op["path"] not in repo)
            assert op["cid"] is None or op["cid"] in blocks
            if op["cid"]:
                repo[op["path"]] = op["cid"]
            else:
                del repo[op["path"]]
    expected = world.expected()
    assert seqs == sorted(set(seqs))
    assert {
        f"at://{did}/{path}": cid_text(cid)
        for did, repo in records.items()
        for path, cid in repo.items()
        if path.startswith(PREFIX)
    } == {uri: record.cid for account in expected.accounts.values() for uri, record in account.records.items()}


def test_a_record_carries_the_revision_that_last_wrote_it() -> None:
    """``rev`` of an expected record, and its history, are those of the commits that touched it."""
    world = World(seed=1, accounts=1)
    (did,) = world.accounts
    path = f"{PREFIX}compiledPrompt/a"
    first = world.put(did, path, {"content": "x", "coreMemory": "y"})
    second = world.commit(did, [Write(path, {"content": "x", "coreMemory": "z"}), Write(f"{NOTE}/b", {})])
    world.put(did, f"{NOTE}/c", {})
    uri = f"at://{did}/{path}"
    assert world.expected().records[uri].rev == second.rev
    assert [(made.rev, made.kind) for made in world.expected().prompts[uri].compiles] == [
        (first.rev, "first"),
        (second.rev, "memory"),
    ]
    world.delete(did, path)
    assert uri not in world.expected().prompts
    again = world.put(did, path, {"content": "x"})
    assert [made[0] for made in world.expected().prompts[uri].compiles] == [again.rev]


def test_what_an_account_hides_is_hidden_and_what_it_deletes_is_gone() -> None:
    """Hidden accounts keep their records but show none; they cannot write; a deleted account has nothing."""
    world = World(seed=1, accounts=1)
    (did,) = world.accounts
    world.put(did, f"{PREFIX}agent/a", {"system": "x"})
    world.set_status(did, "deactivated")
    expected = world.expected()
    assert (set(expected.hidden), set(expected.records), len(expected.accounts[did].records)) == ({did}, set(), 1)
    with pytest.raises(ValueError, match="deactivated"):
        world.put(did, f"{PREFIX}agent/b", {})
    world.set_status(did, "active")
    assert len(world.expected().records) == 1
    world.delete_account(did)
    assert (world.expected().accounts[did].status, world.expected().accounts[did].records) == ("deleted", {})


@pytest.mark.parametrize("writes", [[Write(f"{NOTE}/a", {}), Write(f"{NOTE}/a", None)], [Write(f"{NOTE}/x", None)]])
def test_a_commit_no_host_would_make_is_refused(writes: list[Write]) -> None:
    """Two operations on one key, or the delete of nothing, cannot be simulated by accident."""
    world = World(seed=1, accounts=1)
    with pytest.raises((ValueError, KeyError)):
        world.commit(next(iter(world.accounts)), writes)


def test_signatures_are_of_the_accounts_key_and_low_s() -> None:
    """Every commit is signed over its unsigned DAG-CBOR, with s in the lower half of the group order."""
    world = World(seed=9)
    world.run(50)
    for account in world.accounts.values():
        signature = decode(account.repository.block)[0]["sig"]
        assert signed_by(account, account.repository.block)
        assert int.from_bytes(signature[32:], "big") <= SECP256K1_ORDER // 2


def test_a_capture_gives_back_its_frames(lived: tuple[World, list[bytes]], tmp_path: Path) -> None:
    """A capture file holds each frame after its length in four bytes, and nothing else."""
    path = tmp_path / "frames.bin"
    frames = lived[1][:40]
    assert write_capture(path, frames) == 40
    assert list(read_capture(path)) == frames
    assert path.stat().st_size == sum(map(len, frames)) + 4 * 40
