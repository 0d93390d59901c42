"""The repair worker: meets wants, from what is pending if that can settle them, else from the account's own host.

One path for everything that can't be decided on the stream. A want is claimed, its account's identity resolved, the
pending commits judged again in rev order; only where that leaves something open the repository is fetched, proven
and reconciled. Whatever a host does costs its own account a bounded retry.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import structlog

from indexer.cbor import cid_text
from indexer.changes import check_rev, proposal_of, snapshot_change
from indexer.errors import DatabaseUnavailable, IdentityError, Rejected
from indexer.frames import commit_event, decode_frame
from indexer.identity import IdentityGone, IdentityUnknown, ResolvedIdentity, Resolver
from indexer.keys import PublicKey
from indexer.model import Proposal, Reason
from indexer.outbound import FetchFailed, SpoolFailed
from indexer.pds import RepoHost
from indexer.pipeline import Pipeline, micros
from indexer.snapshot import open_snapshot
from indexer.store.claims import Claim, ClaimLostError, Snapshot, Waiting
from indexer.store.repairs import Repairs
from indexer.trust import Tracked, judge
from indexer.verify import Failure, Proven, check_signature

FALL_SHORT = 3  # fetches in a row below what is wanted or held, after which the host's signed head is accepted
LONGEST_PAUSE = 3600.0  # seconds between tries
IDLE = 0.5  # seconds between looks for due wants, unless woken

_log = structlog.stdlib.get_logger("indexer.repair")

Clock = Callable[[], datetime]


class Failing(Exception):
    """This try didn't meet the want; the message says why, for ``letta.repo``."""

    def __init__(self, message: str, *, pause: float | None = None, fell_short: bool = False) -> None:
        super().__init__(message)
        self.pause = pause
        self.fell_short = fell_short


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon a failed try is made again: seconds after the n-th, doubled each time up to ``longest``."""

    first: float = 1.0
    longest: float = LONGEST_PAUSE

    def after(self, attempts: int) -> float:
        """Seconds to wait after this many tries, with jitter."""
        return min(self.longest, self.first * 2.0 ** min(attempts, 30)) * random.uniform(0.5, 1.0)  # noqa: S311


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
        self._wake = asyncio.Event()
        pipeline.listen(lambda _: self._wake.set())

    async def work(self) -> None:
        """Claim wants that are due, one at a time, and meet them. Run as many of these as there shall be workers."""
        while True:
            self._wake.clear()
            claims: list[Claim] = []
            with suppress(DatabaseUnavailable):
                claims = await self._repairs.claim(self._pipeline.clock(), 1)
                for claim in claims:
                    await self._attend(claim)
            if not claims:
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await self._wake.wait()

    async def _attend(self, claim: Claim) -> None:
        """One try at a want. Whatever a stranger's host or record does ends here."""
        try:
            await self._meet(claim)
        except ClaimLostError:
            return
        except Failing as failing:
            failure = failing
        except (IdentityGone, IdentityUnknown) as error:
            await self._repairs.untrack(claim.did)
            failure = Failing(str(error), pause=LONGEST_PAUSE)
        except FetchFailed as error:
            failure = Failing(str(error), pause=error.retry_after)
        except (IdentityError, Rejected, SpoolFailed) as error:
            failure = Failing(str(error))
        else:
            return
        pause = max(failure.pause or 0.0, self._pace.after(claim.attempts))
        again = self._pipeline.clock() + timedelta(seconds=min(pause, self._pace.longest))
        await self._repairs.release(claim, again, str(failure), fell_short=failure.fell_short)
        _log.info("want not met yet", did=claim.did, attempts=claim.attempts, error=str(failure))

    async def _meet(self, claim: Claim) -> None:
        identity = await self._identity(claim.did, fresh=claim.attempts > 1 or claim.signing_key is None)
        pending = await self._repairs.pending(claim.did)
        proposals, failed = self._judge(pending, identity.signing_key)
        if any(failure is Failure.BAD_SIGNATURE for _, failure in failed) and claim.attempts == 1:
            identity = await self._identity(claim.did, fresh=True)
            proposals, failed = self._judge(pending, identity.signing_key)
        hopeless = [waiting for waiting, failure in failed if failure is not Failure.BAD_SIGNATURE]
        if pending or claim.want == "decide":
            applied, met = await self._repairs.settle(claim, proposals, hopeless, self._pipeline.clock())
            self._pipeline.learn(applied)
            if met and not hopeless:
                return
            if met:
                raise Failing("a pending commit is contradicted by its own tree")
        if claim.status != "active" and claim.status not in ("desynchronized", "throttled"):
            raise Failing(f"the account is {claim.status}", pause=LONGEST_PAUSE)
        await self._fetch(claim, identity)

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

    def _judge(self, pending: list[Waiting], key: PublicKey) -> tuple[list[Proposal], list[tuple[Waiting, Failure]]]:
        """Pending commits by what the account's key says of them."""
        proposals, failed = [], []
        for waiting in pending:
            commit = commit_event(decode_frame(waiting.frame)[1])
            verdict = judge(commit, key, self._pipeline.router.prefixes)
            if isinstance(verdict, Proven):
                proposals.append(proposal_of(verdict, commit, waiting.source, waiting.frame)[0])
            else:
                failed.append((waiting, verdict.failure))
        return proposals, failed

    # the account's own host

    async def _fetch(self, claim: Claim, identity: ResolvedIdentity) -> None:
        if identity.pds is None:
            raise Failing("the account's DID document names no host")
        with tempfile.TemporaryFile(dir=self._spool) as file:
            await self._host.get_repo(identity.pds, claim.did, file)
            snapshot = await asyncio.to_thread(self._read, file, claim.did, identity.signing_key)
        wanted, held = claim.wanted_rev or "", claim.rev
        short = snapshot.rev < max(wanted, held)
        if short and claim.behind + 1 < FALL_SHORT:
            what = "held" if snapshot.rev < held else "wanted"
            raise Failing(f"the host's head {snapshot.rev} is older than what is {what}", fell_short=True)
        if short:
            self._pipeline.metrics.dropped(Reason.REWOUND if snapshot.rev < held else Reason.UNSIGNED_REV)
            snapshot = replace(snapshot, replaces=snapshot.rev < held, overrules=True)
        applied, met = await self._repairs.reconcile(claim, snapshot, self._pipeline.clock())
        self._pipeline.learn(applied)
        known = "" if snapshot.replaces else self._tracked.revs.get(claim.did, "")
        self._tracked.revs[claim.did] = max(snapshot.rev, known)
        if met:
            await self._chain_on(claim, identity)

    def _read(self, file: BinaryIO, did: str, key: PublicKey) -> Snapshot:
        """Prove a spooled repository and take our records out of it. Raises Failing, Rejected."""
        repository = open_snapshot(file)
        commit = repository.commit
        if commit.did != did:
            raise Failing("the host gave another account's repository")
        if not check_signature(commit, key):
            raise Failing("the host's repository is not signed by the account's key")
        check_rev(commit.rev, micros(self._pipeline.clock()))
        changes = []
        for record in repository.records(self._pipeline.router.prefixes):
            with suppress(Rejected):
                changes.append(snapshot_change(did, commit.rev, *record))
        return Snapshot(did, commit.rev, cid_text(commit.data), tuple(changes))

    async def _chain_on(self, claim: Claim, identity: ResolvedIdentity) -> None:
        """Decide what is pending above a snapshot: what is proven chains on, what isn't signed now never was."""
        pending = await self._repairs.pending(claim.did)
        if not pending:
            return
        proposals, failed = self._judge(pending, identity.signing_key)
        again = replace(claim, want="decide")
        applied, met = await self._repairs.settle(again, proposals, [w for w, _ in failed], self._pipeline.clock())
        self._pipeline.learn(applied)
        for _, failure in failed:
            self._pipeline.metrics.dropped(Reason.UNPROVEN)
            _log.warning("pending commit given up", did=claim.did, failure=failure.value)
        if not met:
            raise Failing("commits above the host's head don't follow from it yet", fell_short=True)
