"""Records between DAG-CBOR (https://ipld.io/specs/codecs/dag-cbor/spec/) and JSON that PostgreSQL's jsonb accepts.

The JSON form is that of the AT Protocol data model: a link is ``{"$link": "bafy…"}``, a byte string is ``{"$bytes":
base64 without padding}``. Records come from anyone, so decoding takes every well-formed record, however far it is from
the data model, and says in ``violations`` what is wrong with it; whether the JSON form still holds all of it is found
out by encoding it again.

The decoder is our own because those at hand each lose something we must know: libipld takes links and bytes for one
another, others interpret tags, resolve duplicate keys in silence or recurse without a limit. Nearly every record has
nothing of all that: libipld decodes those, at a tenth of the time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Iterable
from typing import Final

import orjson
from libipld import decode_dag_cbor, encode_dag_cbor, encode_multibase

from indexer.errors import Rejected
from indexer.model import Json, Reason, Violation, immutable

MAX_DEPTH = 128  # containers within containers
MAX_ITEMS = 200_000  # values and keys in one record: bounds the time and the growth from one byte to a JSON value
MAX_VIOLATIONS = 20
MAX_DIGESTS = 100
MAX_FIELD = 200  # characters of a violation's path

CID_BYTES = 36
CID_KINDS = frozenset((b"\x01\x71\x12\x20", b"\x01\x55\x12\x20"))  # version 1, dag-cbor or raw, SHA-256

_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_CONSTANTS: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None}
_LEAST: Final = {24: 24, 25: 1 << 8, 26: 1 << 16, 27: 1 << 32}  # what needs that width; less has a shorter form
_LINK_TAG = 42

_json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@immutable
class Decoded:
    """A record in its JSON form.

    ``violations`` are breaches of the data model, at most 20; ``field`` is a path such as ``a/0/b``, '' for the record.
    ``digests`` holds the hex SHA-256 of the original bytes of top-level strings that had to be changed. ``lossless``
    says that :func:`encode_json` gives the block back from ``data``, also after jsonb kept it.
    """

    data: dict[str, Json]
    violations: tuple[Violation, ...]
    digests: dict[str, str]
    lossless: bool


def decode_record(block: bytes) -> Decoded:
    """Decodes the DAG-CBOR block of a record, tolerating what can be represented.

    U+0000 and what is no UTF-8 become U+FFFD, the last of duplicate keys counts, NaN and the infinities become null.
    Raises :class:`Rejected` with ``UNDECODABLE_RECORD`` (and nothing else, whatever the input) if the block isn't
    exactly one map, nests deeper than 128, holds over 200,000 keys and values, indefinite lengths, keys that aren't
    text, tags other than links, or simple values other than booleans and null.
    """
    plain = _plain_record(block)
    if plain is not None:
        return Decoded(plain, (), {}, lossless=True)
    reader = _Reader(block)
    try:
        data = reader.record()
    except IndexError:
        raise _undecodable("ends within a value") from None
    violations = tuple(dict.fromkeys(reader.violations))[:MAX_VIOLATIONS]
    # jsonb keeps numbers as decimals: a float that comes back may be written differently.
    lossless = not reader.has_float and encode_json(data) == block
    return Decoded(data, violations, reader.digests, lossless)


def _plain_record(block: bytes) -> dict[str, Json] | None:
    """A record in the one canonical form, without links, byte strings or anything a violation would name; else None."""
    if len(block) > MAX_ITEMS:
        return None
    try:
        data = decode_dag_cbor(block)
        plain = isinstance(data, dict) and _is_plain(data) and encode_dag_cbor(data) == block
    except Exception:  # the decoder's own errors are of many types
        return None
    return data if plain else None


def _is_plain(container: dict[str, Json] | list[Json], depth: int = 1) -> bool:
    """Whether a value of libipld's is its own JSON form: its links and byte strings are ``bytes``, so they aren't."""
    items: Iterable[Json] = container
    if isinstance(container, dict):
        if "$link" in container or "$bytes" in container or "\0" in "".join(container):
            return False
        items = container.values()
    for item in items:
        if isinstance(item, str):
            plain = "\0" not in item
        elif isinstance(item, (dict, list)):
            plain = depth < MAX_DEPTH and _is_plain(item, depth + 1)
        elif isinstance(item, int):
            plain = -(1 << 63) <= item < 1 << 63
        else:
            plain = item is None
        if not plain:
            return False
    return True


class _Reader:
    """One pass over a block. Methods advance ``position``; reading past the end raises IndexError or Rejected."""

    __slots__ = ("block", "changed", "digests", "has_float", "items", "path", "position", "violations")

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.position = 0
        self.items = 0
        self.path: list[str | int] = []
        self.violations: list[Violation] = []
        self.digests: dict[str, str] = {}
        self.changed: bytes | None = None  # the original of the last string, if it was changed
        self.has_float = False

    def record(self) -> dict[str, Json]:
        """The whole block: one map and nothing after it."""
        if self.block[0] >> 5 != 5:
            raise _undecodable("not a map")
        data = self._map(self._head()[1], depth=1)
        if self.position != len(self.block):
            raise _undecodable("bytes after the record")
        return data

    def _head(self) -> tuple[int, int]:
        """Major type and argument of the next item (for major type 7, the low bits of its first byte)."""
        initial = self.block[self.position]
        self.position += 1
        major, info = initial >> 5, initial & 31
        if info < 24 or major == 7:
            return major, info
        if info > 27:
            raise _undecodable("an indefinite length or a reserved one")
        argument = int.from_bytes(self._take(1 << (info - 24)), "big")
        if argument < _LEAST[info]:
            self._breach("non_canonical")
        return major, argument

    def _take(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > len(self.block):
            raise _undecodable("ends within a value")
        return self.block[start : self.position]

    def _value(self, depth: int) -> Json:
        major, argument = self._head()
        if major == 3:
            return self._text(argument)
        if major <= 1:
            return self._integer(argument if major == 0 else -1 - argument)
        if major == 7:
            return self._simple(argument)
        if major == 2:
            return {"$bytes": _base64(self._take(argument))}
        if major == 6:
            return self._link(argument)
        if depth == MAX_DEPTH:
            raise _undecodable(f"nests deeper than {MAX_DEPTH}")
        return self._array(argument, depth + 1) if major == 4 else self._map(argument, depth + 1)

    def _integer(self, number: int) -> int:
        if not -(1 << 63) <= number < 1 << 63:
            self._breach("integer_range")
        return number

    def _text(self, length: int) -> str:
        raw = self._take(length)
        text, rules = _clean(raw)
        if rules:
            self.changed = raw
            self._breach(*rules)
        return text

    def _simple(self, info: int) -> Json:
        if info in _CONSTANTS:
            return _CONSTANTS[info]
        if info not in _FLOATS:
            raise _undecodable("a simple value that is none of false, true, null")
        self.has_float = True
        self._breach("float")
        number: float = struct.unpack(_FLOATS[info], self._take(1 << (info - 24)))[0]
        return number if math.isfinite(number) else None

    def _link(self, tag: int) -> Json:
        major, length = self._head()
        if tag != _LINK_TAG or major != 2:
            raise _undecodable("a tag that is no link")
        raw = self._take(length)
        if len(raw) < 2 or raw[0] != 0:
            raise _undecodable("a link without a CID")
        cid = raw[1:]
        if len(cid) != CID_BYTES or cid[:4] not in CID_KINDS:
            self._breach("cid")
        return {"$link": cid_text(cid)}

    def _array(self, length: int, depth: int) -> list[Json]:
        self._count(length)
        self.path.append(0)
        result: list[Json] = []
        for index in range(length):
            self.path[-1] = index
            result.append(self._value(depth))
        self.path.pop()
        return result

    def _map(self, length: int, depth: int) -> dict[str, Json]:
        self._count(2 * length)
        result: dict[str, Json] = {}
        previous = (-1, b"")
        ordered = True
        self.path.append("")
        for _ in range(length):
            raw = self._key()
            key, rules = _clean(raw)
            self.path[-1] = key
            if rules:
                self._breach(*rules)
            if key in result:
                self._breach("duplicate_key")
            rank = (len(raw), raw)
            ordered, previous = ordered and previous <= rank, rank
            result[key] = value = self._value(depth)
            if depth == 1:
                self._digest(key, value)
        self.path.pop()
        if not ordered:
            self._breach("key_order")
        if "$link" in result or "$bytes" in result:
            self._breach("link_map")
        return result

    def _key(self) -> bytes:
        self.path[-1] = ""
        major, length = self._head()
        if major != 3:
            raise _undecodable("a key that is not text")
        return self._take(length)

    def _count(self, items: int) -> None:
        """Refuses a container that takes the record over its limit, before any of it is read."""
        self.items += items
        if self.items > MAX_ITEMS:
            raise _undecodable(f"more than {MAX_ITEMS} keys and values")

    def _digest(self, key: str, value: Json) -> None:
        """Notes a top-level string's original if it was changed; of duplicates the last counts."""
        self.digests.pop(key, None)
        if isinstance(value, str) and self.changed is not None and len(self.digests) < MAX_DIGESTS:
            self.digests[key] = hashlib.sha256(self.changed).hexdigest()
        self.changed = None

    def _breach(self, *rules: str) -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            place = "/".join(str(part)[:MAX_FIELD] for part in self.path if part != "")[:MAX_FIELD]
            self.violations += [Violation(place, rule) for rule in rules]


def _clean(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """Bytes of a text as one that jsonb can hold, and the rules they broke."""
    rules: tuple[str, ...] = ()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text, rules = raw.decode(errors="replace"), ("utf8",)
    if "\0" in text:
        text, rules = text.replace("\0", "\ufffd"), (*rules, "nul_character")
    return text, rules


def _undecodable(detail: str) -> Rejected:
    return Rejected(Reason.UNDECODABLE_RECORD, detail)


def encode_json(data: Json) -> bytes:
    """The DAG-CBOR block of a JSON form: keys shortest first, shortest integers, ``$link`` and ``$bytes`` resolved.

    A map with another key beside ``$link`` or ``$bytes``, or where it holds no CID or base64, is an ordinary map.
    Raises ValueError for what has no such block: floats, integers beyond 64 bits, lone surrogates, nesting deeper than
    128, values that aren't JSON.
    """
    out: list[bytes] = []
    _encode(data, out, 0)
    return b"".join(out)


def _encode(value: Json, out: list[bytes], depth: int) -> None:
    if isinstance(value, str):
        raw = value.encode()
        out += (_head(3, len(raw)), raw)
    elif value is None or isinstance(value, bool):
        out.append(b"\xf6" if value is None else b"\xf5" if value else b"\xf4")
    elif isinstance(value, int):
        out.append(_head(0, value) if value >= 0 else _head(1, -1 - value))
    elif isinstance(value, (dict, list)):
        _encode_container(value, out, depth + 1)
    else:
        raise ValueError(f"DAG-CBOR records hold no {type(value).__name__}")


def _encode_container(value: dict[str, Json] | list[Json], out: list[bytes], depth: int) -> None:
    if isinstance(value, dict) and (special := _special(value)) is not None:
        out.append(special)
        return
    if depth > MAX_DEPTH:
        raise ValueError(f"nests deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        out.append(_head(4, len(value)))
        for item in value:
            _encode(item, out, depth)
        return
    out.append(_head(5, len(value)))
    keys = [(key.encode(), key) for key in value]
    for raw, key in sorted(keys, key=lambda pair: (len(pair[0]), pair[0])):
        out += (_head(3, len(raw)), raw)
        _encode(value[key], out, depth)


def _special(value: dict[str, Json]) -> bytes | None:
    """The encoding of ``{"$link": …}`` or ``{"$bytes": …}``, None if the map is neither."""
    if len(value) != 1:
        return None
    ((key, text),) = value.items()
    if key not in {"$link", "$bytes"} or not isinstance(text, str):
        return None
    try:
        raw = b"\0" + cid_bytes(text) if key == "$link" else _unbase64(text)
    except ValueError:
        return None
    return (b"\xd8\x2a" if key == "$link" else b"") + _head(2, len(raw)) + raw


def _head(major: int, argument: int) -> bytes:
    """An item's first bytes, in their shortest form."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    for info in (24, 25, 26, 27):
        width = 1 << (info - 24)
        if argument < 1 << (8 * width):
            return bytes((major << 5 | info,)) + argument.to_bytes(width, "big")
    raise ValueError("an integer beyond 64 bits")


def to_json_text(data: Json) -> str:
    """JSON text for jsonb: compact, characters as they are.

    What :func:`decode_record` gives holds no U+0000, lone surrogate, NaN or infinity, so jsonb takes the text.
    """
    try:
        return orjson.dumps(data).decode()
    except TypeError:  # an integer beyond 64 bits, which only an illegal record has
        return _json_text(data)


def cid_of(block: bytes, codec: int = 0x71) -> bytes:
    """The binary CID of a block: version 1, SHA-256; ``codec`` is 0x71 (dag-cbor) or 0x55 (raw)."""
    return bytes((1, codec, 0x12, 0x20)) + hashlib.sha256(block).digest()


def cid_text(cid: bytes) -> str:
    """A binary CID as text: multibase ``b``, lower-case base32 without padding."""
    text: str = encode_multibase("b", cid)
    return text


def cid_bytes(text: str) -> bytes:
    """The binary form of a CID in base32 text. Raises ValueError if ``text`` isn't what :func:`cid_text` writes."""
    digits = text[1:].upper()
    raw = base64.b32decode(digits + "=" * (-len(digits) % 8))
    if not raw or cid_text(raw) != text:
        raise ValueError("not a CID in base32")
    return raw


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")


def _unbase64(text: str) -> bytes:
    digits = text.rstrip("=")
    return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
