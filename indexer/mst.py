"""Merkle Search Trees: how a repository ties its records to one root hash.

Specification: AT Protocol "Repository", MST structure. A node is DAG-CBOR ``{l: link|null, e: [{p, k, v, t}]}``; keys
are ``collection/rkey``; a key's layer is the number of leading zero *pairs* of bits of its SHA-256; a node holds keys
of one layer, its children those of the next lower one, so a node without keys may bridge a gap, but never at the top
and never without a child. Same content, same tree, same root.

Nodes are hostile. A node is accepted only if it is the canonical encoding of what it says, its keys ascend within the
range its parent leaves it, and its layer is one below its parent's. As layers fall at each step, no cycle and no
depth beyond the layer of the root is possible, and a walk takes time proportional to the nodes it reads.

Keys are ``bytes``, CIDs binary (36 bytes: CIDv1, DAG-CBOR, SHA-256). ``blocks`` is a function from CID to block; it
answers for the hash and raises ``Rejected(MISSING_BLOCK)`` for a block it doesn't have: see ``Car.block``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from operator import lt
from typing import Final, TypeAlias

from libipld import encode_dag_cbor

from indexer.cbor import cid_of
from indexer.errors import Rejected
from indexer.model import Reason

Blocks: TypeAlias = Callable[[bytes], bytes]
_Subtree: TypeAlias = "_Node | bytes | None"  # at hand, known by its CID, or empty
_Step: TypeAlias = "tuple[_Node, int, bytes, bytes]"  # a node, the position of a key in it, the node's range

_CID_HEAD: Final = b"\x01\x71\x12\x20"
_LINK_HEAD: Final = b"\xd8\x2a\x58\x25\x00" + _CID_HEAD
_TREE_HEAD: Final = b"\x61t" + _LINK_HEAD
_VALUE_HEAD: Final = b"\x61v" + _LINK_HEAD
_LONGEST_KEY: Final = 1024
_KEY: Final = re.compile(rb"[A-Za-z0-9_~.:-]+/[A-Za-z0-9_~.:-]+")
_BELOW, _ABOVE = b"", b"\xff"  # bounds outside every key

# A node in its canonical encoding. Numbers and lengths are looked up, so only their shortest forms are found.
_NUMBERS: Final = [encode_dag_cbor(number) for number in range(_LONGEST_KEY + 1)]
_MORE_COUNT: Final = {b"\x98": 1, b"\x99": 2, b"\x9a": 4}  # bytes in a list's head beyond the first
_LENGTHS: Final = {bytes((head[0] | 0x40,)) + head[1:]: length for length, head in enumerate(_NUMBERS)}
_PREFIXES: Final = {head: length for length, head in enumerate(_NUMBERS)}
_LINK: Final = rb"\xd8\x2a\x58\x25\x00(\x01\x71\x12\x20.{32})"
_ENTRY: Final = re.compile(
    rb"\xa4\x61k(\x58.|\x59..|[\x40-\x57])([A-Za-z0-9_~.:/-]+)"
    rb"\x61p(\x18.|\x19..|[\x00-\x17])\x61t(?:\xf6|%b)\x61v%b" % (_LINK, _LINK),
    re.DOTALL,
)
_LEFT: Final = re.compile(rb"\x61l(?:\xf6|%b)" % _LINK, re.DOTALL)

EMPTY_ROOT: Final = cid_of(b"\xa2\x61e\x80\x61l\xf6")  # CID of the tree without keys


def key_depth(key: bytes) -> int:
    """Layer of ``key`` in the tree, counted from the bottom: 0 for three keys out of four."""
    return (256 - int.from_bytes(sha256(key).digest(), "big").bit_length()) // 2


def is_key(key: bytes) -> bool:
    """Whether ``key`` can stand in a tree: ``collection/rkey`` in the allowed ASCII letters, at most 1,024 bytes."""
    return len(key) <= _LONGEST_KEY and _KEY.fullmatch(key) is not None


@lru_cache(1 << 14)  # an account's commits come in runs, and show the same keys again and again
def _layer_of(key: bytes) -> int:
    """Layer of ``key``; -1, below all layers, if it can't stand in a tree. No node spells one over 2,048 bytes."""
    return key_depth(key) if is_key(key) else -1


def _malformed(what: str) -> Rejected:
    return Rejected(Reason.MALFORMED_CAR, f"Merkle Search Tree: {what}")


# Nodes.


@dataclass(slots=True)
class _Node:
    """Keys with their values, and around them one subtree more than keys; ``cid`` is None once anything changed."""

    layer: int
    keys: list[bytes]
    values: list[bytes]
    children: list[_Subtree]
    cid: bytes | None = None


def encode_link(cid: bytes | None) -> bytes:
    """DAG-CBOR of a link to ``cid``, a CID of the one form in use, or of null."""
    return b"\xf6" if cid is None else _LINK_HEAD + cid[4:]


def _shared(previous: bytes, key: bytes) -> int:
    """Length of the common prefix of two keys."""
    length = len(key) if len(key) < len(previous) else len(previous)
    difference = int.from_bytes(previous[:length], "big") ^ int.from_bytes(key[:length], "big")
    return length - (difference.bit_length() + 7 >> 3)


def _start(count: int) -> bytes:
    """What a node of ``count`` keys begins with."""
    head = encode_dag_cbor(count)  # a list's head is that of a number, of another major type
    return b"\xa2\x61e" + bytes((head[0] | 0x80,)) + head[1:]


def encode_node(keys: Sequence[bytes], values: Sequence[bytes], links: Sequence[bytes | None]) -> bytes:
    """Canonical block of a node: ``links`` are the CIDs of the subtrees around ``keys``, one more than these."""
    parts = [_start(len(keys))]
    previous = b""
    for key, value, link in zip(keys, values, links[1:], strict=True):
        shared = _shared(previous, key)
        parts += (b"\xa4\x61k", encode_dag_cbor(key[shared:]), b"\x61p", _NUMBERS[shared])
        parts += (b"\x61t\xf6" if link is None else _TREE_HEAD + link[4:], _VALUE_HEAD, value[4:])
        previous = key
    parts += (b"\x61l", encode_link(links[0]))
    return b"".join(parts)


def decode_node(block: bytes) -> tuple[list[bytes], list[bytes], list[bytes | None]]:
    """Keys, values and links of a node, as :func:`encode_node` takes them; raises Rejected unless it is canonical.

    A decoder of its own because libipld takes links and byte strings for one another, and numbers in any form.
    """
    keys: list[bytes] = []
    values: list[bytes] = []
    links: list[bytes | None] = []
    key = b""
    start = position = 4 + _MORE_COUNT.get(block[3:4], 0)
    while entry := _ENTRY.match(block, position):
        length, suffix, prefix, link, value = entry.groups()
        shared = _PREFIXES.get(prefix)
        # As long as can be: what follows the prefix differs, or there is nothing left that could be the same.
        if shared is None or shared > len(key) or key[shared : shared + 1] == suffix[:1]:
            raise _malformed("a key's prefix is of the wrong length")
        if _LENGTHS.get(length) != len(suffix):
            raise _malformed("a key of the wrong length")
        key = key[:shared] + suffix
        keys.append(key)
        values.append(value)
        links.append(link)
        position = entry.end()
    left = _LEFT.fullmatch(block, position)
    if left is None or block[:start] != _start(len(keys)):
        raise _malformed("a block that is not a node")
    return keys, values, [left[1], *links]


def _load(cid: bytes, blocks: Blocks, layer: int | None, low: bytes, high: bytes) -> _Node:
    """Node ``cid`` with keys between the bounds; ``layer`` is None for a root, which says itself which it is."""
    keys, values, links = decode_node(blocks(cid))
    if keys:
        layer = _checked_layer(keys, layer, low, high)
    elif layer is not None and links[0] is None:
        raise _malformed("an empty node below another")
    if not layer and any(links):
        raise _malformed("a child below the bottom layer, or below a root without keys")
    return _Node(layer or 0, keys, values, [*links], cid)


def _checked_layer(keys: list[bytes], layer: int | None, low: bytes, high: bytes) -> int:
    """The layer of ``keys``, each of which must be a key, above the one before it, and of this layer."""
    layer = _layer_of(keys[0]) if layer is None else layer
    if not (low < keys[0] and keys[-1] < high and all(map(lt, keys, keys[1:]))):
        raise _malformed("keys that do not ascend, or not within the range of their node")
    if layer < 0 or any(_layer_of(key) != layer for key in keys):
        raise _malformed("a key that is not a repository path, or on the wrong layer")
    return layer


# Reading.


def find(root: bytes, key: bytes, blocks: Blocks) -> bytes | None:
    """CID of the record ``key``, or None if the tree proves that there is none.

    Reads the nodes on the way to the key only. Raises Rejected: MISSING_BLOCK if the proof needs a node that isn't
    there, else the reason the node is wrong.
    """
    return PartialTree.load(root, blocks).get(key)


def _bounds(node: _Node, at: int, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Range of the keys of child ``at``, given the node's own."""
    return node.keys[at - 1] if at else low, node.keys[at] if at < len(node.keys) else high


def walk_prefix(root: bytes, prefixes: Sequence[bytes], blocks: Blocks) -> Iterator[tuple[bytes, bytes]]:
    """Every key that starts with one of ``prefixes``, in order, with its record's CID.

    Reads only nodes whose range can hold such keys. Complete, or raises Rejected: then what came before is right but
    not all.
    """
    starts = tuple(prefixes)
    ranges = [(prefix, prefix + _ABOVE) for prefix in starts]
    yield from _walk(_load(root, blocks, None, _BELOW, _ABOVE), starts, ranges, blocks, _BELOW, _ABOVE)


def _walk(
    node: _Node, starts: tuple[bytes, ...], ranges: list[tuple[bytes, bytes]], blocks: Blocks, low: bytes, high: bytes
) -> Iterator[tuple[bytes, bytes]]:
    for at, child in enumerate(node.children):
        below, above = _bounds(node, at, low, high)
        if isinstance(child, bytes) and any(below < end and start < above for start, end in ranges):
            subtree = _load(child, blocks, node.layer - 1, below, above)
            yield from _walk(subtree, starts, ranges, blocks, below, above)
        if at < len(node.keys) and node.keys[at].startswith(starts):
            yield node.keys[at], node.values[at]


# Changing.


class PartialTree:
    """A tree that can be changed although most of its nodes aren't here.

    Nodes are read as they are needed; untouched subtrees stay a CID. Undoing the operations of a commit must lead to
    the root before it (AT Protocol proposal 0006, "operation inversion"), for which a host sends the nodes beside
    each changed key. Methods raise Rejected as :func:`find` does; after that the tree is of no further use.
    """

    __slots__ = ("_blocks", "_root")

    def __init__(self, root: _Node | None, blocks: Blocks) -> None:
        self._root = root
        self._blocks = blocks

    @classmethod
    def load(cls, root: bytes, blocks: Blocks) -> PartialTree:
        """Tree whose root is ``root``, read at once."""
        return cls(_unless_empty(_load(root, blocks, None, _BELOW, _ABOVE)), blocks)

    def root(self) -> bytes:
        """CID of the tree as it is now."""
        return EMPTY_ROOT if self._root is None else _cid(self._root)

    def get(self, key: bytes) -> bytes | None:
        """CID of the record ``key``, or None if there is none: as :func:`find`."""
        path = self._path(key, _layer_of(key))
        return path[-1][0].values[path[-1][1]] if _arrives(path, key) else None

    def insert(self, key: bytes, value: bytes) -> bool:
        """Adds ``key`` with its record's CID; False, and no change, if the key is there already.

        Raises Rejected also for what can't stand in a tree: BAD_PATH for the key, WRONG_CID for the value.
        """
        if not is_key(key):
            raise Rejected(Reason.BAD_PATH, "a key that is not a repository path")
        leaf = _Node(_layer_of(key), [key], [_cid_in_use(value)], [None, None])
        if self._root is None or self._root.layer < leaf.layer:
            self._root = self._crown(leaf)
            return True
        path = self._path(key, leaf.layer)
        node, at, low, high = path[-1]
        if node.layer > leaf.layer:
            node.children[at] = _lift(leaf, node.layer - 1)
        elif node.keys[at : at + 1] == leaf.keys:
            return False
        else:
            halves = self._split(node.children[at], key, node.layer - 1, *_bounds(node, at, low, high))
            node.children[at : at + 1] = halves
            node.keys.insert(at, key)
            node.values.insert(at, value)
        _touch(path)
        return True

    def delete(self, key: bytes) -> bytes | None:
        """Takes ``key`` out and returns the CID it had; None, and no change, if it isn't there."""
        path = self._path(key, _layer_of(key))
        if not _arrives(path, key):
            return None
        node, at, low, high = path[-1]
        below, above = _bounds(node, at, low, high)[0], _bounds(node, at + 1, low, high)[1]
        left, right = node.children[at : at + 2]
        node.children[at : at + 2] = [self._merge(left, right, key, node.layer - 1, below, above)]
        node.keys.pop(at)
        value = node.values.pop(at)
        _touch(path)
        _prune(path)
        self._trim()
        return value

    def replace(self, key: bytes, value: bytes) -> bytes | None:
        """Gives ``key`` another CID and returns the one it had; None, and no change, if it isn't there.

        Raises Rejected also for a value that can't stand in a tree (WRONG_CID).
        """
        path = self._path(key, _layer_of(key))
        if not _arrives(path, key):
            return None
        node, at, _, _ = path[-1]
        previous, node.values[at] = node.values[at], _cid_in_use(value)
        _touch(path)
        return previous

    def _open(self, subtree: _Node | bytes, layer: int, low: bytes, high: bytes) -> _Node:
        """The node at hand for a subtree, read if need be."""
        return _load(subtree, self._blocks, layer, low, high) if isinstance(subtree, bytes) else subtree

    def _path(self, key: bytes, layer: int) -> list[_Step]:
        """Steps from the root towards ``key``, down to its layer or to where there is no further node."""
        path: list[_Step] = []
        node, low, high = self._root, _BELOW, _ABOVE
        while node is not None:
            at = bisect_left(node.keys, key)
            path.append((node, at, low, high))
            low, high = _bounds(node, at, low, high)
            subtree = node.children[at]
            if node.layer <= layer or subtree is None:
                break
            node.children[at] = node = self._open(subtree, node.layer - 1, low, high)
        return path

    def _crown(self, leaf: _Node) -> _Node:
        """Puts ``leaf``, of a layer above the root's, on top of the tree, which falls into its two sides."""
        if self._root is not None:
            halves = self._split(self._root, leaf.keys[0], self._root.layer, _BELOW, _ABOVE)
            leaf.children = [_lift(half, leaf.layer - 1) for half in halves]
        return leaf

    def _split(
        self, subtree: _Subtree, key: bytes, layer: int, low: bytes, high: bytes
    ) -> tuple[_Node | None, _Node | None]:
        """What of a subtree stands before ``key``, and what after it."""
        if subtree is None:
            return None, None
        node = self._open(subtree, layer, low, high)
        at = bisect_left(node.keys, key)
        left, right = self._split(node.children[at], key, layer - 1, *_bounds(node, at, low, high))
        return (
            _unless_empty(_Node(layer, node.keys[:at], node.values[:at], [*node.children[:at], left])),
            _unless_empty(_Node(layer, node.keys[at:], node.values[at:], [right, *node.children[at + 1 :]])),
        )

    def _merge(self, left: _Subtree, right: _Subtree, key: bytes, layer: int, low: bytes, high: bytes) -> _Subtree:
        """One subtree out of the two that ``key`` held apart."""
        if left is None or right is None:
            return left if right is None else right
        before, after = self._open(left, layer, low, key), self._open(right, layer, key, high)
        low, high = before.keys[-1] if before.keys else low, after.keys[0] if after.keys else high
        seam = self._merge(before.children[-1], after.children[0], key, layer - 1, low, high)
        children = [*before.children[:-1], seam, *after.children[1:]]
        return _Node(layer, before.keys + after.keys, before.values + after.values, children)

    def _trim(self) -> None:
        """Takes away nodes without keys at the top, which the tree's one form doesn't have."""
        while self._root is not None and not self._root.keys:
            only, layer = self._root.children[0], self._root.layer - 1
            self._root = None if only is None else self._open(only, layer, _BELOW, _ABOVE)


def _cid(node: _Node) -> bytes:
    """CID of a node, computed if anything below it changed."""
    if node.cid is None:
        links = [_cid(child) if isinstance(child, _Node) else child for child in node.children]
        node.cid = cid_of(encode_node(node.keys, node.values, links))
    return node.cid


def _cid_in_use(value: bytes) -> bytes:
    """``value`` if it is a CID as records have them; otherwise it would be encoded as another than it is."""
    if len(value) != 36 or not value.startswith(_CID_HEAD):
        raise Rejected(Reason.WRONG_CID, "a CID that is not of DAG-CBOR under SHA-256")
    return value


def _arrives(path: list[_Step], key: bytes) -> bool:
    """Whether a path ends at ``key`` itself."""
    node, at = path[-1][:2] if path else (None, 0)
    return node is not None and node.keys[at : at + 1] == [key]


def _touch(path: list[_Step]) -> None:
    for node, *_ in path:
        node.cid = None


def _prune(path: list[_Step]) -> None:
    """Takes away the nodes at the end of a path that hold nothing any more."""
    for (parent, at, *_), (node, *_) in zip(path[-2::-1], path[:0:-1], strict=True):
        if _unless_empty(node) is not None:
            return
        parent.children[at] = None


def _unless_empty(node: _Node) -> _Node | None:
    return node if node.keys or node.children[0] is not None else None


def _lift(node: _Node | None, layer: int) -> _Node | None:
    """``node`` below as many nodes without keys as bring it up to ``layer``."""
    while node is not None and node.layer < layer:
        node = _Node(node.layer + 1, [], [], [node])
    return node
