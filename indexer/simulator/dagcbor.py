"""DAG-CBOR for the simulator: an encoder, a small decoder, CIDs and the JSON form of a value.

Values are the AT Protocol data model in Python: None, bool, int, str, bytes, list, dict with str keys, and
:class:`Link`. Floats are encodable (DAG-CBOR has them, AT Protocol doesn't), so that tests can write illegal
records. Specifications: DAG-CBOR (IPLD), CID version 1, AT Protocol data model.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

DAG_CBOR = 0x71
RAW = 0x55

Value: TypeAlias = Any  # a recursive alias would make every literal in the tests a cast


@dataclass(frozen=True, slots=True)
class Link:
    """A CID as a value inside a record or frame; ``cid`` is its binary form, 36 bytes."""

    cid: bytes


def cid_of(block: bytes, codec: int = DAG_CBOR) -> bytes:
    """The CIDv1 (SHA-256) of a block in binary form: 36 bytes."""
    return bytes((1, codec, 0x12, 32)) + sha256(block).digest()


def base32(data: bytes) -> str:
    """RFC 4648 base32, lower case, without padding."""
    return base64.b32encode(data).decode().rstrip("=").lower()


def cid_text(cid: bytes) -> str:
    """A binary CID as text: multibase ``b`` and base32."""
    return "b" + base32(cid)


def head(major: int, argument: int) -> bytes:
    """The shortest CBOR head for a major type (0 to 7) and its argument (0 to 2^64 - 1)."""
    kind = major << 5
    if argument < 24:
        return bytes((kind | argument,))
    if argument < 0x100:
        return bytes((kind | 24, argument))
    if argument < 0x10000:
        return struct.pack(">BH", kind | 25, argument)
    if argument < 0x100000000:
        return struct.pack(">BI", kind | 26, argument)
    return struct.pack(">BQ", kind | 27, argument)


def encode(value: Value) -> bytes:
    """The DAG-CBOR bytes of a value; raises TypeError for a type the data model lacks."""
    out: list[bytes] = []
    _append(out, value)
    return b"".join(out)


def _append(out: list[bytes], value: Value) -> None:
    kind = type(value)
    if kind is str:
        text = value.encode()
        out += (head(3, len(text)), text)
    elif kind is dict:
        _append_map(out, value)
    elif kind is bytes:
        out += (head(2, len(value)), value)
    elif kind is bool or value is None:
        out.append({False: b"\xf4", True: b"\xf5", None: b"\xf6"}[value])
    elif kind is int:
        out.append(head(0, value) if value >= 0 else head(1, -1 - value))
    elif kind is Link:
        out += (b"\xd8\x2a", head(2, len(value.cid) + 1), b"\x00", value.cid)
    elif kind is list or kind is tuple:
        out.append(head(4, len(value)))
        for item in value:
            _append(out, item)
    elif kind is float:
        out.append(struct.pack(">Bd", 0xFB, value))
    else:
        raise TypeError(f"DAG-CBOR has no {kind.__name__}")


def _append_map(out: list[bytes], value: dict[str, Value]) -> None:
    out.append(head(5, len(value)))
    for length, key, name in sorted((len(name.encode()), name.encode(), name) for name in value):
        out += (head(3, length), key)
        _append(out, value[name])


def decode(data: bytes, start: int = 0) -> tuple[Value, int]:
    """Decode one object at ``start``; returns it and the offset after it. For our own bytes: not hardened."""
    major, low = data[start] >> 5, data[start] & 31
    if data[start] == 0xFB:
        return struct.unpack_from(">d", data, start + 1)[0], start + 9
    argument, at = _argument(data, start + 1, low)
    match major:
        case 0:
            return argument, at
        case 1:
            return -1 - argument, at
        case 2:
            return data[at : at + argument], at + argument
        case 3:
            return data[at : at + argument].decode(), at + argument
        case 4:
            return _decode_list(data, at, argument)
        case 5:
            return _decode_map(data, at, argument)
        case 6:
            inner, at = decode(data, at)
            return Link(inner[1:]), at
        case _:
            return {20: False, 21: True, 22: None}[low], at


def _argument(data: bytes, at: int, low: int) -> tuple[int, int]:
    if low < 24:
        return low, at
    width = {24: 1, 25: 2, 26: 4, 27: 8}[low]
    return int.from_bytes(data[at : at + width], "big"), at + width


def _decode_list(data: bytes, at: int, count: int) -> tuple[list[Value], int]:
    items = []
    for _ in range(count):
        item, at = decode(data, at)
        items.append(item)
    return items, at


def _decode_map(data: bytes, at: int, count: int) -> tuple[dict[str, Value], int]:
    result = {}
    for _ in range(count):
        key, at = decode(data, at)
        result[key], at = decode(data, at)
    return result, at


def to_json(value: Value) -> Value:
    """The JSON form of a value: links as ``{"$link": text}``, bytes as ``{"$bytes": base64 without padding}``."""
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Link):
        return {"$link": cid_text(value.cid)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode().rstrip("=")}
    return value
