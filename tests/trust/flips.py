"""Where in a ``#commit`` frame what stands, by reading its bytes: so that one bit of it can be flipped.

Reads DAG-CBOR and CAR v1 by hand, with nothing of the code under test but the simulator's decoder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from indexer.simulator import events
from indexer.simulator.dagcbor import cid_text, decode
from tests.frames import PREFIX

FIELDS = ("repo", "rev", "since", "prevData", "commit", "action", "path", "cid", "prev")
BLOCKS = ("signed commit", "root node", "other node", "record")
_BYTES, _TEXT, _LIST, _MAP, _TAG = range(2, 7)
_CID = 36


class Span(NamedTuple):
    """Bytes of a frame, from ``start`` up to ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CommitFrame:
    """A captured ``#commit``: its bytes, its body decoded, whether it touches what we follow."""

    raw: bytes
    body: dict[str, Any]

    @property
    def did(self) -> str:
        """Whose repository it is."""
        return str(self.body["repo"])

    @property
    def touches(self) -> bool:
        """Whether an operation is on one of our records."""
        return any(op["path"].startswith(PREFIX) for op in self.body["ops"])

    def written(self) -> Iterator[tuple[str, str | None]]:
        """URI and CID (None: deleted) of each of our records that it writes."""
        for op in self.body["ops"]:
            if op["path"].startswith(PREFIX):
                yield f"at://{self.did}/{op['path']}", cid_text(op["cid"].cid) if op["cid"] else None

    def places(self) -> dict[str, list[Span]]:
        """Where the values of :data:`FIELDS` and the blocks of :data:`BLOCKS` lie, by these names."""
        found: defaultdict[str, list[Span]] = defaultdict(list)
        _, at = decode(self.raw)
        for path, span in _values(self.raw, at, ()):
            name = path[-1]
            if path[0] == "ops" or (len(path) == 1 and name in FIELDS):
                found[name].append(span)
            elif path == ("blocks",):
                for role, block in self._blocks(span):
                    found[role].append(block)
        return dict(found)

    def _blocks(self, archive: Span) -> Iterator[tuple[str, Span]]:
        head = self.body["commit"].cid
        records = {op["cid"].cid for op in self.body["ops"] if op["cid"] and op["path"].startswith(PREFIX)}
        others = {op["cid"].cid for op in self.body["ops"] if op["cid"]} - records
        sections = dict(_sections(self.raw, archive))
        data = decode(self.raw[sections[head].start : sections[head].end])[0]["data"].cid
        for cid, span in sections.items():
            if cid in others:
                continue  # a record of somebody else's: nothing of it is indexed, so nothing of it is proven
            names = {head: "signed commit", data: "root node"} | dict.fromkeys(records, "record")
            yield names.get(cid, "other node"), span


def flip(frame: CommitFrame, place: str, random: Random) -> bytes:
    """The frame with one bit of one value, or block, of this name flipped."""
    start, end = random.choice(frame.places()[place])
    raw = bytearray(frame.raw)
    raw[random.randrange(start, end)] ^= 1 << random.randrange(8)
    return bytes(raw)


def commit_frames(frames: list[bytes]) -> list[CommitFrame]:
    """The commits among captured frames."""
    parsed = [(raw, *events.parse(raw)) for raw in frames]
    return [CommitFrame(raw, body) for raw, header, body in parsed if header["t"] == "#commit"]


def _values(raw: bytes, at: int, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Every text, byte string and link under the item at ``at``, by its path of keys, without its head."""
    major, argument, content = _head(raw, at)
    if major == _MAP:
        at = content
        for _ in range(argument):
            key, at = decode(raw, at)
            yield from _values(raw, at, (*path, str(key)))
            at = decode(raw, at)[1]
    elif major == _LIST:
        at = content
        for _ in range(argument):
            yield from _values(raw, at, path)
            at = decode(raw, at)[1]
    elif major == _TAG:
        _, size, start = _head(raw, content)
        yield path, Span(start + 1, start + size)  # after the multibase prefix, which is no part of a CID
    elif major in (_BYTES, _TEXT):
        yield path, Span(content, content + argument)


def _head(raw: bytes, at: int) -> tuple[int, int, int]:
    """Major type and argument of the item at ``at``, and where its content begins."""
    major, low = raw[at] >> 5, raw[at] & 0x1F
    if low < 24:
        return major, low, at + 1
    size = 1 << low - 24
    return major, int.from_bytes(raw[at + 1 : at + 1 + size], "big"), at + 1 + size


def _sections(raw: bytes, archive: Span) -> Iterator[tuple[bytes, Span]]:
    """CID and block of each section of a CAR after its header."""
    length, at = _varint(raw, archive.start)
    at += length
    while at < archive.end:
        length, at = _varint(raw, at)
        yield raw[at : at + _CID], Span(at + _CID, at + length)
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while raw[at] & 0x80:
        number |= (raw[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | raw[at] << shift, at + 1
