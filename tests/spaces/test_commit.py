"""Signed commits: the real ones prove, and nothing that differs from them in one bit does."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

import pytest

from indexer.keys import signing_key
from indexer.simulator.keys import P256Key, Secp256k1Key, SigningKey
from indexer.simulator.network import Network
from indexer.simulator.repository import Write
from indexer.simulator.space_repository import SpaceRepository
from indexer.spaces.commit import Judgement, SpaceCommit, judge, read_commit
from indexer.spaces.dialects import ALPHA_2026_08
from tests.spaces import captured
from tests.spaces.captured import DID, SPACE

COMMITS = [one["body"]["commit"] for one in captured.exchanges() if "commit" in one.get("body", {})]


def commit(body: object = COMMITS[-1]) -> SpaceCommit:
    """A commit that is one."""
    found = read_commit(body)
    assert found is not None
    return found


def judged(one: SpaceCommit, digest: bytes | None = None, space: str = SPACE, did: str = DID) -> Judgement:
    """The judgement on a commit, by default over the records it is about."""
    return judge(
        one, one.hash if digest is None else digest, captured.key(), space=space, did=did, dialect=ALPHA_2026_08
    )


@pytest.mark.parametrize("body", COMMITS)
def test_real_commits_prove(body: captured.Body) -> None:
    """MAC and signature of every captured commit hold, though no two reads gave the same ones."""
    assert judged(commit(body)) is Judgement.PROVEN


def test_real_commits_differ() -> None:
    """Two reads of one head are equal in rev and hash alone."""
    head = commit(COMMITS[-1])
    others = [one for one in map(commit, COMMITS[:-1]) if one.rev == head.rev]
    assert others
    assert all(one.hash == head.hash and one.mac != head.mac and one.sig != head.sig for one in others)


@pytest.mark.parametrize("name", ["hash", "ikm", "mac", "sig"])
def test_no_bit_can_change(name: str) -> None:
    """With any one bit of a byte string flipped the commit proves nothing."""
    one = commit()
    original: bytes = getattr(one, name)
    for bit in range(8 * len(original)):
        changed = bytearray(original)
        changed[bit // 8] ^= 1 << bit % 8
        assert judged(replace(one, **{name: bytes(changed)}), one.hash) is not Judgement.PROVEN  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "judgement"),
    [
        ({"hash": bytes(32)}, Judgement.WRONG_HASH),
        ({"mac": bytes(32)}, Judgement.BAD_MAC),
        ({"rev": "3n3kabj5iuo2x"}, Judgement.BAD_MAC),
        ({"sig": bytes(64)}, Judgement.BAD_SIGNATURE),
        ({"sig": bytes(63)}, Judgement.UNKNOWN_FORM),
        ({"ikm": b""}, Judgement.UNKNOWN_FORM),
        ({"rev": ""}, Judgement.UNKNOWN_FORM),
        ({"version": None}, Judgement.UNKNOWN_FORM),
        ({"version": 2}, Judgement.UNKNOWN_VERSION),
        ({"version": 2, "mac": b""}, Judgement.UNKNOWN_VERSION),
    ],
)
def test_each_failure_has_its_name(change: dict[str, object], judgement: Judgement) -> None:
    """What is wrong with a commit is said, and a version we don't know isn't taken for a forgery."""
    one = commit()
    assert judged(replace(one, **change), one.hash) is judgement  # type: ignore[arg-type]


def test_commit_is_of_one_place() -> None:
    """A commit proves nothing of another space, nor of another author."""
    assert judged(commit(), space=SPACE + "2") is Judgement.BAD_MAC
    assert judged(commit(), did="did:plc:aaaaaaaaaaaaaaaaaaaaaaaa") is Judgement.BAD_MAC


@pytest.mark.parametrize("key", [Secp256k1Key(b"a"), P256Key(b"a")])
def test_both_curves(key: SigningKey) -> None:
    """Accounts may have a key on either curve; another account's key signs nothing."""
    network = Network()
    account, other = network.create_account(), network.create_account()
    account.key = key
    repository = SpaceRepository(SPACE, account.did, key, network.rng)
    repository.write([Write("a.b.c/d", {"x": 1})], network.rkey())
    one = commit(repository.commit())
    for who, judgement in ((account, Judgement.PROVEN), (other, Judgement.BAD_SIGNATURE)):
        public = signing_key(who.document(), who.did)
        found = judge(one, one.hash, public, space=SPACE, did=account.did, dialect=ALPHA_2026_08)
        assert found is judgement


@pytest.mark.parametrize("body", [None, [], "commit", 5])
def test_what_is_no_map_is_no_commit(body: object) -> None:
    """An answer of another shape has no commit, and says so."""
    assert read_commit(body) is None


@pytest.mark.parametrize(
    "wrong", [{"$bytes": 5}, {"$bytes": "é"}, {"$bytes": "A"}, {"$link": "x"}, "text", 5, None, [1], {}]
)
def test_unusable_fields_are_empty(wrong: object) -> None:
    """A field of another kind leaves the commit unusable, whatever it is; nothing is raised."""
    for name in ("hash", "ikm", "mac", "sig"):
        one = commit(COMMITS[-1] | {name: wrong})
        assert getattr(one, name) == b""
        assert judged(one) is Judgement.UNKNOWN_FORM
    assert commit(COMMITS[-1] | {"rev": wrong, "ver": wrong}).rev == ""


def test_padding_and_more_fields_are_tolerated() -> None:
    """Padded base64 and fields we don't know make no difference."""
    one = commit()
    padded = {name: {"$bytes": b64encode(getattr(one, name)).decode()} for name in ("hash", "ikm", "mac", "sig")}
    assert commit(COMMITS[-1] | padded | {"$type": "x", "later": 1}) == one
