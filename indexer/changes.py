"""From a commit that concerns us to the changes it makes: one for each record, as of the commit's last word on it.

Blocks are found by the operation's CID, never by type, and hashed. What can't be used is set aside alone: the rest of
the commit is still taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from indexer.car import Car
from indexer.cbor import cid_text
from indexer.errors import Rejected
from indexer.lexicon import record_of, undecodable_record
from indexer.model import Change, Commit, Operation, Proof, Proposal, Reason, Record
from indexer.syntax import parse_path, tid_micros
from indexer.verify import Proven

MAX_KEY = 2_500  # bytes of did, space, collection and record key: a PostgreSQL index entry ends at 2,704
MAX_RECORDS = 4_000_000  # bytes of all records of a commit: twice its blocks, one of which may be named many times
FUTURE = 5 * 60 * 1_000_000  # microseconds that a rev may be ahead of our clock


def check_rev(rev: str, now: int) -> None:
    """Raise Rejected (bad_rev, future_rev) unless ``rev`` is a TID not over five minutes after ``now`` (µs)."""
    micros = tid_micros(rev)
    if micros is None:
        raise Rejected(Reason.BAD_REV, "the rev is no TID")
    if micros > now + FUTURE:
        raise Rejected(Reason.FUTURE_REV, "the rev is over five minutes ahead")


def changes_of(commit: Commit, car: Car, prefixes: tuple[str, ...]) -> Iterator[Change | Rejected]:
    """The changes a commit makes under ``prefixes``, unproven, and a Rejected for each operation that can't be used.

    Of several operations on one path only the last counts. A record whose bytes are right but can't be decoded is
    both: a change (its block is kept) and a Rejected.
    """
    last = {op.path: op for op in commit.operations if op.path.startswith(prefixes)}
    size = 0
    for op in last.values():
        try:
            block = None if op.cid is None or op.action == "delete" else car.block(op.cid)
            size = _add_up(size, block)
            change, trouble = _change(commit.did, commit.rev, op, block, None)
            yield change
        except Rejected as rejected:
            trouble = rejected
        if trouble is not None:
            yield trouble


def proposal_of(proven: Proven, commit: Commit, source: str, frame: bytes) -> tuple[Proposal, list[Rejected]]:
    """A proven commit as a proposal, and what of it can't be used although it is proven."""
    changes: list[Change] = []
    rejected: list[Rejected] = []
    size = 0
    for op, block in proven.operations:
        try:
            size = _add_up(size, block)
            change, trouble = _change(proven.did, proven.rev, op, block, "repo")
            changes.append(change)
        except Rejected as error:
            trouble = error
        if trouble is not None:
            rejected.append(trouble)
    prev_data = None if proven.prev_data is None else cid_text(proven.prev_data)
    data = cid_text(proven.data)
    return Proposal(proven.did, proven.rev, commit.since, prev_data, data, tuple(changes), source, frame), rejected


def check_path(did: str, path: str) -> tuple[str, str]:
    """Collection and record key of a path. Raises Rejected (bad_path, key_too_long) where no row can have that key."""
    parts = parse_path(path)
    if parts is None:
        raise Rejected(Reason.BAD_PATH, "the path is no collection and record key")
    if len(did) + len(path) > MAX_KEY:
        raise Rejected(Reason.KEY_TOO_LONG, f"DID and path are {len(did) + len(path)} bytes long")
    return parts


def read_record(collection: str, rkey: str, block: bytes) -> tuple[Record, Rejected | None]:
    """What is kept of a record's block, and what is wrong with one that can't be decoded."""
    try:
        return record_of(collection, rkey, block), None
    except Rejected as rejected:
        return undecodable_record(block), rejected


def _change(
    did: str, rev: str, op: Operation, block: bytes | None, proof: Proof | None
) -> tuple[Change, Rejected | None]:
    collection, rkey = check_path(did, op.path)
    if op.action == "delete":
        return Change(did, "", collection, rkey, rev, None, None, proof), None
    if op.action not in ("create", "update"):
        raise Rejected(Reason.UNKNOWN_ACTION, "an operation is neither create, update nor delete")
    if op.cid is None or block is None:
        raise Rejected(Reason.MALFORMED_FRAME, f"a {op.action} has no CID")
    record, trouble = read_record(collection, rkey, block)
    return Change(did, "", collection, rkey, rev, cid_text(op.cid), record, proof), trouble


def _add_up(size: int, block: bytes | None) -> int:
    """The bytes of records so far, with this one. Raises Rejected (too_big) beyond what a commit may bring."""
    size += len(block or b"")
    if size > MAX_RECORDS:
        raise Rejected(Reason.TOO_BIG, f"the records of one commit have over {MAX_RECORDS} bytes")
    return size
