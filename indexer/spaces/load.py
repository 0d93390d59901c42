"""A whole permissioned repository out of the CAR that ``getRepo`` gives, without holding its records in memory.

    two roots: the commit, and the index (a map of ``{collection}/{rkey}`` to CID, keys shortest first); then the
    records in the order of the index, repeated if equal

Every block is hashed as it is read, and the index folded to the hash of the commit: what comes out is complete and
byte for byte what the commit is about, or reading raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import libipld

from indexer import lthash
from indexer.car import read_car
from indexer.cbor import CID_BYTES, CID_KINDS, cid_text
from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.model import Change, Reason
from indexer.spaces.commit import Judgement, SpaceCommit, judge, read_commit
from indexer.spaces.dialect import Dialect
from indexer.spaces.folding import SPACE_PROOF, decoded, key_of
from indexer.spaces.repo import RepoState

MAX_INDEX: Final = 64 << 20  # bytes: some 600,000 records
MAX_RECORD: Final = 4 << 20
_MAX_COMMIT: Final = 64 << 10
_MAX_HEADER: Final = 4_096
_LONGEST_VARINT: Final = 9


class Load:
    """A repository that was read whole. Made by :func:`open_load`; its file has to stay open.

    ``rev`` is that of its commit, ``records`` the number of all records in it.
    """

    def __init__(
        self, file: BinaryIO, commit: SpaceCommit, index: dict[str, bytes], places: dict[bytes, tuple[int, int]]
    ) -> None:
        self.rev = commit.rev
        self.records = len(index)
        self.lthash = lthash.fold(lthash.EMPTY, (lthash.element(path, cid_text(cid)) for path, cid in index.items()))
        self._file = file
        self._commit = commit
        self._index = index
        self._places = places

    def judge(self, key: PublicKey, *, space: str, did: str, dialect: Dialect) -> RepoState:
        """The state that this load leads to, with what its commit proves.

        Raises Rejected (unproven) if the commit is about other records, or has no rev: then there is nothing to use.
        """
        judgement = judge(self._commit, lthash.digest(self.lthash), key, space=space, did=did, dialect=dialect)
        if judgement is Judgement.WRONG_HASH:
            raise Rejected(Reason.UNPROVEN, "the commit's hash is not that of the index beside it")
        if not self.rev:
            raise Rejected(Reason.BAD_REV, "the commit has no rev")
        return RepoState(space, did, self.rev, self.lthash, judgement)

    def changes(self, state: RepoState, prefixes: Sequence[str]) -> Iterator[Change | Rejected]:
        """Every record whose path starts with one of ``prefixes``, as of ``state``, which :meth:`judge` gave.

        A record that can't be decoded is both, a change (its block is kept) and a Rejected. Reads the file.
        """
        proof = SPACE_PROOF if state.judgement is Judgement.PROVEN else None
        wanted = tuple(prefixes)
        for path, cid in self._index.items():
            if not path.startswith(wanted):
                continue
            try:
                collection, rkey = key_of(state.did, state.space, path)
            except Rejected as rejected:
                yield rejected
                continue
            record, trouble = decoded(collection, rkey, self._block(cid))
            yield Change(state.did, state.space, collection, rkey, state.rev, cid_text(cid), record, proof)
            if trouble is not None:
                yield trouble

    def _block(self, cid: bytes) -> bytes:
        start, size = self._places[cid]
        self._file.seek(start)
        return _checked(cid, self._file.read(size))


def open_load(file: BinaryIO) -> Load:
    """Reads the CAR in ``file``, which has to be seekable; takes about 40 µs a record, not for an event loop.

    Raises Rejected: malformed_car, wrong_cid, missing_block (a record that the index names).
    """
    file.seek(0)
    roots = _roots(file)
    if len(roots) != 2:
        raise _malformed(f"{len(roots)} roots instead of two")
    commit_block, index_block, places = _blocks(file, roots)
    commit = read_commit(_decode(commit_block))
    if commit is None:
        raise _malformed("the first root is no commit")
    index = _index(_decode(index_block))
    missing = next((path for path, cid in index.items() if cid not in places), None)
    if missing is not None:
        raise Rejected(Reason.MISSING_BLOCK, "a record that the index names is not there")
    return Load(file, commit, index, places)


def _blocks(file: BinaryIO, roots: tuple[bytes, ...]) -> tuple[bytes, bytes, dict[bytes, tuple[int, int]]]:
    """The blocks of both roots, and where each record's block is (position and size); all of them are hashed."""
    limits = dict(zip(roots, (_MAX_COMMIT, MAX_INDEX), strict=True))
    found: dict[bytes, bytes] = {}
    places: dict[bytes, tuple[int, int]] = {}
    while (length := _varint(file)) is not None:
        cid = file.read(CID_BYTES)
        if len(cid) < CID_BYTES or cid[:4] not in CID_KINDS:
            raise _malformed("a block without a CID of a known kind")
        size = length - CID_BYTES
        if not 0 < size <= limits.get(cid, MAX_RECORD):
            raise _malformed(f"a block of {size} bytes")
        start = file.tell()
        block = file.read(size)
        if len(block) < size:
            raise _malformed("ends within a block")
        _checked(cid, block)
        places.setdefault(cid, (start, size))
        if cid in limits:
            found.setdefault(cid, block)
    if len(found) != len(roots):
        raise Rejected(Reason.MISSING_BLOCK, "a root's block is not there")
    return found[roots[0]], found[roots[1]], places


def _index(body: object) -> dict[str, bytes]:
    """Path to binary CID, of every record."""
    if not isinstance(body, dict):
        raise _malformed("the second root is no index")
    for path, cid in body.items():
        if not isinstance(cid, bytes) or len(cid) != CID_BYTES or cid[:4] not in CID_KINDS or "/" not in path:
            raise _malformed("an entry of the index that names no record")
    return body


def _decode(block: bytes) -> object:
    # The block was hashed; of what it says nothing is believed that isn't checked or folded into the hash.
    try:
        return libipld.decode_dag_cbor(block)
    except (ValueError, RecursionError):
        raise _malformed("a root that is no DAG-CBOR") from None


def _checked(cid: bytes, block: bytes) -> bytes:
    if hashlib.sha256(block).digest() != cid[4:]:
        raise Rejected(Reason.WRONG_CID, cid_text(cid))
    return block


def _roots(file: BinaryIO) -> tuple[bytes, ...]:
    length = _varint(file)
    if length is None or length > _MAX_HEADER:
        raise _malformed("no header")
    size = file.tell()
    header = file.read(length)
    file.seek(0)
    whole = file.read(size) + header
    file.seek(len(whole))
    return read_car(whole).roots


def _varint(file: BinaryIO) -> int | None:
    """The unsigned LEB128 number that comes next, None at the end of the file."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = file.read(1)
        if not byte:
            if shift:
                raise _malformed("ends within a length")
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _malformed("a length that is too long")


def _malformed(detail: str) -> Rejected:
    return Rejected(Reason.MALFORMED_CAR, detail)
