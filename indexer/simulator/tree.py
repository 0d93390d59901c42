"""The Merkle search tree of a simulated repository, persistent and incremental.

A key's layer is the number of leading zero bits of its SHA-256, halved. Every change returns a new tree that shares
all untouched nodes with the old one, so old trees stay usable, and only touched nodes are hashed again.
Specification: AT Protocol repository, "MST structure"; what a commit has to show: proposal 0006.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import sha256

from indexer.simulator.dagcbor import cid_of, head

_LINK = b"\xd8\x2a\x58\x25\x00"  # tag 42, a byte string of 37 bytes, the multibase prefix
_NULL = b"\xf6"


def layer_of(key: str) -> int:
    """The layer a key lives on: leading zero bits of SHA-256 of the key, halved and rounded down."""
    number = int.from_bytes(sha256(key.encode()).digest(), "big")
    return (256 - number.bit_length()) // 2


class Node:
    """One node: sorted keys with their record CIDs, and a subtree (or None) before, between and after them.

    Immutable. A subtree is always exactly one layer below; nodes without keys bridge the gaps.
    """

    __slots__ = ("_block", "_cid", "children", "keys", "layer", "values")

    def __init__(
        self, layer: int, keys: tuple[str, ...], values: tuple[bytes, ...], children: tuple[Node | None, ...]
    ) -> None:
        self.layer = layer
        self.keys = keys
        self.values = values
        self.children = children
        self._block: bytes | None = None
        self._cid: bytes | None = None

    @property
    def hashed(self) -> bool:
        """Whether the node has been serialised before, thus whether an earlier tree had it."""
        return self._cid is not None

    @property
    def cid(self) -> bytes:
        """The node's binary CID."""
        if self._cid is None:
            self._cid = cid_of(self.block)
        return self._cid

    @property
    def block(self) -> bytes:
        """The node's DAG-CBOR: ``{e: [{k, p, t, v}], l}`` with keys prefix-compressed."""
        if self._block is None:
            self._block = self._serialise()
        return self._block

    def _serialise(self) -> bytes:
        out = [b"\xa2\x61e", head(4, len(self.keys))]
        previous = b""
        for text, value, child in zip(self.keys, self.values, self.children[1:], strict=True):
            key = text.encode()
            shared = _shared(previous, key)
            rest = key[shared:]
            out += (b"\xa4\x61k", head(2, len(rest)), rest, b"\x61p", head(0, shared), b"\x61t", _link(child))
            out += (b"\x61v", _LINK, value)
            previous = key
        out += (b"\x61l", _link(self.children[0]))
        return b"".join(out)


def _link(node: Node | None) -> bytes:
    return _NULL if node is None else _LINK + node.cid


def _shared(left: bytes, right: bytes) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


EMPTY = Node(0, (), (), (None,))


def get(root: Node, key: str) -> bytes | None:
    """The record CID at ``key``, or None."""
    node: Node | None = root
    while node is not None:
        at = bisect_left(node.keys, key)
        if at < len(node.keys) and node.keys[at] == key:
            return node.values[at]
        node = node.children[at]
    return None


def put(root: Node, key: str, value: bytes) -> Node:
    """The root of the tree in which ``key`` holds ``value``."""
    layer = layer_of(key)
    if root is EMPTY or (not root.keys and root.children[0] is None):
        return Node(layer, (key,), (value,), (None, None))
    if layer <= root.layer:
        return _put(root, key, value, layer)
    left, right = _split(root, key)
    return Node(layer, (key,), (value,), (_raise(left, layer - 1), _raise(right, layer - 1)))


def _put(node: Node, key: str, value: bytes, layer: int) -> Node:
    at = bisect_left(node.keys, key)
    found = at < len(node.keys) and node.keys[at] == key
    if found:
        return Node(node.layer, node.keys, (*node.values[:at], value, *node.values[at + 1 :]), node.children)
    child = node.children[at]
    if layer == node.layer:
        return Node(
            layer,
            (*node.keys[:at], key, *node.keys[at:]),
            (*node.values[:at], value, *node.values[at:]),
            (*node.children[:at], *_split(child, key), *node.children[at + 1 :]),
        )
    if child is None:
        below = _raise(Node(layer, (key,), (value,), (None, None)), node.layer - 1)
    else:
        below = _put(child, key, value, layer)
    return Node(node.layer, node.keys, node.values, (*node.children[:at], below, *node.children[at + 1 :]))


def _raise(node: Node | None, layer: int) -> Node | None:
    """Bridge a subtree up to ``layer`` with nodes that hold nothing but it."""
    while node is not None and node.layer < layer:
        node = Node(node.layer + 1, (), (), (node,))
    return node


def _split(node: Node | None, key: str) -> tuple[Node | None, Node | None]:
    """What lies before and after ``key``, which the subtree doesn't hold."""
    if node is None:
        return None, None
    at = bisect_left(node.keys, key)
    before, after = _split(node.children[at], key)
    return (
        _unless_empty(node.layer, node.keys[:at], node.values[:at], (*node.children[:at], before)),
        _unless_empty(node.layer, node.keys[at:], node.values[at:], (after, *node.children[at + 1 :])),
    )


def _unless_empty(
    layer: int, keys: tuple[str, ...], values: tuple[bytes, ...], children: tuple[Node | None, ...]
) -> Node | None:
    return None if not keys and children[0] is None else Node(layer, keys, values, children)


def delete(root: Node, key: str) -> Node:
    """The root of the tree without ``key``; raises KeyError if it isn't there."""
    node = _delete(root, key)
    while node is not None and not node.keys:
        node = node.children[0]
    return EMPTY if node is None else node


def _delete(node: Node | None, key: str) -> Node | None:
    if node is None:
        raise KeyError(key)
    at = bisect_left(node.keys, key)
    if at == len(node.keys) or node.keys[at] != key:
        child = _delete(node.children[at], key)
        return _unless_empty(node.layer, node.keys, node.values, (*node.children[:at], child, *node.children[at + 1 :]))
    return _unless_empty(
        node.layer,
        (*node.keys[:at], *node.keys[at + 1 :]),
        (*node.values[:at], *node.values[at + 1 :]),
        (*node.children[:at], _merge(node.children[at], node.children[at + 1]), *node.children[at + 2 :]),
    )


def _merge(left: Node | None, right: Node | None) -> Node | None:
    if left is None or right is None:
        return left or right
    return Node(
        left.layer,
        left.keys + right.keys,
        left.values + right.values,
        (*left.children[:-1], _merge(left.children[-1], right.children[0]), *right.children[1:]),
    )


def nodes(root: Node) -> Iterator[Node]:
    """Every node, each before its subtrees, from left to right."""
    yield root
    for child in root.children:
        if child is not None:
            yield from nodes(child)


def unhashed(root: Node) -> Iterator[Node]:
    """The nodes never serialised so far, which are those the last changes made."""
    if not root.hashed:
        yield root
        for child in root.children:
            if child is not None:
                yield from unhashed(child)


def path(root: Node, key: str) -> Iterator[Node]:
    """The nodes that prove what ``key`` holds, or that it holds nothing."""
    node: Node | None = root
    while node is not None:
        yield node
        at = bisect_left(node.keys, key)
        if at < len(node.keys) and node.keys[at] == key:
            return
        node = node.children[at]


def covering(root: Node, key: str) -> Iterator[Node]:
    """The nodes needed to prove ``key`` and to undo the operation that made or removed it.

    To undo a creation, the subtrees on both sides of the key are merged along their facing edges; to undo a
    removal, the nodes on the way to where the key would be are split.
    """
    last = root
    for last in path(root, key):
        yield last
    at = bisect_left(last.keys, key)
    if at < len(last.keys) and last.keys[at] == key:
        yield from _edge(last.children[at], -1)
        yield from _edge(last.children[at + 1], 0)


def _edge(node: Node | None, side: int) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.children[side]
