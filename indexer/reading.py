"""A fetched repository as the changes that make the rows what it says: bounded, whatever its tree names how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from indexer.cbor import cid_text
from indexer.changes import check_path, read_record
from indexer.errors import Rejected
from indexer.model import Change, Reason, Record
from indexer.snapshot import Snapshot
from indexer.syntax import is_tid

MOST_REFUSED: Final = 100  # of one repository that are kept to be looked into; the others are counted


class Refused(NamedTuple):
    """Something of a repository that can't be used: why, and its block if that was read."""

    error: Rejected
    block: bytes


class Reading:
    """What a repository comes to at its head.

    ``changes`` has every record that is to be kept; one with a CID but without a record stands for a row that was
    right already. ``dropped`` counts what can't be used, ``refused`` has the first of it.
    """

    def __init__(self, repository: Snapshot, kept: Mapping[str, tuple[str, str]]) -> None:
        self.changes: list[Change] = []
        self.dropped: Counter[Reason] = Counter()
        self.refused: list[Refused] = []
        self._repository = repository
        self._kept = kept
        self._size = 0
        self._records: dict[tuple[str, bool, bytes], Record] = {}

    def take(self, prefixes: tuple[str, ...], *, quota_rows: int, quota_bytes: int) -> None:
        """Take the records under ``prefixes``, in key order, up to an account's quota.

        Raises Rejected where the repository isn't whole.
        """
        for path, cid in self._repository.paths(prefixes):
            try:
                collection, rkey = check_path(self._repository.commit.did, path)
            except Rejected as rejected:
                self._refuse(rejected, b"")
                continue
            if len(self.changes) < quota_rows and self._size < quota_bytes:
                self._take(collection, rkey, cid)
            else:
                self.dropped[Reason.QUOTA] += 1

    def _take(self, collection: str, rkey: str, cid: bytes) -> None:
        commit, text = self._repository.commit, cid_text(cid)
        kept_cid, kept_rev = self._kept.get(f"{collection}/{rkey}", ("", ""))
        is_right = kept_cid == text and kept_rev <= commit.rev
        record = None if is_right else self._record(collection, rkey, cid)
        self._size += record.size if record is not None else 0
        self.changes.append(Change(commit.did, "", collection, rkey, commit.rev, text, record, "repo"))

    def _record(self, collection: str, rkey: str, cid: bytes) -> Record:
        """A record: decoded once, and held once, though the tree may name its block under a million keys."""
        same = collection, is_tid(rkey), cid  # a schema may demand that a record key is a TID
        if same not in self._records:
            block = self._repository.block(cid)
            self._records[same], error = read_record(collection, rkey, block)
            if error is not None:
                self._refuse(error, block)
        return self._records[same]

    def _refuse(self, error: Rejected, block: bytes) -> None:
        self.dropped[error.reason] += 1
        if len(self.refused) < MOST_REFUSED:
            self.refused.append(Refused(error, block))
