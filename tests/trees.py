"""Merkle Search Trees for tests, built from scratch out of the specification, and repositories signed over them.

Shares no code with what it judges but the values of :mod:`indexer.model`: cbor2 encodes, the tree is built level by
level from all of its keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import cbor2
import coincurve
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from indexer.errors import Rejected
from indexer.model import Commit, Operation, Reason

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
REV, SINCE = "3n3k7rbonkz2q", "3n3k7r3nvhp2q"


def cid(block: bytes) -> bytes:
    """Binary CID: version 1, DAG-CBOR, SHA-256."""
    return b"\x01\x71\x12\x20" + hashlib.sha256(block).digest()


def record(number: int) -> bytes:
    """Block of a record unlike those of other numbers."""
    return encode({"$type": "com.example.record", "number": number})


def value(number: int) -> bytes:
    """CID of that record."""
    return cid(record(number))


def encode(data: Any) -> bytes:
    """DAG-CBOR by cbor2."""
    return cbor2.dumps(data, canonical=True)


def link(target: bytes | None) -> Any:
    """A CID as cbor2 encodes it."""
    return None if target is None else cbor2.CBORTag(42, b"\0" + target)


def depth(key: bytes) -> int:
    """Pairs of leading zero bits in the key's SHA-256."""
    bits = "".join(f"{byte:08b}" for byte in hashlib.sha256(key).digest())
    return (len(bits) - len(bits.lstrip("0"))) // 2


def node(entries: Iterable[tuple[bytes, bytes, bytes | None]], left: bytes | None = None) -> bytes:
    """Block of a node: entries are key, value and the subtree after it."""
    encoded, previous = [], b""
    for key, target, after in entries:
        pairs = enumerate(zip(previous, key, strict=False))
        shared = next((at for at, (old, new) in pairs if old != new), len(previous))
        encoded.append({"p": shared, "k": key[shared:], "v": link(target), "t": link(after)})
        previous = key
    return encode({"l": link(left), "e": encoded})


@dataclass
class Tree:
    """All blocks of a tree, and for each the range of the keys that it can hold."""

    root: bytes = b""
    blocks: dict[bytes, bytes] = field(default_factory=dict)
    ranges: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)

    def put(self, block: bytes, low: bytes, high: bytes) -> bytes:
        """Takes a block in and gives its CID."""
        self.blocks[cid(block)] = block
        self.ranges[cid(block)] = (low, high)
        return cid(block)

    def way_to(self, key: bytes) -> set[bytes]:
        """CIDs of the nodes on the way to a key, be it there or not."""
        return {target for target, (low, high) in self.ranges.items() if low < key < high}

    def get(self, target: bytes) -> bytes:
        """The block, or Rejected(MISSING_BLOCK)."""
        return blocks_of(self.blocks)(target)


def build(content: dict[bytes, bytes]) -> Tree:
    """The tree of this content (key to CID)."""
    tree = Tree()
    if content:
        tree.root = _build(tree, sorted(content.items()), max(map(depth, content)), b"", b"\xff") or b""
    else:
        tree.root = tree.put(node([]), b"", b"\xff")
    return tree


def _build(tree: Tree, items: list[tuple[bytes, bytes]], layer: int, low: bytes, high: bytes) -> bytes | None:
    if not items:
        return None
    own = [at for at, (key, _) in enumerate(items) if depth(key) == layer]
    ends = [low, *[items[at][0] for at in own], high]
    starts = [-1, *own, len(items)]
    subtrees = [
        _build(tree, items[starts[at] + 1 : starts[at + 1]], layer - 1, ends[at], ends[at + 1])
        for at in range(len(own) + 1)
    ]
    entries = [(*items[at], after) for at, after in zip(own, subtrees[1:], strict=True)]
    return tree.put(node(entries, subtrees[0]), low, high)


def blocks_of(blocks: dict[bytes, bytes]) -> Callable[[bytes], bytes]:
    """``blocks`` as a function, as ``Car.block`` but without hashing."""

    def get(target: bytes) -> bytes:
        if target not in blocks:
            raise Rejected(Reason.MISSING_BLOCK, "not among the blocks")
        return blocks[target]

    return get


def proof(tree: Tree, content: dict[bytes, bytes], changed: Iterable[bytes]) -> dict[bytes, bytes]:
    """Nodes that a host sends to prove a change: the ways to each changed key and to its neighbours."""
    needed = {tree.root}
    for key in changed:
        before = max((other for other in content if other < key), default=key)
        after = min((other for other in content if other > key), default=key)
        needed |= tree.way_to(before) | tree.way_to(key) | tree.way_to(after)
    return {target: tree.blocks[target] for target in needed}


# Signed repositories.

PRIVATE_KEY = coincurve.PrivateKey(b"\1" * 32)


def sign(message: bytes) -> bytes:
    """Signature of the test account's key, r and s (low)."""
    return b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(PRIVATE_KEY.sign(message)))


def commit_block(root: bytes, **changes: Any) -> bytes:
    """Signed commit object over the tree ``root``; ``changes`` replace fields before it is signed, ... omits one."""
    fields = {"did": DID, "version": 3, "rev": REV, "prev": None, "data": link(root), **changes}
    fields = {name: content for name, content in fields.items() if content is not ...}
    return encode({**fields, "sig": sign(encode(fields))})


def varint(number: int) -> bytes:
    """Unsigned LEB128."""
    return bytes((number,)) if number < 128 else bytes((number % 128 + 128,)) + varint(number // 128)


def car(root: bytes, blocks: Iterable[bytes]) -> bytes:
    """CAR of these blocks."""
    header = encode({"version": 1, "roots": [link(root)]})
    sections = [header, *[cid(block) + block for block in blocks]]
    return b"".join(varint(len(section)) + section for section in sections)


def commit_event(
    before: dict[bytes, bytes], after: dict[bytes, bytes], operations: Iterable[Operation], **changes: Any
) -> Commit:
    """A ``#commit`` that leads from one content to another; ``changes`` replace fields of the commit object.

    Records are those of :func:`record` for numbers below 100.
    """
    operations = tuple(operations)
    tree = build(after)
    block = commit_block(tree.root, **changes)
    nodes = proof(tree, after, [operation.path.encode() for operation in operations])
    records = {value(number): record(number) for number in range(100)}
    written = [records[operation.cid] for operation in operations if operation.cid in records]
    return Commit(
        seq=1,
        time="2026-11-30T17:06:26.211Z",
        did=DID,
        rev=REV,
        since=SINCE,
        commit=cid(block),
        prev_data=build(before).root,
        operations=operations,
        blocks=car(cid(block), [block, *nodes.values(), *written]),
        too_big=False,
    )
