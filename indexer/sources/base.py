"""What every source gives: a stream of items, and the words that say how it is doing.

A source yields an :class:`Opened` for each connection, then :class:`Chunk` after :class:`Chunk` of raw frames, with a
:class:`Dropped` in between for each frame it had to leave out. Frames come in chunks because a step of an asynchronous
iterator costs about as much as decoding a frame: the consumer pays it once a chunk, and loops over plain bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

from indexer.model import Reason

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Longest frame accepted, in bytes. A legal commit frame is far below it: its blocks end at 2,000,000 bytes."""

Positions: TypeAlias = Literal["sequence", "count"]
"""What a cursor counts: the host's own numbers, known only after decoding, or frames from the start of a file."""


class ReconnectReason(StrEnum):
    """Why a connection ended, or was not made: a closed list, the label of ``reconnects_total``."""

    CONNECT_FAILED = "connect_failed"  # name not resolved, refused, unreachable, or no answer in time
    TLS = "tls"
    HTTP_ERROR = "http_error"  # the handshake was answered with something other than 101
    CLOSED = "closed"
    IDLE = "idle"  # no data, or no answer to a ping, for too long
    OVERSIZED = "oversized"
    PROTOCOL_ERROR = "protocol_error"  # the peer breaks RFC 6455
    CONSUMER_TOO_SLOW = "consumer_too_slow"
    FUTURE_CURSOR = "future_cursor"
    SEQUENCE_RESET = "sequence_reset"
    ERROR_FRAME = "error_frame"


class State(StrEnum):
    """What a followed source is doing."""

    CONNECTING = "connecting"
    LIVE = "live"
    WAITING = "waiting"
    ENDED = "ended"  # a file was read to its end
    BROKEN = "broken"  # given up


@dataclass(frozen=True, slots=True)
class Status:
    """A change of a source's state.

    ``failures`` counts the connections lost since a frame was last taken in. ``reason``, ``retry_in`` (seconds) and
    ``detail`` (safe to log) belong to ``WAITING``, which is reported exactly once for each connection lost.
    """

    state: State
    failures: int = 0
    reason: ReconnectReason | None = None
    retry_in: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection stands, or a file is open; the next frame is its first. ``cursor`` is what it was asked for.

    Comes before the first frame, however long that takes: a small host can be silent for hours. ``missed``: the host
    doesn't have all that followed the position, or may not, and won't say so in its stream.
    """

    cursor: int | None
    missed: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """Raw frames in the order they came, at least one.

    ``start`` is the number of frames of the file before ``frames[0]``, so that the position after the whole chunk is
    ``start + len(frames)``; None where positions are sequence numbers, found inside the frames.
    """

    frames: list[bytes]
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A frame left out, at this place of the stream; ``position`` may be stored as the cursor unless it is None."""

    reason: Reason
    position: int | None
    detail: str


Item: TypeAlias = Opened | Chunk | Dropped


class Source(Protocol):
    """One place that frames come from."""

    @property
    def key(self) -> str:
        """Name of the stored cursor: ``firehose:host[:port]``, ``jetstream:host[:port]`` or ``file:SHA-256``."""

    @property
    def label(self) -> str:
        """The same or shorter: the label ``source`` of metrics."""

    @property
    def live(self) -> bool:
        """Whether it goes on for ever; a file does not."""

    @property
    def positions(self) -> Positions:
        """What its cursors count."""

    def items(self, cursor: int | None) -> AsyncGenerator[Item, None]:
        """One connection's items after ``cursor`` (None: a firehose from now, a file from its start).

        A file ends; a firehose only ever ends with :class:`indexer.errors.SourceLost`. No more is read from the
        source than a bounded number of bytes ahead of the consumer. Close the generator (``contextlib.aclosing``).

        Raises:
            SourceLost: the connection ended or could not be made.
            SourceBroken: trying again cannot help.
        """
