"""The repair worker: meets wants, from what is pending if that can settle them, else from the account's own host.

One path for everything that can't be decided on the stream. A want is claimed, its account's identity resolved, the
pending commits judged again in rev order; only where that leaves something open the repository is fetched, proven
and reconciled. Whatever a host does costs its own account a bounded retry.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias
from uuid import UUID

import structlog

from indexer.batch import Batch
from indexer.cbor import cid_text
from indexer.changes import check_rev, proposal_of
from indexer.errors import BatchRefused, DatabaseTooSlow, DatabaseUnavailable, IdentityError, Rejected
from indexer.frames import commit_event, decode_frame
from indexer.identity import IdentityGone, IdentityUnknown, ResolvedIdentity, Resolver
from indexer.keys import PublicKey
from indexer.model import AccountChange, DeadLetter, Proposal, Reason, Want, WantReason
from indexer.outbound import FetchFailed, SpoolFailed
from indexer.pds import NOT_FOUND, RepoHost, RepoUnavailable
from indexer.pipeline import Pipeline, micros
from indexer.reading import Reading
from indexer.snapshot import open_snapshot
from indexer.store.claims import Claim, ClaimLostError, Snapshot, Waiting
from indexer.store.repairs import LEASE, MANY, Repairs
from indexer.trust import Tracked, judge, reason_of
from indexer.verify import Failure, Proven, check_signature

UNKNOWN = 3  # tries after which an account that nobody knows is given up: a new one may not be everywhere yet
FALL_SHORT = 3  # fetches in a row below what is wanted or held, after which the host's signed head is accepted
LONGEST_PAUSE = 3600.0  # seconds between tries
FRESH = 1  # tries in vain after which a want isn't for those workers any more that keep clear of hosts that hang
IDLE = 0.5  # seconds between looks for due wants, unless woken

_log = structlog.stdlib.get_logger("indexer.repair")


class Failing(Exception):
    """This try didn't meet the want; the message says why, for ``letta.repo``."""

    def __init__(self, message: str, *, retry_after: float | None = None, fell_short: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.fell_short = fell_short


Verdict: TypeAlias = "tuple[Waiting, Failure]"


class Judged(NamedTuple):
    """Pending commits: those proven, those the key didn't sign, those that their own content contradicts.

    ``refused`` are operations that can't be used although their commit is proven.
    """

    proposals: list[Proposal]
    unsigned: list[Verdict]
    wrong: list[Verdict]
    refused: list[tuple[Waiting, Rejected]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon a failed try is made again: seconds after the n-th, doubled each time up to ``longest``."""

    first: float = 1.0
    longest: float = LONGEST_PAUSE

    def after(self, attempts: int) -> float:
        """Seconds to wait after this many tries, with jitter."""
        return min(self.longest, self.first * 2.0 ** min(attempts, 30)) * random.uniform(0.5, 1.0)  # noqa: S311


DATABASE_PACE = Pace(first=IDLE, longest=15.0)  # of the tries at one claim while the database doesn't let it be met


class Repair:
    """Meets wants until cancelled. ``spool`` is a folder for repositories on their way in, None for the system's."""

    def __init__(
        self,
        repairs: Repairs,
        resolver: Resolver,
        host: RepoHost,
        pipeline: Pipeline,
        tracked: Tracked,
        *,
        pace: Pace | None = None,
        spool: Path | None = None,
    ) -> None:
        self._repairs = repairs
        self._resolver = resolver
        self._host = host
        self._pipeline = pipeline
        self._tracked = tracked
        self._pace = pace or Pace()
        self._spool = spool
        self._claims: dict[UUID, Claim] = {}  # in hand
        self._wake = asyncio.Event()
        self._looking = {fresh: asyncio.Lock() for fresh in (True, False)}
        pipeline.listen(lambda _: self._wake.set())

    async def work(self, *, fresh: bool = False) -> None:
        """Meet wants that are due, ``fresh``: only those that have hardly been tried. Run as many as shall work."""
        while True:
            async with self._looking[fresh]:  # one worker looks, the others wait: looking costs no more for many
                claim = await self._next(fresh=fresh)
            await self._persist(claim)

    async def attend(self) -> bool:
        """Claim one want that is due, and try to meet it; False if there is none. Raises DatabaseUnavailable."""
        claims = await self._repairs.claim(self._pipeline.clock(), 1)
        for claim in claims:
            await self._try(claim)
        return bool(claims)

    async def _persist(self, claim: Claim) -> None:
        """Try to meet a want, anew if the database goes away meanwhile: the claim stands, and nobody else may."""
        for tries in count():
            try:
                await self._try(claim)
                break
            except DatabaseUnavailable:  # each try asks strangers' hosts anew
                await asyncio.sleep(DATABASE_PACE.after(tries))

    async def _next(self, *, fresh: bool) -> Claim:
        """Claim the next want, as soon as one is due."""
        while True:
            self._wake.clear()
            with suppress(BatchRefused, DatabaseUnavailable):
                for claim in await self._repairs.claim(self._pipeline.clock(), 1, tries=FRESH if fresh else MANY):
                    return claim
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE):
                    await self._wake.wait()

    async def keep_claims(self) -> None:
        """Extend the leases of the claims in hand, until cancelled: a fetch may take longer than a lease."""
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 4)
            with suppress(DatabaseUnavailable):
                await self._repairs.extend(list(self._claims.values()), self._pipeline.clock())

    async def _try(self, claim: Claim) -> None:
        """One try at a want. Whatever a stranger's host or record does ends here."""
        if self._pipeline.router.refusal(claim.did) is not None:
            again = self._pipeline.clock() + timedelta(seconds=LONGEST_PAUSE)
            await self._repairs.release(claim, again, "kept out by --only or --deny")
            return
        self._claims[claim.id] = claim
        try:
            await self._meet(claim)
        except ClaimLostError:
            await self._repairs.release(claim, self._pipeline.clock(), None)
        except (Failing, FetchFailed, IdentityError, Rejected, SpoolFailed, BatchRefused, DatabaseTooSlow) as error:
            await self._put_off(claim, error)
        else:
            await self._repairs.end(claim, self._pipeline.clock())
        finally:
            del self._claims[claim.id]

    async def _put_off(self, claim: Claim, error: Exception) -> None:
        """Give a claim back whose want isn't met yet, with the reason, and note what that says of the account."""
        pause = self._pace.after(claim.attempts)
        match error:
            case IdentityGone():
                await self._note_away(claim, "deleted")
                await self._untrack(claim.did)
            case IdentityUnknown() if claim.attempts >= UNKNOWN:
                await self._untrack(claim.did)
                pause = LONGEST_PAUSE
            case Failing() | FetchFailed():
                pause = max(error.retry_after or 0.0, pause)
        again = self._pipeline.clock() + timedelta(seconds=min(pause, self._pace.longest))
        fell_short = isinstance(error, Failing) and error.fell_short
        await self._repairs.release(claim, again, str(error), fell_short=fell_short)
        _log.info("want not met yet", did=claim.did, attempts=claim.attempts, error=str(error))

    async def _untrack(self, did: str) -> None:
        if await self._repairs.untrack(did):
            self._tracked.forget(did)

    async def _note_away(self, claim: Claim, state: str) -> None:
        """Hide an account whose own host doesn't give it out: the event that said so was missed, or is on its way."""
        status = "deleted" if state == NOT_FOUND else state
        later = claim.status_time + timedelta(microseconds=1)
        change = AccountChange(claim.did, later, False, status, confirm=True)
        self._pipeline.learn(await self._repairs.change_account(change, self._pipeline.clock()))

    async def _meet(self, claim: Claim) -> None:
        identity = await self._identity(claim.did, fresh=claim.attempts > 1 or claim.signing_key is None)
        pending = await self._repairs.pending(claim.did)
        judged = self._judge(pending, identity.signing_key)
        if judged.unsigned and claim.attempts == 1:
            identity = await self._identity(claim.did, fresh=True)
            judged = self._judge(pending, identity.signing_key)
        if pending or claim.want == "decide":
            wants = [Want(claim.did, WantReason.UNPROVEN)] if judged.wrong else []
            if await self._settle(claim, judged, judged.wrong, wants):
                return
        claim = await self._repairs.renew(claim, self._pipeline.clock())
        if claim.hidden:
            raise Failing(f"the account is {claim.status}", retry_after=LONGEST_PAUSE)
        await self._fetch(claim, identity, pending, max((one.rev for one in judged.proposals), default=""))

    async def _identity(self, did: str, *, fresh: bool) -> ResolvedIdentity:
        began = self._pipeline.clock()
        identity = await self._resolver.resolve(did, fresh=fresh)
        now = self._pipeline.clock()
        stands = await self._repairs.put_identity(
            did, identity.signing_key.did_key(), identity.pds, identity.handle, began, now
        )
        if stands:
            self._tracked.learn_key(did, identity.signing_key)
        return identity

    # what is pending

    def _judge(self, pending: list[Waiting], key: PublicKey) -> Judged:
        """Pending commits by what the account's key says of them."""
        judged = Judged([], [], [], [])
        for waiting in pending:
            commit = commit_event(decode_frame(waiting.frame)[1])
            verdict = judge(commit, key, self._pipeline.router.prefixes)
            if isinstance(verdict, Proven):
                proposal, refused = proposal_of(verdict, commit, waiting.source, waiting.frame)
                judged.proposals.append(proposal)
                judged.refused.extend((waiting, error) for error in refused)
            elif verdict.failure is Failure.BAD_SIGNATURE:
                judged.unsigned.append((waiting, verdict.failure))
            else:
                judged.wrong.append((waiting, verdict.failure))
        return judged

    async def _settle(self, claim: Claim, judged: Judged, given_up: list[Verdict], wants: list[Want]) -> bool:
        """Write what is proven, set aside what is given up; whether the want is met by that."""
        batch = Batch(proposals=judged.proposals, wants=wants)
        for waiting, failure in given_up:
            reason, size = reason_of(failure), len(waiting.frame)
            letter = DeadLetter(waiting.source, None, claim.did, reason, failure.value, waiting.frame, size)
            batch.add_dead_letter(letter)
        dropped = [waiting for waiting, _ in given_up]
        applied, met = await self._repairs.settle(claim, batch, dropped, self._pipeline.clock())
        applied.dropped.update(letter.reason for letter in batch.dead_letters)
        for letter in batch.dead_letters:
            self._pipeline.metrics.dead_letter(letter.reason)
        self._pipeline.learn(applied)
        for waiting, error in judged.refused:
            if waiting.rev <= applied.heads.get(claim.did, ""):  # else it is judged again
                self._pipeline.metrics.dropped(error.reason)
                self._note_refused(error, claim.did, waiting.source, waiting.frame)
        return met

    def _note_refused(self, error: Rejected, did: str, source: str, content: bytes) -> None:
        """Log and keep what can't be used, with the next batch of the stream."""
        self._pipeline.complain(error.reason, "repair", did=did)
        letter = DeadLetter(source, None, did, error.reason, error.detail, content, len(content))
        self._pipeline.batch.add_dead_letter(letter)

    async def _chain_on(self, claim: Claim, identity: ResolvedIdentity, known: set[str]) -> None:
        """Decide what is pending above a snapshot: what is proven chains on, what isn't and was ``known`` never was."""
        pending = await self._repairs.pending(claim.did)
        judged = self._judge(pending, identity.signing_key)
        if judged.unsigned:  # the key may be another since
            identity = await self._identity(claim.did, fresh=True)
            judged = self._judge(pending, identity.signing_key)
        failed = [*judged.unsigned, *judged.wrong]
        given_up = [(waiting, failure) for waiting, failure in failed if waiting.digest in known]
        if pending and not await self._settle(replace(claim, want="decide"), judged, given_up, []):
            raise Failing("commits above the host's head don't follow from it yet")

    # the account's own host

    async def _fetch(self, claim: Claim, identity: ResolvedIdentity, pending: list[Waiting], signed: str) -> None:
        """Make the rows what the account's host gives out; ``signed`` is the greatest rev proven and pending."""
        if identity.pds is None:
            raise Failing("the account's DID document names no host")
        with tempfile.TemporaryFile(dir=self._spool) as file:
            await self._download(claim, identity.pds, file)
            kept = {} if WantReason.CHECK in claim.reasons else await self._repairs.cids(claim.did)
            snapshot, reading = await asyncio.to_thread(self._read, file, claim.did, identity.signing_key, kept)
        known = {waiting.digest for waiting in pending}
        snapshot = self._weighed(claim, snapshot, max(claim.wanted_rev or "", signed), known)
        applied, met = await self._repairs.reconcile(claim, snapshot, self._pipeline.clock())
        applied.dropped.update(reading.dropped)
        self._pipeline.learn(applied)
        for error, block in reading.refused:
            self._note_refused(error, claim.did, identity.pds, block)
        before = "" if snapshot.replaces else self._tracked.revs.get(claim.did, "")
        self._tracked.revs[claim.did] = max(snapshot.rev, before)
        if met:
            await self._chain_on(claim, identity, known)

    async def _download(self, claim: Claim, pds: str, file: BinaryIO) -> None:
        """Spool a repository; if its host doesn't give it out and says that the account is away, hide that."""
        try:
            await self._host.get_repo(pds, claim.did, file)
        except RepoUnavailable as error:
            if claim.attempts > 1:  # its identity was asked for afresh
                told = await self._host.get_repo_status(pds, claim.did)
                if told.status is not None:
                    await self._note_away(claim, error.state if told.status == NOT_FOUND else told.status)
            raise

    def _weighed(self, claim: Claim, snapshot: Snapshot, wanted: str, known: set[str]) -> Snapshot:
        """A snapshot with what it stands above. Raises Failing if it is too old, unless it was so too often."""
        snapshot = replace(snapshot, rewrites=WantReason.CHECK in claim.reasons)
        if snapshot.rev >= max(wanted, claim.rev):
            return snapshot
        rewound = snapshot.rev < claim.rev
        if claim.behind + 1 < FALL_SHORT:
            what = "held" if rewound else "wanted"
            raise Failing(f"the host's head {snapshot.rev} is older than what is {what}", fell_short=True)
        self._pipeline.metrics.dropped(Reason.REWOUND if rewound else Reason.UNSIGNED_REV)
        return replace(snapshot, replaces=rewound, overrules=True, overruled=tuple(known))

    def _read(
        self, file: BinaryIO, did: str, key: PublicKey, kept: Mapping[str, tuple[str, str]]
    ) -> tuple[Snapshot, Reading]:
        """Prove a spooled repository and take our records out of it. Raises Failing, Rejected."""
        repository = open_snapshot(file)
        commit = repository.commit
        if commit.did != did:
            raise Failing("the host gave another account's repository")
        if not check_signature(commit, key):
            raise Failing("the host's repository is not signed by the account's key")
        check_rev(commit.rev, micros(self._pipeline.clock()))
        reading, limits, prefixes = Reading(repository, kept), self._repairs.limits, self._pipeline.router.prefixes
        reading.take(prefixes, quota_rows=limits.quota_rows, quota_bytes=limits.quota_bytes)
        return Snapshot(did, commit.rev, cid_text(commit.data), tuple(reading.changes), prefixes), reading
