"""CAR version 1 for the simulator: writing, and reading back what was written.

A *block* is a pair (binary CID, bytes). Specification: Content Addressable aRchives, version 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from indexer.simulator.dagcbor import Link, decode, encode

Block: TypeAlias = "tuple[bytes, bytes]"

CID_LENGTH = 36


def varint(number: int) -> bytes:
    """An unsigned LEB128 number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_car(roots: Iterable[bytes], blocks: Iterable[Block]) -> bytes:
    """A CAR with these roots and blocks, in this order; of blocks with one CID only the first is written."""
    header = encode({"version": 1, "roots": [Link(root) for root in roots]})
    out = [varint(len(header)), header]
    seen = set()
    for cid, block in blocks:
        if cid not in seen:
            seen.add(cid)
            out += (varint(len(cid) + len(block)), cid, block)
    return b"".join(out)


def read_car(car: bytes) -> tuple[list[bytes], list[Block]]:
    """The roots and blocks of a CAR of our own writing."""
    length, at = _read_varint(car, 0)
    header, _ = decode(car, at)
    at += length
    blocks = []
    while at < len(car):
        length, at = _read_varint(car, at)
        blocks.append((car[at : at + CID_LENGTH], car[at + CID_LENGTH : at + length]))
        at += length
    return [link.cid for link in header["roots"]], blocks


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1
