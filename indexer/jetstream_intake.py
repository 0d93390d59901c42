"""A Jetstream's way in: the firehose's intake, but for how frames are read, numbers count, commits are believed."""

from __future__ import annotations

from indexer.frames import Body
from indexer.intake import Intake
from indexer.jetstream_frames import damaged_account, decode_event, told_commit
from indexer.pipeline import micros
from indexer.sources.base import ReconnectReason
from indexer.sources.jetstream import TIMES
from indexer.trust import AHEAD


class JetstreamIntake(Intake):
    """Takes in what a Jetstream gives. Every event's own number is the position, never one that the source keeps."""

    decode = staticmethod(decode_event)
    damaged = staticmethod(damaged_account)

    def _advance(self, kind: str, body: Body) -> bool:
        if kind == "#info" and body.get("name") == "FutureCursor":
            return self._begin_again(ReconnectReason.FUTURE_CURSOR)
        seq = body.get("seq")
        if isinstance(seq, int) and self.position and (seq < TIMES) != (self.position < TIMES):
            self.position = 0  # the host speaks another version than before: its numbers begin anew
        return super()._advance(kind, body)

    def _is_jump(self, seq: int) -> bool:
        if seq < TIMES:
            return super()._is_jump(seq)
        return seq > micros(self._pipeline.clock() + AHEAD)  # a rare record may follow another after days

    def _commit(self, body: Body, raw: bytes) -> None:
        if self._pipeline.router.touches(body):  # of tracked accounts the rest is of no use: it proves nothing
            commit, car = told_commit(body)
            self._let_in(commit.did)
            self._trust.told(self, commit, car, raw)
