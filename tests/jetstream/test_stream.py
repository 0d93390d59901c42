"""A Jetstream into a real database: where it goes on after every kind of loss, and what of it is kept.

The faults known of the network's own SDK can't bite: a cursor ahead of what was delivered, an exception that a callback
swallows, a clean close that ends the loop; its archive isn't used at all.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from indexer.jetstream_intake import JetstreamIntake
from indexer.model import Reason
from indexer.simulator import World
from indexer.simulator.jetstream import Jetstream, trained
from indexer.simulator.witness import LEXICON
from indexer.sources.base import Chunk, Opened, ReconnectReason
from indexer.sources.jetstream import LOOKBACK
from indexer.trust import Proof, Tracked, Word
from tests.frames import AGENT
from tests.indexing import Indexing, Sql, indexing
from tests.jetstream.followed import following, source_of
from tests.trust.parts import wants


@pytest.fixture
def world() -> World:
    """A network of today."""
    return World(5, accounts=3, clock=lambda: datetime.now(UTC))


@pytest.fixture
async def host() -> AsyncIterator[Jetstream]:
    """A Jetstream that has witnessed nothing yet."""
    async with Jetstream(first_seq=1000) as host:
        yield host


@pytest.fixture
async def index(database: str) -> AsyncIterator[Indexing]:
    """A pipeline over a fresh database."""
    async with indexing(database) as index:
        yield index


def last(host: Jetstream, version: int = 2) -> int:
    """The position after all that the host has for everybody."""
    event = [event for event in host.log if event.kind in ("account", "identity")][-1]
    return event.time_us if version == 1 else event.seq


def live(world: World, steps: int) -> None:
    """Let things happen."""
    for _ in range(steps):
        world.life.step()


def mark(world: World, host: Jetstream) -> int:
    """Have the host witness all that happened and one event more that no filter drops: its number."""
    did = next(iter(world.accounts))
    world.set_handle(did, world.accounts[did].handle)
    host.publish(world.take())
    return last(host)


async def rows(sql: Sql) -> dict[str, tuple[str, bool]]:
    """CID and proof of every record that is shown."""
    found = await sql.fetch("select uri, cid, verified from letta.record")
    return {row["uri"]: (row["cid"], row["verified"]) for row in found}


def truth(world: World) -> dict[str, tuple[str, bool]]:
    """What all of it comes to, unproven."""
    return {uri: (record.cid, False) for uri, record in world.expected().records.items()}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("packed", [True, False])
async def test_a_life_gives_what_the_network_holds(
    world: World, host: Jetstream, index: Indexing, sql: Sql, version: int, packed: bool
) -> None:
    """All records, none of them verified: it is Jetstream's word."""
    world = World(6, accounts=4, quirks=0.0, clock=lambda: datetime.now(UTC))
    live(world, 150)
    mark(world, host)
    host.dictionary = trained(event.version_2 for event in host.log)
    source = source_of(host, f"?v={version}", packed=packed)
    async with following(index, source, Word(index.pipeline)) as followed:
        await followed.reached(last(host, version))
    await index.pipeline.flush()
    assert await rows(sql) == truth(world)
    assert len(truth(world)) > 10


async def lose(host: Jetstream, loss: str) -> None:
    """End every connection in this way."""
    if loss == "closed":
        await host.disconnect()
    elif loss == "refused":
        await host.refuse()
    else:
        host.cut()


@pytest.mark.parametrize("loss", ["closed", "cut", "refused"])
async def test_every_loss_is_met_by_going_on_after_the_last_event_taken_in(
    world: World, host: Jetstream, index: Indexing, sql: Sql, loss: str
) -> None:
    """A clean close included: nothing is missed, and nothing comes twice."""
    async with following(index, source_of(host), Word(index.pipeline)) as followed:
        for number in range(1, 5):
            live(world, 20)
            reached = mark(world, host)
            await followed.reached(reached)
            await lose(host, loss)
            await host.subscribed(number + 1)
            assert parse_qs(urlsplit(host.asked[-1]).query)["cursor"] == [str(reached + 1)]
    await index.pipeline.flush()
    assert len(followed.lost) >= 4
    assert await rows(sql) == truth(world)


async def test_the_position_is_the_number_of_the_event_taken_in(
    world: World, host: Jetstream, index: Indexing, sql: Sql
) -> None:
    """Not of what was read ahead: what is stored never passes over an event that isn't."""
    live(world, 60)
    mark(world, host)
    frames = [event.version_2 for event in host.log]
    intake = JetstreamIntake(index.pipeline, source_of(host), Word(index.pipeline), None)
    for event, frame in zip(host.log, frames, strict=True):
        await intake.take(Chunk([frame]))
        assert intake.position == event.seq
        if event.seq % 7 == 0:
            await index.pipeline.flush()
            assert await sql.fetchval("select seq from letta.source") == event.seq


async def test_an_error_of_our_own_ends_the_source_loudly(
    world: World, host: Jetstream, index: Indexing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw isn't swallowed, and the event it happened on isn't counted as done by a commit."""
    mark(world, host)

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    intake = JetstreamIntake(index.pipeline, source_of(host), Word(index.pipeline), None)
    monkeypatch.setattr(Word, "identity", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await intake.take(Chunk([host.log[-1].version_2]))


async def test_an_event_too_large_is_passed_over_and_no_other(
    world: World, host: Jetstream, index: Indexing, sql: Sql
) -> None:
    """The connection that it ends goes on behind it."""
    mark(world, host)
    did = next(iter(world.accounts))
    world.put(did, f"{AGENT}/big", {"$type": AGENT, "system": "x" * 50_000})
    host.publish(world.take())
    world.put(did, f"{AGENT}/small", {"$type": AGENT, "system": "y"})
    reached = mark(world, host)
    async with following(index, source_of(host, limit=20_000), Word(index.pipeline)) as followed:
        await followed.reached(reached)
    await index.pipeline.flush()
    assert {uri.rpartition("/")[2] for uri in await rows(sql)} == {"small"}
    assert index.sample("dropped_total", reason=Reason.OVERSIZED_FRAME.value) >= 1


async def test_a_compressed_event_too_large_has_its_account_wanted(
    world: World, host: Jetstream, index: Indexing, sql: Sql
) -> None:
    """Of what is cut off while it is unpacked enough is left to see whose it is."""
    did = next(iter(world.accounts))
    world.put(did, f"{AGENT}/big", {"$type": AGENT, "system": "x" * 50_000})
    reached = mark(world, host)
    host.dictionary = trained(json.dumps({"did": number, "rev": did}).encode() for number in range(2000))
    trust = Proof(index.pipeline, Tracked())
    async with following(index, source_of(host, packed=True, limit=20_000), trust) as followed:
        await followed.reached(reached)
    await index.pipeline.flush()
    assert followed.lost == []
    assert await wants(sql) == {did: ["unproven"]}


async def test_a_cursor_too_old_wants_every_repository(
    world: World, host: Jetstream, index: Indexing, sql: Sql
) -> None:
    """What was missed is known by asking only."""
    did = next(iter(world.accounts))
    world.put(did, f"{AGENT}/one", {"$type": AGENT})
    reached = mark(world, host)
    trust = Proof(index.pipeline, Tracked())
    async with following(index, source_of(host), trust) as followed:
        await followed.reached(reached)
    await index.pipeline.flush()
    await sql.execute("update letta_store.repo set want = null, want_reasons = '{}'")
    live(world, 30)
    reached = mark(world, host)
    host.forget(reached)
    async with following(index, source_of(host), trust, 1001) as followed:
        await followed.reached(reached)
    await index.pipeline.flush()
    assert "outdated_cursor" in (await wants(sql))[did]


async def test_a_position_older_than_version_1_keeps_wants_every_repository(
    world: World, host: Jetstream, index: Indexing, sql: Sql
) -> None:
    """That version drops an old cursor without a word."""
    world.put(next(iter(world.accounts)), f"{AGENT}/one", {"$type": AGENT})
    mark(world, host)
    trust = Proof(index.pipeline, Tracked())
    old = last(host, 1) - LOOKBACK - 10**9
    async with following(index, source_of(host, "?v=1"), trust, old) as followed:
        await followed.reached(last(host, 1))
    await index.pipeline.flush()
    assert [reasons for reasons in (await wants(sql)).values() if "outdated_cursor" in reasons] != []


async def test_a_sequence_that_began_anew_is_read_from_its_beginning(world: World, index: Indexing, sql: Sql) -> None:
    """``FutureCursor``, and a number below the one asked for, are another archive's: nothing we counted holds."""
    async with Jetstream(first_seq=1) as host:
        live(world, 40)
        reached = mark(world, host)
        async with following(index, source_of(host), Word(index.pipeline), 50_000_000) as followed:
            await followed.until(lambda: followed.lost != [] and followed.intake.position == reached)
    await index.pipeline.flush()
    assert followed.lost[0] == ReconnectReason.FUTURE_CURSOR.value
    assert await rows(sql) == truth(world)
    assert await sql.fetchval("select seq from letta.source") == reached


async def test_a_host_may_change_its_version(world: World, host: Jetstream, index: Indexing, sql: Sql) -> None:
    """From times to sequence numbers and back: the position follows, and nothing is left out."""
    host.versions = (1,)
    async with following(index, source_of(host), Word(index.pipeline)) as followed:
        for versions, version in (((1,), 1), ((1, 2), 2), ((1,), 1)):
            host.versions = versions
            await host.disconnect()
            live(world, 20)
            mark(world, host)
            while followed.intake.position != last(host, version):
                followed.changed.clear()
                await followed.changed.wait()
    await index.pipeline.flush()
    assert await rows(sql) == truth(world)


async def test_a_quiet_version_1_goes_on_after_days(index: Indexing, host: Jetstream) -> None:
    """Times are no count: two events of a rare collection may be far apart, but none is in the future."""
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    intake = JetstreamIntake(index.pipeline, source_of(host, "?v=1"), Word(index.pipeline), now - 3 * LOOKBACK)
    for time_us in (now, now + LOOKBACK):
        await intake.take(Chunk([json.dumps({"kind": "odd", "did": "did:x:y", "time_us": time_us}).encode()]))
    assert intake.position == now
    assert index.sample("dropped_total", reason=Reason.SEQUENCE_JUMP.value) == 1


def message(payload: dict[str, Any], changed: dict[str, Any]) -> bytes:
    """A frame of version 2 in ASCII, so that it may hold anything."""
    return json.dumps({"$type": "message", "payload": payload | changed}).encode()


HOSTILE: list[Any] = [
    *(b"", b"\xff", b"[" * 100_000, b"{}", b'{"$type":"error"}', b'{"$type":"message","payload":{}}'),
    {"seq": "x"}, {"seq": True}, {"seq": -1}, {"seq": 1 << 70}, {"seq": None}, {"did": []}, {"did": {"a": 1}},
    {"did": "did:plc:\ud800"}, {"did": "x" * 3000}, {"rev": "\0"}, {"rev": "zzzzzzzzzzzzz"}, {"collection": "a/b"},
    {"rkey": "\ud800"}, {"rkey": "x" * 3000}, {"cid": "bafy"}, {"cid": "b" * 59}, {"record": {"a": "\ud800"}},
    {"record": {"a": [[]] * 100_000}}, {"record": 1.5}, {"operation": "\udfff"}, {"operation": []},
    {"time": "\ud800"}, {"$type": f"{LEXICON}#"}, {"$type": "\ud800"}, {"$type": f"{LEXICON}#info", "name": []},
    {"$type": f"{LEXICON}#account", "account": {"did": "did:plc:x", "status": "\0\ud800", "active": False}},
    {"$type": f"{LEXICON}#sync", "sync": {"did": "did:plc:x", "rev": 5, "blocks": {"$bytes": "\ud800"}}},
]  # fmt: skip


@pytest.mark.parametrize("mode", ["word", "proof"])
async def test_hostile_frames_are_set_aside_and_the_next_is_taken(
    world: World, host: Jetstream, index: Indexing, sql: Sql, mode: str
) -> None:
    """Nothing that a host can write ends the source, spoils a batch, or hides what follows."""
    did = next(iter(world.accounts))
    world.put(did, f"{AGENT}/one", {"$type": AGENT})
    mark(world, host)
    (event,) = [event for event in host.log if event.kind == "commit" and event.collection == AGENT]
    payload = json.loads(event.version_2)["payload"]
    payload["seq"] += 1
    frames = [item if isinstance(item, bytes) else message(payload, item) for item in HOSTILE]
    trust = Word(index.pipeline) if mode == "word" else Proof(index.pipeline, Tracked())
    intake = JetstreamIntake(index.pipeline, source_of(host), trust, None)
    await intake.take(Opened(None))
    for frame in frames:
        await intake.take(Chunk([frame]))
        await index.pipeline.flush()
    await intake.take(Chunk([event.version_2]))
    await index.pipeline.flush()
    assert {uri.rpartition("/")[2]: proven for uri, (_, proven) in (await rows(sql)).items()}["one"] is False
    letters = await sql.fetch("select distinct reason from letta.dead_letter")
    assert {"malformed_frame", "wrong_cid", "bad_did"} <= {row["reason"] for row in letters}
    assert all(row["reason"] in set(Reason) for row in letters)


async def test_of_a_tracked_account_the_rest_proves_nothing(world: World, host: Jetstream, index: Indexing) -> None:
    """A host that doesn't filter shows commits of other collections: they are no reason to fetch anything."""
    did = next(iter(world.accounts))
    world.take()
    world.put(did, "app.bsky.feed.post/one", {"$type": "app.bsky.feed.post"})
    host.publish(world.take())
    tracked = Tracked()
    tracked.follow(did)
    intake = JetstreamIntake(index.pipeline, source_of(host), Proof(index.pipeline, tracked), None)
    await intake.take(Chunk([host.log[-1].version_2]))
    assert (intake.position, index.pipeline.batch.rows) == (host.log[-1].seq, 0)
