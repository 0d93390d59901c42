"""One answer of ``listRepoOps``, from JSON to operations whose every field has been looked at.

    {ops: [{rev, collection, rkey, cid | null, prev | null, value?}], cursor? | commit?}

The commit comes with the last page only. An answer without operations, cursor and commit says nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from indexer.cbor import cid_bytes, cid_of, cid_text, encode_json
from indexer.errors import Rejected
from indexer.model import Json, Reason
from indexer.spaces.commit import SpaceCommit, read_commit
from indexer.syntax import is_tid

LONGEST_CURSOR: Final = 4_096
_LONGEST_PATH: Final = 4_096


@dataclass(frozen=True, slots=True)
class Operation:
    """One write to one record, in the order of the log. Nothing in it is proven, nor is the path checked.

    ``cid`` (text) is None for a delete, ``prev`` None for a create. ``value`` is the record's JSON form, None where
    the host no longer has it.
    """

    rev: str
    collection: str
    rkey: str
    cid: str | None
    prev: str | None
    value: dict[str, Json] | None

    @property
    def path(self) -> str:
        """``collection/rkey``."""
        return f"{self.collection}/{self.rkey}"

    def block(self) -> bytes:
        """The record's block, encoded from ``value``, which does hash to ``cid``.

        Raises Rejected with WRONG_CID where it doesn't: the value is another, or JSON can't hold what the record is.
        """
        try:
            block = encode_json(self.value)
        except (ValueError, RecursionError):
            block = b""
        if not block or cid_text(cid_of(block)) != self.cid:
            raise Rejected(Reason.WRONG_CID, "a value that doesn't hash to its operation's CID")
        return block


@dataclass(frozen=True, slots=True)
class Page:
    """One answer: operations in order, then the ``cursor`` that leads on, or the commit at the end."""

    operations: tuple[Operation, ...]
    cursor: str | None
    commit: SpaceCommit | None

    @property
    def silent(self) -> bool:
        """Whether it says nothing: an unknown, deleted or empty space, or a host that has a bad day."""
        return not self.operations and self.cursor is None and self.commit is None


def read_page(body: object) -> Page:
    """The page in a decoded JSON answer. Raises Rejected (malformed_frame) for one that isn't of this form."""
    if not isinstance(body, Mapping) or not isinstance(body.get("ops"), list):
        raise _malformed("no list of operations")
    cursor = body.get("cursor")
    if cursor is not None and not (isinstance(cursor, str) and 0 < len(cursor) <= LONGEST_CURSOR):
        raise _malformed("a cursor that is none")
    commit = read_commit(body["commit"]) if "commit" in body else None
    if "commit" in body and (commit is None or cursor is not None):
        raise _malformed("a commit that is no map, or has a cursor beside it")
    page = Page(tuple(map(_operation, body["ops"])), cursor, commit)
    if page.operations and cursor is None and commit is None:
        raise _malformed("operations without a commit or a cursor")
    return page


def _operation(body: object) -> Operation:
    if not isinstance(body, Mapping):
        raise _malformed("an operation that is no map")
    rev, collection, rkey = (_text(body, name) for name in ("rev", "collection", "rkey"))
    cid, prev, value = _cid(body, "cid"), _cid(body, "prev"), body.get("value")
    if not is_tid(rev) or not (value is None or isinstance(value, dict)) or (cid is None and value is not None):
        raise _malformed("an operation with a field of the wrong kind")
    return Operation(rev, collection, rkey, cid, prev, value)


def _text(body: Mapping[str, object], name: str) -> str:
    text = body.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_PATH or "/" in text:
        raise _malformed(f"an operation without a usable {name}")
    return text


def _cid(body: Mapping[str, object], name: str) -> str | None:
    """A CID or null, which has to be there: a field that is missing doesn't say that there is nothing."""
    text = body.get(name, "")
    if text is None:
        return None
    try:
        return cid_text(cid_bytes(text)) if isinstance(text, str) else _refuse(name)
    except ValueError:
        return _refuse(name)


def _refuse(name: str) -> str:
    raise _malformed(f"an operation whose {name} is neither a CID nor null")


def _malformed(detail: str) -> Rejected:
    return Rejected(Reason.MALFORMED_FRAME, detail)
