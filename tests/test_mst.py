"""Merkle Search Trees: the same content gives the same root by whatever way, and hostile nodes give nothing."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.car import Car, read_car
from indexer.cbor import cid_bytes, cid_text
from indexer.errors import Rejected
from indexer.model import PREFIX, Reason
from indexer.mst import EMPTY_ROOT, PartialTree, decode_node, encode_node, find, is_key, key_depth, walk_prefix
from indexer.verify import decode_commit
from tests import trees
from tests.trees import blocks_of, build, depth, value

CAPTURE = Path(__file__).parent / "captures" / "pds-a"


def _pool() -> list[bytes]:
    """Keys of two collections, of every layer from 0 to 4 about as many."""
    names = [b"com.example.%s/%d" % (name, number) for number in range(3000) for name in (b"like", b"post")]
    return sorted(key for layer in range(5) for key in [name for name in names if depth(name) == layer][:10])


KEYS = st.sampled_from(_pool())
CONTENTS = st.dictionaries(KEYS, st.integers(0, 3).map(value), max_size=25)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3).map(value)), max_size=12)


def change(tree: PartialTree, content: dict[bytes, bytes], key: bytes, new: bytes | None) -> None:
    """Makes one change in both, and checks what the tree answers."""
    old = content.get(key)
    if new is None:
        assert tree.delete(key) == old
        content.pop(key, None)
        return
    assert tree.insert(key, new) == (old is None)
    assert old is None or tree.replace(key, new) == old
    content[key] = new


@pytest.mark.parametrize(
    ("key", "layer"),
    [
        (b"", 0),
        (b"asdf", 0),
        (b"blue", 1),
        (b"2653ae71", 0),
        (b"88bfafc7", 2),
        (b"2a92d355", 4),
        (b"884976f5", 6),
        (b"app.bsky.feed.post/454397e440ec", 4),
        (b"app.bsky.feed.post/9adeb165882c", 8),
    ],
)
def test_layers_are_those_of_the_interoperability_vectors(key: bytes, layer: int) -> None:
    """A key's layer is what every other implementation takes it for."""
    assert key_depth(key) == depth(key) == layer


LEAF = cid_bytes("bafyreie5cvv4h45feadgeuwhbcutmh6t2ceseocckahdoe6uat64zmz454")
TRIM = "3fn 3fo 3fp 3ft 3fu"
SPLIT = "3fo 3fp 3fr 3fs 3ft 3fz 4fc 4fd 4ff 4fg 4fh"
ROOTS = [  # the last key comes in last, and is taken out again
    ("3fo", "bafyreibj4lsc3aqnrvphp5xmrnfoorvru4wynt6lwidqbm2623a6tatzdu"),
    ("3fx", "bafyreih7wfei65pxzhauoibu3ls7jgmkju4bspy4t2ha2qdjnzqvoy33ai"),
    ("3fp 3fr 3fs 3ft 4fc", "bafyreicmahysq4n6wfuxo522m6dpiy7z7qzym3dzs756t5n7nfdgccwq7m"),
    (TRIM, "bafyreie4kjuxbwkhzg2i5dljaswcroeih4dgiqq6pazcmunwt2byd725vi"),
    (TRIM + " 3fs", "bafyreifnqrwbk6ffmyaz5qtujqrzf5qmxf7cbxvgzktl4e3gabuxbtatv4"),
    (SPLIT, "bafyreiettyludka6fpgp33stwxfuwhkzlur6chs4d2v4nkmq2j3ogpdjem"),
    (SPLIT + " 3fx", "bafyreid2x5eqs4w4qxvc5jiwda4cien3gw2q6cshofxwnvv7iucrmfohpm"),
    ("3ft 3fz", "bafyreidfcktqnfmykz2ps3dbul35pepleq7kvv526g47xahuz3rqtptmky"),
    ("3ft 3fz 3fx", "bafyreiavxaxdz7o7rbvr3zg2liox2yww46t7g6hkehx4i4h3lwudly7dhy"),
    ("3ft 3fz 3fx 4fd", "bafyreig4jv3vuajbsybhyvb7gggvpwh2zszwfyttjrj6qwvcsp24h6popu"),
]


@pytest.mark.parametrize(("names", "root"), ROOTS)
def test_roots_are_those_of_the_interoperability_vectors(names: str, root: str) -> None:
    """Known content has the root that every other implementation computes, from scratch as well as step by step."""
    keys = [f"com.example.record/3jqfcqzm{name}2j".encode() for name in names.split()]
    tree = PartialTree.load(EMPTY_ROOT, build({}).get)
    assert all(tree.insert(key, LEAF) for key in keys)
    assert cid_text(tree.root()) == root == cid_text(build(dict.fromkeys(keys, LEAF)).root)
    assert tree.delete(keys[-1]) == LEAF
    assert tree.root() == build(dict.fromkeys(keys[:-1], LEAF)).root


def test_the_empty_tree_is_a_node_without_anything() -> None:
    """The tree without keys has the root that every other implementation computes."""
    assert EMPTY_ROOT == build({}).root == cid_bytes("bafyreie5737gdxlw5i64vzichcalba3z2v5n6icifvx5xytvske7mr3hpm")


PROOFS = [  # AT Protocol's commit proof vectors: keys, added, deleted, root before, root after
    (
        "A0/374913 B1/986427 C0/451630 E0/670489 F1/085263 G0/765327",
        "D2/269196",
        "",
        "bafyreicraprx2xwnico4tuqir3ozsxpz46qkcpox3obf5bagicqwurghpy",
        "bafyreihvay6pazw3dfa47u5d2tn3rd6pa57sr37bo5bqyvjuqc73ib65my",
    ),
    (
        "A0/374913 B0/601692 D0/952776 E0/670489",
        "C2/014073",
        "",
        "bafyreialm5sgf7pijawbschsjpdevid5rss5ip3d4n4w6cc4mhu53sfl4i",
        "bafyreibxh4iztp5l2yshz3ectg2qjpeyprpw2gogao3pvceowpq3k3thya",
    ),
    (
        "A0/374913 B2/827649 C0/451630",
        "D2/269196",
        "",
        "bafyreigc6ay2qwfk7kuevvrczummpd64nknfo4yxpaooknfymzyb7u3ntq",
        "bafyreign6kxoll35r5f2ske6hjx7vg56aw3jn6r5hcopgrepzafpvohr2a",
    ),
    (
        "A0/374913 B2/827649 D2/269196 E0/670489",
        "C2/014073",
        "B2/827649 D2/269196",
        "bafyreiceld4icym4qjmdcn3dfgtxt7t66hdgyhvigessgmkvb56dx6amgi",
        "bafyreigkalika3taqauapfha556lo36zzcjoiifny5xeru6yis3nxw5ruq",
    ),
    (
        "B0/601692 C2/014073 D0/952776 E2/819540 F0/697858 H0/131238",
        "A2/827942 G2/611528",
        "C2/014073",
        "bafyreigr3plnts7dax6yokvinbhcqpyicdfgg6npvvyx6okc5jo55slfqi",
        "bafyreiftrcrbhrwmi37u4egedlg56gk3jeh3tvmqvwgowoifuklfysyx54",
    ),
]


@pytest.mark.parametrize(("names", "added", "deleted", "before", "after"), PROOFS)
def test_known_commits_are_undone_in_any_order(names: str, added: str, deleted: str, before: str, after: str) -> None:
    """The known commits lead back to the known root, in every order of undoing, from the nodes of the proof alone."""
    keys, adds, deletes = ({*text.encode().split()} for text in (names, added, deleted))
    content = dict.fromkeys((keys | adds) - deletes, LEAF)
    whole = build(content)
    assert cid_text(whole.root) == after
    nodes = trees.proof(whole, content, adds | deletes)
    for order in permutations(sorted(adds | deletes)):
        tree = PartialTree.load(whole.root, blocks_of(nodes))
        assert all(tree.delete(key) == LEAF if key in adds else tree.insert(key, LEAF) for key in order)
        assert cid_text(tree.root()) == before


@given(CONTENTS, CHANGES)
def test_changes_lead_to_the_tree_built_from_scratch(
    content: dict[bytes, bytes], changes: list[tuple[bytes, bytes | None]]
) -> None:
    """After each insertion, replacement or deletion the root is that of the new content, nodes and layers included."""
    whole = build(content)
    tree = PartialTree.load(whole.root, whole.get)
    assert tree.root() == whole.root
    for key, new in changes:
        change(tree, content, key, new)
        assert tree.root() == build(content).root
        assert tree.get(key) == new


@given(CONTENTS, CHANGES)
def test_proof_nodes_suffice_to_undo(content: dict[bytes, bytes], changes: list[tuple[bytes, bytes | None]]) -> None:
    """A commit of any operations is undone from the nodes that a host must send, in any order, and nothing else."""
    new = {**content, **dict(changes)}
    after = {key: target for key, target in new.items() if target is not None}
    changed = [key for key in dict(changes) if content.get(key) != after.get(key)]
    whole = build(after)
    tree = PartialTree.load(whole.root, blocks_of(trees.proof(whole, after, changed)))
    for key in changed:
        change(tree, after, key, content.get(key))
    assert after == content
    assert tree.root() == build(content).root


@given(CONTENTS, KEYS)
def test_a_key_is_found_or_proven_absent(content: dict[bytes, bytes], key: bytes) -> None:
    """``find`` answers as a dictionary would, from the nodes on the way alone; without one of them it says so."""
    whole = build(content)
    way = whole.way_to(key)
    read: list[bytes] = []

    def get(target: bytes) -> bytes:
        read.append(target)
        return whole.blocks[target]

    assert find(whole.root, key, get) == content.get(key)
    assert {*read} <= way | {whole.root}
    for missing in read:
        rest = {target: block for target, block in whole.blocks.items() if target != missing}
        with pytest.raises(Rejected) as caught:
            find(whole.root, key, blocks_of(rest))
        assert caught.value.reason is Reason.MISSING_BLOCK


PREFIXES = st.sampled_from([b"com.example.like/", b"com.example.post/", b"com.example.post/1", b"com.", b"org.", b""])


@given(CONTENTS, st.lists(PREFIXES, max_size=3))
def test_walk_gives_the_keys_asked_for_and_reads_no_other_node(
    content: dict[bytes, bytes], prefixes: list[bytes]
) -> None:
    """A walk by prefix is complete and in order, and reads exactly the nodes that could hold such keys."""
    whole = build(content)
    read: list[bytes] = []

    def get(target: bytes) -> bytes:
        read.append(target)
        return whole.blocks[target]

    wanted = [(key, content[key]) for key in sorted(content) if key.startswith(tuple(prefixes))]
    assert [*walk_prefix(whole.root, prefixes, get)] == wanted
    in_range = {
        target
        for target, (low, high) in whole.ranges.items()
        if any(low < prefix + b"\xff" and prefix < high for prefix in prefixes)
    }
    assert sorted(read) == sorted(in_range | {whole.root})


@given(CONTENTS.filter(bool), st.data())
def test_walk_never_leaves_out_in_silence(content: dict[bytes, bytes], data: st.DataObject) -> None:
    """With a node missing, a walk raises MISSING_BLOCK instead of giving less."""
    whole = build(content)
    missing = data.draw(st.sampled_from(sorted(whole.blocks)))
    rest = {target: block for target, block in whole.blocks.items() if target != missing}
    with pytest.raises(Rejected) as caught:
        [*walk_prefix(whole.root, [b""], blocks_of(rest))]
    assert caught.value.reason is Reason.MISSING_BLOCK


def test_captured_repositories_hold_what_the_server_reported() -> None:
    """The walk over a real ``getRepo`` gives exactly the records under our prefix that the PDS itself listed."""
    expected = json.loads((CAPTURE / "expected.json").read_text())
    active = {did: state for did, state in expected.items() if (state["status"] or {}).get("active")}
    assert len(active) == 6
    for did, state in active.items():
        car = read_car((CAPTURE / f"{did.replace(':', '_')}.car").read_bytes())
        commit = decode_commit(car.block(car.roots[0]))
        found = [
            {"uri": f"at://{did}/{key.decode()}", "cid": cid_text(target)}
            for key, target in walk_prefix(commit.data, [PREFIX.encode()], car.block)
        ]
        assert found == sorted(state["records"], key=lambda entry: entry["uri"].encode())
        assert commit.rev == state["status"]["rev"]


def test_every_captured_node_is_canonical() -> None:
    """What the reference server writes is what we write, byte for byte."""
    nodes = 0
    for path in CAPTURE.glob("*.car"):
        car = read_car(path.read_bytes())
        read: dict[bytes, bytes] = {}
        commit = decode_commit(car.block(car.roots[0]))

        def get(target: bytes, car: Car = car, read: dict[bytes, bytes] = read) -> bytes:
            read[target] = car.block(target)
            return read[target]

        assert [*walk_prefix(commit.data, [b""], get)]
        assert all(encode_node(*decode_node(block)) == block for block in read.values())
        nodes += len(read)
    assert nodes > 100


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 65_536])
def test_nodes_may_be_wide(count: int) -> None:
    """Lists of every length of head are read and written as cbor2 does."""
    keys = [b"com.example.record/%09d" % number for number in range(count)]
    entries = [(key, LEAF, LEAF if number % 2 else None) for number, key in enumerate(keys)]
    block = trees.node(entries, LEAF)
    links = [LEAF, *[after for _, _, after in entries]]
    assert decode_node(block) == (keys, [LEAF] * count, links)
    assert encode_node(keys, [LEAF] * count, links) == block


@pytest.mark.parametrize("length", [3, 23, 24, 255, 256, 1023, 1024])
def test_keys_may_be_long(length: int) -> None:
    """Keys, and the prefixes they share, of every length of head are read and written as cbor2 does."""
    keys = [b"a/".ljust(length, b"x"), b"a/".ljust(length, b"x")[:-1] + b"y"]
    block = trees.node([(key, LEAF, None) for key in keys])
    assert decode_node(block) == (keys, [LEAF, LEAF], [None, None, None])
    assert encode_node(keys, [LEAF, LEAF], [None, None, None]) == block


@pytest.mark.parametrize(
    "key", [b"", b"a", b"/", b"a/", b"/a", b"a/b/c", b"a/b c", "a/é".encode(), b"a/b\n", b"a/" + b"x" * 1023]
)
def test_what_is_no_path_is_no_key(key: bytes) -> None:
    """Keys are ``collection/rkey`` of at most 1,024 bytes; nothing else gets into a tree."""
    tree = PartialTree.load(EMPTY_ROOT, build({}).get)
    assert not is_key(key)
    with pytest.raises(Rejected) as caught:
        tree.insert(key, LEAF)
    assert caught.value.reason is Reason.BAD_PATH
    assert tree.root() == EMPTY_ROOT


@pytest.mark.parametrize("target", [b"", LEAF[:-1], LEAF + b"\0", b"\x01\x55" + LEAF[2:], b"\0" + LEAF[1:]])
def test_only_cids_in_use_get_into_a_tree(target: bytes) -> None:
    """A value that would be written as another CID than it is, is refused."""
    tree = PartialTree.load(EMPTY_ROOT, build({}).get)
    tree.insert(b"a/b", LEAF)
    for attempt in (tree.insert, tree.replace):
        with pytest.raises(Rejected) as caught:
            attempt(b"a/b", target)
        assert caught.value.reason is Reason.WRONG_CID
    assert tree.get(b"a/b") == LEAF
