"""Time in the simulator: a clock that moves when it is read, and TIDs (AT Protocol: Timestamp Identifiers)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 11, 1, 9, 0, tzinfo=UTC)
TICK = timedelta(milliseconds=731)
_DIGITS = "234567abcdefghijklmnopqrstuvwxyz"


class Clock:
    """A virtual clock: each call returns the present time and lets ``tick`` pass."""

    def __init__(self, start: datetime = START, tick: timedelta = TICK) -> None:
        self.present = start
        self.tick = tick

    def __call__(self) -> datetime:
        now = self.present
        self.present += self.tick
        return now

    def advance(self, interval: timedelta) -> None:
        """Let ``interval`` pass."""
        self.present += interval


def microseconds(moment: datetime) -> int:
    """Microseconds from 1970 to an aware datetime."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def iso(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as JavaScript writes it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tid(micros: int, clock_id: int) -> str:
    """The TID of a time in microseconds since 1970 (53 bits) and a clock identifier (0 to 1023): 13 characters."""
    number = micros << 10 | clock_id
    return "".join(_DIGITS[number >> shift & 31] for shift in range(60, -1, -5))
