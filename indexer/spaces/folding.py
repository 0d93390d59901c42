"""From the operations of one poll to what is written: for each record its last word, and what came before it.

Operations of one batch share a rev and may touch one record twice: their order in the log decides, which is why it is
settled here and not left to a comparison of revs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from indexer.changes import MAX_KEY
from indexer.errors import Rejected
from indexer.lexicon import record_of, undecodable_record
from indexer.model import Change, Proof, Reason, Record
from indexer.spaces.operations import Operation
from indexer.syntax import parse_path

SPACE_PROOF: Final[Proof] = "space"


class Place(Protocol):
    """Whose repository it is, and up to where it is held."""

    @property
    def space(self) -> str:
        """Canonical URI of the space."""

    @property
    def did(self) -> str:
        """Its author."""

    @property
    def rev(self) -> str:
        """The last rev that is held, '' for none."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A version of a record that a later operation of the same poll overrode: it is history, never a row.

    ``record`` is None where the host no longer has the value: that there was this version is all that is known.
    ``ordinal`` is the place of its operation among those of its ``rev``, from 0: versions of one record are ordered by
    (rev, ordinal), and before the row where they share its rev.
    """

    did: str
    space: str
    collection: str
    rkey: str
    rev: str
    ordinal: int
    cid: str
    record: Record | None
    proof: Proof | None


class Folded(NamedTuple):
    """What is written of a poll, each in the order of the log."""

    changes: tuple[Change, ...]
    superseded: tuple[Superseded, ...]
    rejected: tuple[Rejected, ...]


class _Step(NamedTuple):
    """An operation with its place in the log: its number, that within its rev, and the rev before its own."""

    number: int
    ordinal: int
    before: str
    operation: Operation


@dataclass(slots=True)
class _Track:
    """What a record went through: the puts since its last delete, and that delete."""

    puts: list[_Step] = field(default_factory=list)
    gone: _Step | None = None

    def add(self, step: _Step) -> None:
        if step.operation.cid is not None:
            self.puts.append(step)
        else:  # what an author takes back is gone, versions included
            self.puts, self.gone = [], step


def fold_operations(
    place: Place, operations: Sequence[Operation], blocks: Mapping[int, bytes], prefixes: tuple[str, ...], proven: bool
) -> Folded | None:
    """Folds operations, in order, on records whose path starts with one of ``prefixes``.

    ``blocks`` holds, by the operation's number, the record's block where the host gave the value. None if the last
    word on a record is a version without its value: then this isn't all there is.
    """
    tracks: dict[str, _Track] = {}
    for step in _steps(place.rev, operations):
        if step.operation.path.startswith(prefixes):
            tracks.setdefault(step.operation.path, _Track()).add(step)
    writer = _Writer(place, blocks, SPACE_PROOF if proven else None)
    for path, track in tracks.items():
        if track.puts and track.puts[-1].number not in blocks:
            return None
        writer.write(path, track)
    return Folded(tuple(writer.changes), tuple(writer.superseded), tuple(writer.rejected))


class _Writer:
    """Turns what records went through into changes."""

    def __init__(self, place: Place, blocks: Mapping[int, bytes], proof: Proof | None) -> None:
        self.changes: list[Change] = []
        self.superseded: list[Superseded] = []
        self.rejected: list[Rejected] = []
        self._place = place
        self._blocks = blocks
        self._proof = proof

    def write(self, path: str, track: _Track) -> None:
        try:
            collection, rkey = key_of(self._place.did, self._place.space, path)
        except Rejected as rejected:
            self.rejected.append(rejected)
            return
        if (rev := _tombstone(track)) is not None:
            self._change(collection, rkey, rev, None, None)
        for step in track.puts[:-1]:
            self._supersede(collection, rkey, step)
        for step in track.puts[-1:]:
            record = self._record(collection, rkey, step)
            self._change(collection, rkey, step.operation.rev, step.operation.cid, record)

    def _change(self, collection: str, rkey: str, rev: str, cid: str | None, record: Record | None) -> None:
        place = self._place
        self.changes.append(Change(place.did, place.space, collection, rkey, rev, cid, record, self._proof))

    def _supersede(self, collection: str, rkey: str, step: _Step) -> None:
        operation, place = step.operation, self._place
        record = self._record(collection, rkey, step)
        self.superseded.append(
            Superseded(
                place.did,
                place.space,
                collection,
                rkey,
                operation.rev,
                step.ordinal,
                operation.cid or "",
                record,
                self._proof,
            )
        )

    def _record(self, collection: str, rkey: str, step: _Step) -> Record | None:
        block = self._blocks.get(step.number)
        if block is None:
            return None
        record, trouble = decoded(collection, rkey, block)
        self.rejected += [trouble] if trouble is not None else []
        return record


def decoded(collection: str, rkey: str, block: bytes) -> tuple[Record, Rejected | None]:
    """The record in a block, and what is wrong with one that can't be decoded: it is kept as bytes."""
    try:
        return record_of(collection, rkey, block), None
    except Rejected as rejected:
        return undecodable_record(block), rejected


def key_of(did: str, space: str, path: str) -> tuple[str, str]:
    """Collection and record key of a path. Raises Rejected (bad_path, key_too_long) where it can't be a row's key."""
    parts = parse_path(path)
    if parts is None:
        raise Rejected(Reason.BAD_PATH, "the path is no collection and record key")
    if len(did) + len(space) + len(path) > MAX_KEY:
        raise Rejected(Reason.KEY_TOO_LONG, f"DID, space and path are over {MAX_KEY} bytes long")
    return parts


def _tombstone(track: _Track) -> str | None:
    """The rev at which the record counts as deleted, None if it wasn't.

    If a put of the same batch follows, that is the rev before: a delete at the put's own rev would bury it too.
    """
    if track.gone is None:
        return None
    recreated = track.puts and track.puts[0].operation.rev == track.gone.operation.rev
    return (track.gone.before or None) if recreated else track.gone.operation.rev


def _steps(rev: str, operations: Sequence[Operation]) -> Iterator[_Step]:
    """The operations with their places; ``rev`` is what is held before the first."""
    before, ordinal = rev, 0
    for number, operation in enumerate(operations):
        if number and operation.rev == operations[number - 1].rev:
            ordinal += 1
        else:
            ordinal = 0
            before = operations[number - 1].rev if number else rev
        yield _Step(number, ordinal, before, operation)
