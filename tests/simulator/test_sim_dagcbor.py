"""The simulator's DAG-CBOR, CIDs and CARs, held against another implementation."""

from __future__ import annotations

from typing import Any

import cbor2
import libipld
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.simulator.archive import read_car, write_car
from indexer.simulator.dagcbor import Link, cid_of, cid_text, decode, encode, to_json

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(max_size=300)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=30), inner), max_leaves=60
)


@given(values)
def test_another_implementation_reads_what_is_encoded(value: Any) -> None:
    """Every value of the data model survives encoding, and the bytes are the canonical ones."""
    data = encode(value)
    assert libipld.decode_dag_cbor(data) == value
    # Not libipld's encoder: it takes a byte string that looks like a CID for a link.
    assert cbor2.dumps(value, canonical=True) == data


@given(values)
def test_decoding_undoes_encoding(value: Any) -> None:
    """The simulator reads its own bytes back to the same value."""
    data = encode({"link": Link(cid_of(b"x")), "value": value, "float": 0.5})
    assert decode(data) == ({"link": Link(cid_of(b"x")), "value": value, "float": 0.5}, len(data))


def test_a_cid_is_written_as_others_write_it() -> None:
    """Binary CIDs have the text form everybody knows; a link is tag 42 and not a byte string."""
    cid = cid_of(encode({"a": 1}))
    assert libipld.encode_cid(cid) == cid_text(cid)
    assert encode(Link(cid)) == bytes.fromhex("d82a582500") + cid
    assert to_json({"l": Link(cid), "b": [b"\x00\x01"]}) == {"l": {"$link": cid_text(cid)}, "b": [{"$bytes": "AAE"}]}


def test_a_value_outside_the_data_model_is_refused() -> None:
    """What DAG-CBOR cannot express is an error of the caller, not silence."""
    with pytest.raises(TypeError, match="set"):
        encode({"a": {1, 2}})


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_another_implementation_reads_the_car(contents: list[bytes]) -> None:
    """A CAR holds its roots and each block once, and reads back."""
    blocks = [(cid_of(block := encode(content)), block) for content in contents]
    root = cid_of(b"root")
    car = write_car([root], blocks)
    assert read_car(car) == ([root], list(dict(blocks).items()))
    header, found = libipld.decode_car(car)
    assert header["roots"] == [root]
    assert found == {cid: libipld.decode_dag_cbor(block) for cid, block in blocks}
