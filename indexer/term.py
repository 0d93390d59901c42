"""A daemon's time as the writer: its sources and spaces are followed, under one lease.

Nothing is started here: this says which jobs there are, and how what they follow is doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

import structlog

from indexer.config import Settings
from indexer.errors import DatabaseUnavailable, SourceBroken
from indexer.intake import Intake
from indexer.jetstream_intake import JetstreamIntake
from indexer.pipeline import Pipeline, utc_now
from indexer.sources.base import Chunk, Source, State, Status
from indexer.sources.firehose import FirehoseSource
from indexer.sources.follow import Follower
from indexer.sources.jetstream import JetstreamSource
from indexer.space_accounts import opened_spaces
from indexer.space_follow import SpaceFollower
from indexer.store import Store
from indexer.syntax import parse_instant
from indexer.trust import Trust, Word
from indexer.verification import Job, Verification

ONCE_ATTEMPTS = 3  # connections tried under --once before a source counts as failed
ONCE_SILENCE = 3.0  # seconds without a frame after which a source counts as caught up under --once
STOPPED = "stopped"  # what ``letta.source`` says of a source that the daemon left in good order
PRUNE_INTERVAL = 3600.0  # seconds between looks for states of accounts that hold nothing here
STATES_KEPT = timedelta(days=7)  # such states, in case events come out of order

T = TypeVar("T")

_log = structlog.stdlib.get_logger("indexer.term")


class Eventually(Protocol):
    """Does some work on the database, however long that takes to come up."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` gives."""


class Term:
    """What the writer does, from its lease to its end. Made anew for each lease: what was followed is read from the
    committed positions on.

    Jobs raise LeaseLostError when another daemon has taken the lease. ``started`` is the start of the run.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        pipeline: Pipeline,
        verification: Verification | None,
        *,
        started: datetime,
    ) -> None:
        self._settings = settings
        self._store = store
        self._pipeline = pipeline
        self._verification = verification
        self._started = started
        self._states: dict[str, Status] = {}
        self._live: set[str] = set()
        self._space_states: dict[str, str] = {}  # by account; '' is live
        self._followers: dict[str, SpaceFollower] = {}
        self.failed: list[str] = []  # sources given up

    def jobs(self) -> list[tuple[str, Job]]:
        """What runs beside the sources until the end of the term, by name."""
        accounts = self._verification.account_jobs() if self._verification is not None else []
        return [("writer", self._pipeline.write), ("states", self._keep_states), ("prune", self._prune), *accounts]

    async def follows(
        self, stack: AsyncExitStack, sources: Mapping[str, Source], cursors: Mapping[str, int], reached: Eventually
    ) -> list[tuple[str, Job]]:
        """What follows each source and space, by name: under ``once``, and where a source ends, it ends as well.

        ``cursors`` go before what is committed. What has to be closed after the jobs is left to ``stack``.
        Raises SettingsError, and what ``reached`` does.
        """
        committed = await reached(lambda: self._store.positions(list(sources)))
        if self._verification is not None:
            await reached(self._verification.load)
        jobs: list[tuple[str, Job]] = []
        for key, source in sources.items():
            position = committed[key].seq if key in committed else None
            jobs += await self._begin(source, cursors.get(key, position), reached)
        if self._settings.space_account:
            opened = opened_spaces(self._settings, self._store, self._pipeline, self._note_space)
            self._followers = await stack.enter_async_context(opened)
        spaces = self._followers.items()
        return jobs + [("spaces", partial(self._follow_spaces, account, follower)) for account, follower in spaces]

    async def _begin(self, source: Source, position: int | None, reached: Eventually) -> list[tuple[str, Job]]:
        """What follows a source: its frames, and where proofs are demanded the discovery at its host."""
        verification = self._verification
        if verification is None:
            intake = _intake(self._pipeline, source, Word(self._pipeline), position)
            return [(f"source {source.key}", partial(self._follow, source, intake))]
        missed = source.live and position is None
        await reached(lambda: verification.begin(source.key, missed=missed))
        intake = _intake(self._pipeline, source, verification.trust, position)
        jobs: list[tuple[str, Job]] = [(f"source {source.key}", partial(self._follow, source, intake))]
        if isinstance(source, FirehoseSource):
            jobs.append((f"discovery {source.key}", partial(verification.discover, source.key, source.url)))
        return jobs

    async def _follow(self, source: Source, intake: Intake) -> None:
        follower = Follower(
            source,
            resume_from=lambda: intake.position,
            on_status=lambda status: self._note(source, intake, status),
            max_attempts=ONCE_ATTEMPTS if self._settings.once else None,
        )
        intake.restart = lambda cursor, reason: follower.restart(cursor, reason=reason)
        try:
            async with aclosing(follower.items()) as items:
                while True:
                    silence = ONCE_SILENCE if self._settings.once and source.live and source.key in self._live else None
                    async with asyncio.timeout(silence) as clock:
                        item = await anext(items, None)
                    if item is None:
                        break
                    await intake.take(item)
                    if self._settings.once and isinstance(item, Chunk) and source.live and self._recent(intake):
                        break
        except TimeoutError:
            if not clock.expired():
                raise
        except SourceBroken as error:
            self.failed.append(source.key)
            _log.error("source given up", source=source.label, error=str(error))
        intake.meter.finish()

    def _recent(self, intake: Intake) -> bool:
        """Whether the last event is younger than the start of the run."""
        event = parse_instant(intake.time)
        return event is not None and event >= self._started

    def _note(self, source: Source, intake: Intake, status: Status) -> None:
        self._states[source.key] = status
        intake.meter.up = status.state in (State.LIVE, State.ENDED)
        if status.state is State.LIVE:
            self._live.add(source.key)
        else:
            self._live.discard(source.key)
        if status.state is State.WAITING:
            if status.reason is not None:
                intake.meter.reconnected(status.reason.value)
            _log.warning(
                "source lost", source=source.label, reason=status.reason, retry_in=status.retry_in, detail=status.detail
            )
        else:
            _log.info("source", source=source.label, state=status.state.value)

    async def _follow_spaces(self, account: str, follower: SpaceFollower) -> None:
        if not await follower.run():
            self.failed.append("space")
            _log.error("spaces given up", reason=self._space_states.get(account, ""))

    def _note_space(self, account: str, state: str, detail: str | None) -> None:
        """Note the state of an account's spaces; it names neither, since whoever reads it may not see them."""
        self._space_states[account] = "" if state == "live" else f"source space is {state}"

    async def _keep_states(self) -> None:
        """Write what each source is doing, whenever it changed, for ``letta.source``."""
        written: dict[str, Status] = {}
        while True:
            await self._record_states(written)
            await asyncio.sleep(1)

    async def _record_states(self, written: dict[str, Status] | None = None, *, ended: bool = False) -> None:
        lease = self._pipeline.lease
        for key, status in list(self._states.items()):
            if written is None or written.get(key) != status:
                state = STOPPED if ended and status.state not in (State.ENDED, State.BROKEN) else status.state.value
                with suppress(DatabaseUnavailable):
                    await self._store.set_source_state(key, state, status.detail or None, utc_now(), lease)
                    if written is not None:
                        written[key] = status

    async def conclude(self) -> None:
        """Note for everything that was followed that it isn't any more. Raises LeaseLostError."""
        await self._record_states(ended=True)
        for follower in self._followers.values():
            await follower.rest(STOPPED)

    async def _prune(self) -> None:
        """Every hour, forget what was told of accounts that turned out to hold nothing."""
        pause = PRUNE_INTERVAL
        while True:
            await asyncio.sleep(pause)
            with suppress(DatabaseUnavailable):
                pause = 1.0 if await self._store.prune(utc_now() - STATES_KEPT) else PRUNE_INTERVAL

    def reasons(self) -> list[str]:
        """Why not everything is followed as it should be: nothing, if it is."""
        reasons = sorted({state for state in self._space_states.values() if state})
        if not self._states and not self._space_states:
            reasons.append("no source has been started yet")
        for key, status in self._states.items():
            if status.state not in (State.LIVE, State.ENDED):
                reasons.append(f"source {key} is {status.state.value}{': ' + status.detail if status.detail else ''}")
        return reasons


def _intake(pipeline: Pipeline, source: Source, trust: Trust, position: int | None) -> Intake:
    kind = JetstreamIntake if isinstance(source, JetstreamSource) else Intake
    return kind(pipeline, source, trust, position)
