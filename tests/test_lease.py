"""The lease, seen from the store: who gets it, when, and what nobody can do without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import time

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import lease as tenure
from indexer.batch import Position
from indexer.errors import DatabaseUnavailable, SchemaError
from indexer.lease import Tenure
from indexer.metrics import Metrics
from indexer.store import Store
from indexer.store.lease import VALIDITY, Lease, LeaseLostError, Leases, hold_lease
from indexer.store.spaces import Spaces
from tests.daemon_process import eventually
from tests.indexing import Sql
from tests.postgres import TestCluster
from tests.store.batches import NOW, batch_of, change

EXPIRE = "update letta_store.lease set valid_until = clock_timestamp()"
FOREVER = "update letta_store.lease set valid_until = 'infinity'"
ENDED = "select not exists (select from pg_stat_activity a join letta_store.lease l on a.pid = l.session)"
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


class Daemon:
    """As much of a daemon as holds a lease: a store with its connections, and what it thinks it holds."""

    def __init__(self, url: str, name: str) -> None:
        async def dsn() -> str:
            return url

        self.store = Store(dsn)
        self.leases = Leases(partial(self.store.connection, "lease"), name)
        self.lease: Lease | None = None

    async def take(self) -> bool:
        """Whether the lease was to be had."""
        lease = await self.leases.take()
        self.lease = lease or self.lease
        return lease is not None

    @property
    def held(self) -> Lease:
        """What it thinks it holds."""
        assert self.lease is not None
        return self.lease

    async def may_write(self) -> bool:
        """Whether a transaction under its lease would be committed."""
        if self.lease is None:
            return False
        async with self.store.connection("write") as connection, connection.transaction():
            with suppress(LeaseLostError):
                await hold_lease(connection, self.lease)
                return True
        return False


@pytest.fixture
async def daemons(database: str) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Two on one database; the first is the writer."""
    async with AsyncExitStack() as stack:
        pair = Daemon(database, "one"), Daemon(database, "other")
        for daemon in pair:
            stack.push_async_callback(daemon.store.close)
        assert await pair[0].take()
        yield pair


async def test_one_holds_it(daemons: tuple[Daemon, Daemon]) -> None:
    """Whoever comes first has the lease, everybody sees who that is, and nobody else gets it."""
    one, other = daemons
    assert not await other.take()
    assert [await one.leases.holder(), await other.leases.holder()] == ["one", "one"]
    await one.leases.renew(one.held)
    assert not await other.take()
    assert await one.may_write()


async def test_of_many_one_gets_it(database: str, sql: Sql) -> None:
    """Of any number that look at the same time one gets a free lease."""
    many = [Daemon(database, str(number)) for number in range(8)]
    try:
        for _ in range(5):
            assert sum(await asyncio.gather(*(daemon.take() for daemon in many))) == 1
            await sql.execute(EXPIRE)
    finally:
        for daemon in many:
            await daemon.store.close()


async def test_expired_and_taken_is_lost(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """Who was not heard of in time loses the lease for good: no row, no position and no state is written under it."""
    one, other = daemons
    batch = batch_of(change())
    batch.positions = {"file:test": Position(1, None)}
    await sql.execute(EXPIRE)
    assert await other.take()
    assert await other.leases.holder() == "other"
    with pytest.raises(LeaseLostError):
        await one.leases.renew(one.held)
    with pytest.raises(LeaseLostError):
        await one.store.apply(batch, NOW, one.held)
    with pytest.raises(LeaseLostError):
        await one.store.set_source_state("file:test", "live", None, NOW, one.held)
    with pytest.raises(LeaseLostError):
        await Spaces(one.store, one.held).note("did:plc:a", "", "live", None, NOW)
    for table in ("letta.record", "letta.source", "letta_store.account"):
        assert await sql.fetchval(f"select count(*) from {table}") == 0
    await one.leases.release(one.held)
    assert await other.leases.holder() == "other"
    await other.store.apply(batch, NOW, other.held)
    assert await sql.fetchval("select seq from letta.source") == 1


async def test_expired_and_not_taken_goes_on(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """A slow database ends no lease by itself: as long as nobody took it, it counts, and can be renewed."""
    one, other = daemons
    await sql.execute(EXPIRE)
    assert await other.leases.holder() is None
    assert await one.may_write()
    await one.leases.renew(one.held)
    assert not await other.take()


async def test_dead_holder_is_not_waited_for(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """When the session that renewed it ends, the lease is free at once, however long it was to be valid."""
    one, other = daemons
    await sql.execute(FOREVER)
    assert not await other.take()
    await one.store.close()
    await eventually(other.take)
    assert not await one.may_write()


async def test_a_new_session_keeps_it(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """A holder whose connection broke renews the lease on the next one, unless somebody was faster."""
    one, other = daemons
    await sql.fetchval("select pg_terminate_backend(session) from letta_store.lease")
    with suppress(DatabaseUnavailable):
        await one.leases.renew(one.held)
    await one.leases.renew(one.held)
    assert not await other.take()
    assert await one.may_write()


async def test_released_it_is_free_at_once(daemons: tuple[Daemon, Daemon]) -> None:
    """What is given back need not expire; who gave it back holds nothing any more once it is taken."""
    one, other = daemons
    await one.leases.release(one.held)
    assert await other.take()
    assert [await one.may_write(), await other.may_write()] == [False, True]


async def test_taking_waits_for_a_commit_under_way(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """A transaction that holds the lease is over before anybody takes it; renewing it waits for nothing."""
    one, other = daemons
    async with one.store.connection("write") as connection:
        async with connection.transaction():
            await hold_lease(connection, one.held)
            await one.leases.renew(one.held)
            await sql.execute(EXPIRE)
            taking = asyncio.ensure_future(other.take())
            await eventually(lambda: sql.fetchval(WAITING))
            await connection.execute("insert into letta_store.cursor (source, seq) values ('file:test', 1)")
            assert not taking.done()
        assert await taking
    assert await sql.fetchval("select seq from letta.source") == 1


async def test_a_silent_transaction_gives_way(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """Who falls silent in mid-transaction, even with the lease held in it, is not waited for and never commits."""
    one, other = daemons
    await sql.execute(EXPIRE)

    async def fall_silent() -> None:
        async with one.store.connection("write") as connection, connection.transaction():
            await connection.execute("insert into letta_store.cursor (source, seq) values ('file:test', 1)")
            await hold_lease(connection, one.held)
            await eventually(lambda: _taken(other), within=6)  # the bound of a takeover

    with pytest.raises(DatabaseUnavailable):
        await fall_silent()
    assert await sql.fetchval("select count(*) from letta.source") == 0


async def _taken(daemon: Daemon) -> bool:
    with suppress(DatabaseUnavailable):  # it waited as long as it waits for an answer
        return await daemon.take()
    return False


async def test_missing_row_is_said(daemons: tuple[Daemon, Daemon], sql: Sql) -> None:
    """Without its row there would never be a writer again: that is broken state, and no daemon waits for its end."""
    await sql.execute("delete from letta_store.lease")
    with pytest.raises(SchemaError, match=r"letta_store\.lease"):
        await Tenure(daemons[1].leases, Metrics(clock=time)).look()


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "renew", "release", "expire", "die"]), st.integers(0, 2)), max_size=30
)


@settings(max_examples=10, deadline=None)
@given(steps=STEPS)
def test_never_two(cluster: TestCluster, steps: list[tuple[str, int]]) -> None:
    """Whatever three daemons do and suffer in whatever order, one at most can write, and each lease is a new one."""
    asyncio.run(_live(cluster, steps))


async def _live(cluster: TestCluster, steps: list[tuple[str, int]]) -> None:
    async with cluster.fresh_database() as url:
        sql = await asyncpg.connect(url)
        daemons = [Daemon(url, str(number)) for number in range(3)]
        holder: int | None = None  # who can write, by a model
        valid = False
        generations: list[int] = []
        for step, number in steps:
            daemon = daemons[number]
            if step == "take":
                assert await _taken(daemon) == (not valid)
                if not valid:
                    holder, valid = number, True
                    generations.append(daemon.held.generation)
            elif step == "renew" and daemon.lease is not None:
                valid = await _renewed(daemon, still=holder == number) or valid
            elif step == "release" and daemon.lease is not None:
                await daemon.leases.release(daemon.lease)
                valid = valid and holder != number
            elif step == "expire":
                await sql.execute(EXPIRE)
                valid = False
            elif step == "die":
                await daemon.store.close()
                if holder == number:
                    await eventually(lambda: sql.fetchval(ENDED))
                valid = valid and holder != number
                daemons[number] = Daemon(url, str(number))
                holder = None if holder == number else holder
            assert [number for number, each in enumerate(daemons) if await each.may_write()] == (
                [] if holder is None else [holder]
            )
        assert generations == sorted(set(generations))
        for daemon in daemons:
            await daemon.store.close()
        await sql.close()


async def _renewed(daemon: Daemon, *, still: bool) -> bool:
    """Renew; it has to succeed if the daemon is ``still`` the holder, and to fail otherwise."""
    try:
        await daemon.leases.renew(daemon.held)
    except LeaseLostError:
        assert not still
        return False
    assert still
    return True


class Renewals:
    """A database that answers renewals at times of a test's choice, or doesn't; after the last the lease is lost."""

    def __init__(self, metrics: Metrics, *answers: tuple[float, bool]) -> None:
        self.seconds = 0.0
        self.shown: list[bool] = []  # by the gauge, before each renewal
        self.database: list[bool] = []  # whether it answers, by the other gauge
        self._metrics = metrics
        self._answers = iter(answers)

    async def renew(self, lease: Lease) -> None:
        """The next answer."""
        self.shown.append(self._metrics.writer)
        self.database.append(self._metrics.database_up)
        self.seconds, answered = next(self._answers, (self.seconds, None))
        if answered is None:
            raise LeaseLostError
        if not answered:
            raise DatabaseUnavailable("it doesn't answer")


async def test_gauge_follows_what_others_may_think(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that can't renew says that it is none once its lease may be another's, and goes on when it wasn't."""
    monkeypatch.setattr(tenure, "RENEWAL", 0)
    metrics = Metrics(clock=time)
    metrics.writer = metrics.database_up = True
    valid = VALIDITY.total_seconds()
    renewals = Renewals(metrics, (1, True), (valid - 0.1, False), (valid + 0.1, False), (valid + 1, True))
    with pytest.raises(LeaseLostError):
        await Tenure(renewals, metrics, clock=lambda: renewals.seconds).keep(Lease(1))  # type: ignore[arg-type]
    assert renewals.shown == [True, True, True, False, True]
    assert renewals.database == [True, True, False, False, True]  # also while there is nothing to write


async def test_renewal_does_not_overrule_a_write_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database with a full disk may take renewals and no rows: then it isn't up, whatever the lease says."""
    monkeypatch.setattr(tenure, "RENEWAL", 0)
    metrics = Metrics(clock=time)
    renewals = Renewals(metrics, (1, True), (2, True))
    with pytest.raises(LeaseLostError):
        await Tenure(renewals, metrics, clock=lambda: renewals.seconds).keep(Lease(1))  # type: ignore[arg-type]
    assert renewals.database == [False, False, False]
