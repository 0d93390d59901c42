"""The values that travel through the indexer: events in, changes out, and the closed list of reasons.

Everything here is plain data without behaviour of its own. CIDs are ``bytes`` in their binary form (36 bytes for
what AT Protocol uses) while they come from the wire, and text (``bafy…``) once they belong to a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

PREFIX = "xyz.quasigod.lab.letta."
AGENT = PREFIX + "agent"
CONVERSATION = PREFIX + "conversation"
COMPILED_PROMPT = PREFIX + "compiledPrompt"
MESSAGE = PREFIX + "message"

Proof: TypeAlias = Literal["repo", "space"]
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


class Reason(StrEnum):
    """Why something from outside was dropped or set aside: a closed list, the label of two metrics."""

    MALFORMED_FRAME = "malformed_frame"  # not a header and a body in DAG-CBOR, or a field of the wrong type
    OVERSIZED_FRAME = "oversized_frame"
    UNKNOWN_EVENT = "unknown_event"  # an event type we don't know: counted and skipped
    ERROR_FRAME = "error_frame"
    SEQUENCE_JUMP = "sequence_jump"
    MALFORMED_CAR = "malformed_car"
    MISSING_BLOCK = "missing_block"
    WRONG_CID = "wrong_cid"  # a block that does not hash to the CID it is stored under
    UNDECODABLE_RECORD = "undecodable_record"  # kept as a row with its block, but without a value
    BAD_PATH = "bad_path"
    BAD_DID = "bad_did"
    BAD_REV = "bad_rev"
    FUTURE_REV = "future_rev"
    UNKNOWN_ACTION = "unknown_action"
    TOO_MANY_OPERATIONS = "too_many_operations"
    TOO_BIG = "too_big"  # a commit whose host left its blocks out
    KEY_TOO_LONG = "key_too_long"
    DENIED = "denied"  # by --only or --deny
    FORGOTTEN = "forgotten"
    QUOTA = "quota"
    REFUSED_BY_DATABASE = "refused_by_database"


# Events: what a source says, decoded but not yet believed.


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of a commit's ``ops``: ``path`` is ``collection/rkey``, unchecked; ``cid`` is None for a delete."""

    action: str
    path: str
    cid: bytes | None
    prev: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A ``#commit`` event that touches a collection we follow, with all of its operations, in order."""

    seq: int
    time: str
    did: str
    rev: str
    since: str | None
    commit: bytes
    prev_data: bytes | None
    operations: tuple[Operation, ...]
    blocks: bytes
    too_big: bool


@dataclass(frozen=True, slots=True)
class Account:
    """An ``#account`` event: ``status`` is None for an active account, and may be any word."""

    seq: int
    time: str
    did: str
    active: bool
    status: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """An ``#identity`` event; the handle is a hint, unproven."""

    seq: int
    time: str
    did: str
    handle: str | None


@dataclass(frozen=True, slots=True)
class Sync:
    """A ``#sync`` event: the repository's head was set to ``rev`` without a list of operations."""

    seq: int
    time: str
    did: str
    rev: str
    blocks: bytes


# Changes: what the store writes.


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule of a schema that a record breaks: the field's path and the rule's name, never the value."""

    field: str
    rule: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record's content in the form the store keeps.

    ``value`` is JSON text that jsonb accepts. ``block`` is the original DAG-CBOR where re-encoding ``value`` would
    not give it back, else None. ``digests`` holds the lower-case hex SHA-256 of the original UTF-8 of each top-level
    string that ``value`` could not hold unchanged. ``valid`` is None where no schema is known. ``agent`` is the
    reference in a compiled prompt's ``agent``, as it stands there, if it is short enough to name anything.
    """

    value: str
    size: int
    block: bytes | None = None
    digests: dict[str, str] = field(default_factory=dict)
    valid: bool | None = None
    violations: tuple[Violation, ...] = ()
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit did to one record: ``record`` and ``cid`` are None for a delete.

    ``space`` is '' for public records, else the space's canonical URI. ``rev`` orders changes of one record, bytewise.
    """

    did: str
    space: str
    collection: str
    rkey: str
    rev: str
    cid: str | None
    record: Record | None
    proof: Proof | None = None


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The state of an account as of ``time``; of two with equal times the greater ``status`` wins.

    ``purge_rev``, if not empty, takes all of the account's rows and history at or below it away for good.
    """

    did: str
    time: datetime
    active: bool
    status: str
    purge_rev: str = ""


@dataclass(frozen=True, slots=True)
class HandleChange:
    """The handle an account claims as of ``time``, unproven."""

    did: str
    time: datetime
    handle: str | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Something set aside: ``frame`` holds its raw bytes, or nothing where they are too many; ``size`` is their number."""

    source: str
    position: int | None
    did: str | None
    reason: Reason
    detail: str
    frame: bytes
    size: int
