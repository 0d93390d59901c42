"""Faults of hosts and networks that can be injected, each counting how often it was.

*Frame faults* stand between a network and those who follow it: ``relay.publish(fault.pass_on(frames))``. *Scenarios*
are things a host does as a whole. Faults of HTTP servers are in :mod:`indexer.simulator.http_faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypedDict, Unpack

from indexer.simulator import events
from indexer.simulator.alterations import ALTERATIONS, Body
from indexer.simulator.network import Network
from indexer.simulator.oracle import PREFIX
from indexer.simulator.repository import Head, Write
from indexer.simulator.stream import Stream


def concerns_letta(body: Body) -> bool:
    """Whether a ``#commit`` touches a collection under the prefix."""
    return any(op["path"].startswith(PREFIX) for op in body["ops"])


def _any(body: Body) -> bool:
    return True


class Suitable(TypedDict, total=False):
    """Which frames a fault happens to, as keyword arguments.

    ``where`` narrows down the ``#commit`` bodies that are suitable (default: all), ``chance`` is the fraction of those
    it happens to (1), ``times`` a limit to how often (none); ``seed`` decides all draws (0).
    """

    where: Callable[[Body], bool]
    chance: float
    times: int | None
    seed: int


class FrameFault:
    """Base of what can happen to frames on their way; ``injected`` counts how often it did."""

    def __init__(self, **suitable: Unpack[Suitable]) -> None:
        self.injected = 0
        self.rng = Random(suitable.get("seed", 0))
        self._chance = suitable.get("chance", 1.0)
        self._times = suitable.get("times")
        self._where = suitable.get("where", _any)

    def pass_on(self, frames: Iterable[bytes]) -> list[bytes]:
        """The frames that go out for these that came in."""
        return [out for frame in frames for out in self._one(frame)]

    def happen(self, frame: bytes, body: Body) -> list[bytes] | None:
        """What goes out instead of a suitable frame; None if the fault can't happen to it."""
        raise NotImplementedError

    def _one(self, frame: bytes) -> Sequence[bytes]:
        spent = self._times is not None and self.injected >= self._times
        header, body = events.parse(frame)
        if spent or header.get("t") != "#commit" or not self._where(body) or self.rng.random() >= self._chance:
            return [frame]
        instead = self.happen(frame, body)
        if instead is None:
            return [frame]
        self.injected += 1
        return instead


class Drop(FrameFault):
    """A commit never arrives."""

    def happen(self, frame: bytes, body: Body) -> list[bytes]:
        """Nothing goes out."""
        return []


class Duplicate(FrameFault):
    """A commit arrives twice."""

    def happen(self, frame: bytes, body: Body) -> list[bytes]:
        """The frame goes out twice."""
        return [frame, frame]


class Replay(FrameFault):
    """After a commit, the ``length`` frames up to it come once more."""

    def __init__(self, length: int = 20, **suitable: Unpack[Suitable]) -> None:
        super().__init__(**suitable)
        self._length = length
        self._past: list[bytes] = []

    def _one(self, frame: bytes) -> Sequence[bytes]:
        self._past = [*self._past, frame][-self._length :]
        return super()._one(frame)

    def happen(self, frame: bytes, body: Body) -> list[bytes]:
        """The frame goes out, then the last ones again."""
        return [frame, *self._past]


class Reorder(FrameFault):
    """A commit is overtaken by the ``distance`` frames after it."""

    def __init__(self, distance: int = 3, **suitable: Unpack[Suitable]) -> None:
        super().__init__(**suitable)
        self._distance = distance
        self._held: bytes | None = None
        self._overtaken = 0

    def _one(self, frame: bytes) -> Sequence[bytes]:
        if self._held is None:
            return super()._one(frame)
        self._overtaken += 1
        return [frame] if self._overtaken < self._distance else [frame, *self.flush()]

    def happen(self, frame: bytes, body: Body) -> list[bytes]:
        """The frame is held back."""
        self._held, self._overtaken = frame, 0
        return []

    def flush(self) -> list[bytes]:
        """The frame still held back, if there is one; call it at the end."""
        held, self._held = self._held, None
        return [] if held is None else [held]


class Alter(FrameFault):
    """A commit arrives changed: ``name`` is one of :data:`~indexer.simulator.alterations.ALTERATIONS`."""

    def __init__(self, name: str, **suitable: Unpack[Suitable]) -> None:
        super().__init__(**suitable)
        self._alter = ALTERATIONS[name]

    def happen(self, frame: bytes, body: Body) -> list[bytes] | None:
        """The altered frame goes out."""
        altered = self._alter(self.rng, body)
        return None if altered is None else [events.frame("#commit", altered)]


class UnseenSync:
    """A repository changes without a ``#commit``; only a ``#sync`` to the new state goes out."""

    def __init__(self, network: Network) -> None:
        self.injected = 0
        self._network = network

    def inject(self, did: str, writes: list[Write]) -> None:
        """Apply the writes silently, then emit the ``#sync``."""
        self._network.apply(did, writes)
        self._network.sync(did)
        self.injected += 1


class RestoredBackup:
    """A host loses the latest commits of a repository and goes on from an earlier state."""

    def __init__(self, network: Network) -> None:
        self.injected = 0
        self._network = network
        self._heads: dict[str, Head] = {}

    def remember(self, did: str) -> None:
        """Take the backup."""
        self._heads[did] = self._network.accounts[did].repository.head()

    def inject(self, did: str) -> None:
        """Restore the backup; nothing is emitted. Raises KeyError without one."""
        self._network.rewind(did, self._heads[did])
        self.injected += 1


class SequenceReset:
    """A host's sequence begins anew: its past is gone, and cursors of before are ones of the future."""

    def __init__(self, network: Network, stream: Stream) -> None:
        self.injected = 0
        self._network = network
        self._stream = stream

    def inject(self, first_seq: int = 1) -> None:
        """Forget all events and number the next one ``first_seq``."""
        self._network.reset_sequence(first_seq)
        self._stream.reset()
        self.injected += 1


class ShortMemory:
    """A host keeps events only for a while: older cursors are outdated."""

    def __init__(self, stream: Stream) -> None:
        self.injected = 0
        self._stream = stream

    def inject(self, before: int) -> None:
        """Forget the events below this sequence number."""
        self._stream.forget(before)
        self.injected += 1
