"""A repository out of its CAR: exactly what the PDS listed, or nothing at all."""

from __future__ import annotations

import io
import random

import pytest

from indexer.errors import Rejected
from indexer.keys import signing_key
from indexer.model import Change, Reason
from indexer.simulator.archive import varint
from indexer.simulator.dagcbor import Link, cid_of, encode
from indexer.simulator.network import Network
from indexer.simulator.repository import Write
from indexer.simulator.space_repository import SpaceRepository
from indexer.spaces.commit import Judgement
from indexer.spaces.dialects import ALPHA_2026_08
from indexer.spaces.load import Load, open_load
from indexer.spaces.repo import RepoState
from tests.spaces import captured
from tests.spaces.captured import DID, PREFIXES, SPACE

Entry = tuple[str, object]


def opened(car: bytes) -> Load:
    """A CAR that is one."""
    return open_load(io.BytesIO(car))


def judged(load: Load, **who: str) -> RepoState:
    """What the captured account's key proves of it."""
    return load.judge(captured.key(), **{"space": SPACE, "did": DID} | who, dialect=ALPHA_2026_08)


def rows(load: Load, state: RepoState, prefixes: tuple[str, ...] = PREFIXES) -> dict[str, str]:
    """URI and CID of every record, all of which have to be usable."""
    found: dict[str, str] = {}
    for change in load.changes(state, prefixes):
        assert isinstance(change, Change)
        assert change.cid is not None
        found[f"{change.space}/{change.did}/{change.collection}/{change.rkey}"] = change.cid
    return found


def small_car(*entries: Entry) -> tuple[SpaceRepository, bytes]:
    """A repository with these records, and its CAR."""
    network = Network()
    account = network.create_account()
    repository = SpaceRepository(SPACE, account.did, account.key, random.Random(1))
    repository.write([Write(path, value) for path, value in entries], network.rkey())
    return repository, repository.export()


def car_of(*blocks: bytes, roots: int = 2) -> bytes:
    """A CAR of these blocks, the first ``roots`` of which are its roots."""
    header = encode({"version": 1, "roots": [Link(cid_of(block)) for block in blocks[:roots]]})
    return varint(len(header)) + header + b"".join(varint(36 + len(block)) + cid_of(block) + block for block in blocks)


def refusal(car: bytes) -> Reason:
    """Why a CAR isn't taken."""
    with pytest.raises(Rejected) as caught:
        judged(opened(car))
    return caught.value.reason


def test_real_repository() -> None:
    """The captured CAR gives exactly what the PDS listed, proven, at the rev of the last poll."""
    load = opened(captured.CAR)
    state = judged(load)
    assert (state.judgement, state.rev) == (Judgement.PROVEN, max(captured.commits()))
    assert rows(load, state) == captured.expected()
    assert {change.proof for change in load.changes(state, PREFIXES) if isinstance(change, Change)} == {"space"}


def test_filter_leaves_out_rows_not_proof() -> None:
    """Only wanted collections become rows; the hash is of all."""
    load = opened(captured.CAR)
    state = judged(load)
    agents = rows(load, state, ("xyz.quasigod.lab.letta.agent/",))
    assert len(agents) == 1
    assert rows(load, state, ()) == {}


def test_index_without_records_is_not_enough() -> None:
    """The CAR that leaves the values out lacks what it names."""
    assert refusal((captured.FOLDER / "25-getRepo.car").read_bytes()) is Reason.MISSING_BLOCK


def test_equal_records_are_repeated() -> None:
    """Records that are equal come once for each path, and all are rows."""
    value = {"x": 1}
    entries = [(f"{PREFIXES[0]}agent/{name}", value) for name in "abc"]
    repository, car = small_car(*entries)
    assert car.count(encode(value)) == 3
    load = opened(car)
    state = load.judge(captured.key(), space=SPACE, did=repository.did, dialect=ALPHA_2026_08)
    assert len(rows(load, state)) == 3


def test_others_key_proves_nothing() -> None:
    """A repository that another key signed is loaded unproven, and says so."""
    repository, car = small_car((f"{PREFIXES[0]}agent/a", {}))
    load = opened(car)
    state = load.judge(captured.key(), space=SPACE, did=repository.did, dialect=ALPHA_2026_08)
    assert state.judgement is Judgement.BAD_SIGNATURE
    (change,) = load.changes(state, PREFIXES)
    assert isinstance(change, Change)
    assert change.proof is None
    assert judged(load, did=DID).judgement is Judgement.BAD_MAC


def test_records_that_cannot_be_used_are_set_aside_alone() -> None:
    """A path that is none gives a reason and no row; what can't be decoded gives both, and keeps its bytes."""
    repository, car = small_car(
        (f"{PREFIXES[0]}agent/a b", {}), (f"{PREFIXES[0]}agent/list", ["no", "map"]), (f"{PREFIXES[0]}agent/c", {})
    )
    load = opened(car)
    state = load.judge(captured.key(), space=SPACE, did=repository.did, dialect=ALPHA_2026_08)
    found = list(load.changes(state, PREFIXES))
    assert sorted(one.reason.value for one in found if isinstance(one, Rejected)) == ["bad_path", "undecodable_record"]
    kept = {one.rkey: one.record for one in found if isinstance(one, Change)}
    assert kept.keys() == {"c", "list"}
    assert kept["list"] is not None
    assert kept["list"].block == encode(["no", "map"])


def test_every_cut_is_found_out() -> None:
    """A CAR that ends too early, wherever, is refused whole: nothing is taken for deleted."""
    _, car = small_car(*((f"{PREFIXES[0]}agent/{name}", {"n": name}) for name in "abc"))
    reasons = {refusal(car[:end]) for end in range(len(car))}
    assert reasons == {Reason.MALFORMED_CAR, Reason.MISSING_BLOCK}


def test_every_flipped_bit_of_a_small_repository_is_found_out() -> None:
    """Any bit of a CAR that arrives wrong leads to a refusal, never to another row or to none."""
    _, car = small_car((f"{PREFIXES[0]}agent/a", {"n": 1}), (f"{PREFIXES[0]}agent/b", {"n": 1}))
    for bit in range(8 * len(car)):
        changed = bytearray(car)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Rejected):
            judged(opened(bytes(changed)))


def test_every_flipped_byte_of_the_real_repository_is_found_out() -> None:
    """So it is for each byte of the captured CAR, one bit of it at a time."""
    for at in range(len(captured.CAR)):
        changed = bytearray(captured.CAR)
        changed[at] ^= 1 << at % 8
        with pytest.raises(Rejected):
            judged(opened(bytes(changed)))


def test_index_of_another_state_is_refused() -> None:
    """A commit and an index that don't belong together prove nothing, whole as they are."""
    ours, _ = small_car((f"{PREFIXES[0]}agent/a", {"n": 1}))
    block = encode({"n": 2})
    index = encode({f"{PREFIXES[0]}agent/a": Link(cid_of(block))})
    assert refusal(car_of(encode(ours.commit()), index, block)) is Reason.UNPROVEN


COMMIT = encode(small_car((f"{PREFIXES[0]}agent/a", {}))[0].commit())


@pytest.mark.parametrize(
    ("car", "reason"),
    [
        (b"", Reason.MALFORMED_CAR),
        (b"\xff" * 20, Reason.MALFORMED_CAR),
        (car_of(COMMIT, roots=1), Reason.MALFORMED_CAR),
        (car_of(COMMIT, encode({}), b"\xa0", roots=3), Reason.MALFORMED_CAR),
        (car_of(encode("commit"), encode({})), Reason.MALFORMED_CAR),
        (car_of(b"\xff", encode({})), Reason.MALFORMED_CAR),
        (car_of(COMMIT, encode([])), Reason.MALFORMED_CAR),
        (car_of(COMMIT, encode({"a/b": "text"})), Reason.MALFORMED_CAR),
        (car_of(COMMIT, encode({"ab": Link(cid_of(COMMIT))})), Reason.MALFORMED_CAR),
        (car_of(COMMIT, b"\x81" * 100_000 + b"\x00"), Reason.MALFORMED_CAR),
        (car_of(encode({"ver": 2, "rev": "no"}), encode({})), Reason.BAD_REV),
    ],
)
def test_what_is_no_repository_is_refused(car: bytes, reason: Reason) -> None:
    """Whatever a host sends, one of the closed list of reasons comes of it."""
    assert refusal(car) is reason


def test_unknown_version_is_loaded_unproven() -> None:
    """A commit of a version to come is followed for what it says, and nothing is proven by it."""
    block = encode({"n": 1})
    path = f"{PREFIXES[0]}agent/a"
    commit = encode({"ver": 2, "rev": "3n3kabj5iuo2w", "newHash": b"x"})
    load = opened(car_of(commit, encode({path: Link(cid_of(block))}), block))
    state = judged(load)
    assert (state.judgement, state.rev) == (Judgement.UNKNOWN_VERSION, "3n3kabj5iuo2w")
    assert [one.proof for one in load.changes(state, PREFIXES) if isinstance(one, Change)] == [None]


def test_key_of_the_account_is_asked() -> None:
    """The same repository is proven to who knows its author's key."""
    repository, car = small_car((f"{PREFIXES[0]}agent/a", {}))
    network = Network()
    account = network.create_account()
    key = signing_key(account.document(), account.did)
    state = opened(car).judge(key, space=SPACE, did=repository.did, dialect=ALPHA_2026_08)
    assert state.judgement is Judgement.PROVEN
