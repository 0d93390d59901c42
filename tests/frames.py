"""Frames of ``com.atproto.sync.subscribeRepos`` made to order: valid by default, wrong where a test asks for it.

    commit(put(AGENT, "3k", agent()), delete(MESSAGE, "3l"), rev=rev(7))

Bytes are built with cbor2 and by hand, with nothing of the code under test, so that every part can be malformed: a
record may be raw bytes, an operation may name any CID, ``commit`` takes any field of its body by keyword.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cbor2
import coincurve

PREFIX = "xyz.quasigod.lab.letta."
AGENT = PREFIX + "agent"
CONVERSATION = PREFIX + "conversation"
PROMPT = PREFIX + "compiledPrompt"
MESSAGE = PREFIX + "message"
TYPED = (AGENT, CONVERSATION, PROMPT, MESSAGE)
OTHER = PREFIX + "memory"  # a collection nobody has published a schema of

DID = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"
STRANGER = "did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"
TIME = "2024-01-02T03:04:05.678Z"
START = 1_704_164_645_000_000  # µs: 2024-01-02T03:04:05Z
TEMPLATE = "You are a test. {CORE_MEMORY}"
MAX_RECORD = 1_000_000  # bytes; what a PDS takes

_TID = "234567abcdefghijklmnopqrstuvwxyz"
_SHA_256 = b"\x12\x20"
_DAG_CBOR = b"\x01\x71"


def dag_cbor(value: Any) -> bytes:
    """The DAG-CBOR of a value: keys shortest first, links by :func:`link`. Floats are shortened."""
    return cbor2.dumps(value, canonical=True)


def cid_of(block: bytes) -> bytes:
    """The binary CID (version 1, dag-cbor, SHA-256) of a block."""
    return _DAG_CBOR + _SHA_256 + hashlib.sha256(block).digest()


def link(cid: bytes) -> cbor2.CBORTag:
    """A CID link, as :func:`dag_cbor` takes it."""
    return cbor2.CBORTag(42, b"\0" + cid)


def sha256(text: str) -> str:
    """Lower-case hex SHA-256 of the text's UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def tid(micros: int, clock_id: int = 0) -> str:
    """The timestamp identifier of a time in microseconds since 1970."""
    number = micros << 10 | clock_id
    return "".join(_TID[number >> shift & 31] for shift in range(60, -1, -5))


def rev(seconds: float) -> str:
    """The rev of a commit made so many seconds after ``START``."""
    return tid(START + int(seconds * 1_000_000))


def key(number: int) -> str:
    """The record key (a TID) of the record with this number."""
    return tid(START, number)


def uri(collection: str, rkey: str, did: str = DID) -> str:
    """The URI of a public record."""
    return f"at://{did}/{collection}/{rkey}"


def varint(number: int) -> bytes:
    """A number in unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def car(roots: Iterable[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A CAR v1 of (CID, bytes) pairs, which need not belong together."""
    header = dag_cbor({"roots": [link(root) for root in roots], "version": 1})
    sections = [header, *(cid + block for cid, block in blocks)]
    return b"".join(varint(len(section)) + section for section in sections)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a commit and the block that goes into the archive for it (None: none does)."""

    action: str
    path: str
    cid: bytes | None
    block: bytes | None

    def entry(self) -> dict[str, Any]:
        """What stands in the commit's ``ops``."""
        return {"action": self.action, "path": self.path, "cid": link(self.cid) if self.cid else None}


def put(collection: str, rkey: str, record: object, *, action: str = "create", cid: bytes | None = None) -> Op:
    """A record written: ``record`` is a value, or the bytes of its block; ``cid`` is its own unless given."""
    block = record if isinstance(record, bytes) else dag_cbor(record)
    return Op(action, f"{collection}/{rkey}", cid or cid_of(block), block)


def delete(collection: str, rkey: str) -> Op:
    """A record deleted."""
    return Op("delete", f"{collection}/{rkey}", None, None)


def frame(kind: str, body: object, *, op: int = 1) -> bytes:
    """Header and body of one message."""
    return dag_cbor({"op": op, "t": kind}) + dag_cbor(body)


def commit(
    *ops: Op,
    did: str = DID,
    rev: str = rev(0),
    signer: coincurve.PrivateKey | None = None,
    extra: Iterable[tuple[bytes, bytes]] = (),
    **fields: Any,
) -> bytes:
    """A ``#commit`` frame, signed with ``signer`` if there is one.

    ``extra`` are more (CID, block) pairs for its archive, ``fields`` replace those of its body.
    """
    root, head = signed_commit(did, rev, signer)
    blocks = [(root, head), *((op.cid, op.block) for op in ops if op.cid and op.block is not None), *extra]
    body = {
        "seq": 1,
        "repo": did,
        "rev": rev,
        "since": None,
        "commit": link(root),
        "prevData": None,
        "time": TIME,
        "ops": [op.entry() for op in ops],
        "blocks": car([root], blocks),
        "tooBig": False,
        "rebase": False,
        "blobs": [],
    }
    return frame("#commit", body | fields)


def signed_commit(
    did: str, rev: str, signer: coincurve.PrivateKey | None, data: bytes | None = None
) -> tuple[bytes, bytes]:
    """CID and block of a commit object; zeroes for a signature without a signer, an empty tree without ``data``."""
    tree = data or cid_of(dag_cbor({"e": [], "l": None}))
    unsigned = {"did": did, "rev": rev, "data": link(tree), "prev": None, "version": 3}
    signature = signer.sign_recoverable(dag_cbor(unsigned))[:64] if signer else bytes(64)
    block = dag_cbor(unsigned | {"sig": signature})
    return cid_of(block), block


def account(did: str = DID, *, active: bool = True, status: str | None = None, **fields: Any) -> bytes:
    """An ``#account`` frame."""
    body = {"seq": 1, "did": did, "time": TIME, "active": active}
    return frame("#account", body | ({"status": status} if status is not None else {}) | fields)


def identity(did: str = DID, handle: str | None = None, **fields: Any) -> bytes:
    """An ``#identity`` frame."""
    body = {"seq": 1, "did": did, "time": TIME}
    return frame("#identity", body | ({"handle": handle} if handle is not None else {}) | fields)


def error_frame(error: object, message: object = "") -> bytes:
    """A frame that says what went wrong and ends the stream."""
    return dag_cbor({"op": -1}) + dag_cbor({"error": error, "message": message})


def agent(system: object = TEMPLATE, **fields: object) -> dict[str, object]:
    """An agent's record."""
    return {
        "$type": AGENT,
        "name": "tester",
        "system": system,
        "primaryConversation": uri(CONVERSATION, key(1)),
    } | fields


def conversation(**fields: object) -> dict[str, object]:
    """A conversation's record: the primary one of agent 1."""
    return {
        "$type": CONVERSATION,
        "agent": uri(AGENT, key(1)),
        "role": "primary",
        "createdAt": TIME,
        "updatedAt": TIME,
    } | fields


def prompt(template: str = TEMPLATE, memory: str = "remembered", **fields: object) -> dict[str, object]:
    """The prompt of conversation 1, compiled in full from this template and this memory."""
    return {
        "$type": PROMPT,
        "agent": uri(AGENT, key(1)),
        "conversation": uri(CONVERSATION, key(1)),
        "content": template.replace("{CORE_MEMORY}", memory),
        "coreMemory": memory,
        "rawSystemHash": sha256(template),
        "memfsRevision": "0" * 40,
        "compiledAt": TIME,
    } | fields


def message(**fields: object) -> dict[str, object]:
    """A message of conversation 1."""
    return {
        "$type": MESSAGE,
        "conversation": uri(CONVERSATION, key(1)),
        "role": "user",
        "status": "sent",
        "seq": 1,
        "content": "hello",
        "createdAt": TIME,
    } | fields


VALID: dict[str, Callable[..., dict[str, object]]] = {
    AGENT: agent,
    CONVERSATION: conversation,
    PROMPT: prompt,
    MESSAGE: message,
}
