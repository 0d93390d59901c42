"""The daemon: builds the parts, starts every task in one group, ends them in order.

Sources stop first, then what they gave is committed, then the database is left, so that a stop loses nothing that
was read. Only here are tasks started and signals handled.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from socket import gethostname
from time import monotonic, time
from typing import TypeVar

import structlog

from indexer.config import Settings
from indexer.embedded import EmbeddedPostgres
from indexer.errors import DatabaseUnavailable, EmbeddedError, IndexerError, SettingsError, WriterElsewhere
from indexer.gauges import read_gauges
from indexer.http import HttpServer
from indexer.lease import LOOK, Tenure
from indexer.metrics import Metrics
from indexer.outbound import fetched_once
from indexer.page import page_routes
from indexer.pipeline import Pipeline, utc_now
from indexer.route import Router
from indexer.sources.address import FileAddress, JetstreamAddress, parse_source_url
from indexer.sources.base import Source
from indexer.sources.file import FileSource
from indexer.sources.firehose import FirehoseSource
from indexer.sources.jetstream import JetstreamSource
from indexer.store import Limits, Store
from indexer.store.lease import Lease, LeaseLostError, Leases
from indexer.store.pages import Pages
from indexer.syntax import CollectionFilter
from indexer.term import ONCE_ATTEMPTS, Term
from indexer.verification import Job, Verification, opened_verification

ONCE_TRIES = 10  # at a transaction under --once, in some 20 s
ONCE_PATIENCE = 6.0  # seconds to wait under --once for the lease: enough for that of a daemon that is dead
STOP_SECONDS = 8.0  # to commit what was read, at the end
RELEASE_SECONDS = 1.0  # to give the lease back after that
DATABASE_PAUSE = 1.0  # seconds between tries to reach the database at the start

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
async def opened_store(settings: Settings, *, makes: bool) -> AsyncIterator[Store]:
    """The store of these settings; the embedded server runs as long, on data that is made if ``makes``.

    Raises SchemaError, EmbeddedError, or DatabaseUnavailable if the server doesn't answer.
    """
    async with AsyncExitStack() as stack:
        if settings.database_url is not None:
            url = settings.database_url.get_secret_value()

            async def dsn() -> str:
                return url
        else:
            embedded = EmbeddedPostgres(settings.data_dir, makes=makes)
            stack.push_async_callback(embedded.stop)
            await embedded.start()

            async def dsn() -> str:
                try:
                    return await embedded.ensure_running()
                except EmbeddedError as error:  # it ran before, and will again once there is room on its disk, say
                    raise DatabaseUnavailable(str(error)) from error

        store = Store(dsn, limits=limits_of(settings), migrates=settings.database_url is None)
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
        tries=ONCE_TRIES if settings.once else None,
    )


async def open_source(text: str, settings: Settings) -> Source:
    """The source that a ``--source`` names. Raises SettingsError, SourceBroken."""
    address = parse_source_url(text)
    if isinstance(address, FileAddress):
        return await FileSource.open(address.path)
    if isinstance(address, JetstreamAddress):
        return JetstreamSource(address, settings.collections, fetch=fetched_once, idle_timeout=settings.idle_timeout)
    return FirehoseSource(address, idle_timeout=settings.idle_timeout)


class Daemon:
    """One run: follow the sources into the store until stopped, or until caught up (``once``).

    Of the daemons on one database one is the writer, the others stand by and help it repair.
    """

    def __init__(self, settings: Settings, store: Store, *, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._store = store
        self._announce = announce
        self.metrics = Metrics(clock=time)
        self.pipeline = build_pipeline(settings, store, self.metrics)
        leases = Leases(partial(store.connection, "lease"), f"{gethostname()}:{os.getpid()}")
        self._tenure = Tenure(leases, self.metrics)
        self._term: Term | None = None  # while this is the writer
        self._database: str | None = "the database has not been reached yet"
        self._started: datetime = utc_now()
        self._stop = asyncio.Event()
        self._verification: Verification | None = None
        self.failed: list[str] = []  # sources given up, and wants that could not be met under ``once``

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._stop.set()

    async def run(self) -> None:
        """Run to the end; what was read is committed before it returns.

        Raises SchemaError or SettingsError; under ``once`` also WriterElsewhere, and DatabaseUnavailable.
        """
        on_signals(self.stop)
        settings = self._settings
        routes = page_routes(
            Pages(self._store), settings.listen, settings.page_token, settings.page_token_file, self.readiness
        )
        http = HttpServer(settings.listen, self.metrics, readiness=self.readiness, routes=routes, role=self.role)
        await http.start()
        try:
            self._announce(f"serving {http.url}/metrics, /healthz and /readyz" + (", the page at /" if routes else ""))
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
            _log.info("stopping")
            await self._leave()
        except ExceptionGroup as errors:
            raise _first_cause(errors) from None

    async def _index(self) -> None:
        """Everything between start and stop; ends by itself only under ``once``, when each source is caught up."""
        sources = {s.key: s for s in [await open_source(text, self._settings) for text in self._settings.sources]}
        self._refuse_other_cursors(sources)
        await self._reached(self._store.open)
        async with AsyncExitStack() as stack:
            if self._settings.trust == "verify":
                opened = opened_verification(self._settings, self._store, self.pipeline)
                self._verification = await stack.enter_async_context(opened)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            jobs = [group.create_task(job(), name=name) for name, job in self._jobs()]
            cursors: Mapping[str, int] = self._settings.cursor
            while not await self._serve(sources, cursors) and not _is_cancelled():
                cursors = {}  # those given count once
            for task in jobs:
                task.cancel()

    def _jobs(self) -> list[tuple[str, Job]]:
        """What runs on every daemon, by name."""
        gauges: tuple[str, Job] = ("gauges", lambda: read_gauges(self._store, self.metrics, self._measure_wants))
        watch: tuple[str, Job] = ("watch", self._store.watch)
        return [gauges, watch, *(self._verification.repair_jobs() if self._verification is not None else [])]

    async def _serve(self, sources: Mapping[str, Source], cursors: Mapping[str, int]) -> bool:
        """Wait for the lease, then be the writer; False if the lease was lost, True at the end under ``once``."""
        lost = False
        lease = await self._stand_by()
        self.pipeline.lease = lease
        self._term = Term(self._settings, self._store, self.pipeline, self._verification, started=self._started)
        try:
            await self._write(self._term, lease, sources, cursors)
        except* LeaseLostError:
            lost = True
        if lost:
            _log.warning("another daemon is the writer now: what was not committed yet is its to read")
            self._step_down()
        return not lost

    async def _stand_by(self) -> Lease:
        """Wait for the lease; what repair sets aside is written meanwhile. Raises WriterElsewhere under ``once``."""
        patience = monotonic() + ONCE_PATIENCE
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self.pipeline.write(), name="writer")
            while (lease := await self._reached(self._tenure.look)) is None:
                if self._settings.once and monotonic() > patience:
                    raise WriterElsewhere(
                        f"{self._tenure.holder or 'another daemon'} writes this database: "
                        "stop it first, or let it follow these sources"
                    )
                await asyncio.sleep(LOOK)
            writing.cancel()
        return lease

    async def _write(self, term: Term, lease: Lease, sources: Mapping[str, Source], cursors: Mapping[str, int]) -> None:
        """Follow everything under a lease. Raises LeaseLostError, in a group."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            jobs = [group.create_task(self._tenure.keep(lease), name="lease")]
            follows = await term.follows(stack, sources, cursors, self._reached)
            jobs += [group.create_task(job(), name=name) for name, job in term.jobs()]
            await asyncio.wait([group.create_task(job(), name=name) for name, job in follows])
            if self._settings.once:
                self.failed += term.failed
                if self._verification is not None:
                    self.failed += ["wants"] * await self._reached(self._verification.settled)
                for task in jobs:
                    task.cancel()

    def _step_down(self) -> None:
        self._term = None
        self._tenure.forget()
        self.pipeline.abandon()
        self.metrics.forget_sources()

    async def _leave(self) -> None:
        """Commit what was read and say so, if the database takes it in time; then the lease is free."""
        try:
            async with asyncio.timeout(STOP_SECONDS), asyncio.TaskGroup() as group:
                lease = self._tenure.lease
                keeping = group.create_task(self._tenure.keep(lease), name="lease") if lease is not None else None
                await self.pipeline.flush()
                if self._term is not None:
                    await self._term.conclude()
                if keeping is not None:
                    keeping.cancel()
        except* TimeoutError:
            _log.warning("the database did not take what was read last in time: it will be read again")
        except* LeaseLostError:
            _log.warning("another daemon is the writer now: what was not committed yet is its to read")
        with suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._tenure.release()

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
                self.metrics.database_up = False
                if self._settings.once and attempt == ONCE_ATTEMPTS:
                    raise
                _log.warning("database not available, trying again", error=str(error))
                await asyncio.sleep(DATABASE_PAUSE)
            else:
                self._database = None
                self.metrics.database_up = True
                return result
        raise AssertionError("unreachable")

    async def _measure_wants(self) -> None:
        if self._verification is not None:
            await self._verification.measure()

    def role(self) -> str:
        """What this daemon is at the moment: ``writer`` or ``standby``."""
        return "standby" if self._term is None else "writer"

    async def readiness(self) -> list[str]:
        """Why the daemon is not ready: nothing, if it is. On standby it is, while another daemon is the writer."""
        reasons = [] if self._database is None else [self._database]
        if self._database is None:
            try:
                await self._store.ping()
            except DatabaseUnavailable as error:
                reasons.append(str(error))
            else:  # a full disk lets everybody read
                reasons += [] if self.metrics.database_up else ["the database answers, but takes nothing in"]
        if self._term is not None:
            reasons += self._term.reasons()
        elif self._tenure.holder is None and not reasons:
            reasons.append("no daemon writes this database yet")
        for label, lag in self.metrics.lags().items():
            if lag > self._settings.max_lag:
                reasons.append(f"source {label} lags {lag:.0f} s behind, more than {self._settings.max_lag:g} s")
        return reasons


def _is_cancelled() -> bool:
    """Whether this task was told to end: where a group fails at the same moment, Python 3.11 raises that alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _first_cause(errors: ExceptionGroup) -> Exception:
    """The error of ours that ended a group of tasks, however deep, or else whatever did."""
    _, foreign = errors.split(IndexerError)
    cause: Exception = errors
    while foreign is None and isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[0]
    return cause


def keep_out_of_collections() -> None:
    """Have the garbage collector pass over all there is by now, which stays: going through it takes 50 ms each time."""
    gc.collect()
    gc.freeze()


async def run_daemon(settings: Settings, *, announce: Callable[[str], None]) -> list[str]:
    """One whole run on the database of these settings; returns what failed under ``once``.

    A signal that comes while the database is being started ends the run once that stands: no server is left behind.
    Raises what :func:`opened_store` and :meth:`Daemon.run` raise.
    """
    stop = asyncio.Event()
    on_signals(stop.set)
    async with opened_store(settings, makes=True) as store:
        daemon = Daemon(settings, store, announce=announce)
        keep_out_of_collections()
        if not stop.is_set():
            await daemon.run()
        return daemon.failed


def on_signals(stop: Callable[[], object]) -> None:
    """Have ctrl-C and SIGTERM call this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
