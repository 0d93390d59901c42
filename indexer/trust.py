"""What is believed of a stream: its word (``--trust relay``), or what it proves (``--trust verify``).

Nothing here waits: keys and revisions are those at hand. What can't be decided with them is put off, to pending and a
want, and settled by the repair worker.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Protocol

from indexer.car import Car, read_car
from indexer.changes import changes_of, check_rev, proposal_of
from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.model import (
    Account,
    AccountChange,
    Commit,
    HandleChange,
    Reason,
    Sync,
    Undecided,
    Want,
    WantReason,
)
from indexer.pipeline import Pipeline, micros
from indexer.store import Applied
from indexer.syntax import tid_of
from indexer.verify import Failed, Failure, Proven, check_commit, check_sync

KEYS_PARSED = 50_000  # at hand: a key takes ten times the memory of its text, and parsing it longer than using it
AHEAD = timedelta(minutes=5)  # that a stranger's clock may be ahead of ours

_WANTS = {Failure.MISSING_BLOCK: WantReason.MISSING_BLOCK, Failure.TOO_BIG: WantReason.TOO_BIG}
_REASONS = {
    Failure.MISSING_BLOCK: Reason.MISSING_BLOCK,
    Failure.WRONG_BLOCK: Reason.WRONG_CID,
    Failure.TOO_BIG: Reason.TOO_BIG,
}


class Aside(Protocol):
    """Where a commit came from, and where what can't be used of it goes."""

    key: str  # of the source's cursor

    def set_aside(self, reason: Reason, detail: str, frame: bytes, did: str | None) -> None:
        """Count and keep what can't be used."""


class Trust(Protocol):
    """How events become entries of the open batch."""

    @property
    def tracked(self) -> Container[object]:
        """The accounts of which every commit is shown, also those that touch nothing of ours."""

    def commit(self, intake: Aside, commit: Commit, raw: bytes) -> None:
        """A commit that touches what we follow, or any of a tracked account. Raises Rejected."""

    def told(self, intake: Aside, commit: Commit, car: Car, raw: bytes) -> None:
        """A commit with the records it writes and nothing that proves it. Raises Rejected."""

    def sync(self, intake: Aside, sync: Sync) -> None:
        """A head without operations. Raises Rejected."""

    def probe(self, did: str) -> None:
        """An account that isn't tracked did something that can't be told from the event."""

    def account(self, event: Account, time: datetime) -> None:
        """An account's state as of ``time``."""

    def identity(self, change: HandleChange) -> None:
        """An account's identity may have changed."""

    def want(self, want: Want) -> None:
        """A repository, or every one, has to be looked at."""


class Word:
    """Takes the source's word: no proof, no want, no network; ``deleted`` purges at once."""

    tracked: Container[object] = frozenset()

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def commit(self, intake: Aside, commit: Commit, raw: bytes) -> None:
        """The commit's changes, unproven; blocks still have to hash to their CIDs."""
        check_rev(commit.rev, micros(self._pipeline.clock()))
        if commit.too_big:
            raise Rejected(Reason.TOO_BIG, "the host left the blocks out")
        take_unproven(self._pipeline, intake, commit, read_car(commit.blocks), raw)

    def told(self, intake: Aside, commit: Commit, car: Car, raw: bytes) -> None:
        """The commit's changes, unproven as all are here."""
        check_rev(commit.rev, micros(self._pipeline.clock()))
        take_unproven(self._pipeline, intake, commit, car, raw)

    def sync(self, intake: Aside, sync: Sync) -> None:
        """Nothing: without repair there is nothing to do about it."""

    def probe(self, did: str) -> None:
        """Nothing: nobody would ask."""

    def account(self, event: Account, time: datetime) -> None:
        """The account's state as told."""
        purge_rev = tid_of(micros(time), 1023) if not event.active and event.status == "deleted" else ""
        self._pipeline.batch.add_account(account_change(event, time, purge_rev=purge_rev))

    def identity(self, change: HandleChange) -> None:
        """The handle as claimed."""
        self._pipeline.batch.add_handle(change)

    def want(self, want: Want) -> None:
        """Nothing is wanted: nobody would fetch it."""


class Tracked:
    """What is known of the tracked repositories without asking: the last proven rev, and the key at hand."""

    def __init__(self) -> None:
        self.revs: dict[str, str] = {}
        self._keys: dict[str, str] = {}  # as text: of a million accounts few write at a time

    def __contains__(self, did: object) -> bool:
        return did in self.revs

    def follow(self, did: str, rev: str = "", key: str | None = None) -> None:
        """Track an account from now on; ``key`` is the text form of its key, where that is known."""
        self.revs.setdefault(did, rev)
        if key is not None:
            self._keys[did] = key

    def forget(self, did: str) -> None:
        """Don't track an account any more."""
        self.revs.pop(did, None)
        self._keys.pop(did, None)

    def key(self, did: str) -> PublicKey | None:
        """The key that the account's commits have to be signed with, if it is at hand."""
        text = self._keys.get(did)
        return None if text is None else _parsed(text)

    def learn_key(self, did: str, key: PublicKey) -> None:
        """Note the account's current key."""
        self._keys[did] = key.did_key()

    def forget_key(self, did: str) -> None:
        """The key may have changed: no commit is judged by it any more."""
        self._keys.pop(did, None)

    def learn(self, applied: Applied) -> None:
        """Note what repositories have moved to."""
        self.revs.update(applied.heads)


@lru_cache(KEYS_PARSED)
def _parsed(key: str) -> PublicKey:
    return PublicKey.parse(key)


class Proof:
    """Demands proofs: a commit counts if its tree, its signature and the chain of its repository say so."""

    def __init__(self, pipeline: Pipeline, tracked: Tracked, *, on_loss: Callable[[], None] = lambda: None) -> None:
        self._pipeline = pipeline
        self._on_loss = on_loss
        self.tracked = tracked

    def commit(self, intake: Aside, commit: Commit, raw: bytes) -> None:
        """Propose a proven commit; put an undecided one off; want the repository of one that is wrong."""
        try:
            check_rev(commit.rev, micros(self._pipeline.clock()))
            if commit.rev <= self.tracked.revs.get(commit.did, ""):
                raise Rejected(Reason.DUPLICATE, "not newer than what is held")
            self._judge(intake, commit, raw)
        except Rejected as rejected:
            if rejected.reason is not Reason.DUPLICATE:
                self.want(Want(commit.did, WantReason.UNPROVEN))
            raise

    def _judge(self, intake: Aside, commit: Commit, raw: bytes) -> None:
        source = intake.key
        key = self.tracked.key(commit.did)
        if key is None and not commit.too_big:
            self._put_off(Undecided(commit.did, commit.rev, WantReason.UNKNOWN_KEY, source, raw))
            return
        prefixes = self._pipeline.router.prefixes
        verdict = judge(commit, key, prefixes)
        if isinstance(verdict, Proven):
            self.tracked.follow(commit.did)
            count_operations(self._pipeline, commit)
            proposal, rejected = proposal_of(verdict, commit, source, raw)
            self._pipeline.batch.propose(proposal)
            for one in rejected:
                intake.set_aside(one.reason, one.detail, raw, commit.did)
        elif verdict.failure is Failure.BAD_SIGNATURE:
            self._put_off(Undecided(commit.did, commit.rev, WantReason.BAD_SIGNATURE, source, raw))
        else:
            intake.set_aside(reason_of(verdict.failure), verdict.failure.value, raw, commit.did)
            reason = _WANTS.get(verdict.failure)  # what may be there all the same; the rest proves no rev
            self.want(Want(commit.did, reason, commit.rev) if reason else Want(commit.did, WantReason.UNPROVEN))

    def told(self, intake: Aside, commit: Commit, car: Car, raw: bytes) -> None:
        """The commit's changes at once, unproven; the repository is wanted, which proves or disproves them."""
        try:
            check_rev(commit.rev, micros(self._pipeline.clock()))
        except Rejected:
            self.want(Want(commit.did, WantReason.UNPROVEN))
            raise
        if commit.rev <= self.tracked.revs.get(commit.did, ""):
            raise Rejected(Reason.DUPLICATE, "not newer than what is proven")
        take_unproven(self._pipeline, intake, commit, car, raw)
        self.want(Want(commit.did, WantReason.UNPROVEN, commit.rev))

    def _put_off(self, undecided: Undecided) -> None:
        self.tracked.follow(undecided.did)
        self._pipeline.batch.hold(undecided)

    def sync(self, intake: Aside, sync: Sync) -> None:
        """A head without operations: wanted, if it is news of a tracked account; an unknown one is asked about."""
        if sync.did not in self.tracked:
            self.probe(sync.did)
            return
        check_rev(sync.rev, micros(self._pipeline.clock()))
        held = self.tracked.revs.get(sync.did, "")
        key = self.tracked.key(sync.did)
        verdict = check_sync(sync, key) if key is not None and sync.rev >= held else None
        if isinstance(verdict, Proven):
            self._pipeline.batch.confirm(sync.did, sync.rev, verdict.data)  # wanted, unless it is what is held by then
        elif sync.rev > held:
            self.want(Want(sync.did, WantReason.SYNC, sync.rev))
        else:
            self._pipeline.metrics.dropped(Reason.DUPLICATE)

    def probe(self, did: str) -> None:
        """Have the account's host asked whether it holds what we follow."""
        self._pipeline.batch.probes.add(did)

    def account(self, event: Account, time: datetime) -> None:
        """The account's state as told, to be confirmed by its current host."""
        self._pipeline.batch.add_account(account_change(event, time, confirm=True))

    def identity(self, change: HandleChange) -> None:
        """Whatever was known of the identity may have changed."""
        if change.did in self.tracked:
            self.tracked.forget_key(change.did)
            confirmed = HandleChange(change.did, change.time, change.handle, confirm=True)
            self._pipeline.batch.add_handle(confirmed)

    def want(self, want: Want) -> None:
        """Record a want, and track the account from now on; a want of everything is a loss on the stream."""
        if want.did:
            self.tracked.follow(want.did)
        else:
            self._on_loss()
        self._pipeline.batch.wants.append(want)


def take_unproven(pipeline: Pipeline, intake: Aside, commit: Commit, car: Car, raw: bytes) -> None:
    """Take a commit's changes in without a proof; its blocks have to hash to their CIDs."""
    count_operations(pipeline, commit)
    kept = raw
    for outcome in changes_of(commit, car, pipeline.router.prefixes):
        if isinstance(outcome, Rejected):
            intake.set_aside(outcome.reason, outcome.detail, kept, commit.did)
            kept = b""  # one copy of the frame is enough
        else:
            pipeline.batch.add(outcome)


def judge(commit: Commit, key: PublicKey | None, prefixes: tuple[str, ...]) -> Proven | Failed:
    """Whether a commit is proven by what it carries and a key. Never raises for what is in it."""
    if commit.too_big or key is None:
        return Failed(Failure.TOO_BIG)
    try:
        return check_commit(commit, read_car(commit.blocks), key, prefixes)
    except Rejected as rejected:
        return Failed(Failure.MALFORMED, rejected.detail)


def reason_of(failure: Failure) -> Reason:
    """The reason under which a commit that failed so is set aside."""
    return _REASONS.get(failure, Reason.UNPROVEN)


def account_change(event: Account, time: datetime, *, purge_rev: str = "", confirm: bool = False) -> AccountChange:
    """An ``#account`` event as a change of the account's state."""
    status = event.status or ("active" if event.active else "inactive")
    shown = status[:64].replace("\0", "\ufffd")  # any text may come, PostgreSQL holds any but U+0000
    return AccountChange(event.did, time, event.active, shown, purge_rev, confirm)


def count_operations(pipeline: Pipeline, commit: Commit) -> None:
    """Count the operations that concern us."""
    for op in commit.operations:
        if op.path.startswith(pipeline.router.prefixes):
            pipeline.metrics.operation(op.path.partition("/")[0], op.action)
