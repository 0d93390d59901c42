"""One account's repository: records, the tree over them, signed commits, and the CARs that carry them.

Specification: AT Protocol repository (commit version 3), Sync 1.1 (proposal 0006) for what a commit's CAR holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from indexer.simulator import tree
from indexer.simulator.archive import Block, write_car
from indexer.simulator.dagcbor import Link, Value, cid_of, encode
from indexer.simulator.keys import SigningKey

Action: TypeAlias = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Write:
    """A wish: put ``value`` at ``path`` (``collection/rkey``), or delete what is there (``value`` None)."""

    path: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as the repository holds it; ``rev`` is the commit that last wrote it."""

    value: Value
    block: bytes
    cid: bytes
    rev: str


@dataclass(frozen=True, slots=True)
class Op:
    """What a commit did to one path; ``cid`` is None for a delete, ``prev`` None for a create."""

    action: Action
    path: str
    cid: bytes | None
    prev: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as it goes out: ``blocks`` are the commit, tree nodes and new records, commit first."""

    cid: bytes
    rev: str
    since: str | None
    data: bytes
    prev_data: bytes | None
    ops: tuple[Op, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """A state of a repository: everything needed to serve it, or to go back to it."""

    root: tree.Node
    records: dict[str, Entry]
    rev: str
    cid: bytes
    block: bytes


class Repository:
    """A repository that is written to; a new one holds an empty, signed commit at ``rev``."""

    def __init__(self, did: str, key: SigningKey, rev: str) -> None:
        self.did = did
        self.key = key
        self.root = tree.EMPTY
        self.records: dict[str, Entry] = {}
        self.rev = ""
        self.cid = b""
        self.block = b""
        self._sign(rev)

    def _sign(self, rev: str) -> None:
        unsigned = {"did": self.did, "version": 3, "data": Link(self.root.cid), "rev": rev, "prev": None}
        self.block = encode(unsigned | {"sig": self.key.sign(encode(unsigned))})
        self.cid = cid_of(self.block)
        self.rev = rev

    def first_commit(self) -> Commit:
        """The commit a new repository announces itself with: no operations, nothing before it."""
        blocks = ((self.cid, self.block), (self.root.cid, self.root.block))
        return Commit(self.cid, self.rev, None, self.root.cid, None, (), blocks)

    def commit(self, writes: Sequence[Write], rev: str) -> Commit:
        """Apply writes to distinct paths in one signed commit.

        Raises KeyError for the delete of a record that isn't there, ValueError where ``rev`` is not above the
        last one or a path comes twice: real hosts do neither.
        """
        if rev <= self.rev or len({write.path for write in writes}) < len(writes):
            raise ValueError(f"not a legal commit at {rev}")
        since, prev_data = self.rev, self.root.cid
        ops = tuple(self._apply(write, rev) for write in writes)
        fresh = {id(node): node for node in tree.unhashed(self.root)}
        self._sign(rev)
        needed = fresh | {id(node): node for op in ops for node in tree.covering(self.root, op.path)}
        blocks = [(self.cid, self.block), *((node.cid, node.block) for node in needed.values())]
        blocks += [(op.cid, self.records[op.path].block) for op in ops if op.cid is not None]
        return Commit(self.cid, rev, since, self.root.cid, prev_data, ops, tuple(blocks))

    def _apply(self, write: Write, rev: str) -> Op:
        old = self.records.get(write.path)
        prev = old.cid if old else None
        if write.value is None:
            self.root = tree.delete(self.root, write.path)
            del self.records[write.path]
            return Op("delete", write.path, None, prev)
        block = encode(write.value)
        cid = cid_of(block)
        self.root = tree.put(self.root, write.path, cid)
        self.records[write.path] = Entry(write.value, block, cid, rev)
        return Op("update" if old else "create", write.path, cid, prev)

    def rekey(self, key: SigningKey, rev: str) -> None:
        """Sign the present content anew with another key."""
        self.key = key
        self._sign(rev)

    def head(self) -> Head:
        """The present state, to come back to with :meth:`rewind`."""
        return Head(self.root, dict(self.records), self.rev, self.cid, self.block)

    def rewind(self, head: Head) -> None:
        """Go back to an earlier state, as a host does that restores a backup."""
        self.root, self.records, self.rev = head.root, dict(head.records), head.rev
        self.cid, self.block = head.cid, head.block

    def export(self) -> bytes:
        """The whole repository as a CAR: commit, tree, records."""
        return write_car([self.cid], self.blocks())

    def blocks(self) -> Iterable[Block]:
        """Every block of the repository: the commit, the nodes in pre-order, the records in key order."""
        yield self.cid, self.block
        yield from ((node.cid, node.block) for node in tree.nodes(self.root))
        yield from ((entry.cid, entry.block) for _, entry in sorted(self.records.items()))

    def proof(self, path: str) -> bytes:
        """A CAR that proves what ``path`` holds, or that it holds nothing (``com.atproto.sync.getRecord``)."""
        blocks = [(self.cid, self.block), *((node.cid, node.block) for node in tree.path(self.root, path))]
        if entry := self.records.get(path):
            blocks.append((entry.cid, entry.block))
        return write_car([self.cid], blocks)

    def head_car(self) -> bytes:
        """A CAR with the signed commit alone, as ``#sync`` carries it."""
        return write_car([self.cid], [(self.cid, self.block)])
