"""Repositories from disk: exactly the records that the commit vouches for, or an error; never a part of them."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import snapshot as module
from indexer.cbor import cid_text
from indexer.errors import Rejected
from indexer.keys import signing_key
from indexer.model import Reason
from indexer.snapshot import MAX_BLOCK, SnapshotRecord, open_snapshot
from indexer.verify import check_signature
from tests import trees

CAPTURE = Path(__file__).parent / "captures" / "pds-a"
LETTA = ("xyz.quasigod.lab.letta.",)
CARS = sorted(CAPTURE.glob("*.car"))
REASONS = {Reason.MALFORMED_CAR, Reason.MISSING_BLOCK, Reason.WRONG_CID}


@cache
def archive(path: Path) -> bytes:
    """The bytes of a captured CAR."""
    return path.read_bytes()


def did_of(path: Path) -> str:
    """The account of a captured CAR."""
    return path.stem.replace("_", ":")


@cache
def reported(path: Path) -> list[tuple[str, str]]:
    """URI and CID of each record that the server itself reported, in order."""
    accounts = json.loads((CAPTURE / "expected.json").read_text())
    return sorted((record["uri"], record["cid"]) for record in accounts[did_of(path)]["records"])


def walk(data: bytes, prefixes: tuple[str, ...] = LETTA) -> list[SnapshotRecord]:
    """All records, through an index of the whole archive."""
    return list(open_snapshot(io.BytesIO(data)).records(prefixes))


def in_words(path: Path, data: bytes) -> list[tuple[str, str]]:
    """URI and CID of what the walk gives, each record's collection being one of ours."""
    return [(f"at://{did_of(path)}/{record.collection}/{record.rkey}", cid_text(record.cid)) for record in walk(data)]


def refused(data: bytes, **options: int) -> Reason:
    """Why an archive is refused, be it at once or during the walk."""
    with pytest.raises(Rejected) as caught:
        list(open_snapshot(io.BytesIO(data), **options).records(("",)))
    assert caught.value.reason in REASONS
    return caught.value.reason


def outcome(data: bytes, prefixes: tuple[str, ...] = LETTA) -> list[SnapshotRecord] | Reason:
    """All records, or why the archive is refused."""
    try:
        return walk(data, prefixes)
    except Rejected as error:
        return error.reason


def boundaries(data: bytes) -> list[int]:
    """Where each section of an archive begins, header included, and where the last one ends."""
    at, found = 0, [0]
    while at < len(data):
        length = shift = 0
        while True:
            byte, at = data[at], at + 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += length
        found.append(at)
    return found


def parts(data: bytes) -> tuple[bytes, list[bytes]]:
    """Header and sections of an archive."""
    ends = boundaries(data)
    return data[: ends[1]], [data[start:end] for start, end in pairwise(ends[1:])]


# Real repositories.


@pytest.mark.parametrize("path", CARS, ids=did_of)
def test_captured_repository_comes_out_exactly(path: Path) -> None:
    """What a real server's CAR holds under our prefix is what the server listed, signed by the account's key."""
    documents = json.loads((CAPTURE / "did-docs.json").read_text())
    commit = open_snapshot(io.BytesIO(archive(path))).commit
    assert commit.did == did_of(path)
    assert check_signature(commit, signing_key(documents[commit.did], commit.did))
    assert in_words(path, archive(path)) == reported(path) != []


@pytest.mark.parametrize("path", CARS, ids=did_of)
def test_archive_cut_between_blocks_is_seen(path: Path) -> None:
    """Cut off at any block, a CAR raises; where all that is needed came before the cut, the walk is complete."""
    data = archive(path)
    whole, cuts = walk(data), boundaries(data)[:-1]
    outcomes = [outcome(data[:cut]) for cut in cuts]
    assert all(isinstance(found, Reason) or found == whole for found in outcomes)
    assert sum(isinstance(found, Reason) for found in outcomes) > len(whole)
    for cut in cuts:  # where everything is needed, no cut goes unseen
        assert refused(data[:cut]) in REASONS


def test_archive_cut_within_a_block_is_seen() -> None:
    """Cut off at any other byte, a CAR isn't even opened."""
    data = archive(CARS[0])
    clean = set(boundaries(data))
    for cut in [*range(600), *range(600, len(data), 97)]:
        if cut not in clean:
            assert refused(data[:cut]) is Reason.MALFORMED_CAR


@pytest.mark.parametrize("path", CARS, ids=did_of)
def test_missing_block_is_missed(path: Path) -> None:
    """A CAR that leaves any one block out raises."""
    header, sections = parts(archive(path))
    for number in range(len(sections)):
        left = b"".join(sections[:number] + sections[number + 1 :])
        assert refused(header + left) is Reason.MISSING_BLOCK


def test_flipped_bit_is_seen() -> None:
    """One bit, wherever it is: the walk of everything raises."""
    data = archive(min(CARS, key=lambda path: path.stat().st_size))
    outcomes = set()
    for at in range(0, len(data), 29):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        outcomes.add(refused(bytes(broken)))
    assert outcomes == REASONS


@pytest.mark.parametrize("path", CARS, ids=did_of)
def test_order_and_repetition_of_blocks_mean_nothing(path: Path) -> None:
    """Blocks in any order, and twice, give the same records."""
    header, sections = parts(archive(path))
    assert in_words(path, header + b"".join(reversed(sections))) == reported(path)
    assert in_words(path, header + b"".join(sections + sections)) == reported(path)


def test_only_nodes_of_our_prefix_are_needed() -> None:
    """The rest of a repository may be missing: nothing of it is read."""
    content = {f"com.example.a{number:03}/x": trees.value(number) for number in range(60)}
    content |= {f"xyz.quasigod.lab.letta.agent/{number}": trees.value(number) for number in range(60, 63)}
    tree = trees.build({key.encode(): target for key, target in content.items()})
    needed = [target for target, (low, high) in tree.ranges.items() if low < b"xyz.r" and high > b"xyz.quasigod.lab"]
    assert len(needed) < len(tree.blocks) / 2
    commit = trees.commit_block(tree.root)
    blocks = [commit, *(tree.blocks[target] for target in needed), *(trees.record(number) for number in range(60, 63))]
    found = walk(trees.car(trees.cid(commit), blocks))
    assert [(record.rkey, record.block) for record in found] == [(str(n), trees.record(n)) for n in range(60, 63)]


def test_several_prefixes_and_none() -> None:
    """Each prefix adds its records, in key order; a repository without such records is an empty answer."""
    data = archive(CARS[0])
    everything = walk(data, ("",))
    assert [record for record in everything if record.collection.startswith(LETTA)] == walk(data)
    both = walk(data, ("xyz.quasigod.lab.letta.message/", "xyz.quasigod.lab.letta.agent/"))
    assert {record.collection.rpartition(".")[2] for record in both} <= {"agent", "message"}
    assert both == [record for record in everything if record in both] != []
    assert walk(data, ("org.example.",)) == []


# Hostile archives.


def repository(*extra: bytes) -> bytes:
    """A small repository with one record of ours, and more sections at its end."""
    tree = trees.build({b"xyz.quasigod.lab.letta.agent/self": trees.value(1)})
    commit = trees.commit_block(tree.root)
    return trees.car(trees.cid(commit), [commit, *tree.blocks.values(), trees.record(1)]) + b"".join(extra)


def section(cid: bytes, block: bytes) -> bytes:
    """A section of an archive, whether or not the block hashes to the CID."""
    return trees.varint(len(cid + block)) + cid + block


GARBAGE: dict[str, bytes] = {
    "a length of zero": b"\0",
    "a length too short for a CID": b"\x05abcde",
    "a length that ends within its CID": b"\x23" + trees.cid(b"x")[:35] + section(trees.cid(b"y"), b"y"),
    "an unfinished length": b"\x80",
    "a length beyond 63 bits": b"\xff" * 9 + b"\1",
    "an endless length": b"\xff" * 1000,
    "a length with needless bytes": bytes((0x80 | 37, 0)) + trees.cid(b"x") + b"x",
    "a length beyond the file": trees.varint(1 << 40) + trees.value(2) + b"x",
    "a length of 63 bits": trees.varint((1 << 63) - 1) + trees.value(2) + b"x",
    "a CID of another version": section(b"\x12\x20" + bytes(34), b"x"),
    "a CID of another hash": section(b"\x01\x71\x13\x40" + bytes(32), b"x"),
    "text": b"<html>not an archive</html>" * 10,
}


def test_small_repository_is_sound() -> None:
    """The repository that the tests below spoil is a good one."""
    assert [record.block for record in walk(repository())] == [trees.record(1)]


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused(kind: str) -> None:
    """Sections that are none spoil the archive, also behind all that is needed."""
    assert refused(repository(GARBAGE[kind])) is Reason.MALFORMED_CAR


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"\0",
            b"\xff" * 20,
            trees.varint(1 << 50) + b"x",
            trees.varint(5000) + bytes(5000),
            b"\x0a" + bytes(10),
        ),
        trees.varint(16) + trees.encode({"version": 2, "roots": []}).ljust(16, b"\0"),
    ],
)
def test_file_without_a_header_is_refused(data: bytes) -> None:
    """What doesn't begin as a CAR with a root is no archive."""
    assert refused(data) is Reason.MALFORMED_CAR


def test_block_that_hashes_to_another_cid_is_seen() -> None:
    """A block under a wrong CID is refused when it is used, even if the right one follows: the first counts."""
    header, sections = parts(repository())
    for at, part in enumerate(sections):
        body = len(trees.varint(len(part) - 1)) if len(part) < 129 else 2
        cid = part[body : body + 36]
        forged = [*sections[:at], section(cid, b"\xa0"), *sections[at:]]
        assert refused(header + b"".join(forged)) is Reason.WRONG_CID


def test_block_too_large_to_be_read_is_refused_unread() -> None:
    """A huge block that nobody needs is passed over; one that the tree names is refused by its length."""
    huge = b"x" * (MAX_BLOCK + 1)
    assert len(walk(repository(section(trees.cid(huge), huge)))) == 1
    tree = trees.build({b"xyz.quasigod.lab.letta.agent/self": trees.cid(huge)})
    commit = trees.commit_block(tree.root)
    assert refused(trees.car(trees.cid(commit), [commit, *tree.blocks.values(), huge])) is Reason.MALFORMED_CAR


def test_number_of_blocks_is_bounded() -> None:
    """Archives of very many small blocks are refused before the index outgrows its limit, repetitions counted in."""
    small = section(trees.cid(b""), b"")
    assert len(list(open_snapshot(io.BytesIO(repository(small * 97)), max_blocks=100).records(LETTA))) == 1
    assert refused(repository(small * 98), max_blocks=100) is Reason.MALFORMED_CAR


def test_root_that_is_no_commit_is_refused() -> None:
    """The first root has to be a commit object, and be there."""
    assert refused(trees.car(trees.value(1), [trees.record(1)])) is Reason.MALFORMED_CAR
    assert refused(trees.car(trees.value(2), [trees.record(1)])) is Reason.MISSING_BLOCK


def test_file_is_read_where_it_stands_whole() -> None:
    """Where the file's position was doesn't matter."""
    file = io.BytesIO(repository())
    file.seek(11)
    assert len(list(open_snapshot(file).records(LETTA))) == 1


def test_blocks_beyond_a_window_are_found() -> None:
    """Blocks larger and smaller than what is read at once, in any mixture, are all found."""
    window = module._WINDOW
    sizes = [1, window, 5, window - 50, 3, window - 36, 1, 8 * window + 7, 2]
    blocks = [bytes((number,)) * size for number, size in enumerate(sizes)]
    data = repository(*(section(trees.cid(block), block) for block in blocks))
    snapshot = open_snapshot(io.BytesIO(data))
    assert [snapshot.block(trees.cid(block)) for block in blocks] == blocks


@pytest.mark.parametrize("window", [46, 47, 83, 84, 85, 500, 4096])
def test_windows_may_end_anywhere(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However sections lie across what is read at once, and fall into buckets, the answer is the same."""
    archives = [archive(CARS[0]), repository(), *(repository(garbage) for garbage in GARBAGE.values())]
    archives += [archive(CARS[0])[:-1], repository()[:-1]]
    before = [outcome(data, ("",)) for data in archives]
    monkeypatch.setattr(module, "_WINDOW", window)
    monkeypatch.setattr(module, "_BUCKET", window)
    assert [outcome(data, ("",)) for data in archives] == before
    assert len([found for found in before if not isinstance(found, Reason)]) == 2


def test_lengths_of_every_width() -> None:
    """A section's length may take one byte or several: each block is found, and so is what follows it."""
    sizes = [0, 1, 90, 91, 92, 93, 16_346, 16_347, 16_348, 2_097_115, 2_097_116]  # 36 less than where a width ends
    blocks = [bytes(size) for size in sizes]
    snapshot = open_snapshot(io.BytesIO(repository(*(section(trees.cid(block), block) for block in blocks))))
    assert [snapshot.block(trees.cid(block)) for block in blocks] == blocks


def test_same_digest_under_another_kind_is_another_block() -> None:
    """A raw block is not taken for the DAG-CBOR block with the same bytes, nor hides it."""
    raw = b"\x01\x55" + trees.value(1)[2:]
    header, sections = parts(repository())
    assert len(walk(header + section(raw, trees.record(1)) + b"".join(sections))) == 1
    only = b"".join(part for part in sections if trees.record(1) not in part)
    assert refused(header + only + section(raw, trees.record(1))) is Reason.MISSING_BLOCK


def test_blocks_that_the_index_takes_for_one_another_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index knows a few bits of each CID: what it can't tell apart, the file does."""
    whole, huge = walk(archive(CARS[0])), section(trees.cid(b"x"), bytes(MAX_BLOCK + 1))
    header, sections = parts(archive(CARS[0]))
    monkeypatch.setattr(module, "_MARK", 0)
    monkeypatch.setattr(module, "_BUCKET", 1 << 30)
    assert walk(header + huge + b"".join(sections)) == whole != []
    assert refused(header + huge + b"".join(sections[:-1])) is Reason.MISSING_BLOCK


def test_index_of_very_many_blocks_is_small() -> None:
    """A hostile archive of the smallest blocks takes some 8 bytes of memory a block."""
    count = 100_000
    small = b"".join(section(trees.cid(number.to_bytes(3, "big")), b"") for number in range(count))
    file = io.BytesIO(repository(small))
    tracemalloc.start()
    try:
        open_snapshot(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * count + 4 * module._WINDOW


def changed(data: bytes) -> st.SearchStrategy[bytes]:
    """An archive with one stretch of bytes replaced."""

    def replace(change: tuple[int, int, bytes]) -> bytes:
        at, length, new = change
        return data[:at] + new + data[at + length :]

    return st.tuples(st.integers(0, len(data)), st.integers(0, 60), st.binary(max_size=60)).map(replace)


@settings(max_examples=300, deadline=None)
@given(changed(archive(CARS[0])[:6000]) | changed(repository()))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """Whatever was done to an archive, the records are right or it is rejected."""
    right = {(record.cid, record.block) for record in everything()}
    found = outcome(data, ("",))
    if isinstance(found, Reason):
        assert found in REASONS
    else:
        assert {(record.cid, record.block) for record in found} <= right


@cache
def everything() -> list[SnapshotRecord]:
    """All records of the two archives that are changed above."""
    return [*walk(archive(CARS[0]), ("",)), *walk(repository())]


def test_walk_says_nothing_before_it_is_asked() -> None:
    """Records come one by one: who stops early has read no more than that."""
    records: Iterator[Any] = open_snapshot(io.BytesIO(archive(CARS[0]))).records(LETTA)
    assert next(records) == walk(archive(CARS[0]))[0]
