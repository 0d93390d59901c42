"""CAR archives: whole ones are split, damaged ones are noticed, and no block is handed out that isn't itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import libipld
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.car import Car, read_car
from indexer.cbor import cid_of, cid_text
from indexer.errors import Rejected
from indexer.model import Reason
from tests.records import captured_commits

CAPTURE = Path(__file__).parent / "captures" / "pds-a"

# Three blocks, {}, {"a": 1} and the raw bytes "raw"; the second is the root.
EMPTY = bytes.fromhex("01711220c19a797fa1fd590cd2e5b42d1cf5f246e29b91684e2f87404b81dc345c7a56a0")
ONE = bytes.fromhex("01711220eb989b4a620fd259ae02181bdab4fc3eb6dc6b45eb7322999bb1416bce318926")
RAW = bytes.fromhex("01551220d7439bee24773bcbfa2d0a97947ee36227b10d1022b1a55847e928965bb6bfde")
HEADER = bytes.fromhex("3aa265726f6f747381d82a582500") + ONE + bytes.fromhex("6776657273696f6e01")
SECTIONS = (b"\x25" + EMPTY + b"\xa0", b"\x28" + ONE + b"\xa1\x61a\x01", b"\x27" + RAW + b"raw")
GOLDEN = HEADER + b"".join(SECTIONS)
BLOCKS = {EMPTY: b"\xa0", ONE: b"\xa1\x61a\x01", RAW: b"raw"}


def header(*roots: bytes) -> bytes:
    """A CAR's header with these roots, its length before it."""
    links = b"".join(b"\xd8\x2a\x58\x25\x00" + root for root in roots)
    content = b"\xa2\x65roots" + bytes((0x80 + len(roots),)) + links + b"\x67version\x01"
    return varint(len(content)) + content


def varint(number: int) -> bytes:
    """Unsigned LEB128."""
    low, high = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + varint(high) if high else bytes((low,))


def refused(data: bytes) -> str:
    """The detail with which an archive is refused as malformed."""
    with pytest.raises(Rejected) as error:
        read_car(data)
    assert error.value.reason is Reason.MALFORMED_CAR
    return error.value.detail


def test_golden_bytes() -> None:
    """A known archive splits into its root and its blocks, and each block is handed out."""
    car = read_car(GOLDEN)
    assert car == Car((ONE,), BLOCKS)
    assert all(car.block(cid) == block for cid, block in BLOCKS.items())


def test_every_captured_frame() -> None:
    """Of every captured commit, the first root is the commit, and each block is itself, as many as libipld finds."""
    commits = list(captured_commits())
    assert len(commits) > 300
    for commit in commits:
        car = read_car(commit["blocks"])
        assert car.roots[0] == commit["commit"]
        assert car.blocks.keys() == libipld.decode_car(commit["blocks"])[1].keys()
        assert all(cid_of(car.block(cid)) == cid for cid in car.blocks)


@pytest.mark.parametrize("path", sorted(CAPTURE.glob("*.car")), ids=lambda path: path.stem)
def test_every_captured_repository(path: Path) -> None:
    """An exported repository holds every record its server reported, each being itself."""
    car = read_car(path.read_bytes())
    expected = json.loads((CAPTURE / "expected.json").read_text())
    records = expected[path.stem.replace("_", ":")]["records"]
    by_text = {cid_text(cid): cid for cid in car.blocks}
    assert records
    for record in records:
        assert hashlib.sha256(car.block(by_text[record["cid"]])).digest() == by_text[record["cid"]][4:]


def test_each_truncation() -> None:
    """An archive cut anywhere is refused, except between blocks, where the blocks before are all there is."""
    ends = {len(HEADER) + sum(map(len, SECTIONS[:count])): count for count in range(4)}
    for length in range(len(GOLDEN)):
        if length in ends:
            assert list(read_car(GOLDEN[:length]).blocks.items()) == list(BLOCKS.items())[: ends[length]]
        else:
            assert refused(GOLDEN[:length])


def test_each_flipped_bit() -> None:
    """With any one bit flipped, the archive is refused, has other roots, or a block is missing or not itself."""
    for bit in range(len(GOLDEN) * 8):
        changed = bytearray(GOLDEN)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            car = read_car(bytes(changed))
            intact = car.roots == (ONE,) and all(car.block(cid) == block for cid, block in BLOCKS.items())
        except Rejected:
            intact = False
        assert not intact, f"bit {bit}"


def test_a_changed_block_is_noticed_when_asked_for() -> None:
    """A block that doesn't hash to its CID is refused by name, while the others stay usable."""
    car = read_car(GOLDEN.replace(b"\xa1\x61a\x01", b"\xa1\x61a\x02"))
    assert car.block(EMPTY) == b"\xa0"
    with pytest.raises(Rejected) as error:
        car.block(ONE)
    assert error.value.reason is Reason.WRONG_CID
    assert error.value.detail == cid_text(ONE)


def test_a_missing_block_is_named() -> None:
    """A block that isn't there is another matter than one that is wrong."""
    with pytest.raises(Rejected) as error:
        read_car(HEADER).block(ONE)
    assert error.value.reason is Reason.MISSING_BLOCK
    assert error.value.detail == cid_text(ONE)


@pytest.mark.parametrize("cid", [b"", b"\x01", ONE[:-1], ONE + b"x" * 10_000, b"\x12\x20" + ONE[4:]])
def test_a_strange_cid_is_missing(cid: bytes) -> None:
    """Asking for what is no CID is answered in few words."""
    with pytest.raises(Rejected) as error:
        read_car(GOLDEN).block(cid)
    assert error.value.reason is Reason.MISSING_BLOCK
    assert len(error.value.detail) < 100


def test_a_block_under_another_hash_function_is_never_handed_out() -> None:
    """Also in an archive put together elsewhere, only SHA-256 counts as proof."""
    strange = b"\x01\x71\x1e\x20" + hashlib.sha256(b"\xa0").digest()
    with pytest.raises(Rejected) as error:
        Car((strange,), {strange: b"\xa0"}).block(strange)
    assert error.value.reason is Reason.WRONG_CID


def test_repeated_blocks() -> None:
    """A block may be repeated; the first one counts."""
    assert read_car(GOLDEN + SECTIONS[0] + SECTIONS[2]) == Car((ONE,), BLOCKS)
    assert read_car(GOLDEN + b"\x25" + EMPTY + b"\xa1").block(EMPTY) == b"\xa0"


@pytest.mark.parametrize("count", [1, 2, 23])
def test_several_roots(count: int) -> None:
    """Roots keep their order, whether the blocks are there or not."""
    roots = (EMPTY, ONE, RAW) * 8
    assert read_car(header(*roots[:count])) == Car(roots[:count], {})


def test_a_large_block() -> None:
    """Lengths of several bytes are read."""
    block = bytes(300_000)
    cid = cid_of(block, codec=0x55)
    assert read_car(header(cid) + varint(36 + len(block)) + cid + block).block(cid) == block


MALFORMED = {
    "nothing": b"",
    "an empty header": b"\x00",
    "no roots": header(),
    "too many roots": header(*[ONE] * 24),
    "version 2": GOLDEN.replace(b"\x67version\x01", b"\x67version\x02"),
    "roots that are no links": HEADER[:9] + HEADER[9:].replace(b"\xd8\x2a\x58", b"\xd8\x2b\x58"),
    "a root of another kind": header(b"\x01\x70" + ONE[2:]),
    "half a header": HEADER[:30],
    "a header of seven bytes": b"\x07\xa2\x65roots",
    "JSON": b'\x20{"version":1,"roots":["bafyreig"]}',
    "an empty section": GOLDEN + b"\x00",
    "a section shorter than a CID": GOLDEN + b"\x23" + EMPTY[:-1],
    "a CID of version 0": GOLDEN + b"\x24\x12\x20" + bytes(34),
    "another hash function": GOLDEN + b"\x25\x01\x71\x1e\x20" + EMPTY[4:] + b"\xa0",
    "another codec": GOLDEN + b"\x25\x01\x70" + EMPTY[2:] + b"\xa0",
    "a block longer than the archive": GOLDEN + b"\x26" + EMPTY + b"\xa0",
    "a length of 2^62": GOLDEN + b"\xff" * 8 + b"\x3f" + EMPTY + b"\xa0",
    "a length without end": GOLDEN + b"\xff" * 200,
    "a length longer than needed": GOLDEN + b"\xa5\x00" + EMPTY + b"\xa0",
    "a length cut off": GOLDEN + b"\x80",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed(data: bytes) -> None:
    """What is no archive of ours is refused under one reason, with a few words."""
    assert 0 < len(refused(data)) < 100


@given(st.binary(max_size=120), st.sampled_from([b"", HEADER, GOLDEN, HEADER[:20]]))
def test_any_bytes(tail: bytes, opening: bytes) -> None:
    """No input raises anything but the one error."""
    try:
        car = read_car(opening + tail)
    except Rejected as error:
        refusal = error
    else:
        assert car.roots
        assert all(len(cid) == 36 for cid in car.blocks)
        return
    assert refusal.reason is Reason.MALFORMED_CAR
