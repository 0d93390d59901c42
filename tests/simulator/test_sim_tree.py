"""The simulator's tree: the same whatever the way to it, and undoable from what a commit shows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.simulator import tree
from indexer.simulator.dagcbor import Link, cid_of, encode
from indexer.simulator.partial import UnshownError, load, undo
from indexer.simulator.tree import EMPTY, Node

KEYS = [f"com.example.{name}/{number}" for name in ("a", "ab", "b") for number in range(120)]

key = st.sampled_from(KEYS)
value = st.binary(min_size=1, max_size=2).map(cid_of)
contents = st.dictionaries(key, value, max_size=80)


def naive_layer(text: str) -> int:
    """Pairs of leading zero bits, counted one by one."""
    bits = "".join(f"{byte:08b}" for byte in sha256(text.encode()).digest())
    return (len(bits) - len(bits.lstrip("0"))) // 2


def naive_root(items: Sequence[tuple[str, bytes]], layer: int | None = None) -> bytes | None:
    """The CID of the tree over sorted items, built from scratch as the specification words it."""
    if layer is None:
        layer = max((naive_layer(text) for text, _ in items), default=0)
    elif not items:
        return None
    own = [at for at, (text, _) in enumerate(items) if naive_layer(text) == layer]
    bounds = [-1, *own, len(items)]
    below = [naive_root(items[start + 1 : end], layer - 1) if layer else None for start, end in pairwise(bounds)]
    links = [None if cid is None else Link(cid) for cid in below]
    entries, before = [], b""
    for at, right in zip(own, links[1:], strict=True):
        text = items[at][0].encode()
        shared = next(
            (n for n in range(min(len(text), len(before))) if text[n] != before[n]), min(len(text), len(before))
        )
        entries.append({"p": shared, "k": text[shared:], "v": Link(items[at][1]), "t": right})
        before = text
    return cid_of(encode({"l": links[0], "e": entries}))


def build(items: dict[str, bytes]) -> Node:
    """The tree after putting the items in their order."""
    root = EMPTY
    for text, cid in items.items():
        root = tree.put(root, text, cid)
    return root


@given(contents, st.lists(st.tuples(key, value | st.none()), max_size=60))
@settings(deadline=None)
def test_the_root_is_that_of_a_tree_built_from_scratch(
    start: dict[str, bytes], changes: list[tuple[str, bytes | None]]
) -> None:
    """However content came about, the root is a function of the content; no change disturbs an older tree."""
    root, now = build(start), dict(start)
    first = root
    for text, cid in changes:
        if cid is not None:
            root, now[text] = tree.put(root, text, cid), cid
        elif text in now:
            root = tree.delete(root, text)
            del now[text]
    assert root.cid == naive_root(sorted(now.items()))
    assert first.cid == naive_root(sorted(start.items()))
    assert all(tree.get(root, text) == now.get(text) for text in KEYS)


@given(contents, st.dictionaries(key, value | st.none(), min_size=1, max_size=20), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_commit_can_be_undone_from_the_nodes_that_cover_its_keys(
    start: dict[str, bytes], changes: dict[str, bytes | None], random: Random
) -> None:
    """Undoing the operations, in any order, needs nothing but the covering nodes (proposal 0006)."""
    before = build(start)
    after = before
    done = [(text, cid) for text, cid in changes.items() if (cid or text in start) and cid != start.get(text)]
    for text, cid in done:
        after = tree.put(after, text, cid) if cid else tree.delete(after, text)
    shown = {node.cid: node.block for text, _ in done for node in tree.covering(after, text)}
    shown[after.cid] = after.block
    random.shuffle(done)
    undone = undo(load(after.cid, shown), [(text, start.get(text)) for text, _ in done])
    assert undone.cid == before.cid


@given(contents, key)
def test_a_path_proves_what_a_key_holds_or_that_it_holds_nothing(start: dict[str, bytes], text: str) -> None:
    """The nodes of a path, and no others, answer for the key."""
    root = build(start)
    shown = {node.cid: node.block for node in tree.path(root, text)}
    assert tree.get(load(root.cid, shown), text) == start.get(text)


@given(contents, st.dictionaries(key, value, min_size=1, max_size=5))
def test_unhashed_nodes_are_those_the_old_tree_lacks(start: dict[str, bytes], changes: dict[str, bytes]) -> None:
    """What a commit newly made is found without comparing trees, and covers every new node."""
    before = build(start)
    old = {node.cid for node in tree.nodes(before)}
    after = before
    for text, cid in changes.items():
        after = tree.put(after, text, cid)
    fresh = {node.cid for node in list(tree.unhashed(after))}
    assert {node.cid for node in tree.nodes(after)} - old <= fresh


def test_what_is_not_shown_cannot_be_used() -> None:
    """Looking into a missing node is an error of its own, never a wrong answer."""
    root = build({text: cid_of(text.encode()) for text in KEYS})
    with pytest.raises(UnshownError):
        load(root.cid, {})
    with pytest.raises(UnshownError):
        tree.get(load(root.cid, {root.cid: root.block}), next(text for text in KEYS if tree.layer_of(text) == 0))
