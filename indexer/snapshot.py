"""A whole repository out of a CAR v1 file on disk, without holding it in memory.

One pass over the file notes where each block begins; then only the nodes of the tree that can hold the wanted
collections are read, and the records under them. Every block that is used is hashed, so what comes out is what the
commit at the root vouches for, and it is complete or the walk raises: a file cut off between two blocks lacks
something that the tree names.

Repositories have a million records, so that pass is what a large one costs: it looks at the head of each section only,
and notes 8 bytes a block, whichever it is. An index of nodes alone would need a second pass for the records.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

from indexer.car import read_car
from indexer.cbor import CID_BYTES, CID_KINDS, cid_text
from indexer.errors import Rejected
from indexer.model import Reason
from indexer.mst import walk_prefix
from indexer.verify import SignedCommit, decode_commit

MAX_BLOCKS: Final = 8_000_000  # at 8 bytes each
MAX_BLOCK: Final = 4 << 20  # bytes of a block that is read; others may be of any size
_MAX_HEADER: Final = 4096
_LONGEST_VARINT: Final = 9
_HEAD: Final = _LONGEST_VARINT + CID_BYTES
_WINDOW: Final = 1 << 18  # bytes that are read at once; they stay in the processor's cache
_BUCKET: Final = 1 << 17  # bytes of file a bucket: to look through one takes less than to read and hash a block
_START: Final = (1 << 40) - 1  # in an entry of the index: where a section begins
_MARK: Final = 0xFFFFFF << 40  # in an entry: what tells most CIDs of a bucket apart
_KINDS: Final = tuple(CID_KINDS)
_section_head = Struct("BB36s").unpack_from  # the two bytes that most lengths have, and the CID


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
        sections = (_read_block(self._file, start, cid) for start in self._index.starts(cid))
        block = next((block for block in sections if block is not None), None)
        if block is None:
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

    Takes a second of processor time a million blocks, and 8 bytes a block: not for an event loop. Raises Rejected:
    MALFORMED_CAR if it is no whole archive or holds more than ``max_blocks`` blocks, else as :meth:`Snapshot.block`.
    Blocks may occur twice; the first counts.
    """
    size = file.seek(0, io.SEEK_END)
    roots, start = _header(file, size)
    index = _Index(size)
    file.seek(start)
    while window := file.read(_WINDOW):
        if len(window) < _WINDOW:  # the last: zeros follow, so that each section has a head to look at
            window += bytes(_HEAD)
        start += index.note(window, start)
        if index.blocks > max_blocks:
            raise _malformed(f"more than {max_blocks} blocks")
        if start > size:
            raise _malformed("ends within a block")
        file.seek(start)
    return Snapshot(file, index, roots[0])


class _Index:
    """Where in the file each block's section begins, by CID.

    Blocks fall into buckets by Python's hash of their CID, whose key is secret and new in each process: nobody can
    prepare CIDs that crowd into one. An entry is the upper bits of that hash and the start, in one number.
    """

    __slots__ = ("_buckets", "blocks")

    def __init__(self, size: int) -> None:
        self.blocks = 0
        self._buckets = [array("Q") for _ in range(1 << (size // _BUCKET).bit_length())]

    def note(self, window: bytes, base: int) -> int:
        """Note the sections that begin in ``window``, which ``base`` bytes precede; give how far they reach.

        Those that begin within the last bytes are left for the next window: their heads may not be whole.
        """
        buckets, mask = self._buckets, len(self._buckets) - 1
        at, end, count = 0, len(window) - _HEAD, 0
        while at < end:
            low, high, cid = _section_head(window, at)
            if low > 0x7F and 0 < high < 0x80:
                length, body = low & 0x7F | high << 7, at + 2
            else:
                length, body = _varint(window, at)
                cid = window[body : body + CID_BYTES]
            if length < CID_BYTES or not cid.startswith(_KINDS):
                raise _malformed(f"a block at byte {base + at} that is too short, or its CID of an unknown kind")
            mark = hash(cid)
            buckets[mark & mask].append(mark & _MARK | base + at)
            count += 1
            at = body + length
        self.blocks += count
        return at

    def starts(self, cid: bytes) -> Iterator[int]:
        """Where the sections with this CID begin, in order; now and then also one with another."""
        mark = hash(cid)
        least = mark & _MARK
        for entry in self._buckets[mark & len(self._buckets) - 1]:
            if least <= entry <= least | _START:
                yield entry & _START


def _header(file: BinaryIO, size: int) -> tuple[tuple[bytes, ...], int]:
    """The roots, and where the first section begins."""
    file.seek(0)
    head = file.read(_MAX_HEADER + _LONGEST_VARINT)
    length, start = _varint(head, 0)
    if length > _MAX_HEADER or start + length > size:
        raise _malformed("a header that is too long or not whole")
    return read_car(head[: start + length]).roots, start + length


def _read_block(file: BinaryIO, start: int, cid: bytes) -> bytes | None:
    """The block of the section that begins at ``start``, None if its CID is another."""
    file.seek(start)
    head = file.read(_HEAD)
    length, body = _varint(head, 0)
    if head[body : body + CID_BYTES] != cid:
        return None
    if length > MAX_BLOCK + CID_BYTES:
        raise _malformed(f"a block of {length - CID_BYTES} bytes")
    block = head[body + CID_BYTES : body + length]
    return block + file.read(length - CID_BYTES - len(block))


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
