"""Frames of Jetstream: JSON to the same types and bodies as those of the firehose, and to commits of one operation.

Version 2 wraps ``{"$type": "message", "payload": …}`` (lexicon ``network.bsky.jetstream.subscribeEvents``, proposal
0015), version 1 is ``{"kind", "did", "time_us", …}``; which one a frame is shows in its form. A record comes as the
JSON of the data model. It counts only if its DAG-CBOR hashes to the CID that the event names: then its bytes are right,
whoever sent them, while nothing proves that the account wrote them.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from indexer.car import Car
from indexer.cbor import cid_bytes, encode_json
from indexer.errors import Rejected
from indexer.frames import ERROR, Body, field
from indexer.model import Commit, Operation, Reason
from indexer.syntax import is_did

_PREFIX = "network.bsky.jetstream.subscribeEvents#"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DID = re.compile(rb'"did"\s*:\s*"(did:[a-zA-Z0-9._:%-]{1,256})"')
_WRAPPED = ("account", "identity", "sync")


def decode_event(raw: bytes) -> tuple[str, Body]:
    """Type and body of one frame, as :func:`indexer.frames.decode_frame` gives them for the firehose.

    ``seq`` is Jetstream's own number, in version 1 the time in microseconds. A ``#commit`` has ``repo`` and ``ops``
    with one operation, beside what :func:`told_commit` reads. Raises Rejected (malformed_frame).
    """
    try:
        frame = json.loads(raw.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):  # what the decoder says may quote the frame
        raise _malformed("not an object in JSON") from None
    if not isinstance(frame, dict):
        raise _malformed("not an object in JSON")
    if "kind" in frame:
        return _version_1(frame)
    if frame.get("$type") == ERROR:
        return ERROR, frame
    payload = field(frame, "payload", dict)
    name = field(payload, "$type", str)
    kind = name.removeprefix(_PREFIX)
    return f"#{kind}", _body(kind, payload, payload.get(kind), payload.get("seq"))


def _version_1(frame: dict[str, Any]) -> tuple[str, Body]:
    kind, micros = field(frame, "kind", str), field(frame, "time_us", int)
    content = frame.get(kind)
    if kind == "commit":
        content = {**field(frame, kind, dict), "did": frame.get("did"), "time": _instant(micros)}
        return "#commit", _body(kind, content, None, micros)
    return f"#{kind}", _body(kind, frame, content, micros)


def _body(kind: str, envelope: dict[str, Any], content: object, seq: object) -> Body:
    """The event as the firehose would give it, with Jetstream's number."""
    if kind == "commit":
        path = f"{field(envelope, 'collection', str)}/{field(envelope, 'rkey', str)}"
        return {**envelope, "seq": seq, "repo": envelope.get("did"), "ops": [{"path": path}]}
    if kind not in _WRAPPED:
        return {**envelope, "seq": seq}
    if not isinstance(content, dict) or content.get("did") != envelope.get("did"):
        raise _malformed("an event within an event is missing, or of another account")
    body = {**content, "seq": seq}
    if kind == "sync":
        body["blocks"] = _bytes(content.get("blocks"))
    if isinstance(body.get("status"), str):
        body["status"] = body["status"].encode(errors="replace").decode()  # JSON can name half a surrogate pair
    return body


def told_commit(body: Body) -> tuple[Commit, Car]:
    """A ``#commit`` as a commit of one operation, and the record's block under the CID that is claimed for it.

    A record without such a block is there as one that hashes to no CID. Raises Rejected where a field is missing or of
    the wrong type.
    """
    (operation,) = field(body, "ops", list)
    action = field(body, "operation", str)
    cid = None if action == "delete" else _cid(field(body, "cid", str))
    commit = Commit(
        seq=field(body, "seq", int),
        time=field(body, "time", str),
        did=field(body, "repo", str),
        rev=field(body, "rev", str),
        since=None,
        commit=b"",
        prev_data=None,
        operations=(Operation(action, operation["path"], cid, None),),
        blocks=b"",
        too_big=False,
    )
    return commit, Car((), {} if cid is None else {cid: _block(body.get("record"))})


def damaged_account(raw: bytes) -> str | None:
    """The account that a frame seems to be of, however damaged; None if it can't be told."""
    found = _DID.search(raw)
    did = found[1].decode() if found is not None else ""
    return did if is_did(did) else None


def _block(record: Any) -> bytes:
    try:
        return encode_json(record) if isinstance(record, dict) else b""
    except ValueError:
        return b""


def _cid(text: str) -> bytes:
    try:
        return cid_bytes(text)
    except ValueError:
        raise _malformed("a CID that is none") from None


def _bytes(value: object) -> bytes:
    text = value.get("$bytes") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise _malformed("bytes that are none")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise _malformed("bytes that are none") from None


def _instant(micros: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        raise _malformed("a time that is none") from None


def _no_number(_: str) -> NoReturn:
    raise ValueError("not a number in JSON")


def _malformed(detail: str) -> Rejected:
    return Rejected(Reason.MALFORMED_FRAME, detail)
