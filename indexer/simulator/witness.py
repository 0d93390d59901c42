"""What a Jetstream makes of the firehose: numbered events in JSON, of both versions of its protocol.

Lexicon ``network.bsky.jetstream.subscribeEvents``, proposal 0015 and the description of ``/subscribe``: one event for
each operation of a commit, the record as the JSON of the data model; identity, account and sync events as they came, in
an envelope. Version 1 has no sync events, and times for numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from indexer.simulator import events
from indexer.simulator.archive import read_car
from indexer.simulator.dagcbor import Value, cid_text, decode, to_json

LEXICON = "network.bsky.jetstream.subscribeEvents"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = ("identity", "account", "sync")


@dataclass(frozen=True, slots=True)
class Witnessed:
    """An event: its number and time (microseconds since 1970), what filters look at, and its frames.

    ``collection`` is '' and ``version_1`` None where there is none.
    """

    seq: int
    time_us: int
    kind: str
    did: str
    collection: str
    version_1: bytes | None
    version_2: bytes


class Witness:
    """Numbers events and writes them down, from ``first_seq`` on. Times never repeat."""

    def __init__(self, first_seq: int = 1) -> None:
        self.next_seq = first_seq
        self._last_us = 0

    def see(self, frame: bytes) -> Iterator[Witnessed]:
        """The events that a frame of the firehose is."""
        header, body = events.parse(frame)
        kind = header.get("t", "").removeprefix("#")
        if kind == "commit":
            yield from self._commit(body)
        elif kind in _KINDS:
            yield self._event(kind, body["did"], body["time"], {kind: to_json(body)})

    def _commit(self, body: dict[str, Value]) -> Iterator[Witnessed]:
        blocks = dict(read_car(body["blocks"])[1])
        for op in body["ops"]:
            collection, rkey = op["path"].split("/")
            content = {"rev": body["rev"], "operation": op["action"], "collection": collection, "rkey": rkey}
            if op["cid"] is not None:
                content["cid"] = cid_text(op["cid"].cid)
                content["record"] = to_json(decode(blocks[op["cid"].cid])[0])
            yield self._event("commit", body["repo"], body["time"], content, collection)

    def _event(self, kind: str, did: str, time: str, content: dict[str, Value], collection: str = "") -> Witnessed:
        micros = (datetime.fromisoformat(time) - _EPOCH) // timedelta(microseconds=1)
        self._last_us = micros = max(micros, self._last_us + 1)
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        first = {"did": did, "time_us": micros, "kind": kind, **({kind: content} if kind == "commit" else content)}
        stamp = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")
        envelope = {"$type": f"{LEXICON}#{kind}", "seq": seq, "did": did, "time": stamp, "witnessedAt": stamp}
        version_1 = None if kind == "sync" else text(first)
        return Witnessed(seq, micros, kind, did, collection, version_1, message(envelope | content))


def message(payload: Value) -> bytes:
    """A message frame of version 2."""
    return text({"$type": "message", "payload": payload})


def info(name: str) -> bytes:
    """An advisory of version 2, which has no number."""
    return message({"$type": f"{LEXICON}#info", "name": name, "message": "said by the simulator"})


def error(name: str) -> bytes:
    """An error frame of version 2, after which the connection ends."""
    return text({"$type": "error", "error": name, "message": "said by the simulator"})


def text(value: Value) -> bytes:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
