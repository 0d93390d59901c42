"""One source's way in: its frames decoded, routed, and handed to whoever believes or proves them.

Here the position of a source is kept, and here its stream's conditions are met: a cursor the host doesn't know, a
sequence that fell back, a host that gave up on us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from indexer.errors import Rejected
from indexer.frames import (
    ERROR,
    Body,
    account_event,
    commit_event,
    damaged_repo,
    decode_frame,
    identity_event,
    sync_event,
)
from indexer.metrics import SourceMeter
from indexer.model import DeadLetter, HandleChange, Reason, Want, WantReason
from indexer.pipeline import Pipeline, event_time
from indexer.sources.base import Chunk, Dropped, Item, Opened, ReconnectReason, Source
from indexer.syntax import is_did, is_handle
from indexer.trust import AHEAD, Trust

TURN = 32  # frames taken in before others get a turn: a few milliseconds if all concern us
MAX_JUMP = 10**9  # sequence numbers; a frame further ahead is set aside
MAX_LETTER = 2_500_000  # bytes of a frame that a dead letter keeps; no legal frame is longer
SILENT = frozenset({Reason.UNKNOWN_EVENT, Reason.DENIED, Reason.DUPLICATE})  # counted, but nothing to look into

DAMAGED = frozenset({Reason.MALFORMED_FRAME, Reason.TOO_MANY_OPERATIONS})  # what was in it is known by asking only

Restart = Callable[[int | None, ReconnectReason], None]

_log = structlog.stdlib.get_logger("indexer.intake")


class Intake:
    """Takes in what one source gives, committed so far up to ``position``; ``trust`` decides what is believed.

    ``decode`` reads a frame, ``damaged`` sees whose a frame is that can't be read.
    """

    decode = staticmethod(decode_frame)
    damaged = staticmethod(damaged_repo)

    def __init__(self, pipeline: Pipeline, source: Source, trust: Trust, position: int | None) -> None:
        self.source = source
        self.key = source.key
        self.position = position  # of the last frame taken in
        self.committed = position
        self.time = ""  # of the last event taken in, as its host wrote it
        self.meter: SourceMeter = pipeline.metrics.source(source.label)
        self.restart: Restart | None = None
        self._pipeline = pipeline
        self._trust = trust
        self._sequenced = source.positions == "sequence"
        self._asked: int | None = None
        self._first = False
        pipeline.follow(self)

    @property
    def moved(self) -> bool:
        """Whether there is a position that has not been committed."""
        return self.position != self.committed

    async def take(self, item: Item) -> None:
        """Take in what the source gave; returns when there is room for more."""
        if isinstance(item, Opened):
            self._asked, self._first = item.cursor, self._sequenced
            if item.missed:
                self._outdated()
        elif isinstance(item, Dropped):
            self.set_aside(item.reason, item.detail, b"", None)
            if item.position is not None:
                self.position = item.position
        else:
            await self._in_turns(item)
        await self._pipeline.noted()

    async def _in_turns(self, chunk: Chunk) -> None:
        """Take a chunk in a few frames at a time: between them the writer's statements get their turn."""
        frames, start = chunk.frames, chunk.start
        for at in range(0, len(frames), TURN):
            if not self._chunk(frames[at : at + TURN], None if start is None else start + at):
                return
            await self._pipeline.noted()
            await asyncio.sleep(0)

    def _chunk(self, frames: list[bytes], start: int | None) -> bool:
        """The hot path: nearly every frame of the network ends at the ``continue``. False if the connection is left."""
        decode, touches, tracked = self.decode, self._pipeline.router.touches, self._trust.tracked
        meter = self.meter
        for number, raw in enumerate(frames, 1):
            kind = "other"
            body: Body = {}
            if start is not None:
                self.position = start + number
            try:
                kind, body = decode(raw)
                if start is None and not self._advance(kind, body):
                    return False
                if kind == "#commit" and not touches(body) and body["repo"] not in tracked:
                    if body.get("tooBig"):
                        self._too_big(body)
                    continue
                self._event(kind, body, raw)
            except Rejected as rejected:
                self._reject(rejected, raw, body)
            except (KeyError, TypeError, AttributeError):
                self._reject(Rejected(Reason.MALFORMED_FRAME, "a field is missing or of another type"), raw, body)
            finally:
                meter.frame(kind, len(raw))
        time = body.get("time")
        self.time = time if isinstance(time, str) else self.time
        return True

    def _advance(self, kind: str, body: Body) -> bool:
        """Move the position to this frame's. False if the rest of the connection has to be left."""
        seq = body.get("seq")
        if type(seq) is not int or not 0 <= seq < 1 << 63:
            return kind != ERROR or self._error(body)
        if self._first:
            self._first = False
            if self._asked and seq <= self._asked:
                return self._begin_again(ReconnectReason.SEQUENCE_RESET)
        last = self.position or 0
        if seq > last and self._is_jump(seq):
            raise Rejected(Reason.SEQUENCE_JUMP, f"sequence number {seq} after {last}")
        self.position = seq if seq > last else last  # max() would nearly double what all of this costs
        return True

    def _is_jump(self, seq: int) -> bool:
        """Whether a number is too far ahead to be one of the host's."""
        return bool(self.position) and seq - (self.position or 0) > MAX_JUMP

    def _error(self, body: Body) -> bool:
        word = body.get("error")
        self.set_aside(Reason.ERROR_FRAME, "the host's error frame", b"", None)
        if word == "FutureCursor":
            return self._begin_again(ReconnectReason.FUTURE_CURSOR)
        reason = ReconnectReason.CONSUMER_TOO_SLOW if word == "ConsumerTooSlow" else ReconnectReason.ERROR_FRAME
        return self._leave(self.position, reason)

    def _begin_again(self, reason: ReconnectReason) -> bool:
        """The host's numbers are not those we counted by: forget them, read all it has, look at every repository."""
        _log.warning("the source's sequence began anew", source=self.source.label, reason=reason.value)
        self.position = 0
        self._trust.want(Want("", WantReason.SEQUENCE_RESET))
        return self._leave(0, reason)

    def _leave(self, cursor: int | None, reason: ReconnectReason) -> bool:
        if self.restart is not None:
            self.restart(cursor, reason)
        return False

    def _event(self, kind: str, body: Body, raw: bytes) -> None:
        if kind == "#commit":
            self._commit(body, raw)
        elif kind == "#account":
            account = account_event(body)
            self._let_in(account.did)
            self._trust.account(account, self._instant(account.time))
        elif kind == "#identity":
            identity = identity_event(body)
            self._let_in(identity.did)
            handle = identity.handle if identity.handle is not None and is_handle(identity.handle) else None
            self._trust.identity(HandleChange(identity.did, self._instant(identity.time), handle))
        elif kind == "#sync":
            sync = sync_event(body)
            self._let_in(sync.did)
            self._trust.sync(self, sync)
        elif kind == "#info":
            if body.get("name") == "OutdatedCursor":
                self._outdated()
        elif kind != ERROR:
            raise Rejected(Reason.UNKNOWN_EVENT, "an event of a type we don't know")

    def _commit(self, body: Body, raw: bytes) -> None:
        """A commit that touches what we follow, or any of a tracked account."""
        commit = commit_event(body)
        self._let_in(commit.did)
        self._trust.commit(self, commit, raw)

    def _outdated(self) -> None:
        _log.warning("the source no longer has all that was missed", source=self.source.label)
        self._trust.want(Want("", WantReason.OUTDATED_CURSOR))

    def _instant(self, text: str) -> datetime:
        time = event_time(text)
        if time is None:
            raise Rejected(Reason.MALFORMED_FRAME, "the event's time is no datetime since 1970")
        if time > self._pipeline.clock() + AHEAD:
            raise Rejected(Reason.FUTURE_REV, "the event's time is over five minutes ahead")
        return time

    def _let_in(self, did: str) -> None:
        refusal = self._pipeline.router.refusal(did)
        if refusal is not None:
            raise Rejected(refusal, "an account that is kept out" if refusal is Reason.DENIED else "no DID")

    def _too_big(self, body: Body) -> None:
        """A commit of a stranger's that doesn't say what it holds."""
        commit = commit_event(body)
        self._let_in(commit.did)
        self._trust.probe(commit.did)

    def _reject(self, rejected: Rejected, raw: bytes, body: Body) -> None:
        """Set a frame aside, and look after the repository that a damaged commit may have been of."""
        self.set_aside(rejected.reason, rejected.detail, raw, _did(body))
        did = self.damaged(raw) if rejected.reason in DAMAGED else None
        if did is not None and self._pipeline.router.refusal(did) is None:
            followed = any(prefix.encode() in raw for prefix in self._pipeline.router.prefixes)
            if followed or did in self._trust.tracked:
                self._trust.want(Want(did, WantReason.UNPROVEN))

    def set_aside(self, reason: Reason, detail: str, frame: bytes, did: str | None) -> None:
        """Count, and unless there is nothing to look into log and keep, what can't be used."""
        self._pipeline.metrics.dropped(reason)
        if reason in SILENT:
            return
        self._pipeline.complain(reason, self.source.label, did=did)
        kept = frame if len(frame) <= MAX_LETTER else b""
        letter = DeadLetter(self.source.key, self.position, did, reason, detail, kept, len(frame))
        self._pipeline.batch.add_dead_letter(letter)


def _did(body: Body) -> str | None:
    """The account that a body names, None where that is no DID: any other text could be anything."""
    did = body.get("repo", body.get("did"))
    return did if isinstance(did, str) and is_did(did) else None
