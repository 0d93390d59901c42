"""Frames of ``com.atproto.sync.subscribeRepos``: a DAG-CBOR header and a DAG-CBOR body, one after the other.

Specification: AT Protocol event stream; lexicon ``com.atproto.sync.subscribeRepos``. Times are RFC 3339 text.
"""

from __future__ import annotations

from indexer.simulator.archive import write_car
from indexer.simulator.dagcbor import Link, Value, decode, encode
from indexer.simulator.repository import Commit, Op, Repository


def frame(kind: str, body: dict[str, Value]) -> bytes:
    """A message of type ``kind`` (``#commit``, …)."""
    return encode({"op": 1, "t": kind}) + encode(body)


def parse(data: bytes) -> tuple[dict[str, Value], dict[str, Value]]:
    """Header and body of a frame of our own writing."""
    header, at = decode(data)
    return header, decode(data, at)[0]


def seq_of(data: bytes) -> int | None:
    """The sequence number of a frame; None where it has none or is no frame at all."""
    try:
        seq = parse(data)[1]["seq"]
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return seq if isinstance(seq, int) else None


def commit(did: str, made: Commit, *, seq: int, time: str) -> bytes:
    """``#commit`` as Sync 1.1 has it: ``prev`` on updates and deletes, ``prevData`` except on the first commit."""
    body = {
        "seq": seq,
        "repo": did,
        "rev": made.rev,
        "since": made.since,
        "commit": Link(made.cid),
        "time": time,
        "ops": [_operation(op) for op in made.ops],
        "blocks": write_car([made.cid], made.blocks),
        "blobs": [],
        "tooBig": False,
        "rebase": False,
    }
    if made.prev_data is not None:
        body["prevData"] = Link(made.prev_data)
    return frame("#commit", body)


def _operation(op: Op) -> dict[str, Value]:
    body: dict[str, Value] = {"action": op.action, "path": op.path, "cid": Link(op.cid) if op.cid else None}
    if op.prev is not None:
        body["prev"] = Link(op.prev)
    return body


def sync(repository: Repository, *, seq: int, time: str) -> bytes:
    """``#sync``: where the repository stands now, with the signed commit alone."""
    body = {"seq": seq, "did": repository.did, "rev": repository.rev, "time": time, "blocks": repository.head_car()}
    return frame("#sync", body)


def identity(did: str, handle: str | None, *, seq: int, time: str) -> bytes:
    """``#identity``: the DID document may have changed."""
    body = {"seq": seq, "did": did, "time": time}
    return frame("#identity", body if handle is None else body | {"handle": handle})


def account(did: str, status: str, *, seq: int, time: str) -> bytes:
    """``#account``: ``status`` is ``active`` or why the account is not (``deactivated``, ``deleted``, …)."""
    body: dict[str, Value] = {"seq": seq, "did": did, "time": time, "active": status == "active"}
    return frame("#account", body if status == "active" else body | {"status": status})


def info(name: str, message: str) -> bytes:
    """``#info``, which has no sequence number."""
    return frame("#info", {"name": name, "message": message})


def error(name: str, message: str) -> bytes:
    """An error frame (``op`` -1); the host closes the connection after it."""
    return encode({"op": -1}) + encode({"error": name, "message": message})
