"""How much one host is asked at a time, and until when it is left alone.

Understood are ``Retry-After`` (RFC 9110, seconds or a date) on answers 429 and 503, and ``RateLimit-Remaining`` with
``RateLimit-Reset``, the latter in seconds (the IETF draft) or as a Unix time (what AT Protocol servers send).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from indexer.outbound.failures import FetchFailed

LONGEST_PAUSE: Final = 3600.0
DEFAULT_PAUSE: Final = 30.0  # after a 429 or 503 that doesn't say
OVERLOADED: Final = (429, 503)
_MOST_HOSTS: Final = 10_000
_UNIX_TIME: Final = 10**8  # a reset above it is a point in time, not a span


@dataclass(slots=True)
class _Host:
    slots: asyncio.Semaphore
    users: int = 0
    until: float = 0.0


class Pacing:
    """Turns at hosts, which are told apart by ``host[:port]``.

    ``per_host`` requests run at a time; who waits for a turn over ``patience`` seconds is sent away. ``monotonic``
    measures pauses, ``clock`` (Unix time) reads the dates in headers.
    """

    def __init__(
        self, *, per_host: int, patience: float, monotonic: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._per_host = per_host
        self._patience = patience
        self._monotonic = monotonic
        self._clock = clock
        self._hosts: dict[str, _Host] = {}

    def wait(self, host: str) -> float:
        """Seconds until the host may be asked again; 0 if it may be now."""
        known = self._hosts.get(host)
        return max(0.0, known.until - self._monotonic()) if known else 0.0

    def busy(self, host: str) -> bool:
        """Whether a request would have to wait for its turn."""
        known = self._hosts.get(host)
        return known is not None and known.slots.locked()

    @asynccontextmanager
    async def turn(self, host: str, about: str) -> AsyncIterator[None]:
        """One request's turn. Raises FetchFailed at once while the host is left alone, and after long waiting."""
        state = self._state(host)
        state.users += 1
        try:
            await self._acquire(state, host, about)
            try:
                yield
            finally:
                state.slots.release()
        finally:
            state.users -= 1
            self._drop(host, state)

    def learn(self, host: str, status: int, headers: Mapping[str, str]) -> float:
        """Takes in an answer: gives, and keeps to, the seconds for which the host is now left alone."""
        pause = min(pause_of(status, headers, self._clock()), LONGEST_PAUSE)
        if pause > 0:
            state = self._state(host)
            state.until = max(state.until, self._monotonic() + pause)
        return pause

    async def _acquire(self, state: _Host, host: str, about: str) -> None:
        self._refuse_while_paused(host, about)
        try:
            async with asyncio.timeout(self._patience):
                await state.slots.acquire()
        except TimeoutError:
            raise FetchFailed(f"{host}: busy with our other requests{about}", retry_after=self._patience) from None
        try:
            self._refuse_while_paused(host, about)  # what ran before may have been told to stop
        except FetchFailed:
            state.slots.release()
            raise

    def _refuse_while_paused(self, host: str, about: str) -> None:
        if pause := self.wait(host):
            raise FetchFailed(f"{host}: asked to be left alone for {pause:.0f} s more{about}", retry_after=pause)

    def _state(self, host: str) -> _Host:
        state = self._hosts.get(host)
        if state is None:
            self._make_room()
            state = self._hosts[host] = _Host(asyncio.Semaphore(self._per_host))
        return state

    def _drop(self, host: str, state: _Host) -> None:
        if not state.users and state.until <= self._monotonic() and self._hosts.get(host) is state:
            del self._hosts[host]

    def _make_room(self) -> None:
        """Forgets pauses, the oldest first, rather than grow with the number of hosts that strangers name."""
        if len(self._hosts) >= _MOST_HOSTS:
            idle = [host for host, state in self._hosts.items() if not state.users]
            for host in idle[: _MOST_HOSTS // 10]:
                del self._hosts[host]


def pause_of(status: int, headers: Mapping[str, str], now: float) -> float:
    """Seconds for which an answer asks to be left alone, uncapped; ``now`` is Unix time."""
    if status in OVERLOADED:
        asked = _retry_after(headers.get("Retry-After", ""), now)
        return DEFAULT_PAUSE if asked is None else max(0.0, asked, _reset(headers, now))
    return _reset(headers, now)


def _reset(headers: Mapping[str, str], now: float) -> float:
    """Seconds until the limit is lifted, 0 if none is reached."""
    remaining, reset = _number(headers.get("RateLimit-Remaining", "")), _number(headers.get("RateLimit-Reset", ""))
    if remaining != 0 or reset is None:
        return 0.0
    return max(0.0, reset - now) if reset >= _UNIX_TIME else reset


def _retry_after(text: str, now: float) -> float | None:
    seconds = _number(text)
    if seconds is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
