"""How often: a host is asked two things at a time, and left alone when it asks for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from email.utils import formatdate

import pytest
from aiohttp import web

from indexer.outbound import FetchFailed, Outbound
from indexer.outbound.pacing import DEFAULT_PAUSE, LONGEST_PAUSE, Pacing, pause_of
from tests.strangers import (
    Visits,
    refusal,
    site,
)

NOW = 1_780_000_000.0


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    """A client that may connect to loopback, since that is where the tests' hosts are."""
    client = Outbound(allow_private_hosts=True)
    yield client
    await client.aclose()


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry-After": "7"}, 7),
        (503, {"Retry-After": " 0 "}, 0),
        (429, {}, DEFAULT_PAUSE),
        (429, {"Retry-After": "soon"}, DEFAULT_PAUSE),
        (429, {"Retry-After": "-5"}, DEFAULT_PAUSE),
        (429, {"Retry-After": "9" * 400}, DEFAULT_PAUSE),
        (503, {"Retry-After": formatdate(NOW + 90, usegmt=True)}, 90),
        (503, {"Retry-After": formatdate(NOW - 90, usegmt=True)}, 0),
        (429, {"Retry-After": "7", "RateLimit-Remaining": "0", "RateLimit-Reset": str(int(NOW) + 60)}, 60),
        (200, {"Retry-After": "7"}, 0),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": str(int(NOW) + 60)}, 60),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "60"}, 60),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": str(int(NOW) - 60)}, 0),
        (200, {"RateLimit-Remaining": "1", "RateLimit-Reset": "60"}, 0),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "later"}, 0),
        (200, {"RateLimit-Remaining": "0"}, 0),
    ],
)
def test_pause_that_an_answer_asks_for(status: int, headers: dict[str, str], pause: float) -> None:
    """Retry-After counts on 429 and 503, the rate limit's headers on any answer, in all their forms."""
    assert pause_of(status, headers, NOW) == pause


def test_pause_is_an_hour_at_most() -> None:
    """No host can have itself forgotten for longer than an hour, nor fill the memory with pauses."""
    pacing = Pacing(per_host=1, patience=1, monotonic=lambda: 0.0, clock=lambda: NOW)
    for number in range(10_100):
        assert pacing.learn(f"{number}.example", 429, {"Retry-After": "999999"}) == LONGEST_PAUSE
    assert len(pacing._hosts) <= 10_000
    assert pacing.wait("10099.example") == LONGEST_PAUSE
    assert pacing.wait("unknown.example") == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_host_that_asks_for_a_pause_gets_it(status: int) -> None:
    """It isn't asked again before its time, other hosts are; then it is."""
    now, visits = [0.0], Visits()

    async def handler(request: web.BaseRequest) -> web.Response:
        await visits(request)
        return web.Response(status=status if len(visits.requests) == 1 else 200, headers={"Retry-After": "50"})

    client = Outbound(allow_private_hosts=True, monotonic=lambda: now[0])
    async with site(handler) as origin, site(Visits()) as other:
        assert (await refusal(client, origin)).retry_after == 50
        now[0] = 20.0
        error = await refusal(client, origin)
        assert (error.retry_after, error.permanent, client.wait(origin)) == (30, False, 30)
        assert len(visits.requests) == 1
        assert (await client.fetch(other)).status == 200
        now[0] = 50.0
        assert (await client.fetch(origin)).status == 200
    await client.aclose()


async def test_reached_limit_holds_from_the_last_good_answer(outbound: Outbound) -> None:
    """A success that says nothing remains is the last one until the reset."""

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(headers={"RateLimit-Remaining": "0", "RateLimit-Reset": "3000"})

    async with site(handler) as origin:
        assert (await outbound.fetch(origin)).status == 200
        assert outbound.wait(origin) > 0
        assert "left alone" in str(await refusal(outbound, origin))


async def test_host_gets_two_requests_at_a_time() -> None:
    """The third waits for its turn, and is sent away when that takes too long; other hosts aren't concerned."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    leave = asyncio.Event()

    async def handler(_: web.BaseRequest) -> web.Response:
        entered.put_nowait(None)
        await leave.wait()
        return web.Response()

    client = Outbound(allow_private_hosts=True, patience=0.05)
    async with site(handler) as origin, site(Visits()) as other, asyncio.TaskGroup() as group:
        running = [group.create_task(client.fetch(origin)) for _ in range(2)]
        await entered.get()
        await entered.get()
        assert (client.busy(origin), client.busy(other)) == (True, False)
        assert (await refusal(client, origin)).retry_after == 0.05
        assert (await client.fetch(other)).status == 200
        leave.set()
        assert [(await answer).status for answer in running] == [200, 200]
        assert not client.busy(origin)
    await client.aclose()


async def test_pause_comes_before_the_queue() -> None:
    """At a host that is left alone nobody waits for a turn."""
    pacing = Pacing(per_host=1, patience=0.01, monotonic=lambda: 0.0, clock=lambda: NOW)
    async with pacing.turn("a.example", ""):
        pacing.learn("a.example", 429, {})
        with pytest.raises(FetchFailed, match="left alone for 30 s"):
            await pacing.turn("a.example", "").__aenter__()


async def test_pause_holds_for_those_who_wait_already() -> None:
    """Who waits for a turn when the host asks for a pause is sent away, and so is who comes then, without waiting."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    paused, leave = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.Response:
        entered.put_nowait(None)
        await (paused if request.path == "/pause" else leave).wait()
        return web.Response(status=429 if request.path == "/pause" else 200)

    client = Outbound(allow_private_hosts=True, patience=600)
    async with site(handler) as origin, asyncio.TaskGroup() as group:
        first = group.create_task(refusal(client, f"{origin}/pause"))
        second = group.create_task(client.fetch(f"{origin}/stay"))
        await entered.get()
        await entered.get()
        third = group.create_task(refusal(client, origin))
        paused.set()
        assert (await first).status == 429
        assert "left alone" in str(await third)
        assert "left alone" in str(await refusal(client, origin))
        leave.set()
        assert (await second).status == 200
        assert entered.empty()
    await client.aclose()


async def test_cancelled_request_gives_its_turn_back(outbound: Outbound) -> None:
    """Who is cancelled, in the middle of an answer or while waiting, leaves nothing behind."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    leave = asyncio.Event()

    async def handler(_: web.BaseRequest) -> web.Response:
        entered.put_nowait(None)
        await leave.wait()
        return web.Response()

    async with site(handler) as origin:
        tasks = [asyncio.create_task(outbound.fetch(origin)) for _ in range(4)]
        await entered.get()
        await entered.get()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        leave.set()
    assert outbound._pacing._hosts == {}
