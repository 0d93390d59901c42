"""Jetstream's word against proofs: unproven until the account's own server has been asked, and gone if it was a lie."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.jetstream_intake import JetstreamIntake
from indexer.model import COMPILED_PROMPT, Reason
from indexer.simulator import events
from indexer.simulator.clock import tid
from indexer.simulator.dagcbor import cid_of, cid_text, encode
from indexer.simulator.witness import LEXICON, Witness, Witnessed, message
from indexer.sources.base import Chunk
from indexer.trust import Proof
from tests.frames import AGENT
from tests.histories import examples
from tests.indexing import MemorySource, Sql
from tests.test_convergence import WIPE
from tests.trust.network import Simulation, simulation
from tests.trust.parts import wants

JETSTREAM = MemorySource("jetstream:simulated", "jetstream:simulated", live=True, positions="sequence")
STAYING = {"hide": 0, "come_back": 0, "delete_account": 0}
UNPROVEN = "select count(*) from letta.record where not verified"
CLEAN = f"{WIPE}; delete from letta_store.pending; delete from letta_store.probe; delete from letta_store.discovery"


class Heard:
    """A Jetstream of a simulated network, taken in beside its firehose."""

    def __init__(self, simulated: Simulation, version: int = 2) -> None:
        self.simulated = simulated
        self.pipeline = simulated.parts.index.pipeline
        self.intake = self.again()
        self._version = version
        self._witness = Witness()

    def again(self) -> JetstreamIntake:
        """An intake of its own."""
        trust = Proof(self.pipeline, self.simulated.parts.tracked, on_loss=self.simulated.lose)
        return JetstreamIntake(self.pipeline, JETSTREAM, trust, None)  # type: ignore[arg-type]

    def see(self, frames: Iterable[bytes]) -> list[bytes]:
        """The frames of Jetstream that frames of the firehose are."""
        seen: list[Witnessed] = [event for frame in frames for event in self._witness.see(frame)]
        texts = [event.version_1 if self._version == 1 else event.version_2 for event in seen]
        return [text for text in texts if text is not None]

    async def hear(self, texts: list[bytes]) -> None:
        """Take frames of Jetstream in, and commit them."""
        if texts:
            await self.intake.take(Chunk(texts))
        await self.pipeline.flush()


@pytest.fixture
async def heard(database: str, sql: Sql) -> AsyncIterator[Heard]:
    """A living network, whose accounts stay, of which nothing but its Jetstream is heard."""
    async with simulation(database, sql, seed=5, weights=STAYING) as simulated:
        yield Heard(simulated)


async def test_records_are_verified_once_their_server_was_asked(heard: Heard, sql: Sql) -> None:
    """At once they are there, unproven, and their repositories wanted; repair proves each of them."""
    simulated = heard.simulated
    simulated.live(150)
    await heard.hear(heard.see(simulated.emitted()))
    shown = await sql.fetchval("select count(*) from letta.record")
    assert shown > 5
    assert await sql.fetchval(UNPROVEN) == shown
    assert {reason for reasons in (await wants(sql)).values() for reason in reasons} == {"unproven"}
    assert await sql.fetchval("select max(rev) from letta_store.repo") == ""
    await simulated.settle()
    await simulated.equal()


async def test_what_is_proven_is_not_taken_back_by_jetstream(heard: Heard, sql: Sql) -> None:
    """Frames that come after the proof change nothing and cost no fetch."""
    simulated = heard.simulated
    simulated.live(150)
    frames = simulated.emitted()
    await simulated.hear(frames)
    await simulated.settle()
    await simulated.equal()
    fetched = len(simulated.pds.requests)
    commits = [text for text in heard.see(frames) if b"#commit" in text]
    await heard.hear(commits)
    assert await wants(sql) == {}
    assert await sql.fetchval(UNPROVEN) == 0
    assert len(simulated.pds.requests) == fetched
    assert simulated.dropped(Reason.DUPLICATE) > 0


def lie(simulated: Simulation, did: str, **fields: object) -> bytes:
    """A commit that never was: right in itself, a second ahead of all that is."""
    record = {"$type": AGENT, "system": "a lie"}
    payload: dict[str, object] = {
        "$type": f"{LEXICON}#commit",
        "seq": 1_000_000,
        "did": did,
        "time": simulated.clock().astimezone(UTC).isoformat(),
        "rev": tid(int((simulated.clock() + timedelta(seconds=1)).timestamp() * 1_000_000), 0),
        "operation": "create",
        "collection": AGENT,
        "rkey": "lie",
        "cid": cid_text(cid_of(encode(record))),
        "record": record,
    }
    return message(payload | fields)


@pytest.mark.parametrize("known", [True, False])
async def test_a_record_that_was_never_written_is_never_verified_and_goes(heard: Heard, sql: Sql, known: bool) -> None:
    """The account's own server, asked often enough, has the last word over a rev that nobody signed."""
    simulated = heard.simulated
    simulated.live(40)
    frames = simulated.emitted()
    if known:
        await simulated.hear(frames)
        await simulated.settle()
    await heard.hear([lie(simulated, simulated.did)])
    row = await sql.fetchrow("select verified from letta.record where rkey = 'lie'")
    assert row is not None
    assert row["verified"] is False
    await simulated.hear(frames)
    await simulated.settle()
    assert await sql.fetchval("select count(*) from letta.record where rkey = 'lie'") == 0
    await simulated.equal()


async def test_a_delete_that_never_was_is_undone(heard: Heard, sql: Sql) -> None:
    """The record is back, proven, once its server has been asked."""
    simulated = heard.simulated
    simulated.live(60)
    await simulated.hear()
    await simulated.settle()
    row = await sql.fetchrow("select did, rkey from letta.record where collection = $1 limit 1", COMPILED_PROMPT)
    assert row is not None
    gone = {"operation": "delete", "collection": COMPILED_PROMPT, "rkey": row["rkey"], "cid": None, "record": None}
    await heard.hear([lie(simulated, row["did"], **gone)])
    count = "select count(*) from letta.record where rkey = $1 and collection = $2"
    assert await sql.fetchval(count, row["rkey"], COMPILED_PROMPT) == 0
    await simulated.settle()
    rows = await sql.fetch("select uri, cid, verified from letta.record")
    truth = simulated.world.expected().records
    assert {r["uri"]: (r["cid"], r["verified"]) for r in rows} == {uri: (r.cid, True) for uri, r in truth.items()}


async def test_a_record_of_another_cid_is_set_aside_and_asked_for(heard: Heard, sql: Sql) -> None:
    """What its bytes don't say isn't shown, and what they should have said is fetched."""
    simulated = heard.simulated
    simulated.live(40)
    simulated.world.put(simulated.did, f"{AGENT}/true", {"$type": AGENT, "system": "true"})
    texts = heard.see(simulated.emitted())
    (text,) = [text for text in texts if b'"rkey":"true"' in text]
    frame = json.loads(text)
    frame["payload"]["record"]["system"] = "false"
    await heard.hear([json.dumps(frame).encode()])
    assert await sql.fetchval("select count(*) from letta.record") == 0
    assert await wants(sql) == {simulated.did: ["unproven"]}
    assert simulated.dropped(Reason.WRONG_CID) == 1
    await simulated.settle()
    row = await sql.fetchrow("select value ->> 'system' as system, verified from letta.record where rkey = 'true'")
    assert row is not None
    assert tuple(row) == ("true", True)


Step = tuple[int, str, bool]  # how much happens, who hears of it, and whether what is wanted is fetched after it
_steps = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(["firehose", "jetstream", "first", "last", "each"]), st.booleans()),
    min_size=1,
    max_size=6,
)


async def tell(heard: Heard, frames: list[bytes], how: str) -> None:
    """Have frames heard from one of the two, from one after the other, or from both in turn."""
    simulated = heard.simulated
    if how == "each":
        for frame in frames:
            await heard.hear(heard.see([frame]))
            await simulated.hear([frame])
        return
    texts = heard.see(frames)
    if how == "first":
        await heard.hear(texts)
    if how == "jetstream":
        await simulated.miss(frames)
        await heard.hear(texts)
    else:
        await simulated.hear(frames)
    if how == "last":
        await heard.hear(texts)


@examples(12)
@given(seed=st.integers(0, 1 << 16), steps=_steps, version=st.sampled_from([1, 2]))
async def test_firehose_and_jetstream_on_one_database_converge(
    database: str, sql: Sql, seed: int, steps: list[Step], version: int
) -> None:
    """Whichever of the two brings what, and in whichever order: the index is that of the network, all proven."""
    await sql.execute(CLEAN)
    async with simulation(database, sql, seed=seed, accounts=3) as simulated:
        heard = Heard(simulated, version)
        for amount, how, fetch in steps:
            simulated.live(amount)
            frames = simulated.emitted()
            await tell(heard, frames, how)
            if version == 1 and how == "jetstream":  # which has no sync events
                await simulated.hear([frame for frame in frames if events.parse(frame)[0]["t"] == "#sync"])
            if fetch:
                await simulated.settle()
        await simulated.settle()
        await simulated.equal()
