"""A batch: changes gathered until they are written together, folded so that each key is written once.

Order within a record is (rev bytewise, proven over unproven, CID bytewise), so a batch gives the same rows whatever
order its changes came in, and however often. History is kept apart: every version of a prompt or a conversation
counts, also those that a later change of the same batch overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, TypeAlias

from indexer.cbor import cid_text
from indexer.model import (
    COMPILED_PROMPT,
    CONVERSATION,
    AccountChange,
    Change,
    DeadLetter,
    HandleChange,
    Proposal,
    Undecided,
    Want,
)

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


Thing: TypeAlias = "Key | str | Proposal | Undecided | Want | DeadLetter | AccountChange | HandleChange"


def key_of(change: Change) -> Key:
    """The key of the row that a change is about."""
    return Key(change.did, change.space, change.collection, change.rkey)


def order_of(change: Change) -> Order:
    """The place of a change among those of its key."""
    return Order(change.rev, change.proof is not None)


@dataclass(slots=True)
class Batch:
    """Changes, commits, wants, account states, dead letters and source positions, committed in one transaction.

    ``puts``, ``deletes`` and ``versions`` are written whatever else is known of the repository; the changes of
    ``proposals`` only where the commit continues what is held.
    """

    puts: dict[Key, Change] = field(default_factory=dict)
    deletes: dict[Key, Order] = field(default_factory=dict)
    versions: dict[tuple[Key, str, str], Change] = field(default_factory=dict)
    proposals: list[Proposal] = field(default_factory=list)
    undecided: list[Undecided] = field(default_factory=list)
    wants: list[Want] = field(default_factory=list)
    probes: set[str] = field(default_factory=set)
    accounts: dict[str, AccountChange] = field(default_factory=dict)
    handles: dict[str, HandleChange] = field(default_factory=dict)
    confirmed: dict[str, tuple[str, str]] = field(default_factory=dict)  # proven rev and tree of a repository's head
    dead_letters: list[DeadLetter] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    changes: int = 0  # taken in
    size: int = 0  # bytes, roughly

    @property
    def rows(self) -> int:
        """How many things were taken in, positions aside."""
        waiting = len(self.proposals) + len(self.undecided) + len(self.wants) + len(self.probes) + len(self.confirmed)
        return self.changes + waiting + len(self.accounts) + len(self.handles) + len(self.dead_letters)

    def add(self, change: Change) -> None:
        """Take one change in; only the greatest of each key is kept for its row."""
        key = key_of(change)
        self.changes += 1
        self.size += weight_of(change)
        if change.cid is None:
            self.deletes[key] = max(order_of(change), self.deletes.get(key, Order("", False)))
            return
        kept = self.puts.get(key)
        if kept is None or _rank(change) > _rank(kept):
            self.puts[key] = change
        if change.collection in (COMPILED_PROMPT, CONVERSATION):
            self.versions[key, change.rev, change.cid] = change

    def propose(self, proposal: Proposal) -> None:
        """Take a proven commit in, to be written if it continues what is held then."""
        self.proposals.append(proposal)
        self.size += ROW_OVERHEAD + len(proposal.frame) + sum(map(weight_of, proposal.changes))

    def hold(self, undecided: Undecided) -> None:
        """Take a commit in that has to wait for a decision."""
        self.undecided.append(undecided)
        self.size += ROW_OVERHEAD + len(undecided.frame)

    def confirm(self, did: str, rev: str, data: bytes) -> None:
        """Take a proven head in that brings no operations."""
        self.confirmed[did] = rev, cid_text(data)

    def add_account(self, change: AccountChange) -> None:
        """Take an account's state in; the latest by time wins, whatever order they come in."""
        self.size += ROW_OVERHEAD
        kept = self.accounts.get(change.did)
        if kept is not None:
            later = max(kept, change, key=lambda one: (one.time, one.status))
            change = replace(later, purge_rev=max(kept.purge_rev, change.purge_rev))
        self.accounts[change.did] = change

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
        """Every account whose rows or state this batch can write (a handle alone is no state)."""
        keys = {key.did for key in self.puts} | {key.did for key in self.deletes} | set(self.accounts)
        commits = {one.did for one in self.proposals} | {one.did for one in self.undecided} | set(self.confirmed)
        return keys | commits | {want.did for want in self.wants if want.did}

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches that, written one after the other, do what this one does; positions are in the second.

        Changes of one key stay together, proposals keep their order, and a part of a proposal alone doesn't move its
        repository. Raises ValueError if nothing is left to part.
        """
        things = list(self._things())
        if len(things) == 1 and len(self.proposals) == 1 and len(self.proposals[0].changes) > 1:
            (only,) = self.proposals
            middle = len(only.changes) // 2
            first = replace(only, changes=only.changes[:middle], moves=False)
            return Batch(proposals=[first]), replace(self, proposals=[replace(only, changes=only.changes[middle:])])
        if len(things) < 2:
            raise ValueError("nothing left to part")
        middle = len(things) // 2
        low, high = self._only(things[:middle]), self._only(things[middle:])
        high.positions = self.positions
        return low, high

    def without_last(self) -> tuple[str | None, str, Batch]:
        """The batch without the one thing it holds: whose that is, what it is ('' for nothing), and what is left.

        A commit whose one record goes is still a commit.
        """
        rest = Batch(positions=self.positions)
        for kind, thing in self._things():
            if isinstance(thing, Key):
                return thing.did, f"{thing.collection}/{thing.rkey}", rest
            if isinstance(thing, Proposal) and thing.changes:
                rest.proposals = [replace(thing, changes=())]
                return thing.did, f"{thing.changes[0].collection}/{thing.changes[0].rkey}", rest
            did = thing if isinstance(thing, str) else thing.did
            return (None if kind == "dead_letters" else did), kind, rest
        return None, "", rest

    def _things(self) -> Iterator[tuple[str, Thing]]:
        """All that could be refused, each with its kind. What takes others of the batch away comes after them."""
        for kind, things in (
            ("dead_letters", self.dead_letters),
            ("undecided", self.undecided),
            ("proposals", self.proposals),
            ("changes", sorted({*self.puts, *self.deletes})),
            ("confirmed", sorted(self.confirmed)),
            ("wants", self.wants),
            ("probes", sorted(self.probes)),
            ("handles", self.handles.values()),
            ("accounts", self.accounts.values()),
        ):
            for thing in things:
                yield kind, thing

    def _only(self, things: list[tuple[str, Thing]]) -> Batch:
        """A batch of these things out of this one."""
        part = Batch()
        keys = {thing for _, thing in things if isinstance(thing, Key)}
        part.puts = {key: change for key, change in self.puts.items() if key in keys}
        part.deletes = {key: order for key, order in self.deletes.items() if key in keys}
        part.versions = {version: change for version, change in self.versions.items() if version[0] in keys}
        for kind, thing in things:
            match thing:
                case str() if kind == "confirmed":
                    part.confirmed[thing] = self.confirmed[thing]
                case str():
                    part.probes.add(thing)
                case AccountChange():
                    part.accounts[thing.did] = thing
                case HandleChange():
                    part.handles[thing.did] = thing
                case Proposal():
                    part.proposals.append(thing)
                case Undecided():
                    part.undecided.append(thing)
                case Want():
                    part.wants.append(thing)
                case DeadLetter():
                    part.dead_letters.append(thing)
        return part


def weight_of(change: Change) -> int:
    """Bytes that a change takes, roughly."""
    return ROW_OVERHEAD + (change.record.size if change.record is not None else 0)


def _rank(change: Change) -> tuple[str, bool, str]:
    return change.rev, change.proof is not None, change.cid or ""
