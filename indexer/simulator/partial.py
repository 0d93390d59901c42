"""Trees of which only some nodes are at hand, as a commit's CAR shows them: for proving and for undoing.

The reader's side of :mod:`indexer.simulator.tree`, which does all changes; specification: proposal 0006.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from indexer.simulator import tree
from indexer.simulator.dagcbor import Value, decode
from indexer.simulator.tree import Node


class UnshownError(Exception):
    """A node is needed that isn't at hand."""


class Unshown(Node):
    """A node of which only CID and layer are known: whoever looks inside gets :class:`UnshownError`."""

    __slots__ = ()

    def __init__(self, cid: bytes, layer: int) -> None:
        self.layer = layer
        self._cid = cid

    def __getattr__(self, name: str) -> object:
        raise UnshownError(name)


def load(cid: bytes, blocks: Mapping[bytes, bytes]) -> Node:
    """The tree under a root, out of blocks by CID, with holes where a node is missing.

    Raises UnshownError if the root itself is.
    """
    if cid not in blocks:
        raise UnshownError("root")
    keys = _keys(decode(blocks[cid])[0])
    return _load(cid, blocks, tree.layer_of(keys[0]) if keys else 0)


def _load(cid: bytes, blocks: Mapping[bytes, bytes], layer: int) -> Node:
    if cid not in blocks:
        return Unshown(cid, layer)
    node, _ = decode(blocks[cid])
    links = [node["l"], *(entry["t"] for entry in node["e"])]
    children = tuple(None if link is None else _load(link.cid, blocks, layer - 1) for link in links)
    return Node(layer, _keys(node), tuple(entry["v"].cid for entry in node["e"]), children)


def _keys(node: dict[str, Value]) -> tuple[str, ...]:
    keys: list[str] = []
    for entry in node["e"]:
        keys.append((keys[-1] if keys else "")[: entry["p"]] + entry["k"].decode())
    return tuple(keys)


def undo(root: Node, operations: Iterable[tuple[str, bytes | None]]) -> Node:
    """The tree before operations, each a key and what it held before (None: nothing). In any order.

    Raises UnshownError where a node is missing, KeyError where a key isn't there that should be.
    """
    for key, before in operations:
        root = tree.delete(root, key) if before is None else tree.put(root, key, before)
    return root
