"""A whole repository out of a CAR v1 file on disk, without holding it in memory.

One pass over the file notes where each block begins; then only the nodes of the tree that can hold the wanted
collections are read, and the records under them. Every block that is used is hashed, so what comes out is what the
commit at the root vouches for, and it is complete or the walk raises: a file cut off between two blocks lacks
something that the tree names.

The index takes 24 bytes a block: repositories have a million records. It is a hash table over Python's hash of the
CID, whose key is secret and new in each process: nobody can prepare CIDs that collide.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple

from indexer.car import read_car
from indexer.cbor import CID_BYTES, CID_KINDS, cid_text
from indexer.errors import Rejected
from indexer.model import Reason
from indexer.mst import walk_prefix
from indexer.verify import SignedCommit, decode_commit

MAX_BLOCKS: Final = 8_000_000  # at 24 bytes each
MAX_BLOCK: Final = 4 << 20  # bytes of a block that is read; others may be of any size
_MAX_HEADER: Final = 4096
_LONGEST_VARINT: Final = 9
_HEAD: Final = _LONGEST_VARINT + CID_BYTES
_WINDOW: Final = 1 << 20


class SnapshotRecord(NamedTuple):
    """A record of a snapshot: the two parts of its path, its binary CID and its block. Neither part is checked."""

    collection: str
    rkey: str
    cid: bytes
    block: bytes


class Snapshot:
    """An indexed CAR file. Made by :func:`open_snapshot`; ``file`` has to stay open, and be used by nobody else.

    ``commit`` is the commit object at the root: whose it is and whether it is signed is for the caller to check.
    """

    __slots__ = ("_file", "_index", "commit")

    def __init__(self, file: BinaryIO, index: _Index, root: bytes) -> None:
        self._file = file
        self._index = index
        self.commit: SignedCommit = decode_commit(self.block(root))

    def block(self, cid: bytes) -> bytes:
        """The bytes of the block ``cid`` (binary), which do hash to it.

        Raises Rejected: MISSING_BLOCK if the file doesn't hold it, WRONG_CID if its bytes are others.
        """
        start = self._index.find(cid)
        found, block = _read_section(self._file, start) if start is not None else (b"", b"")
        if found != cid:
            raise Rejected(Reason.MISSING_BLOCK, cid_text(cid[:CID_BYTES]))
        if hashlib.sha256(block).digest() != cid[4:]:
            raise Rejected(Reason.WRONG_CID, cid_text(cid[:CID_BYTES]))
        return block

    def records(self, prefixes: Sequence[str]) -> Iterator[SnapshotRecord]:
        """Every record whose path starts with one of ``prefixes`` (as ``CollectionFilter.prefixes``), in key order.

        Complete, or raises Rejected: then what came before is right but not all.
        """
        for path, cid in self.paths(prefixes):
            collection, _, rkey = path.partition("/")
            yield SnapshotRecord(collection, rkey, cid, self.block(cid))

    def paths(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The same without reading the records: the path of each, unchecked, and its binary CID."""
        for key, cid in walk_prefix(self.commit.data, [prefix.encode() for prefix in prefixes], self.block):
            yield key.decode("ascii"), cid


def open_snapshot(file: BinaryIO, *, max_blocks: int = MAX_BLOCKS) -> Snapshot:
    """Indexes the CAR v1 in ``file``, which has to be seekable, and reads the commit object at its first root.

    Takes some 3 s of processor time a million blocks, and 24 bytes a block: not for an event loop. Raises Rejected:
    MALFORMED_CAR if it is no whole archive or holds more than ``max_blocks`` blocks, else as :meth:`Snapshot.block`.
    Blocks may occur twice; the first counts.
    """
    size = file.seek(0, io.SEEK_END)
    roots, start = _header(file, size)
    return Snapshot(file, _Index(_sections(file, start, size), max_blocks), roots[0])


class _Index:
    """Where in the file each block's section begins, by CID: open addressing over two parallel columns."""

    __slots__ = ("_hashes", "_mask", "_slots", "_starts")

    def __init__(self, sections: Iterator[tuple[int, bytes]], max_blocks: int) -> None:
        self._hashes, self._starts = array("q"), array("Q")
        for start, cid in sections:
            if len(self._starts) == max_blocks:
                raise _malformed(f"more than {max_blocks} blocks")
            self._hashes.append(hash(cid))
            self._starts.append(start)
        size = 1 << (len(self._starts) * 3 // 2).bit_length()  # so that at least a third is free
        self._mask = size - 1
        self._slots = array("I", bytes(size * array("I").itemsize))  # number of the block + 1; 0 is free
        self._fill()

    def find(self, cid: bytes) -> int | None:
        """Where the section of the first block with this CID begins (or, once in 2^64, of another)."""
        wanted = hash(cid)
        slot = wanted & self._mask
        while number := self._slots[slot]:
            if self._hashes[number - 1] == wanted:
                return self._starts[number - 1]
            slot = slot + 1 & self._mask
        return None

    def _fill(self) -> None:
        slots, hashes, mask = self._slots, self._hashes, self._mask
        for number, wanted in enumerate(hashes, 1):
            slot = wanted & mask
            while (taken := slots[slot]) and hashes[taken - 1] != wanted:
                slot = slot + 1 & mask
            if not taken:
                slots[slot] = number


def _header(file: BinaryIO, size: int) -> tuple[tuple[bytes, ...], int]:
    """The roots, and where the first section begins."""
    file.seek(0)
    head = file.read(_MAX_HEADER + _LONGEST_VARINT)
    length, start = _varint(head, 0)
    if length > _MAX_HEADER or start + length > size:
        raise _malformed("a header that is too long or not whole")
    return read_car(head[: start + length]).roots, start + length


def _sections(file: BinaryIO, position: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Where each section from ``position`` on begins, and its CID; blocks themselves are passed over."""
    window, base = b"", position
    while position < size:
        at = position - base
        if len(window) - at < _HEAD and base + len(window) < size:
            file.seek(position)
            window, base, at = file.read(_WINDOW), position, 0
        length, body = _varint(window, at)
        cid = window[body : body + CID_BYTES]
        end = base + body + length
        if length < CID_BYTES or end > size:
            raise _malformed(f"a block at byte {position} that is too short or not whole")
        if cid[:4] not in CID_KINDS:
            raise _malformed(f"a CID of an unknown kind at byte {position}")
        yield position, cid
        position = end


def _read_section(file: BinaryIO, start: int) -> tuple[bytes, bytes]:
    """CID and block of the section that begins at ``start``."""
    file.seek(start)
    head = file.read(_HEAD)
    length, body = _varint(head, 0)
    if length > MAX_BLOCK + CID_BYTES:
        raise _malformed(f"a block of {length - CID_BYTES} bytes")
    section = head[body : body + length]
    section += file.read(length - len(section))
    return section[:CID_BYTES], section[CID_BYTES:]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The unsigned LEB128 number at ``position`` in its shortest form, and where it ends."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if position >= len(data):
            raise _malformed("ends within a length")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                break
            return value, position
    raise _malformed("a length that is too long")


def _malformed(detail: str) -> Rejected:
    return Rejected(Reason.MALFORMED_CAR, detail)
