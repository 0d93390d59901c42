"""Proofs: what makes a commit believable, and the value that says which step failed.

Specifications: AT Protocol "Repository" (commit objects, version 3), "Sync" and proposal 0006 (operation inversion).
A ``#commit`` is proven when its signed commit object names the same account and revision, the account's key signed
it, and the tree under it says about every record just what the operations say; undoing them gives the root of the
tree before, which ties it to what is held. ``time``, ``seq`` and ``since`` are a host's word and prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from libipld import decode_dag_cbor, encode_dag_cbor

from indexer.car import Car, read_car
from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.model import Commit, Operation, Reason, Sync, immutable
from indexer.mst import PartialTree, encode_link, is_key
from indexer.syntax import is_tid


class Failure(StrEnum):
    """Why an event isn't proven: a closed list."""

    TOO_BIG = "too_big"  # the host left the blocks out
    MALFORMED = "malformed"  # CAR, commit object, tree or operation of a form the specification doesn't know
    WRONG_COMMIT = "wrong_commit"  # the CAR's root isn't the commit the event names
    WRONG_DID = "wrong_did"  # the commit object is another account's
    WRONG_REV = "wrong_rev"
    BAD_SIGNATURE = "bad_signature"  # not by this key, which may be outdated
    MISSING_BLOCK = "missing_block"
    WRONG_BLOCK = "wrong_block"  # a block doesn't hash to its CID
    NOT_INCLUDED = "not_included"  # an operation writes a record that the tree doesn't have, or not with that CID
    NOT_EXCLUDED = "not_excluded"  # an operation deletes a record that the tree has
    NOT_INVERTIBLE = "not_invertible"  # prevData is there, but an operation lacks the prev to undo it
    WRONG_PREV_DATA = "wrong_prev_data"  # undoing all operations leads to another tree


_BY_REASON: Final = {Reason.MISSING_BLOCK: Failure.MISSING_BLOCK, Reason.WRONG_CID: Failure.WRONG_BLOCK}


@dataclass(frozen=True, slots=True)
class Failed:
    """An event that isn't proven; ``detail`` is for people and holds no content."""

    failure: Failure
    detail: str = ""


@immutable
class SignedCommit:
    """A commit object: ``data`` is the root of the tree, ``unsigned`` the bytes that ``signature`` signs."""

    did: str
    rev: str
    data: bytes
    prev: bytes | None
    signature: bytes
    unsigned: bytes


class ProvenOperation(NamedTuple):
    """An operation that holds, with the record's block (None for a delete)."""

    operation: Operation
    block: bytes | None


@immutable
class Proven:
    """What a verified event establishes.

    ``data`` is the root of the tree at ``rev``. ``prev_data`` is the root that undoing the operations leads to,
    computed and not believed; None if that couldn't be done (a host that sends no ``prev``) or for a ``#sync``.
    ``operations`` holds those asked for, the last of each path.
    """

    did: str
    rev: str
    data: bytes
    prev_data: bytes | None
    operations: tuple[ProvenOperation, ...] = ()


Verdict: TypeAlias = Proven | Failed


def decode_commit(block: bytes) -> SignedCommit:
    """Commit object out of its block; raises Rejected(MALFORMED_CAR) unless it is a canonical one of version 3.

    ``prev`` may be missing, as it was from early writers of version 3. No other field may be missing or added.
    """
    try:
        fields = decode_dag_cbor(block)
        did, rev, signature, data = fields["did"], fields["rev"], fields["sig"], fields["data"]
        prev = fields.get("prev")
        texts = b"\x63did" + encode_dag_cbor(did) + b"\x63rev" + encode_dag_cbor(rev)
        sig = b"\x63sig" + _byte_string(signature)
        rest = b"\x64data" + encode_link(data)
        if "prev" in fields:
            rest += b"\x64prev" + encode_link(prev)
        rest += b"\x67version\x03"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Rejected(Reason.MALFORMED_CAR, "a block that is not a commit object") from error
    size = 0xA5 if "prev" in fields else 0xA4
    right = isinstance(did, str) and isinstance(signature, bytes) and isinstance(rev, str) and is_tid(rev)
    if not right or data is None or bytes((size + 1,)) + texts + sig + rest != block:
        raise Rejected(Reason.MALFORMED_CAR, "a commit object that is not a canonical one of version 3")
    return SignedCommit(did, rev, data, prev, signature, bytes((size,)) + texts + rest)


def _byte_string(data: bytes) -> bytes:
    """DAG-CBOR of bytes. Not libipld's, which takes what begins like a CID for a link: one signature in a thousand."""
    head = encode_dag_cbor(len(data))  # that of a number, of another major type
    return bytes((head[0] | 0x40,)) + head[1:] + data


def check_signature(commit: SignedCommit, key: PublicKey) -> bool:
    """Whether ``key`` signed ``commit``."""
    return key.verify(commit.unsigned, commit.signature)


def check_commit(event: Commit, car: Car, key: PublicKey, prefixes: tuple[str, ...] = ("",)) -> Verdict:
    """Verifies a ``#commit``: ``car`` is its ``blocks``, ``key`` the account's current key.

    Every operation is checked against the tree; of those whose path starts with one of ``prefixes`` (as
    ``CollectionFilter.prefixes``; all by default) also the records' blocks, which are handed back. Never raises for
    what is in the event.
    """
    if event.too_big:
        return Failed(Failure.TOO_BIG)
    if car.roots[0] != event.commit:
        return Failed(Failure.WRONG_COMMIT)
    try:
        commit = _signed_head(car, event.did, event.rev, key)
        if isinstance(commit, Failed):
            return commit
        prev_data = _before(event, commit.data, car)
        if isinstance(prev_data, Failed):
            return prev_data
        proven = tuple(
            ProvenOperation(operation, None if operation.cid is None else car.block(operation.cid))
            for operation in _last_of_each_path(event.operations)
            if operation.path.startswith(prefixes)
        )
    except Rejected as error:
        return _failed(error)
    return Proven(commit.did, commit.rev, commit.data, prev_data, proven)


def check_sync(event: Sync, key: PublicKey) -> Verdict:
    """Verifies a ``#sync``: that the account's key signed its commit object. Never raises for what is in it."""
    return check_head(event.blocks, event.did, event.rev, key)


def check_head(blocks: bytes, did: str, rev: str | None, key: PublicKey) -> Verdict:
    """Verifies the commit object at the root of a CAR (of ``getRepo`` or ``getLatestCommit``), not what is below.

    ``rev`` is the revision it has to have; None admits any.
    """
    try:
        commit = _signed_head(read_car(blocks), did, rev, key)
    except Rejected as error:
        return _failed(error)
    return commit if isinstance(commit, Failed) else Proven(commit.did, commit.rev, commit.data, None)


def _failed(error: Rejected) -> Failed:
    return Failed(_BY_REASON.get(error.reason, Failure.MALFORMED), error.detail)


def _signed_head(car: Car, did: str, rev: str | None, key: PublicKey) -> SignedCommit | Failed:
    """The commit object at the first root, once it names ``did`` and ``rev`` and is signed: nothing below it is
    looked at before."""
    commit = decode_commit(car.block(car.roots[0]))
    if commit.did != did:
        return Failed(Failure.WRONG_DID)
    if rev is not None and commit.rev != rev:
        return Failed(Failure.WRONG_REV)
    return commit if check_signature(commit, key) else Failed(Failure.BAD_SIGNATURE)


def _before(event: Commit, data: bytes, car: Car) -> bytes | Failed | None:
    """Root of the tree before the event's operations, each of which must agree with the tree ``data``.

    None if it can't be told and the event doesn't claim to know it either.
    """
    if not all(map(_is_well_formed, event.operations)):
        return Failed(Failure.MALFORMED, "an operation that is none")
    if any(operation.prev is None and operation.action != "create" for operation in event.operations):
        return _stated(event, data, car) if event.prev_data is None else Failed(Failure.NOT_INVERTIBLE)
    try:
        root = _inverted(event, data, car)
    except Rejected as error:
        if event.prev_data is None and error.reason is Reason.MISSING_BLOCK:
            return _stated(event, data, car)
        raise
    wrong = event.prev_data not in (None, root) and not isinstance(root, Failed)
    return Failed(Failure.WRONG_PREV_DATA) if wrong else root


def _key(operation: Operation) -> bytes:
    return operation.path.encode(errors="replace")  # what can't be encoded becomes no key


def _is_well_formed(operation: Operation) -> bool:
    has_cid, has_prev = operation.cid is not None, operation.prev is not None
    match operation.action:
        case "create":
            right = has_cid and not has_prev
        case "update":
            right = has_cid
        case "delete":
            right = not has_cid
        case _:
            right = False
    return right and is_key(_key(operation))


def _inverted(event: Commit, data: bytes, car: Car) -> bytes | Failed:
    """Root after undoing all operations, the last first (one path may be written twice)."""
    tree = PartialTree.load(data, car.block)
    for operation in reversed(event.operations):
        if not _undo(tree, operation):
            return Failed(Failure.NOT_EXCLUDED if operation.cid is None else Failure.NOT_INCLUDED, operation.path)
    return tree.root()


def _undo(tree: PartialTree, operation: Operation) -> bool:
    """Undoes one operation; False if the tree is not as the operation left it."""
    key = _key(operation)
    if operation.prev is None:
        return tree.delete(key) == operation.cid
    if operation.cid is None:
        return tree.insert(key, operation.prev)
    return tree.replace(key, operation.prev) == operation.cid


def _stated(event: Commit, data: bytes, car: Car) -> Failed | None:
    """None if the tree agrees with the operations' outcome, without undoing them."""
    tree = PartialTree.load(data, car.block)
    for operation in _last_of_each_path(event.operations):
        if tree.get(_key(operation)) != operation.cid:
            return Failed(Failure.NOT_EXCLUDED if operation.cid is None else Failure.NOT_INCLUDED, operation.path)
    return None


def _last_of_each_path(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    return tuple({operation.path: operation for operation in operations}.values())
