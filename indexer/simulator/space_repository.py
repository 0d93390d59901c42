"""One member's permissioned repository in a space: records, the log of operations, the hash, commits and the CAR.

Specification: proposal 0016 as the reference PDS's alpha of August 2026 has it. The hash is kept the plain way, as a
list of 1,024 numbers.
"""

from __future__ import annotations

import hmac
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from blake3 import blake3

from indexer.simulator.archive import CID_LENGTH, varint
from indexer.simulator.dagcbor import Link, Value, cid_of, cid_text, encode, to_json
from indexer.simulator.keys import SigningKey
from indexer.simulator.repository import Write

LANES = 1024
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One operation of the log; ``index`` is its place within its rev. CIDs are text."""

    rev: str
    index: int
    path: str
    cid: str | None
    prev: str | None

    @property
    def cursor(self) -> str:
        """The cursor that leads on from here."""
        return f"{self.rev}/{self.index}"


@dataclass(frozen=True, slots=True)
class Held:
    """A record: its value, block and CID (text), and the operation that wrote it."""

    value: Value
    block: bytes
    cid: str
    entry: LogEntry


class SpaceRepository:
    """The repository of ``did`` in the space ``space`` (canonical URI), signed with ``key``.

    ``records`` are what it holds, by path; ``log`` all operations not yet compacted away; ``rev`` is '' while nothing
    was ever written.
    """

    def __init__(self, space: str, did: str, key: SigningKey, rng: random.Random) -> None:
        self.space = space
        self.did = did
        self.key = key
        self.records: dict[str, Held] = {}
        self.log: list[LogEntry] = []
        self.rev = ""
        self._lanes = [0] * LANES
        self._rng = rng

    def write(self, writes: Sequence[Write], rev: str) -> None:
        """Apply one batch: its operations share ``rev``, and may touch one path several times.

        Raises ValueError where ``rev`` isn't above the last, KeyError for the delete of what isn't there.
        """
        if rev <= self.rev:
            raise ValueError(f"{rev} is not above {self.rev}")
        for index, write in enumerate(writes):
            self._apply(write, rev, index)
        self.rev = rev

    def compact(self, keep: int) -> None:
        """Forget all but the last ``keep`` operations."""
        self.log = self.log[len(self.log) - keep :] if keep < len(self.log) else self.log

    def copy(self) -> SpaceRepository:
        """The repository as it is now: a backup."""
        twin = SpaceRepository(self.space, self.did, self.key, self._rng)
        twin.records, twin.log, twin.rev, twin._lanes = dict(self.records), list(self.log), self.rev, list(self._lanes)
        return twin

    def operations(self, since: str, after: str, limit: int) -> list[LogEntry]:
        """At most ``limit`` operations above the rev ``since`` and after the cursor ``after`` ('' for none)."""
        place = _place(after) if after else ("", -1)
        found = (entry for entry in self.log if entry.rev > since and (entry.rev, entry.index) > place)
        return [entry for entry, _ in zip(found, range(limit), strict=False)]

    def operation_json(self, entry: LogEntry) -> dict[str, Value]:
        """An operation as ``listRepoOps`` gives it: with the value only while it is the last word on its record."""
        collection, _, rkey = entry.path.partition("/")
        body = {"rev": entry.rev, "collection": collection, "rkey": rkey, "cid": entry.cid, "prev": entry.prev}
        held = self.records.get(entry.path)
        return body | {"value": to_json(held.value)} if held is not None and held.entry == entry else body

    def commit(self) -> dict[str, Value]:
        """A freshly signed commit of the head; no two are alike."""
        ikm = self._rng.randbytes(32)
        digest = sha256(b"".join(lane.to_bytes(2, "little") for lane in self._lanes)).digest()
        context = context_of(self.space, self.did, self.rev, ikm)
        return {
            "ver": _VERSION,
            "hash": digest,
            "ikm": ikm,
            "mac": hmac.new(expand(ikm, context, 32), digest, sha256).digest(),
            "sig": self.key.sign(context),
            "rev": self.rev,
        }

    def export(self, *, values: bool = True) -> bytes:
        """The CAR: commit and index as roots, then (with ``values``) the records in order, repeated if equal."""
        paths = sorted(self.records, key=lambda path: (len(path), path))
        commit, index = (
            encode(self.commit()),
            encode({path: Link(cid_of(self.records[path].block)) for path in paths}),
        )
        blocks = [commit, index, *(self.records[path].block for path in paths if values)]
        header = encode({"version": 1, "roots": [Link(cid_of(commit)), Link(cid_of(index))]})
        sections = (varint(CID_LENGTH + len(block)) + cid_of(block) + block for block in blocks)
        return varint(len(header)) + header + b"".join(sections)

    def _apply(self, write: Write, rev: str, index: int) -> None:
        old = self.records.get(write.path)
        if write.value is None and old is None:
            raise KeyError(write.path)
        block = None if write.value is None else encode(write.value)
        cid = None if block is None else cid_text(cid_of(block))
        entry = LogEntry(rev, index, write.path, cid, old.cid if old else None)
        self.log.append(entry)
        if old is not None:
            self._count(f"{write.path}/{old.cid}", -1)
            del self.records[write.path]
        if block is not None and cid is not None:
            self._count(f"{write.path}/{cid}", 1)
            self.records[write.path] = Held(write.value, block, cid, entry)

    def _count(self, element: str, sign: int) -> None:
        for lane, number in enumerate(lanes_of(element)):
            self._lanes[lane] = (self._lanes[lane] + sign * number) % 65536


def lanes_of(element: str) -> list[int]:
    """The 1,024 numbers that stand for an element of the set."""
    output = blake3(element.encode()).digest(length=2 * LANES)
    return [output[at] | output[at + 1] << 8 for at in range(0, len(output), 2)]


def context_of(space: str, did: str, rev: str, ikm: bytes) -> bytes:
    """What a commit's signature is over."""
    context = bytearray(b"atproto-space-v1")
    for part in (space.encode(), did.encode(), rev.encode(), ikm):
        context += bytes(array("B", (len(part) >> 8, len(part) & 255))) + part
    return bytes(context)


def expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand with SHA-256 (RFC 5869, 2.3)."""
    output, block = b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.new(key, block + info + bytes((number,)), sha256).digest()
        output += block
    return output[:length]


def _place(cursor: str) -> tuple[str, int]:
    rev, _, index = cursor.partition("/")
    return rev, int(index)
