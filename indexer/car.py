"""CAR v1 archives (https://ipld.io/specs/transport/car/carv1/) from bytes to raw blocks, without decoding them.

    varint length, header (DAG-CBOR: roots, version 1), then for each block: varint length, CID, bytes

Blocks are *not* trusted when they are read but when they are asked for: :meth:`Car.block` hashes what it hands out, so
that a commit pays for the few blocks it needs only.
"""

from __future__ import annotations

import hashlib

from indexer.cbor import CID_BYTES, CID_KINDS, cid_text
from indexer.errors import Rejected
from indexer.model import Reason, immutable

# DAG-CBOR has one encoding of a value only, so the header's bytes can be compared as they are.
_ROOTS = b"\xa2\x65roots"
_VERSION_1 = b"\x67version\x01"
_LINK = b"\xd8\x2a\x58\x25\x00"
_MAX_ROOTS = 23  # what one byte of CBOR can count; AT Protocol uses one or two
_MAX_VARINT = 9


@immutable
class Car:
    """A parsed archive: at least one root, and each block's bytes under its binary CID, unverified."""

    roots: tuple[bytes, ...]
    blocks: dict[bytes, bytes]

    def block(self, cid: bytes) -> bytes:
        """The bytes of the block ``cid`` (binary), which do hash to it.

        Raises :class:`Rejected` with ``MISSING_BLOCK`` if the archive doesn't hold it and ``WRONG_CID`` if its bytes
        are others.
        """
        block = self.blocks.get(cid)
        if block is None:
            raise Rejected(Reason.MISSING_BLOCK, cid_text(cid[:CID_BYTES]))
        if cid[:4] not in CID_KINDS or hashlib.sha256(block).digest() != cid[4:]:
            raise Rejected(Reason.WRONG_CID, cid_text(cid[:CID_BYTES]))
        return block


def read_car(data: bytes) -> Car:
    """Splits a CAR v1 into its blocks; of several under one CID, the first counts.

    Only CIDs that AT Protocol uses are taken: version 1, dag-cbor or raw, SHA-256. Raises :class:`Rejected` with
    ``MALFORMED_CAR`` for anything else that isn't a whole archive with at least one root.
    """
    try:
        roots, position = _header(data)
        return Car(roots, _blocks(data, position))
    except IndexError:
        raise _malformed("ends within a length") from None


def _header(data: bytes) -> tuple[tuple[bytes, ...], int]:
    """The roots, and where the blocks begin."""
    length, start = _varint(data, 0)
    end = start + length
    if end > len(data):
        raise _malformed("ends within the header")
    header = data[start:end]
    count = header[7] - 0x80 if header.startswith(_ROOTS) else 0
    size = len(_LINK) + CID_BYTES
    if not 1 <= count <= _MAX_ROOTS or header[8 + count * size :] != _VERSION_1:
        raise _malformed("not a header of version 1 with roots")
    roots = []
    for at in range(8, 8 + count * size, size):
        cid = header[at + len(_LINK) : at + size]
        if not header.startswith(_LINK, at) or cid[:4] not in CID_KINDS:
            raise _malformed("a root of an unknown kind")
        roots.append(cid)
    return tuple(roots), end


def _blocks(data: bytes, position: int) -> dict[bytes, bytes]:
    """The blocks from ``position`` to the end."""
    blocks: dict[bytes, bytes] = {}
    size = len(data)
    while position < size:
        length, start = _varint(data, position)
        body, position = start + CID_BYTES, start + length
        if not body <= position <= size:
            raise _malformed(f"a block at byte {start} that is too short or not whole")
        cid = data[start:body]
        if cid[:4] not in CID_KINDS:
            raise _malformed(f"a CID of an unknown kind at byte {start}")
        if cid not in blocks:
            blocks[cid] = data[body:position]
    return blocks


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The unsigned LEB128 number at ``position`` and where it ends; IndexError if the data end before."""
    value = data[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in range(7, 7 * _MAX_VARINT, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0:
                break
            return value, position + 1
    raise _malformed(f"a length at byte {position} that is too long")


def _malformed(detail: str) -> Rejected:
    return Rejected(Reason.MALFORMED_CAR, detail)
