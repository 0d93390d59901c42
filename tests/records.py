"""Records for tests: those a real PDS emitted, and what must hold of any that was decoded.

cbor2 serves as an independent encoder and decoder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
import libipld
import pytest

from indexer.car import read_car
from indexer.cbor import Decoded, cid_of, decode_record, encode_json, to_json_text
from indexer.errors import Rejected
from indexer.model import Json, Reason

FRAMES = Path(__file__).parent / "captures" / "pds-a" / "frames.bin"
CID = cid_of(b"\xa0")
LINK = b"\xd8\x2a\x58\x25\x00" + CID


def captured_commits() -> Iterator[dict[str, Any]]:
    """The bodies of all captured ``#commit`` frames, in order."""
    data, position = FRAMES.read_bytes(), 0
    while position < len(data):
        start, position = position + 4, position + 4 + int.from_bytes(data[position : position + 4], "big")
        header, body = libipld.decode_dag_cbor_multi(data[start:position])
        if header.get("t") == "#commit":
            yield body


@cache
def captured_records() -> tuple[tuple[str, bytes], ...]:
    """Path and block of every record that the captured commits brought."""
    return tuple(
        (op["path"], read_car(commit["blocks"]).block(op["cid"]))
        for commit in captured_commits()
        for op in commit["ops"]
        if op["cid"]
    )


def canonical(value: Any) -> bytes:
    """The DAG-CBOR of a value by cbor2."""
    return cbor2.dumps(value, canonical=True)


def field(encoded: bytes) -> bytes:
    """A record whose only field ``a`` has this encoding."""
    return b"\xa1\x61a" + encoded


def broken(decoded: Decoded) -> list[tuple[str, str]]:
    """The violations as pairs."""
    return [(violation.field, violation.rule) for violation in decoded.violations]


def reference_json(value: Any) -> Any:
    """The JSON form of what cbor2 decoded, written from the data model's specification."""
    if isinstance(value, cbor2.CBORTag):
        return {"$link": "b" + base64.b32encode(value.value[1:]).decode().lower().rstrip("=")}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode().rstrip("=")}
    if isinstance(value, dict):
        return {key: reference_json(inner) for key, inner in value.items()}
    return [reference_json(inner) for inner in value] if isinstance(value, list) else value


def texts(value: Json) -> Iterator[str]:
    """All strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def assert_harmless(decoded: Decoded) -> None:
    """All that is stored of a record is such as PostgreSQL takes, and bounded where it isn't content."""
    text = to_json_text(decoded.data)
    assert json.loads(text, parse_constant=pytest.fail) == decoded.data
    fields = [violation.field for violation in decoded.violations]
    for string in (*texts(decoded.data), *fields, *decoded.digests):
        assert "\0" not in string
        assert string.encode().decode() == string
    assert len(fields) <= 20
    assert all(len(name) <= 200 for name in fields)


def decode_or_refuse(block: bytes) -> Decoded | None:
    """Decodes hostile bytes, allowing the one error that is promised."""
    try:
        decoded = decode_record(block)
    except Rejected as error:
        refusal = error
    else:
        assert_harmless(decoded)
        assert not decoded.lossless or encode_json(json.loads(to_json_text(decoded.data))) == block
        return decoded
    assert refusal.reason is Reason.UNDECODABLE_RECORD
    return None
