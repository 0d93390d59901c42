"""From raw frames to committed batches: decode, route, gather, write.

An :class:`Intake` takes one source's frames in; all of them fill the :class:`Pipeline`'s open batch, which its writer
commits together with every source's position. While the database is slow or away the open batch fills up, the intakes
wait, and nobody reads from the network: memory is bounded by two batches.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import monotonic

import structlog

from indexer.batch import Batch, Position
from indexer.car import read_car
from indexer.changes import changes_of, check_rev
from indexer.errors import DatabaseUnavailable, Rejected
from indexer.frames import ERROR, Body, account_event, commit_event, decode_frame, identity_event
from indexer.logs import OncePer
from indexer.metrics import Metrics, SourceMeter
from indexer.model import AccountChange, DeadLetter, HandleChange, Reason
from indexer.route import Router
from indexer.sources.base import Chunk, Dropped, Item, Opened, ReconnectReason, Source
from indexer.store import Applied, Store
from indexer.syntax import is_handle, parse_instant, tid_of

MAX_JUMP = 10**9  # sequence numbers; a frame further ahead is set aside
AHEAD = timedelta(minutes=5)  # that an event's time may be ahead of our clock
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_LETTER = 2_500_000  # bytes of a frame that a dead letter keeps; no legal frame is longer
SILENT = frozenset({Reason.UNKNOWN_EVENT, Reason.DENIED})  # counted, but nothing to look into
RETRY_FIRST, RETRY_CAP = 0.1, 5.0  # seconds between tries to write a batch

Clock = Callable[[], datetime]
Restart = Callable[[int | None, ReconnectReason], None]

_log = structlog.stdlib.get_logger("indexer.pipeline")


def utc_now() -> datetime:
    """The wall clock, aware."""
    return datetime.now(UTC)


class Pipeline:
    """Gathers what the intakes find and writes it, one transaction at a time.

    A batch is written when it holds ``batch_rows`` rows or ``batch_bytes`` bytes, or is ``batch_age`` seconds old;
    positions alone are written every ``cursor_interval`` seconds.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        router: Router,
        *,
        batch_rows: int = 2_000,
        batch_bytes: int = 8 << 20,
        batch_age: float = 0.01,
        cursor_interval: float = 1.0,
        clock: Clock = utc_now,
    ) -> None:
        self.metrics = metrics
        self.router = router
        self.clock = clock
        self.batch = Batch()
        self._store = store
        self._intakes: list[Intake] = []
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        self._batch_age, self._cursor_interval = batch_age, cursor_interval
        self._rows, self._full, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._writing = asyncio.Lock()
        self._complaints = OncePer(10.0, monotonic)
        metrics.watch_queue("batch", lambda: self.batch.rows)

    def intake(self, source: Source, position: int | None) -> Intake:
        """The way in for one source, which has been committed up to ``position``."""
        intake = Intake(self, source, position)
        self._intakes.append(intake)
        return intake

    async def noted(self) -> None:
        """Called after each addition to the batch: wakes the writer, and waits while the batch is full."""
        if self.batch.rows:
            self._rows.set()
        if self.batch.rows >= self._batch_rows or self.batch.size >= self._batch_bytes:
            self._full.set()
            self._room.clear()
        await self._room.wait()

    async def write(self) -> None:
        """The writer: commits batches until cancelled. Raises SchemaError where our own state is broken."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._cursor_interval):
                    await self._rows.wait()
            if self._rows.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._batch_age):
                        await self._full.wait()
            await self.flush()

    async def flush(self) -> None:
        """Commit what has been gathered, with the positions reached. Waits until the database takes it."""
        async with self._writing:
            batch, self.batch = self.batch, Batch()
            reached = {intake: intake.position for intake in self._intakes if intake.moved}
            batch.positions = {i.source.key: Position(p, parse_instant(i.time)) for i, p in reached.items()}
            self._rows.clear()
            self._full.clear()
            self._room.set()
            if not batch.rows and not batch.positions:
                return
            started = monotonic()
            applied = await self._apply(batch)
            self.metrics.commit_seconds.observe(monotonic() - started)
            self._count(batch, applied)
            for intake, position in reached.items():
                intake.committed = position
                event = batch.positions[intake.source.key].event_time
                intake.meter.committed(position, event.timestamp() if event else None)

    async def _apply(self, batch: Batch) -> Applied:
        pause = RETRY_FIRST
        while True:
            try:
                applied = await self._store.apply(batch, self.clock())
            except DatabaseUnavailable as error:
                self.metrics.database_up = False
                if self._complaints.allows("database") is not None:
                    _log.warning("database not available, trying again", error=str(error))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
                pause = min(RETRY_CAP, pause * 2)
            else:
                self.metrics.database_up = True
                return applied

    def _count(self, batch: Batch, applied: Applied) -> None:
        self.metrics.batch_rows.observe(batch.rows)
        for collection, count in applied.rows.items():
            self.metrics.rows_written(collection, count)
        for kind, count in applied.recompiles.items():
            self.metrics.recompiled(kind, count)
        for reason, count in applied.dropped.items():
            self.metrics.dropped(reason, count)
            self.complain(reason, "store")
        self.metrics.dead_letter(Reason.REFUSED_BY_DATABASE, applied.dropped[Reason.REFUSED_BY_DATABASE])
        for letter in batch.dead_letters:
            self.metrics.dead_letter(letter.reason)

    def complain(self, reason: Reason, source: str, **facts: object) -> None:
        """Log that something was set aside, at most once in a while for each source and reason."""
        suppressed = self._complaints.allows((source, reason))
        if suppressed is not None and reason not in SILENT:
            _log.warning("set aside", reason=reason.value, source=source, suppressed=suppressed, **facts)


class Intake:
    """One source's frames, decoded and routed into the pipeline's batch, with the position they reach."""

    def __init__(self, pipeline: Pipeline, source: Source, position: int | None) -> None:
        self.source = source
        self.position = position  # of the last frame taken in
        self.committed = position
        self.time = ""  # of the last event taken in, as its host wrote it
        self.meter: SourceMeter = pipeline.metrics.source(source.label)
        self.restart: Restart | None = None
        self._pipeline = pipeline
        self._sequenced = source.positions == "sequence"
        self._asked: int | None = None
        self._first = False

    @property
    def moved(self) -> bool:
        """Whether there is a position that has not been committed."""
        return self.position != self.committed

    async def take(self, item: Item) -> None:
        """Take in what the source gave; returns when there is room for more."""
        if isinstance(item, Opened):
            self._asked, self._first = item.cursor, self._sequenced
        elif isinstance(item, Dropped):
            self._set_aside(item.reason, item.detail, b"", None)
            if item.position is not None:
                self.position = item.position
        else:
            self._chunk(item)
        await self._pipeline.noted()

    def _chunk(self, chunk: Chunk) -> None:
        """The hot path: nearly every frame of the network ends at the ``continue``."""
        router, meter, start = self._pipeline.router, self.meter, chunk.start
        for number, raw in enumerate(chunk.frames, 1):
            kind = "other"
            body: Body = {}
            try:
                kind, body = decode_frame(raw)
                if start is not None:
                    self.position = start + number
                elif not self._advance(kind, body, raw):
                    return
                if kind == "#commit" and not router.touches(body):
                    continue
                self._event(kind, body, raw)
            except Rejected as rejected:
                self._set_aside(rejected.reason, rejected.detail, raw, _did(body))
            except (KeyError, TypeError, AttributeError):
                self._set_aside(Reason.MALFORMED_FRAME, "a field is missing or of another type", raw, _did(body))
            finally:
                meter.frame(kind, len(raw))
        self.time = body["time"] if isinstance(body.get("time"), str) else self.time  # type: ignore[assignment]

    def _advance(self, kind: str, body: Body, raw: bytes) -> bool:
        """Move the position to this frame's. False if the rest of the connection has to be left."""
        seq = body.get("seq")
        if type(seq) is not int or not 0 <= seq < 1 << 63:
            return kind != ERROR or self._error(body)
        if self._first:
            self._first = False
            if self._asked and seq <= self._asked:
                return self._begin_again(ReconnectReason.SEQUENCE_RESET)
        if not self.position or 0 < seq - self.position <= MAX_JUMP:
            self.position = seq
        elif seq > self.position:
            raise Rejected(Reason.SEQUENCE_JUMP, f"sequence number {seq} after {self.position}")
        return True

    def _error(self, body: Body) -> bool:
        word = body.get("error")
        self._set_aside(Reason.ERROR_FRAME, str(word)[:64], b"", None)
        if word == "FutureCursor":
            return self._begin_again(ReconnectReason.FUTURE_CURSOR)
        reason = ReconnectReason.CONSUMER_TOO_SLOW if word == "ConsumerTooSlow" else ReconnectReason.ERROR_FRAME
        return self._leave(self.position, reason)

    def _begin_again(self, reason: ReconnectReason) -> bool:
        """The host's numbers are not those we counted by: forget them and read all that it has."""
        _log.warning("the source's sequence began anew", source=self.source.label, reason=reason.value)
        self.position = 0
        return self._leave(0, reason)

    def _leave(self, cursor: int | None, reason: ReconnectReason) -> bool:
        if self.restart is not None:
            self.restart(cursor, reason)
        return False

    def _event(self, kind: str, body: Body, raw: bytes) -> None:
        if kind == "#commit":
            self._commit(body, raw)
        elif kind == "#account":
            self._account(body)
        elif kind == "#identity":
            self._identity(body)
        elif kind not in ("#sync", "#info", ERROR):
            raise Rejected(Reason.UNKNOWN_EVENT, "an event of a type we don't know")

    def _commit(self, body: Body, raw: bytes) -> None:
        commit = commit_event(body)
        self._let_in(commit.did)
        check_rev(commit.rev, micros(self._pipeline.clock()))
        if commit.too_big:
            raise Rejected(Reason.TOO_BIG, "the host left the blocks out")
        prefixes = self._pipeline.router.prefixes
        kept = raw
        for op in commit.operations:
            if op.path.startswith(prefixes):
                self._pipeline.metrics.operation(op.path.partition("/")[0], op.action)
        for outcome in changes_of(commit, read_car(commit.blocks), prefixes):
            if isinstance(outcome, Rejected):
                self._set_aside(outcome.reason, outcome.detail, kept, commit.did)
                kept = b""  # one copy of the frame is enough
            else:
                self._pipeline.batch.add(outcome)

    def _account(self, body: Body) -> None:
        event = account_event(body)
        self._let_in(event.did)
        time = self._instant(event.time)
        status = event.status or ("active" if event.active else "inactive")
        purge_rev = ""
        if status == "deleted" and not event.active:
            purge_rev = tid_of(max(0, micros(time)), 1023)
        self._pipeline.batch.add_account(AccountChange(event.did, time, event.active, status[:64], purge_rev))

    def _identity(self, body: Body) -> None:
        event = identity_event(body)
        self._let_in(event.did)
        handle = event.handle if event.handle is not None and is_handle(event.handle) else None
        self._pipeline.batch.add_handle(HandleChange(event.did, self._instant(event.time), handle))

    def _instant(self, text: str) -> datetime:
        time = parse_instant(text)
        if time is None:
            raise Rejected(Reason.MALFORMED_FRAME, "the event's time is no datetime")
        if time > self._pipeline.clock() + AHEAD:
            raise Rejected(Reason.FUTURE_REV, "the event's time is over five minutes ahead")
        return time

    def _let_in(self, did: str) -> None:
        refusal = self._pipeline.router.refusal(did)
        if refusal is not None:
            raise Rejected(refusal, "an account that is kept out" if refusal is Reason.DENIED else "no DID")

    def _set_aside(self, reason: Reason, detail: str, frame: bytes, did: str | None) -> None:
        self._pipeline.metrics.dropped(reason)
        self._pipeline.complain(reason, self.source.label, did=did)
        if reason not in SILENT:
            kept = frame if len(frame) <= MAX_LETTER else b""
            letter = DeadLetter(self.source.key, self.position, did, reason, detail, kept, len(frame))
            self._pipeline.batch.add_dead_letter(letter)


def _did(body: Body) -> str | None:
    """The account that a body names, as far as it may be shown."""
    did = body.get("repo", body.get("did"))
    return did[:256].replace("\0", "") if isinstance(did, str) else None


def micros(time: datetime) -> int:
    """Microseconds since the epoch."""
    return (time - EPOCH) // timedelta(microseconds=1)
