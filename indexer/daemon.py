"""The daemon: builds the parts, starts every task in one group, ends them in order.

Sources stop first, then what they gave is committed, then the database is left, so that a stop loses nothing that
was read. Only here are tasks started and signals handled.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from time import time
from typing import TypeVar

import structlog

from indexer.config import Settings
from indexer.embedded import EmbeddedPostgres
from indexer.errors import DatabaseUnavailable, IndexerError, SettingsError, SourceBroken
from indexer.gauges import read_gauges
from indexer.http import HttpServer
from indexer.intake import Intake
from indexer.jetstream_intake import JetstreamIntake
from indexer.metrics import Metrics
from indexer.outbound import fetched_once
from indexer.pipeline import Pipeline, utc_now
from indexer.route import Router
from indexer.sources.address import FileAddress, JetstreamAddress, parse_source_url
from indexer.sources.base import Chunk, Source, State, Status
from indexer.sources.file import FileSource
from indexer.sources.firehose import FirehoseSource
from indexer.sources.follow import Follower
from indexer.sources.jetstream import JetstreamSource
from indexer.space_accounts import opened_spaces
from indexer.space_follow import SpaceFollower
from indexer.store import Limits, Store
from indexer.syntax import CollectionFilter, parse_instant
from indexer.trust import Trust, Word
from indexer.verification import Job, Verification, opened_verification

ONCE_ATTEMPTS = 3  # connections tried under --once before a source counts as failed
ONCE_SILENCE = 3.0  # seconds without a frame after which a source counts as caught up under --once
STOP_SECONDS = 8.0  # to commit what was read, at the end
STOPPED = "stopped"  # what ``letta.source`` says of a source that the daemon left in good order
DATABASE_PAUSE = 1.0  # seconds between tries to reach the database at the start
PRUNE_INTERVAL = 3600.0  # seconds between looks for states of accounts that hold nothing here
STATES_KEPT = timedelta(days=7)  # such states, in case events come out of order

T = TypeVar("T")

_log = structlog.stdlib.get_logger("indexer.daemon")


def limits_of(settings: Settings) -> Limits:
    """The store's bounds out of the settings."""
    return Limits(
        quota_rows=settings.quota_rows,
        quota_bytes=settings.quota_bytes,
        letter_rows=settings.dead_letter_rows,
        letter_bytes=settings.dead_letter_bytes,
        letter_age=timedelta(seconds=settings.dead_letter_age),
        keep_content=settings.keep_history == "content",
    )


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """The store of these settings, its schema checked or created; the embedded server runs as long.

    Raises SchemaError, EmbeddedError, or DatabaseUnavailable if the server doesn't answer.
    """
    async with AsyncExitStack() as stack:
        if settings.database_url is not None:
            url = settings.database_url.get_secret_value()

            async def dsn() -> str:
                return url
        else:
            embedded = EmbeddedPostgres(settings.data_dir)
            stack.push_async_callback(embedded.stop)
            await embedded.start()
            dsn = embedded.ensure_running
        store = Store(dsn, limits=limits_of(settings))
        stack.push_async_callback(store.close)
        yield store


def build_pipeline(settings: Settings, store: Store, metrics: Metrics) -> Pipeline:
    """The pipeline of these settings."""
    router = Router(CollectionFilter(settings.collections), only=settings.only, deny=settings.deny)
    return Pipeline(
        store,
        metrics,
        router,
        batch_rows=settings.batch_rows,
        batch_bytes=settings.batch_bytes,
        batch_age=settings.batch_age,
    )


async def open_source(text: str, settings: Settings) -> Source:
    """The source that a ``--source`` names. Raises SettingsError, SourceBroken."""
    address = parse_source_url(text)
    if isinstance(address, FileAddress):
        return await FileSource.open(address.path)
    if isinstance(address, JetstreamAddress):
        return JetstreamSource(address, settings.collections, fetch=fetched_once, idle_timeout=settings.idle_timeout)
    return FirehoseSource(address, idle_timeout=settings.idle_timeout)


def _intake(pipeline: Pipeline, source: Source, trust: Trust, position: int | None) -> Intake:
    kind = JetstreamIntake if isinstance(source, JetstreamSource) else Intake
    return kind(pipeline, source, trust, position)


class Daemon:
    """One run: follow the sources into the store until stopped, or until caught up (``once``)."""

    def __init__(self, settings: Settings, store: Store, *, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._store = store
        self._announce = announce
        self.metrics = Metrics(clock=time)
        self.pipeline = build_pipeline(settings, store, self.metrics)
        self._states: dict[str, Status] = {}
        self._live: set[str] = set()
        self._space_states: dict[str, str] = {}  # by account; '' is live
        self._followers: dict[str, SpaceFollower] = {}
        self._database: str | None = "the database has not been reached yet"
        self._started: datetime = utc_now()
        self._stop = asyncio.Event()
        self._verification: Verification | None = None
        self.failed: list[str] = []  # sources given up, and wants that could not be met under ``once``

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._stop.set()

    async def run(self) -> None:
        """Run to the end. Raises SchemaError or SettingsError; what was read is committed before it returns."""
        _on_signals(self.stop)
        http = HttpServer(self._settings.listen, self.metrics, readiness=self.readiness)
        await http.start()
        try:
            self._announce(f"serving {http.url}/metrics, /healthz and /readyz")
            await self._work()
        finally:
            await http.stop()

    async def _work(self) -> None:
        """Index until told to stop or at an end, then commit what was read, if the database takes it in time."""
        try:
            async with asyncio.TaskGroup() as group:
                stopper = group.create_task(self._stop.wait(), name="stop")
                work = group.create_task(self._index(), name="index")
                await asyncio.wait((stopper, work), return_when=asyncio.FIRST_COMPLETED)
                work.cancel()
                stopper.cancel()
        except ExceptionGroup as errors:
            raise _first_cause(errors) from None
        _log.info("stopping")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.pipeline.flush()
                await self._record_states(ended=True)
                for follower in self._followers.values():
                    await follower.rest(STOPPED)
        except TimeoutError:
            _log.warning("the database did not take what was read last in time: it will be read again")

    async def _index(self) -> None:
        """Everything between start and stop; ends by itself only under ``once``, when each source is caught up."""
        sources = {s.key: s for s in [await open_source(text, self._settings) for text in self._settings.sources]}
        self._refuse_other_cursors(sources)
        await self._reached(self._store.open)
        committed = await self._reached(lambda: self._store.positions(list(sources)))
        async with AsyncExitStack() as stack:
            if self._settings.trust == "verify":
                opened = opened_verification(self._settings, self._store, self.pipeline)
                self._verification = await stack.enter_async_context(opened)
                await self._reached(self._verification.load)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            jobs = [group.create_task(job(), name=name) for name, job in self._jobs()]
            follows = []
            for key, source in sources.items():
                position = committed[key].seq if key in committed else None
                follows += await self._start(group, source, self._settings.cursor.get(key, position))
            self._followers = await self._spaces(stack)
            for account, follower in self._followers.items():
                follows.append(group.create_task(self._follow_spaces(account, follower), name="spaces"))
            await asyncio.wait(follows)
            if self._settings.once:
                if self._verification is not None:
                    self.failed += ["wants"] * await self._reached(self._verification.settled)
                for task in jobs:
                    task.cancel()

    async def _spaces(self, stack: AsyncExitStack) -> dict[str, SpaceFollower]:
        """The followers of permissioned spaces, where there are accounts for any."""
        if not self._settings.space_account:
            return {}
        opened = opened_spaces(self._settings, self._store, self.pipeline, self._note_space)
        return await stack.enter_async_context(opened)

    async def _follow_spaces(self, account: str, follower: SpaceFollower) -> None:
        if not await follower.run():
            self.failed.append("space")
            _log.error("spaces given up", reason=self._space_states.get(account, ""))

    def _note_space(self, account: str, state: str, detail: str | None) -> None:
        """Note the state of an account's spaces; it names neither, since whoever reads it may not see them."""
        self._space_states[account] = "" if state == "live" else f"source space is {state}"

    def _jobs(self) -> list[tuple[str, Job]]:
        """What runs beside the sources, by name."""
        own: list[tuple[str, Job]] = [
            ("writer", self.pipeline.write),
            ("gauges", lambda: read_gauges(self._store, self.metrics, self._measure_wants)),
            ("states", self._keep_states),
            ("prune", self._prune),
        ]
        return own + (self._verification.jobs() if self._verification is not None else [])

    async def _start(self, group: asyncio.TaskGroup, source: Source, position: int | None) -> list[asyncio.Task[None]]:
        """Start what follows a source: its frames, and where proofs are demanded the discovery at its host."""
        verification = self._verification
        if verification is None:
            intake = _intake(self.pipeline, source, Word(self.pipeline), position)
            return [group.create_task(self._follow(source, intake), name=f"source {source.key}")]
        missed = source.live and position is None
        await self._reached(lambda: verification.begin(source.key, missed=missed))
        intake = _intake(self.pipeline, source, verification.trust, position)
        tasks = [group.create_task(self._follow(source, intake), name=f"source {source.key}")]
        if isinstance(source, FirehoseSource):
            discovery = verification.discover(source.key, source.url)
            tasks.append(group.create_task(discovery, name=f"discovery {source.key}"))
        return tasks

    def _refuse_other_cursors(self, sources: Iterable[str]) -> None:
        """A position for a source that isn't followed is a typo, and would be lost in silence."""
        others = sorted(self._settings.cursor.keys() - set(sources))
        if others:
            known = ", ".join(sources)
            raise SettingsError(f"--cursor: there is no source {', '.join(others)}; those followed are {known}")

    async def _reached(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` gives, however long the database takes to come up; under ``once`` it has three tries."""
        for attempt in count(1):
            try:
                result = await work()
            except DatabaseUnavailable as error:
                self._database = str(error)
                if self._settings.once and attempt == ONCE_ATTEMPTS:
                    raise
                _log.warning("database not available, trying again", error=str(error))
                await asyncio.sleep(DATABASE_PAUSE)
            else:
                self._database = None
                self.metrics.database_up = True
                return result
        raise AssertionError("unreachable")

    async def _follow(self, source: Source, intake: Intake) -> None:
        follower = Follower(
            source,
            resume_from=lambda: intake.position,
            on_status=lambda status: self._note(source, status),
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

    def _note(self, source: Source, status: Status) -> None:
        self._states[source.key] = status
        if status.state is State.LIVE:
            self._live.add(source.key)
        else:
            self._live.discard(source.key)
        if status.state is State.WAITING:
            if status.reason is not None:
                self.metrics.source(source.label).reconnected(status.reason.value)
            _log.warning(
                "source lost", source=source.label, reason=status.reason, retry_in=status.retry_in, detail=status.detail
            )
        else:
            _log.info("source", source=source.label, state=status.state.value)

    async def _keep_states(self) -> None:
        """Write what each source is doing, whenever it changed, for ``letta.source``."""
        written: dict[str, Status] = {}
        while True:
            await self._record_states(written)
            await asyncio.sleep(1)

    async def _record_states(self, written: dict[str, Status] | None = None, *, ended: bool = False) -> None:
        for key, status in list(self._states.items()):
            if written is None or written.get(key) != status:
                state = STOPPED if ended and status.state not in (State.ENDED, State.BROKEN) else status.state.value
                with suppress(DatabaseUnavailable):
                    await self._store.set_source_state(key, state, status.detail or None, utc_now())
                    if written is not None:
                        written[key] = status

    async def _measure_wants(self) -> None:
        if self._verification is not None:
            await self._verification.measure()

    async def _prune(self) -> None:
        """Every hour, forget what was told of accounts that turned out to hold nothing."""
        pause = PRUNE_INTERVAL
        while True:
            await asyncio.sleep(pause)
            with suppress(DatabaseUnavailable):
                pause = 1.0 if await self._store.prune(utc_now() - STATES_KEPT) else PRUNE_INTERVAL

    async def readiness(self) -> list[str]:
        """Why the daemon is not ready: nothing, if it is."""
        reasons = [] if self._database is None else [self._database]
        if self._database is None:
            try:
                await self._store.ping()
            except DatabaseUnavailable as error:
                reasons.append(str(error))
        reasons += sorted({state for state in self._space_states.values() if state})
        if not self._states and not self._space_states and not reasons:
            reasons.append("no source has been started yet")
        for key, status in self._states.items():
            if status.state not in (State.LIVE, State.ENDED):
                reasons.append(f"source {key} is {status.state.value}{': ' + status.detail if status.detail else ''}")
        for label, lag in self.metrics.lags().items():
            if lag > self._settings.max_lag:
                reasons.append(f"source {label} lags {lag:.0f} s behind, more than {self._settings.max_lag:g} s")
        return reasons


def _first_cause(errors: ExceptionGroup) -> Exception:
    """The error of ours that ended a group of tasks, however deep, or else whatever did."""
    _, foreign = errors.split(IndexerError)
    cause: Exception = errors
    while foreign is None and isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[0]
    return cause


async def run_daemon(settings: Settings, *, announce: Callable[[str], None]) -> list[str]:
    """One whole run on the database of these settings; returns what failed under ``once``.

    A signal that comes while the database is being started ends the run once that stands: no server is left behind.
    Raises what :func:`opened_store` and :meth:`Daemon.run` raise.
    """
    stop = asyncio.Event()
    _on_signals(stop.set)
    async with opened_store(settings) as store:
        daemon = Daemon(settings, store, announce=announce)
        if not stop.is_set():
            await daemon.run()
        return daemon.failed


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
