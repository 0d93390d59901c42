"""Records from anyone: whatever the bytes, one error or a decoded record, in bounded time and memory."""

from __future__ import annotations

import json
import tracemalloc

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.cbor import MAX_DEPTH, MAX_ITEMS, decode_record, to_json_text
from indexer.errors import Rejected
from indexer.model import Reason
from tests.records import CID, LINK, canonical, captured_records, decode_or_refuse, field

NAMES = st.one_of(st.sampled_from(["$link", "$bytes", "a", "aa", "b", "\0"]), st.text(max_size=4))

# What is no record.

UNDECODABLE = {
    "nothing": b"",
    "not a map": b"\x80",
    "a number": b"\x01",
    "a tagged map": b"\xd8\x2a\xa0",
    "more after it": b"\xa0\x00",
    "a key without value": b"\xa1\x61a",
    "a text that ends early": field(b"\x62a"),
    "a number that ends early": field(b"\x19\x01"),
    "a float that ends early": field(b"\xfb\x00"),
    "a link that ends early": field(LINK[:-1]),
    "an endless map": b"\xbf\x61a\x01\xff",
    "an endless list": field(b"\x9f\x01\xff"),
    "an endless text": field(b"\x7f\x61a\xff"),
    "endless bytes": field(b"\x5f\x41a\xff"),
    "a break": field(b"\xff"),
    "a reserved length": field(b"\x1c"),
    "a number as key": b"\xa1\x01\x01",
    "bytes as key": b"\xa1\x41a\x01",
    "a list as key": b"\xa1\x80\x01",
    "a link as key": b"\xa1" + LINK + b"\x01",
    "undefined": field(b"\xf7"),
    "a simple value": field(b"\xf8\x20"),
    "a small simple value": field(b"\xe0"),
    "a link to no bytes": field(b"\xd8\x2a\x61a"),
    "a link to a link": field(b"\xd8\x2a" + LINK),
    "a link without prefix": field(b"\xd8\x2a\x58\x24" + CID),
    "a link to nothing": field(b"\xd8\x2a\x41\x00"),
    "a list of 2^64": field(b"\x9b" + b"\xff" * 8),
    "a map of 2^63": field(b"\xbb\x80" + b"\x00" * 7),
    "a text of 2^64": field(b"\x7b" + b"\xff" * 8),
    "bytes of 2^62": field(b"\x5b\x40" + b"\x00" * 7),
    "lists in lists": field(b"\x9b\x00\x00\x00\x00\x7f\xff\xff\xff" * 100),
}


@pytest.mark.parametrize("block", UNDECODABLE.values(), ids=UNDECODABLE)
def test_undecodable(block: bytes) -> None:
    """Bytes that are no DAG-CBOR map are refused under their reason, without quoting them, in little memory."""
    tracemalloc.start()
    with pytest.raises(Rejected) as error:
        decode_record(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.reason is Reason.UNDECODABLE_RECORD
    assert error.value.detail.isascii()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "tag", [0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 41, 43, 100, 256, 258, 260, 1004, 43000, 55799]
)
def test_tags_are_not_interpreted(tag: int) -> None:
    """Tags that CBOR libraries turn into dates, big numbers, sets or shared values make a record undecodable."""
    for content in (b"\x01", b"\x61a", b"\x41a", b"\x81\x01", b"\x41\x00"):
        head = bytes((0xC0 + tag,)) if tag < 24 else b"\xd9" + tag.to_bytes(2, "big")
        assert decode_or_refuse(field(head + content)) is None


@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x61a"])
def test_depth(opening: bytes) -> None:
    """Containers nest to the limit and no further; far beyond it nothing breaks."""
    block = b"\xa1\x61a" + opening * (MAX_DEPTH - 1) + b"\x01"
    decoded = decode_record(block)
    assert decoded.lossless
    assert json.loads(to_json_text(decoded.data)) == decoded.data
    for levels in (MAX_DEPTH, 500, 100_000):
        assert decode_or_refuse(b"\xa1\x61a" + opening * levels + b"\x01") is None


def test_links_and_bytes_at_the_deepest_place() -> None:
    """Links and bytes become maps in JSON, which doesn't count as nesting."""
    for leaf in (LINK, b"\x41a"):
        assert decode_record(b"\xa1\x61a" + b"\x81" * (MAX_DEPTH - 1) + leaf).lossless


def test_number_of_items() -> None:
    """A record holds so many values and no more: a byte of CBOR may cost hundreds elsewhere."""
    count = MAX_ITEMS - 2
    assert decode_record(field(b"\x9a" + count.to_bytes(4, "big") + b"\x01" * count)).lossless
    assert decode_or_refuse(field(b"\x9a" + (count + 1).to_bytes(4, "big") + b"\x01" * (count + 1))) is None


# Anything at all.


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xa1", b"\xa1\x61a", b"\xa2\x61a", b"\xa1\x61a\x82"]))
def test_any_bytes(tail: bytes, opening: bytes) -> None:
    """No input raises anything but the one error, and what decodes is fit for the database."""
    decode_or_refuse(opening + tail)


@given(st.data())
def test_any_corruption_of_a_record(data: st.DataObject) -> None:
    """A real record with some bytes changed, cut or doubled is refused or decoded, never worse."""
    block = bytearray(data.draw(st.sampled_from(captured_records()))[1])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(block)))
        stop = data.draw(st.integers(start, min(len(block), start + 8)))
        block[start:stop] = data.draw(st.binary(max_size=9))
    decode_or_refuse(bytes(block))


def test_each_flipped_bit_of_a_record() -> None:
    """Flip each bit of a record with a link, bytes and every other type: never silently the same."""
    block = canonical(
        {"a": cbor2.CBORTag(42, b"\0" + CID), "b": b"\1\2", "c": [None, True, -500, {"d": "é"}], "$type": "a.b.c"}
    )
    whole = decode_record(block)
    for bit in range(len(block) * 8):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << bit % 8
        decoded = decode_or_refuse(bytes(changed))
        assert decoded is None or not decoded.lossless or decoded.data != whole.data


def test_each_truncation_of_a_record() -> None:
    """A record that isn't whole is never taken for one."""
    block = captured_records()[0][1]
    assert decode_or_refuse(block) is not None
    for length in range(len(block)):
        assert decode_or_refuse(block[:length]) is None


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 64), (1 << 64) - 1),
        st.text(max_size=8),
        st.binary(max_size=8),
        st.floats(),
        st.just(cbor2.CBORTag(42, b"\0" + CID)),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@given(record=st.dictionaries(NAMES, VALUES, max_size=4), canonically=st.booleans(), cut=st.integers(0, 400))
def test_the_short_way_says_the_same(record: dict[str, object], canonically: bool, cut: int) -> None:
    """What the fast decoder takes on comes out as our own reader reads it, whatever the record and however encoded."""
    block = cbor2.dumps(record, canonical=canonically)
    for damaged in (block, block[:cut], block[:cut] + b"\0" + block[cut + 1 :]):
        short = decode_or_refuse(damaged)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("indexer.cbor._plain_record", lambda _: None)
            assert repr(short) == repr(decode_or_refuse(damaged))
