"""Which daemon is the writer: this one, while it holds the lease, or another, for whose end it waits on standby."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from indexer.errors import DatabaseUnavailable
from indexer.metrics import Metrics
from indexer.store.lease import VALIDITY, Lease, Leases

RENEWAL: Final = 1.0  # seconds between two renewals
LOOK: Final = 0.25  # seconds between two looks of a daemon on standby

_log = structlog.stdlib.get_logger("indexer.lease")


class Tenure:
    """This daemon's part in the lease.

    ``lease`` is what it holds as far as it knows; ``holder`` names the daemon that it has last seen to be the writer in
    its stead. ``clock`` gives seconds and only goes forward.
    """

    def __init__(self, leases: Leases, metrics: Metrics, *, clock: Callable[[], float] = monotonic) -> None:
        self.lease: Lease | None = None
        self.holder: str | None = None
        self._leases = leases
        self._metrics = metrics
        self._clock = clock

    async def look(self) -> Lease | None:
        """Take the lease, if nobody holds it; else note who does. Raises DatabaseUnavailable, SchemaError."""
        lease = await self._leases.take()
        holder = None if lease is not None else await self._leases.holder()
        if holder is not None and holder != self.holder:
            _log.info("on standby", writer=holder)
        self.holder = holder
        if lease is not None:
            _log.info("this daemon is the writer", generation=lease.generation)
            self.lease = lease
            self._metrics.writer = True
        return lease

    async def keep(self, lease: Lease) -> None:
        """Renew the lease until cancelled. Raises LeaseLostError once another daemon has taken it.

        While the database is out of reach nobody knows whose it is, so this goes on: what is written under a lease that
        was taken isn't committed. Only the gauges follow: that the database is away, also while there is nothing to
        write, and what others may think by then.
        """
        confirmed, away = self._clock(), False
        while True:
            await asyncio.sleep(RENEWAL)
            asked = self._clock()
            try:
                await self._leases.renew(lease)
            except DatabaseUnavailable as error:
                if not away:
                    _log.warning("the database doesn't answer", error=str(error))
                self._metrics.database_up, away = False, True
                self._metrics.writer = self._clock() - confirmed < VALIDITY.total_seconds()
            else:
                if away:  # only then: one that takes no rows in, its disk being full, may still take a renewal
                    _log.warning("the database answers again")
                    self._metrics.database_up, away = True, False
                confirmed, self._metrics.writer = asked, True

    async def release(self) -> None:
        """Give the lease back, if it is held: whoever is on standby need not wait. Raises DatabaseUnavailable."""
        lease = self.lease
        self.forget()
        if lease is not None:
            await self._leases.release(lease)

    def forget(self) -> None:
        """Note that the lease is another daemon's now."""
        self.lease = None
        self._metrics.writer = False
