"""Merkle Search Trees from people who wish us ill: refused with a reason, in little time, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indexer.errors import Rejected
from indexer.model import Reason
from indexer.mst import PartialTree, decode_node, encode_node, find, walk_prefix
from tests.trees import blocks_of, build, cid, depth, encode, link, node, value

T = TypeVar("T")
LEAF = value(1)
KEYS = [b"com.example.record/%05d" % number for number in range(20_000)]
BY_LAYER = [[key for key in KEYS if depth(key) == layer] for layer in range(5)]
LOW, MIDDLE, HIGH = BY_LAYER[0][0], BY_LAYER[1][5], BY_LAYER[0][-1]  # the middle one on layer 1, the others on 0
ABOVE = BY_LAYER[3][1]


def refused(root: bytes, blocks: Callable[[bytes], bytes]) -> None:
    """The tree is refused as malformed by whatever reads all of it."""
    with pytest.raises(Rejected) as caught:
        [*walk_prefix(root, [b""], blocks)]
    assert caught.value.reason is Reason.MALFORMED_CAR


def entry(**changes: Any) -> dict[str, Any]:
    """An entry of a node, with some fields as they shouldn't be; ... leaves one out."""
    fields = {"p": 0, "k": LOW, "v": link(LEAF), "t": None, **changes}
    return {name: content for name, content in fields.items() if content is not ...}


def replaced(old: bytes, new: bytes) -> bytes:
    """A right node with one piece of its encoding replaced by another."""
    block = node([(LOW, LEAF, None), (HIGH, LEAF, None)])
    assert old in block
    return block.replace(old, new, 1)


SHARED = len(b"com.example.record/")
NODES = {
    "nothing": b"",
    "not CBOR": b"\xff\xff\xff\xff",
    "a list": encode([]),
    "no entries": encode({"l": None}),
    "no left": encode({"e": []}),
    "a field too many": encode({"e": [], "l": None, "x": 1}),
    "entries as a map": encode({"e": {}, "l": None}),
    "an entry as a list": encode({"e": [[]], "l": None}),
    "left as text": encode({"e": [], "l": "x"}),
    "left as bytes": encode({"e": [], "l": b"\0" + LEAF}),
    "an entry's field too many": encode({"e": [entry(x=1)], "l": None}),
    "an entry without prefix": encode({"e": [entry(p=...)], "l": None}),
    "an entry without tree": encode({"e": [entry(t=...)], "l": None}),
    "an entry without value": encode({"e": [entry(v=...)], "l": None}),
    "a null value": encode({"e": [entry(v=None)], "l": None}),
    "a value as bytes": encode({"e": [entry(v=b"\0" + LEAF)], "l": None}),
    "a raw value": encode({"e": [entry(v=link(b"\x01\x55" + LEAF[2:]))], "l": None}),
    "a short CID": encode({"e": [entry(v=link(LEAF[:-1]))], "l": None}),
    "a long CID": encode({"e": [entry(v=link(LEAF + b"\0"))], "l": None}),
    "another tag": encode({"e": [entry(v=cbor2.CBORTag(43, b"\0" + LEAF))], "l": None}),
    "a key as text": encode({"e": [entry(k=LOW.decode())], "l": None}),
    "a key that is none": encode({"e": [entry(k=b"asdf")], "l": None}),
    "a key too long": encode({"e": [entry(k=b"a/" + b"x" * 1023)], "l": None}),
    "an empty key": encode({"e": [entry(k=b"")], "l": None}),
    "a prefix of the first key": encode({"e": [entry(p=3)], "l": None}),
    "a huge prefix": encode({"e": [entry(), entry(p=1 << 62, k=b"x")], "l": None}),
    "a prefix beyond the key": encode({"e": [entry(), entry(p=len(LOW) + 1, k=b"x")], "l": None}),
    "a negative prefix": encode({"e": [entry(), entry(p=-1, k=HIGH[-1:])], "l": None}),
    "a prefix as truth": encode({"e": [entry(), entry(p=True, k=HIGH[1:])], "l": None}),
    "a prefix as float": encode({"e": [entry(), entry(p=1.0, k=HIGH[1:])], "l": None}),
    "a prefix too short": encode({"e": [entry(), entry(p=3, k=HIGH[3:])], "l": None}),
    "no prefix where one is": encode({"e": [entry(), entry(k=HIGH)], "l": None}),
    "keys that descend": node([(HIGH, LEAF, None), (LOW, LEAF, None)]),
    "one key twice": encode({"e": [entry(), entry(p=len(LOW), k=b"")], "l": None}),
    "keys of two layers": node([(LOW, LEAF, None), (MIDDLE, LEAF, None)]),
    "a number in a longer form": replaced(b"\x61p\x00", b"\x61p\x18\x00"),
    "a length in a longer form": replaced(b"\x61k\x58", b"\x61k\x59\x00"),
    "a list in a longer form": replaced(b"\x61e\x82", b"\x61e\x98\x02"),
    "a list of indefinite length": replaced(b"\x61e\x82", b"\x61e\x9f").replace(b"\x61l", b"\xff\x61l"),
    "fewer entries than it says": replaced(b"\x61e\x82", b"\x61e\x83"),
    "more entries than it says": replaced(b"\x61e\x82", b"\x61e\x81"),
    "something behind it": node([(LOW, LEAF, None)]) + b"\0",
    "nested without end": b"\xa2\x61e" + b"\x81" * 100_000,
    "a root above a node without keys of its own": node([], cid(node([(LOW, LEAF, None)]))),
    "a child below the bottom": node([(LOW, LEAF, cid(node([(HIGH, LEAF, None)])))]),
    "a left child below the bottom": node([(HIGH, LEAF, None)], cid(node([(LOW, LEAF, None)]))),
}


@pytest.mark.parametrize("block", NODES.values(), ids=NODES.keys())
def test_nodes_out_of_form_are_refused(block: bytes) -> None:
    """A node that isn't the one canonical encoding of a right node is refused by whatever reads it."""
    blocks = blocks_of({cid(block): block})
    refused(cid(block), blocks)
    for read in (lambda: find(cid(block), LOW, blocks), lambda: PartialTree.load(cid(block), blocks)):
        with pytest.raises(Rejected) as caught:
            read()
        assert caught.value.reason is Reason.MALFORMED_CAR


def test_the_cases_start_from_a_right_node() -> None:
    """What the cases above change is accepted unchanged: they are refused for what they say."""
    block = encode({"e": [entry(), entry(p=SHARED + 0, k=HIGH[SHARED:])], "l": None})
    assert block == node([(LOW, LEAF, None), (HIGH, LEAF, None)]) == encode_node(*decode_node(block))
    assert [*walk_prefix(cid(block), [b""], blocks_of({cid(block): block}))] == [(LOW, LEAF), (HIGH, LEAF)]


CHILDREN = {
    "empty": node([]),
    "a bridge to nothing": node([], None),
    "of the same layer": node([(BY_LAYER[1][6], LEAF, None)]),
    "of a higher layer": node([(ABOVE, LEAF, None)]),
    "with a key beside its range": node([(LOW, LEAF, None), (HIGH, LEAF, None)]),
    "with its parent's key": node([(MIDDLE, LEAF, None)]),
}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN.keys())
def test_children_in_the_wrong_place_are_refused(child: bytes, side: int) -> None:
    """A child is refused unless it is one layer down, holds something, and keeps between its neighbours."""
    left, right = (cid(child), None) if side == 0 else (None, cid(child))
    root = node([(MIDDLE, LEAF, right)], left)
    blocks = blocks_of({cid(root): root, cid(child): child})
    refused(cid(root), blocks)
    inside = LOW if side == 0 else HIGH
    for read in (
        lambda: find(cid(root), inside, blocks),
        lambda: PartialTree.load(cid(root), blocks).insert(inside, LEAF),
    ):
        with pytest.raises(Rejected) as caught:
            read()
        assert caught.value.reason is Reason.MALFORMED_CAR


def test_layers_may_not_be_skipped() -> None:
    """Between a node and one two layers down there has to be a node without keys."""
    child = node([(LOW, LEAF, None)])
    root = node([(ABOVE, LEAF, None)], cid(child))
    refused(cid(root), blocks_of({cid(root): root, cid(child): child}))


@pytest.mark.parametrize("block", [node([], LEAF), node([(MIDDLE, LEAF, LEAF)]), node([(ABOVE, LEAF, LEAF)], LEAF)])
def test_cycles_come_to_an_end(block: bytes) -> None:
    """Nodes that lead to themselves (blocks whose hash nobody checked) are refused after as many steps as layers."""
    reads = []

    def again(target: bytes) -> bytes:
        reads.append(target)
        return block

    refused(LEAF, again)
    assert len(reads) <= 5


def test_a_chain_of_a_hundred_thousand_nodes_is_not_followed() -> None:
    """Depth is bounded by the layer of the root's keys, not by what is there to follow."""
    blocks: dict[bytes, bytes] = {}
    block = node([(LOW, LEAF, None)])
    for _ in range(100_000):
        blocks[cid(block)] = block
        block = node([], cid(block))
    root = node([(ABOVE, LEAF, None)], cid(block))
    blocks |= {cid(block): block, cid(root): root}
    reads = []

    def get(target: bytes) -> bytes:
        reads.append(target)
        return blocks[target]

    refused(cid(root), get)
    assert len(reads) <= 5


def test_one_node_in_many_places_is_not_multiplied() -> None:
    """A subtree that many parents share (2^30 paths) is refused at the second visit, since its keys leave the range."""
    blocks: dict[bytes, bytes] = {}
    child = node([(LOW, LEAF, None)])
    for layer in range(1, 5):
        blocks[cid(child)] = child
        above = [key for key in BY_LAYER[layer] if key > LOW][:8]
        child = node([(key, LEAF, cid(child)) for key in above], cid(child))
    blocks[cid(child)] = child
    reads = []

    def get(target: bytes) -> bytes:
        reads.append(target)
        return blocks[target]

    refused(cid(child), get)
    assert len(reads) <= 10


GOOD = build(dict.fromkeys([*BY_LAYER[0][:3], *BY_LAYER[1][:2], BY_LAYER[2][0]], LEAF))


@given(st.sampled_from(sorted(GOOD.blocks.values())), st.data())
def test_damaged_nodes_are_refused_or_mean_what_they_say(block: bytes, data: st.DataObject) -> None:
    """Whatever is cut, put in or changed, a node is refused with Rejected or is the encoding of what was read."""
    start = data.draw(st.integers(0, len(block)))
    end = data.draw(st.integers(start, min(len(block), start + 4)))
    damaged = block[:start] + data.draw(st.binary(max_size=4)) + block[end:]
    assert_exact(damaged)


@given(st.binary(max_size=60))
@example(b"\xa2\x61e\x80\x61l\xf6")
def test_random_bytes_are_refused_or_mean_what_they_say(block: bytes) -> None:
    """Any bytes are refused with Rejected or are the encoding of what was read."""
    assert_exact(block)


def attempted(attempt: Callable[[], T]) -> T | None:
    """What an attempt gives; None if it is refused as malformed, the one error that is promised."""
    try:
        return attempt()
    except Rejected as error:
        refusal = error
    assert refusal.reason is Reason.MALFORMED_CAR
    return None


def assert_exact(block: bytes) -> None:
    """Reading is exact: an accepted block is what cbor2 decodes, and canonical."""
    read = attempted(lambda: decode_node(block))
    if read is None:
        return
    keys, values, links = read
    assert encode_node(keys, values, links) == block
    assert node(zip(keys, values, links[1:], strict=True), links[0]) == block


@given(st.dictionaries(st.sampled_from(KEYS[:200]), st.just(LEAF), max_size=12), st.data())
def test_trees_with_foreign_nodes_never_raise_anything_else(content: dict[bytes, bytes], data: st.DataObject) -> None:
    """With nodes exchanged at will, every operation answers or raises Rejected: no other error, no endless work."""
    tree = build(content)
    targets = sorted(tree.blocks)
    swapped = dict(zip(targets, data.draw(st.permutations(sorted(tree.blocks.values()))), strict=True))
    key = data.draw(st.sampled_from(KEYS[:200]))
    blocks = blocks_of(swapped)
    for attempt in (
        lambda: find(tree.root, key, blocks),
        lambda: [*walk_prefix(tree.root, [b""], blocks)],
        lambda: PartialTree.load(tree.root, blocks).insert(key, LEAF),
        lambda: PartialTree.load(tree.root, blocks).delete(key),
    ):
        attempted(attempt)
