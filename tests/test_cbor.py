"""Records between DAG-CBOR and jsonb: nothing is lost without being noted. Hostile bytes: test_cbor_hostile.py."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.cbor import Decoded, cid_bytes, cid_of, cid_text, decode_record, encode_json, to_json_text
from indexer.model import Json
from tests.records import CID, assert_harmless, broken, canonical, captured_records, field, reference_json

# What is sound.


def test_every_captured_record_is_lossless() -> None:
    """Each record a real PDS emitted decodes as another decoder says, breaks nothing and gives its own bytes back."""
    assert len(captured_records()) > 400
    for _, block in captured_records():
        decoded = decode_record(block)
        assert decoded.data == reference_json(cbor2.loads(block))
        assert decoded.lossless
        assert decoded.violations == ()
        assert decoded.digests == {}
        assert encode_json(json.loads(to_json_text(decoded.data))) == block


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    | st.binary()
    | st.binary(min_size=32, max_size=32).map(lambda digest: cbor2.CBORTag(42, b"\0\x01\x71\x12\x20" + digest))
)
keys = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30).filter(
    lambda key: key not in {"$link", "$bytes"}
)
records = st.dictionaries(
    keys,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)),
    max_size=6,
)


@given(records)
def test_sound_records_survive(record: dict[str, Any]) -> None:
    """Any record of the data model keeps all of its fields and gives its own bytes back, through JSON text."""
    block = canonical(record)
    decoded = decode_record(block)
    assert decoded == Decoded(reference_json(record), (), {}, lossless=True)
    assert encode_json(json.loads(to_json_text(decoded.data))) == block


@pytest.mark.parametrize(
    "number",
    [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, -1, -24, -25, -256, -257, -(2**63)],
)
def test_integers(number: int) -> None:
    """Integers of 64 bits with sign are kept to the last digit."""
    decoded = decode_record(canonical({"a": number}))
    assert decoded == Decoded({"a": number}, (), {}, lossless=True)
    assert to_json_text(decoded.data) == f'{{"a":{number}}}'


def test_bytes_are_not_links() -> None:
    """A byte string that looks like a CID stays a byte string, and the record still gives its bytes back."""
    decoded = decode_record(canonical({"bytes": b"\0" + CID, "cid": CID, "link": cbor2.CBORTag(42, b"\0" + CID)}))
    assert decoded.lossless
    assert decoded.violations == ()
    assert decoded.data["link"] == {"$link": cid_text(CID)}
    assert decoded.data["cid"] == {"$bytes": base64.b64encode(CID).decode().rstrip("=")}


def test_json_text_is_compact() -> None:
    """The text for the database holds characters as they are and no blanks."""
    assert to_json_text({"a": ["é💩", {"b": None}], "c": True}) == '{"a":["é💩",{"b":null}],"c":true}'


# What breaks the data model, and is kept all the same.


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63) - 1, -(2**64)])
def test_integers_beyond_the_data_model(number: int) -> None:
    """Integers that only CBOR's 64 bits hold are kept exactly, lossless, and marked."""
    head = b"\x1b" if number >= 0 else b"\x3b"
    block = field(head + (number if number >= 0 else -1 - number).to_bytes(8, "big"))
    decoded = decode_record(block)
    assert decoded.data == {"a": number}
    assert broken(decoded) == [("a", "integer_range")]
    assert decoded.lossless
    assert encode_json(json.loads(to_json_text(decoded.data))) == block


@pytest.mark.parametrize(
    ("encoded", "number"),
    [("f93e00", 1.5), ("fa3fc00000", 1.5), ("fb3ff8000000000000", 1.5), ("fb3ff0000000000000", 1.0),
     ("fb7fefffffffffffff", 1.7976931348623157e308), ("f97e00", None), ("f97c00", None), ("fbfff0000000000000", None)],
)  # fmt: skip
def test_floats(encoded: str, number: float | None) -> None:
    """Floats of each width are kept as numbers, or null where JSON has none, and never count as lossless."""
    decoded = decode_record(field(bytes.fromhex(encoded)))
    assert decoded.data == {"a": number}
    assert broken(decoded) == [("a", "float")]
    assert not decoded.lossless


def test_nul_character() -> None:
    """U+0000 is replaced where jsonb refuses it; a top-level text leaves the digest of what it was."""
    original = "tem\0plate é"
    decoded = decode_record(canonical({"list": ["\0"], "n": "\ufffd", "system": original}))
    assert decoded.data == {"list": ["\ufffd"], "n": "\ufffd", "system": "tem\ufffdplate é"}
    assert decoded.digests == {"system": hashlib.sha256(original.encode()).hexdigest()}
    assert broken(decoded) == [("list/0", "nul_character"), ("system", "nul_character")]
    assert not decoded.lossless
    assert_harmless(decoded)


def test_replacement_characters_are_not_suspect() -> None:
    """A text that really holds U+FFFD is sound."""
    assert decode_record(canonical({"a": "\ufffd"})) == Decoded({"a": "\ufffd"}, (), {}, lossless=True)


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"ok\xe2\x82"])
def test_bad_utf8(raw: bytes) -> None:
    """What is no UTF-8, surrogates and overlong forms included, is replaced, marked, and its digest kept."""
    decoded = decode_record(field(bytes((0x60 + len(raw),)) + raw))
    assert broken(decoded) == [("a", "utf8")]
    assert decoded.digests == {"a": hashlib.sha256(raw).hexdigest()}
    assert not decoded.lossless
    assert_harmless(decoded)


def test_hostile_keys() -> None:
    """Keys are made fit for jsonb like texts, and so are the paths that name them."""
    decoded = decode_record(b"\xa2\x62k\x00\x61\x00\x62k\xff\xa1\x61b\xf9\x00\x00")
    assert decoded.data == {"k\ufffd": {"b": 0.0}}
    assert broken(decoded) == [
        ("k\ufffd", "nul_character"), ("k\ufffd", "utf8"), ("k\ufffd", "duplicate_key"), ("k\ufffd/b", "float"),
    ]  # fmt: skip
    assert decoded.digests == {}
    assert not decoded.lossless
    assert_harmless(decoded)


def test_duplicate_keys() -> None:
    """Of duplicate keys the last counts, for the digests too, and the block is known to hold more."""
    decoded = decode_record(b"\xa2\x61a\x62x\x00\x61a\x61y")
    assert decoded.data == {"a": "y"}
    assert decoded.digests == {}
    assert broken(decoded) == [("a", "nul_character"), ("a", "duplicate_key")]
    assert not decoded.lossless


@pytest.mark.parametrize("pairs", [b"\x61b\x01\x61a\x02", b"\x62aa\x01\x61b\x02"])
def test_key_order(pairs: bytes) -> None:
    """Keys that are not shortest first, then bytewise, are marked; the order of a map's keys is not kept in jsonb."""
    decoded = decode_record(field(b"\xa2" + pairs))
    assert broken(decoded) == [("a", "key_order")]
    assert not decoded.lossless


@pytest.mark.parametrize(
    "block",
    ["b8016161 01", "a178016101", "a16161 1800", "a16161 1817", "a16161 1900ff", "a16161 1a0000ffff",
     "a16161 1b00000000ffffffff",
     "a16161 3800", "a16161 780161", "a16161 5800", "a16161 980101", "a16161 d9002a582500" + CID.hex()],
)  # fmt: skip
def test_longer_than_needed(block: str) -> None:
    """Numbers and lengths that take more bytes than they need are read, marked, and not lossless."""
    decoded = decode_record(bytes.fromhex(block))
    assert {violation.rule for violation in decoded.violations} == {"non_canonical"}
    assert not decoded.lossless


@pytest.mark.parametrize(
    ("value", "lossless"),
    [({"$link": cid_text(CID)}, False), ({"$bytes": "AAAA"}, False), ({"$bytes": "AA=="}, False), ({"$bytes": ""},
     False),
     ({"$link": "no CID"}, True), ({"$link": cid_text(CID).upper()}, True), ({"$link": 5}, True), ({"$bytes": "no!"},
     True),
     ({"$bytes": None}, True), ({"$link": cid_text(CID), "b": 1}, True), ({"$bytes": "AAAA", "$link": cid_text(CID)},
     True)],
)  # fmt: skip
def test_maps_that_look_like_links_or_bytes(value: dict[str, Any], lossless: bool) -> None:
    """A map that JSON can't tell from a link or bytes is marked, and its block kept where it would come back as one."""
    block = canonical({"a": value})
    decoded = decode_record(block)
    assert decoded.data == {"a": value}
    assert broken(decoded) == [("a", "link_map")]
    assert decoded.lossless is lossless
    assert (encode_json(decoded.data) == block) is lossless


def test_record_that_looks_like_a_link() -> None:
    """The same holds for the record as a whole."""
    decoded = decode_record(canonical({"$link": cid_text(CID)}))
    assert broken(decoded) == [("", "link_map")]
    assert not decoded.lossless


@pytest.mark.parametrize("cid", [b"\x12\x20" + CID[4:], b"\x01\x70" + CID[2:], CID + b"\0", b"x"])
def test_links_to_other_kinds_of_cid(cid: bytes) -> None:
    """A link that AT Protocol doesn't use is marked, kept to the byte, and lossless."""
    decoded = decode_record(canonical({"a": cbor2.CBORTag(42, b"\0" + cid)}))
    assert broken(decoded) == [("a", "cid")]
    assert decoded.lossless


def test_violations_are_bounded() -> None:
    """However many rules a record breaks and however long its names are, what is noted of it stays small."""
    name = "n" * 500
    decoded = decode_record(canonical({name: {name: [1.5] * 1000}, **{f"k{i}": "\0" for i in range(1000)}}))
    assert len(decoded.violations) == 20
    assert len(decoded.digests) == 100
    assert decoded.data["k7"] == "\ufffd"
    assert_harmless(decoded)
    double = field(b"\x95" + b"\x61\0" * 19 + b"\x62\xff\0" * 2)
    assert len(decode_record(double).violations) == 20
    deep = decode_record(canonical({name: {name: [1.5]}}))
    assert broken(deep) == [("n" * 200, "float")]


# Encoding.


@pytest.mark.parametrize(
    "value", [1.5, float("nan"), 1 << 64, -(1 << 64) - 1, "\ud800", {"\udfff": 1}, (), b"", {"a": {1.0}}]
)
def test_no_block(value: Any) -> None:
    """What isn't of the data model has no block, and says so."""
    with pytest.raises(ValueError, match=r".+"):
        encode_json({"a": value})


def test_encoding_is_bounded() -> None:
    """JSON nested deeper than a record can be is refused before the stack ends."""
    value: Json = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(ValueError, match="deeper"):
        encode_json(value)


def test_padding_of_bytes_is_tolerated() -> None:
    """Bytes that came as JSON with padding are the same bytes."""
    assert encode_json({"$bytes": "AA=="}) == encode_json({"$bytes": "AA"}) == b"\x41\x00"


# CIDs.


def test_known_cid() -> None:
    """The CID of a block is the one everybody else computes: of the empty map, and of a raw block."""
    assert cid_text(cid_of(b"\xa0")) == "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua"
    assert cid_text(cid_of(b"", codec=0x55)) == "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


@given(st.binary(min_size=1, max_size=80))
def test_cids_survive_text(cid: bytes) -> None:
    """Text and bytes of a CID say the same."""
    assert cid_bytes(cid_text(cid)) == cid


@pytest.mark.parametrize(
    "text",
    ["", "b", "f00", "z6Mk", cid_text(CID).upper(), cid_text(CID)[:-1], cid_text(CID) + "=", cid_text(CID)[:-1] + "b",
     "bé", "b1",
     "bß", "b\n", cid_text(CID) + "\n"],
)  # fmt: skip
def test_no_cid(text: str) -> None:
    """Other bases, padding, stray bits and letters are no CID in base32."""
    with pytest.raises(ValueError, match=r".+"):
        cid_bytes(text)
