"""The simulated relay answers a subscriber as the reference does."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from indexer.simulator import Relay, World, events
from indexer.simulator.stream import PATH


def subscribe(relay: Relay, cursor: int | None = None) -> connect:
    """A subscription, to be entered."""
    return connect(relay.url + PATH + ("" if cursor is None else f"?cursor={cursor}"))


async def receive(connection: ClientConnection, count: int) -> list[bytes]:
    """The next ``count`` frames."""
    async with asyncio.timeout(20):  # a frame that never comes is a failure, not a hang
        return [await connection.recv(decode=False) for _ in range(count)]


@pytest.fixture
def frames() -> list[bytes]:
    """Frames with the sequence numbers 1 and up."""
    return World(seed=1, accounts=4).take()


async def test_a_cursor_replays_what_came_after_it_and_goes_on_live(frames: list[bytes]) -> None:
    """Events after N come first, then those published later, without a gap or a repetition."""
    async with Relay() as relay:
        relay.publish(frames[:10])
        async with subscribe(relay, 4) as connection:
            assert await receive(connection, 6) == frames[4:10]
            relay.publish(frames[10:])
            assert await receive(connection, 6) == frames[10:]
        assert relay.cursors == [4]


async def test_without_a_cursor_only_new_events_come(frames: list[bytes]) -> None:
    """A subscriber that asks for nothing old gets nothing old; each has its own position."""
    async with Relay() as relay:
        relay.publish(frames[:10])
        async with subscribe(relay) as live, subscribe(relay, 0) as whole:
            await relay.subscribed(2)
            relay.publish(frames[10:])
            assert await receive(live, 6) == frames[10:]
            assert await receive(whole, 16) == frames


async def test_sending_can_be_waited_for(frames: list[bytes]) -> None:
    """``sent`` returns once a subscriber has been sent the event, not before."""
    async with Relay() as relay:
        relay.publish(frames)
        waiting = asyncio.ensure_future(relay.sent(16))
        async with subscribe(relay, 0) as connection:
            await waiting
            assert (await receive(connection, 16))[-1] == frames[15]


async def test_a_cursor_of_the_future_is_refused(frames: list[bytes]) -> None:
    """A cursor above the last event gets an error frame, then the connection ends."""
    async with Relay() as relay:
        relay.publish(frames)
        async with subscribe(relay, 17) as connection:
            header, body = events.parse((await receive(connection, 1))[0])
            assert (header, body["error"]) == ({"op": -1}, "FutureCursor")
            with pytest.raises(ConnectionClosed):
                await connection.recv()


async def test_an_outdated_cursor_is_told_so_and_gets_what_is_left(frames: list[bytes]) -> None:
    """A cursor behind what is kept gets ``#info``; one just at the edge does not."""
    async with Relay() as relay:
        relay.publish(frames)
        relay.forget(before=9)
        async with subscribe(relay, 3) as connection:
            header, body = events.parse((await receive(connection, 1))[0])
            assert (header["t"], body["name"]) == ("#info", "OutdatedCursor")
            assert await receive(connection, 8) == frames[8:]
        async with subscribe(relay, 8) as connection:
            assert await receive(connection, 8) == frames[8:]
        relay.forget(before=100)
        assert relay.seq == 16


async def test_a_new_sequence_makes_old_cursors_ones_of_the_future(frames: list[bytes]) -> None:
    """After a reset numbers begin anew: present subscribers just see lower ones, old cursors are refused."""
    async with Relay() as relay:
        relay.publish(frames)
        async with subscribe(relay, 16) as connection:
            await relay.subscribed(1)
            relay.reset()
            relay.publish(frames[:2])
            assert await receive(connection, 2) == frames[:2]
        async with subscribe(relay, 16) as connection:
            assert events.parse((await receive(connection, 1))[0])[1]["error"] == "FutureCursor"


async def test_connections_can_be_ended_in_every_way(frames: list[bytes]) -> None:
    """Closed properly, cut off, or refused as too slow: the subscriber sees each as what it is."""
    async with Relay() as relay:
        relay.publish(frames[:1])
        seen = []
        for end in ("disconnect", "cut", "refuse"):
            async with subscribe(relay, 0) as connection:
                await connection.recv()
                if end == "cut":
                    relay.cut()
                else:
                    await getattr(relay, end)()
                if end == "refuse":
                    assert events.parse((await receive(connection, 1))[0])[1]["error"] == "ConsumerTooSlow"
                with pytest.raises(ConnectionClosed) as ended:
                    await connection.recv()
                seen.append(None if ended.value.rcvd is None else ended.value.rcvd.code)
        assert seen == [1012, None, 1008]
        assert relay.connections == 3


async def test_bytes_that_are_no_frame_are_passed_on(frames: list[bytes]) -> None:
    """Garbage can be published: it is sent in its place and has no number."""
    async with Relay() as relay:
        relay.publish([frames[0], b"\xff\x00", b"", frames[1]])
        async with subscribe(relay, 0) as connection:
            assert await receive(connection, 4) == [frames[0], b"\xff\x00", b"", frames[1]]


@pytest.mark.parametrize("path", ["/xrpc/com.example.other", PATH + "?cursor=now", "/"])
async def test_anything_else_is_no_websocket(path: str) -> None:
    """Other paths, and cursors that are no numbers, are refused with an HTTP status."""
    async with Relay() as relay:
        with pytest.raises(InvalidStatus):
            await connect(relay.url + path)
