"""Frames of ``com.atproto.sync.subscribeRepos``: bytes to a type and a body, a body to an event.

A frame is two concatenated DAG-CBOR objects, a header ``{op, t}`` and a body (AT Protocol event stream
specification). ``decode_frame`` runs for every frame of the network and stays minimal; the ``*_event`` functions
check every field and run only for what concerns us.
"""

from __future__ import annotations

import re
from typing import TypeVar

import libipld

from indexer.errors import Rejected
from indexer.model import Account, Commit, Identity, Operation, Reason, Sync
from indexer.syntax import is_did

MAX_OPERATIONS = 200  # per commit, by the specification
ERROR = "error"  # the type given to an error frame (op -1), whose body is {error, message}

_REPO = re.compile(rb"\x64repo([\x60-\x77]|\x78.|\x79..)", re.DOTALL)  # a key of the body, the head of a text
_HEADER = 64  # bytes in which the type of a frame is said

T = TypeVar("T")
Body = dict[str, object]

_decode = libipld.decode_dag_cbor_multi


def decode_frame(raw: bytes) -> tuple[str, Body]:
    """Header and body of one frame, as (type, body); the type of an error frame is ``"error"``.

    Raises Rejected (malformed_frame) for anything but two DAG-CBOR maps with a text ``t``.
    """
    try:
        header, body = _decode(raw)
        kind = header["t"] if header["op"] == 1 else ERROR
    except RecursionError:
        raise Rejected(Reason.MALFORMED_FRAME, "nested too deeply") from None
    except Exception:  # the decoder's own errors are of many types, and may quote the frame
        raise Rejected(Reason.MALFORMED_FRAME, "not a header and a body in DAG-CBOR") from None
    if not isinstance(kind, str) or not isinstance(body, dict):
        raise Rejected(Reason.MALFORMED_FRAME, "not a header and a body in DAG-CBOR")
    return kind, body


def commit_event(body: Body) -> Commit:
    """The ``#commit`` in a body. Raises Rejected where a field is missing or of the wrong type."""
    operations = field(body, "ops", list)
    if len(operations) > MAX_OPERATIONS:
        raise Rejected(Reason.TOO_MANY_OPERATIONS, f"{len(operations)} operations in one commit")
    return Commit(
        seq=field(body, "seq", int),
        time=field(body, "time", str),
        did=field(body, "repo", str),
        rev=field(body, "rev", str),
        since=_optional(body, "since", str),
        commit=field(body, "commit", bytes),
        prev_data=_optional(body, "prevData", bytes),
        operations=tuple(map(_operation, operations)),
        blocks=_optional(body, "blocks", bytes) or b"",
        too_big=_optional(body, "tooBig", bool) or False,
    )


def damaged_repo(raw: bytes) -> str | None:
    """The account that a ``#commit`` frame seems to be of, however damaged; None if it can't be told."""
    found = _REPO.search(raw) if b"#commit" in raw[:_HEADER] else None
    if found is None:
        return None
    head, start = found[1], found.end()
    length = head[0] & 0x1F if len(head) == 1 else int.from_bytes(head[1:], "big")
    did = raw[start : start + length].decode("ascii", "replace")
    return did if len(did) == length and is_did(did) else None


def account_event(body: Body) -> Account:
    """The ``#account`` in a body. Raises Rejected where a field is missing or of the wrong type."""
    return Account(
        seq=field(body, "seq", int),
        time=field(body, "time", str),
        did=field(body, "did", str),
        active=field(body, "active", bool),
        status=_optional(body, "status", str),
    )


def identity_event(body: Body) -> Identity:
    """The ``#identity`` in a body. Raises Rejected where a field is missing or of the wrong type."""
    return Identity(
        seq=field(body, "seq", int),
        time=field(body, "time", str),
        did=field(body, "did", str),
        handle=_optional(body, "handle", str),
    )


def sync_event(body: Body) -> Sync:
    """The ``#sync`` in a body. Raises Rejected where a field is missing or of the wrong type."""
    return Sync(
        seq=field(body, "seq", int),
        time=field(body, "time", str),
        did=field(body, "did", str),
        rev=field(body, "rev", str),
        blocks=field(body, "blocks", bytes),
    )


def _operation(item: object) -> Operation:
    if not isinstance(item, dict):
        raise Rejected(Reason.MALFORMED_FRAME, "an operation is no map")
    return Operation(
        action=field(item, "action", str),
        path=field(item, "path", str),
        cid=_optional(item, "cid", bytes),
        prev=_optional(item, "prev", bytes),
    )


def field(body: Body, name: str, kind: type[T]) -> T:
    """A field that has to be there, of this type. Raises Rejected (malformed_frame)."""
    value = body.get(name)
    if type(value) is kind:  # a bool is no int, and decoders make no other subclasses
        return value
    raise Rejected(Reason.MALFORMED_FRAME, f"field {name} is missing or no {kind.__name__}")


def _optional(body: Body, name: str, kind: type[T]) -> T | None:
    value = body.get(name)
    return value if value is None or type(value) is kind else field(body, name, kind)
