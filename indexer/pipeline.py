"""From the open batch to committed rows: what the intakes gather is written, one transaction at a time.

Every source's :class:`indexer.intake.Intake` fills the :class:`Pipeline`'s open batch, which its writer commits
together with every source's position. While the database is slow or away the open batch fills up, the intakes
wait, and nobody reads from the network: memory is bounded by two batches.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from time import monotonic, time
from typing import Protocol, TypeAlias

import structlog

from indexer.batch import Batch, Position
from indexer.errors import DatabaseUnavailable
from indexer.logs import OncePer
from indexer.metrics import Metrics, SourceMeter
from indexer.model import Reason
from indexer.route import Router
from indexer.store import Applied, Store
from indexer.store.lease import Lease
from indexer.syntax import parse_instant

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RETRY_FIRST, RETRY_CAP = 0.1, 5.0  # seconds between tries to write a batch
_STARTED = time(), monotonic()  # two readings of one moment

Clock = Callable[[], datetime]
Unwritten: TypeAlias = "tuple[Batch, dict[Reached, int | None]]"

_log = structlog.stdlib.get_logger("indexer.pipeline")


def utc_now() -> datetime:
    """The wall clock, aware; set back, it goes on from where it was, or what happens now would lie in the future."""
    started, begun = _STARTED
    return datetime.fromtimestamp(max(time(), started + monotonic() - begun), UTC)


class Reached(Protocol):
    """What the pipeline has to know of an intake: the position of its last frame, and of the last one committed."""

    key: str  # of the source's cursor
    position: int | None
    committed: int | None
    time: str  # of the event at the position, as its host wrote it
    meter: SourceMeter

    @property
    def moved(self) -> bool:
        """Whether the position reached has not been committed."""


class Pipeline:
    """Gathers what the intakes find and writes it, one transaction at a time.

    A batch is written when it holds ``batch_rows`` rows or ``batch_bytes`` bytes, or is ``batch_age`` seconds old;
    positions alone are written every ``cursor_interval`` seconds. After ``tries`` at a batch a database that isn't
    available is given up (None: never).
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        router: Router,
        *,
        batch_rows: int = 2_000,
        batch_bytes: int = 8 << 20,
        batch_age: float = 0.002,
        cursor_interval: float = 1.0,
        tries: int | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self.lease: Lease | None = None  # under which what the sources give is written
        self.metrics = metrics
        self.router = router
        self.clock = clock
        self.batch = Batch()
        self._store = store
        self._intakes: list[Reached] = []
        self._listeners: list[Callable[[Applied], None]] = []
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        self._batch_age, self._cursor_interval = batch_age, cursor_interval
        self._tries = tries
        self._rows, self._full, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._begun = 0.0  # when the batch got its first row, by the event loop's clock
        self._writing = asyncio.Lock()
        self._unwritten: Unwritten | None = None  # what is being written, or was when the writer was cut off
        self._complaints = OncePer(10.0, monotonic)
        metrics.watch_queue("batch", lambda: self.batch.rows)

    def follow(self, intake: Reached) -> None:
        """Commit this intake's position with every batch from now on."""
        self._intakes.append(intake)

    def listen(self, listener: Callable[[Applied], None]) -> None:
        """Have ``listener`` told what each committed batch came to."""
        self._listeners.append(listener)

    def abandon(self) -> None:
        """Forget the intakes and all that was gathered: under this lease nothing can be written any more."""
        self.lease = self._unwritten = None
        self.batch = Batch()
        self._intakes.clear()
        self._rows.clear()
        self._full.clear()
        self._room.set()

    async def noted(self) -> None:
        """Called after each addition to the batch: wakes the writer, and waits while the batch is full."""
        if self.batch.rows and not self._rows.is_set():
            self._rows.set()
            self._begun = asyncio.get_running_loop().time()
        if self.batch.rows >= self._batch_rows or self.batch.size >= self._batch_bytes:
            self._full.set()
            self._room.clear()
        await self._room.wait()

    async def write(self) -> None:
        """The writer: commits batches until cancelled. Raises what :meth:`flush` does."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._cursor_interval):
                    await self._rows.wait()
            if self._rows.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._begun + self._batch_age):
                        await self._full.wait()
            await self.flush()

    async def flush(self) -> None:
        """Commit what has been gathered, with the positions reached. Waits until the database takes it.

        A call that is cut off in the middle leaves its work to the next: positions never get ahead of rows.
        Raises SchemaError where our own state is broken, LeaseLostError where the lease was taken, and
        DatabaseUnavailable after the last try.
        """
        async with self._writing:
            if self._unwritten is not None:
                await self._commit(self._unwritten)
            batch, self.batch = self.batch, Batch()
            reached = {intake: intake.position for intake in self._intakes if intake.moved}
            batch.positions = {i.key: Position(p, event_time(i.time)) for i, p in reached.items()}
            self._rows.clear()
            self._full.clear()
            self._room.set()
            if batch.rows or batch.positions:
                self._unwritten = batch, reached
                await self._commit(self._unwritten)

    async def _commit(self, unwritten: Unwritten) -> None:
        batch, reached = unwritten
        started = monotonic()
        applied = await self._apply(batch)
        self._unwritten = None
        self.metrics.commit_seconds.observe(monotonic() - started)
        self.metrics.batch_rows.observe(batch.rows)
        self.learn(applied)
        for letter in batch.dead_letters:
            self.metrics.dead_letter(letter.reason)
        for intake, position in reached.items():
            intake.committed = position
            event = batch.positions[intake.key].event_time
            intake.meter.committed(position, event.timestamp() if event else None)

    async def _apply(self, batch: Batch) -> Applied:
        pause = RETRY_FIRST
        for attempt in count(1):
            try:
                applied = await self._store.apply(batch, self.clock(), self.lease)
            except DatabaseUnavailable as error:
                self.metrics.database_up = False
                if attempt == self._tries:
                    raise
                if self._complaints.allows("database") is not None:
                    _log.warning("database not available, trying again", error=str(error))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
                pause = min(RETRY_CAP, pause * 2)
            else:
                self.metrics.database_up = True
                return applied
        raise AssertionError("unreachable")

    def learn(self, applied: Applied) -> None:
        """Count what a transaction came to, and tell the listeners."""
        for collection, number in applied.rows.items():
            self.metrics.rows_written(collection, number)
        for kind, number in applied.recompiles.items():
            self.metrics.recompiled(kind, number)
        for reason, number in applied.dropped.items():
            self.metrics.dropped(reason, number)
            if reason is not Reason.DUPLICATE:
                self.complain(reason, "store")
        self.metrics.dead_letter(Reason.REFUSED_BY_DATABASE, applied.dropped[Reason.REFUSED_BY_DATABASE])
        for listener in self._listeners:
            listener(applied)

    def complain(self, reason: Reason, source: str, **facts: object) -> None:
        """Log that something was set aside, at most once in a while for each source and reason."""
        suppressed = self._complaints.allows((source, reason))
        if suppressed is not None:
            _log.warning("set aside", reason=reason.value, source=source, suppressed=suppressed, **facts)


def event_time(text: str) -> datetime | None:
    """When an event says it happened; None if that is no instant, or before 1970, where the driver has infinities."""
    time = parse_instant(text)
    return None if time is None or time < EPOCH else time


def micros(time: datetime) -> int:
    """Microseconds since the epoch."""
    return (time - EPOCH) // timedelta(microseconds=1)
