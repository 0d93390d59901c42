"""A permissioned repository as a reader follows it: a state of 2,048 bytes, and polls that lead it to the next one.

What was read counts only once the poll has come to the host's head and the folded hash is the one its commit names;
then all of it counts at once. So a poll ends in one of three ways: what it brought is applied, or the host said
nothing (which is no deletion: nothing happens), or what it said doesn't fit and the repository is loaded whole.

What the hash covers is which records there are, at which CIDs. The revs *between* the old head and the new one are the
host's word: nothing that is signed covers them, only their order is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from indexer import lthash
from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.model import Change, Reason
from indexer.spaces.commit import Judgement, SpaceCommit, judge
from indexer.spaces.dialect import Dialect
from indexer.spaces.folding import Superseded, fold_operations
from indexer.spaces.operations import Operation, read_page

MAX_OPERATIONS: Final = 200_000
MAX_BYTES: Final = 64 << 20  # of the values of one poll; more is fetched as a whole repository, from a file


class ReloadReason(StrEnum):
    """Why a repository has to be loaded whole: a closed list."""

    MALFORMED = "malformed"  # an answer that isn't of the dialect's form
    OUT_OF_ORDER = "out_of_order"  # revs that fall, or operations that don't continue one another
    WRONG_CID = "wrong_cid"  # a value that doesn't hash to its CID
    MISSING_VALUE = "missing_value"  # a record's last operation lacks the value
    WRONG_HASH = "wrong_hash"
    WRONG_HEAD = "wrong_head"  # the commit's rev is not that of the last operation: a log cut short
    REWOUND = "rewound"  # the host's head lies before ours
    JUDGED_OTHERWISE = "judged_otherwise"  # what the commit proves has changed since the last load
    TOO_MUCH = "too_much"


@dataclass(frozen=True, slots=True)
class RepoState:
    """What is held of one author's repository in one space; ``space`` is the canonical URI.

    ``rev`` is '' if nothing is held yet. ``judgement`` is what the last commit proved: a repository that its load
    couldn't prove is followed unproven for as long as its commits fail in the same way.
    """

    space: str
    did: str
    rev: str = ""
    lthash: bytes = lthash.EMPTY
    judgement: Judgement = Judgement.PROVEN


@dataclass(frozen=True, slots=True)
class Applied:
    """What a poll brought, to be written in one transaction with ``state``.

    ``changes``: at most a delete and a put for each record, in this order; the put is its last word. ``superseded``:
    what later operations of the poll overrode, for the history alone. All have proof 'space' if ``state.judgement``
    is PROVEN, else none. ``rejected``: what can't be kept as a row. ``operations`` is the number read.
    """

    state: RepoState
    changes: tuple[Change, ...]
    superseded: tuple[Superseded, ...]
    rejected: tuple[Rejected, ...]
    operations: int


@dataclass(frozen=True, slots=True)
class Silent:
    """The host said nothing. That is no evidence of anything: what is held stays, and is asked for again later."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What the host said doesn't lead on from what is held: the repository is to be loaded whole."""

    reason: ReloadReason


Outcome: TypeAlias = "Applied | Silent | Reload"


class Poll:
    """One reading of ``listRepoOps`` from ``state`` to the host's head, page by page.

    Give each answer to :meth:`take` and ask on, with :attr:`since` and :attr:`cursor`, while it says so; then
    :meth:`finish`. ``prefixes`` are those of the wanted collections, as ``CollectionFilter.prefixes``: of all others
    only the hash is taken.
    """

    def __init__(
        self,
        state: RepoState,
        *,
        prefixes: Sequence[str],
        dialect: Dialect,
        max_operations: int = MAX_OPERATIONS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.cursor: str | None = None
        """Cursor of the page to be asked for next, None for the first."""
        self._state = state
        self._prefixes = tuple(prefixes)
        self._dialect = dialect
        self._max_operations = max_operations
        self._left = max_bytes
        self._operations: list[Operation] = []
        self._blocks: dict[int, bytes] = {}
        self._commit: SpaceCommit | None = None
        self._broken: ReloadReason | None = None

    @property
    def since(self) -> str | None:
        """The rev after which operations are asked for, None for the whole log."""
        return self._state.rev or None

    def take(self, body: object) -> bool:
        """Takes one page in, as decoded JSON; whether another is to be asked for."""
        try:
            page = read_page(body)
            self._broken = self._broken or self._extend(page.operations)
        except Rejected as rejected:
            wrong = rejected.reason is Reason.WRONG_CID
            self._broken = ReloadReason.WRONG_CID if wrong else ReloadReason.MALFORMED
            return False
        if page.cursor is not None and page.cursor == self.cursor:
            self._broken = ReloadReason.OUT_OF_ORDER  # it leads in a circle
        self.cursor, self._commit = page.cursor, page.commit
        return self._broken is None and page.cursor is not None

    def finish(self, key: PublicKey) -> Outcome:
        """What the poll comes to, with the author's present key. May be asked again with another key.

        A poll whose pages don't end in a commit is silent, whatever they held: the host broke off.
        """
        if self._broken is not None:
            return Reload(self._broken)
        if self._commit is None:
            return Silent()
        head = self._operations[-1].rev if self._operations else self._state.rev
        if (reason := self._misplaced(self._commit, head)) is not None:
            return Reload(reason)
        lthash_after = self._folded()
        judgement = judge(
            self._commit,
            lthash.digest(lthash_after),
            key,
            space=self._state.space,
            did=self._state.did,
            dialect=self._dialect,
        )
        if judgement is Judgement.WRONG_HASH:
            return Reload(ReloadReason.WRONG_HASH)
        if judgement is not self._state.judgement:
            return Reload(ReloadReason.JUDGED_OTHERWISE)
        return self._applied(replace(self._state, rev=head, lthash=lthash_after))

    def _applied(self, state: RepoState) -> Outcome:
        proven = state.judgement is Judgement.PROVEN
        folded = fold_operations(self._state, self._operations, self._blocks, self._prefixes, proven)
        if folded is None:
            return Reload(ReloadReason.MISSING_VALUE)
        return Applied(state, folded.changes, folded.superseded, folded.rejected, len(self._operations))

    def _extend(self, operations: Sequence[Operation]) -> ReloadReason | None:
        """Adds a page's operations; what is wrong with them, if anything is."""
        for operation in operations:
            last = self._operations[-1].rev if self._operations else self._state.rev
            if operation.rev < last or operation.rev == self._state.rev:
                return ReloadReason.OUT_OF_ORDER
            if operation.value is not None and operation.path.startswith(self._prefixes):
                block = operation.block()
                self._blocks[len(self._operations)] = block
                self._left -= len(block)
            self._operations.append(replace(operation, value=None))
            if len(self._operations) > self._max_operations or self._left < 0:
                return ReloadReason.TOO_MUCH
        return None

    def _misplaced(self, commit: SpaceCommit, head: str) -> ReloadReason | None:
        """What is wrong with where the operations begin and end, whatever the commit proves."""
        if commit.rev and commit.rev < self._state.rev:
            return ReloadReason.REWOUND
        if (commit.rev or head) != head:
            return ReloadReason.WRONG_HEAD
        return None if _continuous(self._operations) else ReloadReason.OUT_OF_ORDER

    def _folded(self) -> bytes:
        added = (lthash.element(one.path, one.cid) for one in self._operations if one.cid is not None)
        removed = (lthash.element(one.path, one.prev) for one in self._operations if one.prev is not None)
        return lthash.fold(self._state.lthash, added, removed)


def _continuous(operations: Sequence[Operation]) -> bool:
    """Whether each operation on a record starts from what the one before it left."""
    left: dict[str, str | None] = {}
    for operation in operations:
        if left.get(operation.path, operation.prev) != operation.prev:
            return False
        left[operation.path] = operation.cid
    return True
