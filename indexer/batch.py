"""A batch: changes gathered until they are written together, folded so that each key is written once.

Order within a record is (rev bytewise, proven over unproven, CID bytewise), so a batch gives the same rows whatever
order its changes came in, and however often. History is kept apart: every version of a prompt or a conversation
counts, also those that a later change of the same batch overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from indexer.model import COMPILED_PROMPT, CONVERSATION, AccountChange, Change, DeadLetter, HandleChange

ROW_OVERHEAD = 256  # bytes that a change weighs beside its record


class Key(NamedTuple):
    """What a row is known by."""

    did: str
    space: str
    collection: str
    rkey: str


class Order(NamedTuple):
    """Where a change stands among the changes of one key: by rev, then proven over unproven."""

    rev: str
    proven: bool


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has been read: its sequence number and the time of that event."""

    seq: int | None
    event_time: datetime | None


def key_of(change: Change) -> Key:
    """The key of the row that a change is about."""
    return Key(change.did, change.space, change.collection, change.rkey)


def order_of(change: Change) -> Order:
    """The place of a change among those of its key."""
    return Order(change.rev, change.proof is not None)


@dataclass(slots=True)
class Batch:
    """Changes, account states, dead letters and source positions that are committed in one transaction."""

    puts: dict[Key, Change] = field(default_factory=dict)
    deletes: dict[Key, Order] = field(default_factory=dict)
    versions: dict[tuple[Key, str, str], Change] = field(default_factory=dict)
    accounts: dict[str, AccountChange] = field(default_factory=dict)
    handles: dict[str, HandleChange] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    size: int = 0  # bytes, roughly

    @property
    def rows(self) -> int:
        """How many things there are to write, positions aside."""
        return (
            len(self.versions)
            + len(self.puts)
            + len(self.deletes)
            + len(self.accounts)
            + len(self.handles)
            + len(self.dead_letters)
        )

    def add(self, change: Change) -> None:
        """Take one change in; only the greatest of each key is kept for its row."""
        key = key_of(change)
        self.size += ROW_OVERHEAD + (change.record.size if change.record is not None else 0)
        if change.cid is None:
            self.deletes[key] = max(order_of(change), self.deletes.get(key, Order("", False)))
            return
        kept = self.puts.get(key)
        if kept is None or _rank(change) > _rank(kept):
            self.puts[key] = change
        if change.collection in (COMPILED_PROMPT, CONVERSATION):
            self.versions[key, change.rev, change.cid] = change

    def add_account(self, change: AccountChange) -> None:
        """Take an account's state in; the latest by time wins, whatever order they come in."""
        self.size += ROW_OVERHEAD
        kept = self.accounts.get(change.did)
        if kept is None:
            self.accounts[change.did] = change
        else:
            later = max(kept, change, key=lambda one: (one.time, one.status))
            purge = max(kept.purge_rev, change.purge_rev)
            self.accounts[change.did] = AccountChange(later.did, later.time, later.active, later.status, purge)

    def add_handle(self, change: HandleChange) -> None:
        """Take an account's claimed handle in; the latest by time wins."""
        self.size += ROW_OVERHEAD
        kept = self.handles.get(change.did)
        if kept is None or (change.time, change.handle or "") > (kept.time, kept.handle or ""):
            self.handles[change.did] = change

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Take a dead letter in."""
        self.size += ROW_OVERHEAD + len(letter.frame)
        self.dead_letters.append(letter)

    def dids(self) -> set[str]:
        """Every account that this batch writes."""
        return (
            {key.did for key in self.puts} | {key.did for key in self.deletes} | set(self.accounts) | set(self.handles)
        )

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches that together do what this one does; the second has the positions and the dead letters.

        Changes of one key stay together. Raises ValueError if there is nothing left to part.
        """
        keys = sorted({*self.puts, *self.deletes})
        if len(keys) < 2:
            raise ValueError("a batch of one key has no halves")
        first = set(keys[: len(keys) // 2])
        low, high = Batch(), Batch()
        for key in keys:
            half = low if key in first else high
            if key in self.puts:
                half.puts[key] = self.puts[key]
            if key in self.deletes:
                half.deletes[key] = self.deletes[key]
        for version, change in self.versions.items():
            (low if version[0] in first else high).versions[version] = change
        high.accounts, high.handles = self.accounts, self.handles
        high.dead_letters, high.positions = self.dead_letters, self.positions
        return low, high


def _rank(change: Change) -> tuple[str, bool, str]:
    return change.rev, change.proof is not None, change.cid or ""
