"""What records and events say is told by the rows it belongs to and by nothing else: by no log, metric or reason."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer import logs
from tests.frames import DID, OTHER, TIME, TYPED, VALID, commit, dag_cbor, error_frame, frame, key, put, rev
from tests.hostile.mutations import HOSTILE_BLOCKS
from tests.indexing import Indexing, Sql, indexing
from tests.privilege.telling import kept

CANARY = "qcanary7x"
AGENT = "xyz.quasigod.lab.letta.agent"
BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=["json", "console"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Everything that is logged, at the lowest level, as it would be written."""
    root, ours = logging.getLogger(), logging.getLogger("indexer")
    before = (root.handlers[:], root.level, ours.level)
    stream = io.StringIO()
    logs.configure("debug", request.param, stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def filled(word: str) -> dict[str, Any]:
    """A map that has a word everywhere: in names and values, as text and bytes, deep and plain."""
    return {word: word, "bytes": word.encode(), "deep": [{word: [word, {word: word.encode()}]}]}


def records(word: str) -> Iterator[object]:
    """Records with a word in every field, of the right type and of others; and blocks that are none."""
    for collection in TYPED:
        whole = VALID[collection]()
        yield {name: word if isinstance(value, str) else value for name, value in whole.items()} | filled(word)
        for name in whole:
            for value in (word, word * 2_000, [word], {word: word}, word.encode(), f"{TIME}{word}", f"at://{word}"):
                yield whole | {name: value}
    yield from (
        dag_cbor(word),
        dag_cbor([word]),
        dag_cbor({"a": word})[:-1],
        b"\xa1\x61a\xc1" + dag_cbor(word),
        word.encode(),
    )


def frames(word: str) -> Iterator[bytes]:
    """Frames with a word in every field of their bodies, in their headers, in errors and in damaged bytes."""
    of_commit: dict[str, object] = {"since": None, "commit": b"x", "ops": [], "blocks": b"x", "prevData": None}
    sound: dict[str, dict[str, object]] = {
        "#commit": {"repo": DID, "rev": rev(1), **of_commit},
        "#account": {"did": DID, "active": False, "status": "deleted"},
        "#identity": {"did": DID, "handle": "a.example.com"},
        "#sync": {"did": DID, "rev": rev(2), "blocks": b""},
        "#info": {"name": "OutdatedCursor", "message": ""},
    }
    for kind, body in sound.items():
        body |= {"seq": 1, "time": TIME}
        for name in body:
            for value in (word, [word], {word: word}, word.encode(), f"{word}.example.com"):
                yield frame(kind, body | {name: value, word: word})
        yield frame(kind, body | filled(word))[:-3]
    yield from (frame(word, filled(word)), frame("#" + word, filled(word)), word.encode(), dag_cbor(filled(word)))
    yield from (error_frame(word, word), error_frame(filled(word), filled(word)), error_frame("FutureCursor", word))
    for path in (word, f"{OTHER}/{word}/x", f"{OTHER}/", f"/{word}", f"{word} {word}/x"):
        yield commit(put(OTHER, "x", filled(word)), rev=rev(3), ops=[{"action": "create", "path": path, "cid": None}])
    yield commit(put(OTHER, "x", filled(word), action=word), rev=rev(4))
    yield commit(put(OTHER, "x", filled(word), cid=b"\x01\x71\x12\x20" + word.encode().ljust(32)), rev=rev(5))
    yield commit(put(OTHER, "x", filled(word)), rev=word)


async def told(index: Indexing, sql: Sql, log: io.StringIO) -> str:
    """All that a pipeline tells of itself."""
    scraped = [index.metrics.render(accept)[0].decode() for accept in ("", "application/openmetrics-text")]
    return "\n".join([log.getvalue(), *scraped, *await kept(sql), str(await index.store.summary())])


async def test_no_frame_is_quoted(database: str, sql: Sql, log: io.StringIO) -> None:
    """Whatever is in a field of an event or of its header, it is in no log, metric or reason, and raises nothing."""
    sent = list(frames(CANARY))
    async with indexing(database) as index:
        for one in sent:
            index.pipeline._complaints._last.clear()  # each complaint is a line
            await index.take([one])
        everything = await told(index, sql, log)
    assert len(sent) > 150
    assert everything.count("set aside") > 50
    assert CANARY not in everything


async def test_no_record_is_quoted(database: str, sql: Sql, log: io.StringIO) -> None:
    """Whatever a record holds, in fields we type and in others, of right types and wrong ones, nothing repeats it."""
    async with indexing(database) as index:
        for number, record in enumerate(records(CANARY)):
            index.pipeline._complaints._last.clear()
            await index.take([commit(*(put(name, key(number), record) for name in (*TYPED, OTHER)), rev=rev(number))])
        everything = await told(index, sql, log)
        holding = "select count(*) from letta.record where {}::text like $1"
        assert await sql.fetchval(holding.format("value"), f"%{CANARY}%") > 300
        assert (
            await sql.fetchval("select count(*) from letta.record where violations::text like $1", f"%{CANARY}%") == 0
        )
    assert "set aside" in everything
    assert CANARY not in everything


@pytest.fixture
def quiet_log() -> Iterator[io.StringIO]:
    """The same in one format, for examples that share it."""
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    yield stream
    structlog.reset_defaults()


@given(blocks=st.lists(HOSTILE_BLOCKS, min_size=1, max_size=4), step=st.integers(0, 1_000))
@BOUNDED
async def test_no_corrupted_record_is_quoted(
    database: str, sql: Sql, quiet_log: io.StringIO, blocks: list[bytes], step: int
) -> None:
    """Of a real server's records, corrupted, no run of letters is repeated that isn't ours."""
    async with indexing(database) as index:
        marked = [dag_cbor({CANARY: CANARY}) + block for block in blocks]
        ops = [put(name, key(n), block) for n, block in enumerate([*marked, *blocks]) for name in TYPED]
        index.pipeline._complaints._last.clear()
        await index.take([commit(*ops, rev=rev(step))])
        assert CANARY not in await told(index, sql, quiet_log)


async def test_no_row_that_the_database_refuses_is_quoted(database: str, sql: Sql, log: io.StringIO) -> None:
    """PostgreSQL quotes the row that breaks a constraint, or that an error came of: nothing of that goes further."""
    for round, constraint in enumerate(("value ->> 'name' <> 'a'", "(value ->> 'name')::integer > 0")):
        await sql.execute(f"alter table letta_store.agent add constraint hostile check ({constraint}) not valid")
        async with indexing(database) as index:
            for number, name in enumerate(("a", CANARY), 2 * round):
                record = VALID[AGENT]() | {"name": name, "a": CANARY} | filled(CANARY)  # "a" is what is quoted first
                await index.take([commit(put(AGENT, key(number), record), rev=rev(number))])
            everything = await told(index, sql, log)
        assert index.sample("dead_letters_total", reason="refused_by_database") == 1 + round
        assert CANARY not in everything
        await sql.execute("alter table letta_store.agent drop constraint hostile")
