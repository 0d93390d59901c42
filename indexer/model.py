"""The values that travel through the indexer: events in, changes out, and the closed list of reasons.

Everything here is plain data without behaviour of its own. CIDs are ``bytes`` in their binary form (36 bytes for
what AT Protocol uses) while they come from the wire, and text (``bafy…``) once they belong to a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias, TypeVar, dataclass_transform

PREFIX = "xyz.quasigod.lab.letta."
AGENT = PREFIX + "agent"
CONVERSATION = PREFIX + "conversation"
COMPILED_PROMPT = PREFIX + "compiledPrompt"
MESSAGE = PREFIX + "message"

T = TypeVar("T")
Proof: TypeAlias = Literal["repo", "space"]
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots, where it is the type checker that sees to it that none is changed.

    For what is made for every commit: one that is frozen at run time takes thrice as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


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
    DUPLICATE = "duplicate"  # a commit not newer than what is held: nothing to do
    UNPROVEN = "unproven"  # a commit that its own signed tree contradicts
    PENDING_FULL = "pending_full"  # no room left to keep an undecided commit
    REWOUND = "rewound"  # a repository whose host went back to an earlier state, replaced whole
    UNSIGNED_REV = "unsigned_rev"  # a wanted revision that the account's host doesn't know, given up
    REFUSED_BY_DATABASE = "refused_by_database"


class WantReason(StrEnum):
    """Why a repository is wanted: a closed list, the label of ``wants``."""

    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    GAP = "gap"
    MISSING_BLOCK = "missing_block"
    UNPROVEN = "unproven"
    PENDING_FULL = "pending_full"
    SYNC = "sync"
    TOO_BIG = "too_big"
    FIRST_SEEN = "first_seen"
    RETURNED = "returned"
    OUTDATED_CURSOR = "outdated_cursor"
    SEQUENCE_RESET = "sequence_reset"
    FILTER_WIDENED = "filter_widened"
    BACKFILL = "backfill"
    CHECK = "check"


# Events: what a source says, decoded but not yet believed.


@immutable
class Operation:
    """One entry of a commit's ``ops``: ``path`` is ``collection/rkey``, unchecked; ``cid`` is None for a delete."""

    action: str
    path: str
    cid: bytes | None
    prev: bytes | None


@immutable
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


@immutable
class Record:
    """A record's content in the form the store keeps.

    ``value`` is JSON text that jsonb accepts. ``block`` is the original DAG-CBOR where re-encoding ``value`` would
    not give it back, else None. ``digests`` holds the lower-case hex SHA-256 of the original UTF-8 of each top-level
    string that ``value`` could not hold unchanged. ``valid`` is None where no schema is known. ``agent`` is the
    reference in a compiled prompt's ``agent``, as it stands there, if it is short enough to name anything. ``facts`` is
    what :mod:`indexer.texts` says of its long texts, by column.
    """

    value: str
    size: int
    block: bytes | None = None
    digests: dict[str, str] = field(default_factory=dict)
    valid: bool | None = None
    violations: tuple[Violation, ...] = ()
    agent: str | None = None
    facts: Mapping[str, int | str | bool | None] = field(default_factory=dict)


@immutable
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


@immutable
class Proposal:
    """A commit proven in itself: whether it continues what is held is decided when it is written.

    ``prev_data`` is the root its operations start from, None if that isn't known; CIDs are text. ``frame`` is kept
    if it has to wait. One that doesn't ``moves`` holds a part of its commit's changes: the repository is led on with
    the rest.
    """

    did: str
    rev: str
    since: str | None
    prev_data: str | None
    data: str
    changes: tuple[Change, ...]
    source: str
    frame: bytes
    moves: bool = True


@dataclass(frozen=True, slots=True)
class Undecided:
    """A commit that can't be judged from what is at hand: it waits in ``pending``, and its repository is wanted."""

    did: str
    rev: str
    reason: WantReason
    source: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class Want:
    """A repository to be fetched, at ``rev`` or later (None: as it is now). ``did`` '' stands for every tracked one."""

    did: str
    reason: WantReason
    rev: str | None = None


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The state of an account as of ``time``; of two with equal times the greater ``status`` wins.

    ``purge_rev``, if not empty, takes all of the account's rows and history at or below it away for good.
    ``confirm``: the account's current host is asked, and what returns is fetched.
    """

    did: str
    time: datetime
    active: bool
    status: str
    purge_rev: str = ""
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class HandleChange:
    """The handle an account claims as of ``time``, unproven; ``confirm``: its identity is resolved instead."""

    did: str
    time: datetime
    handle: str | None
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Something set aside: ``frame`` holds its raw bytes, or nothing if they are too many; ``size`` is their number."""

    source: str
    position: int | None
    did: str | None
    reason: Reason
    detail: str
    frame: bytes
    size: int
