"""Records that are far from the data model: each is kept as far as it can be, marked, and breaks nothing beside it."""

from __future__ import annotations

import cbor2
import pytest

from tests.frames import (
    AGENT,
    CONVERSATION,
    MESSAGE,
    OTHER,
    PROMPT,
    TYPED,
    agent,
    cid_of,
    commit,
    dag_cbor,
    delete,
    key,
    link,
    message,
    prompt,
    put,
    rev,
    sha256,
    uri,
)
from tests.hostile.target import CANARY, Target

A_CID = cid_of(b"\xa0")


def nested(depth: int, opening: bytes = b"\x81") -> bytes:
    """A record that holds ``depth`` containers within one another, itself included."""
    return b"\xa1\x61a" + opening * (depth - 1) + b"\x00"


def record(encoded: bytes) -> bytes:
    """A record whose field ``a`` has this encoding."""
    return b"\xa1\x61a" + encoded


UNDECODABLE = {
    "empty": b"",
    "no map": dag_cbor([CANARY]),
    "a text": dag_cbor(CANARY),
    "cut": dag_cbor({"a": CANARY})[:-1],
    "bytes after it": dag_cbor({"a": CANARY}) + b"\x00",
    "arrays too deep": nested(129),
    "maps too deep": nested(129, b"\xa1\x61a"),
    "arrays far too deep": nested(100_000),
    "maps far too deep": nested(100_000, b"\xa1\x61a"),
    "said to be endless": b"\xbb" + b"\xff" * 8,
    "an indefinite map": b"\xbf\x61a\x00\xff",
    "keys that are numbers": b"\xa1\x01\x02",
    "a tag": record(b"\xc1\x00"),
    "undefined": record(b"\xf7"),
    "JSON": b'{"a":"' + CANARY.encode() + b'"}',
}


async def test_undecodable_records(target: Target) -> None:
    """A block that is no record is a row with its bytes, and set aside too; its neighbours are ordinary rows."""
    blocks = list(UNDECODABLE.values())
    await target.attack(*(put(AGENT, key(number), block) for number, block in enumerate(blocks)))
    assert await target.letters() == ["undecodable_record"] * len(blocks)
    for number, block in enumerate(blocks):
        row = await target.sql.fetchrow("select * from letta_store.agent where rkey = $1", key(number))
        assert row is not None
        assert (row["block"], row["value"], row["valid"]) == (block, "{}", False)
    assert await target.rules(key(0)) == {("", "undecodable")}


async def test_deepest_record(target: Target) -> None:
    """What nests 128 deep is still decoded, and PostgreSQL and every view take it."""
    await target.attack(put(AGENT, key(1), nested(128)), put(OTHER, key(2), nested(128, b"\xa1\x61a")))
    assert await target.letters() == []
    assert (await target.row("record"))["value"].count("[") == 127


async def test_null_character_in_values_and_keys(target: Target) -> None:
    """U+0000, which PostgreSQL can't hold, is replaced and said so; the original block is kept."""
    odd = {"\0": "\0", "a\0": {"\0b": ["\0"]}, "$type": "\0"}
    await target.attack(put(OTHER, key(1), odd), put(PROMPT, key(2), prompt(**{"\0": "\0", "content": "a\0b"})))
    assert await target.value() == {"\ufffd": "\ufffd", "a\ufffd": {"\ufffdb": ["\ufffd"]}, "$type": "\ufffd"}
    assert ("$type", "nul_character") in await target.rules()
    assert await target.letters() == []
    assert (await target.row("compiled_prompt", key(2)))["content"] == "a\ufffdb"
    assert await target.sql.fetchval("select content_sha256 from letta.recompile") == sha256("a\0b")


@pytest.mark.parametrize(("hashed", "freshness"), [("a\0b", "fresh"), ("a\ufffdb", "stale")])
async def test_null_character_in_a_template(target: Target, hashed: str, freshness: str) -> None:
    """A template with U+0000 is compared by the hash of what it was, not of what PostgreSQL could hold of it."""
    await target.attack(put(AGENT, key(1), agent("a\0b")), put(PROMPT, key(1), prompt(rawSystemHash=sha256(hashed))))
    assert (await target.row("compiled_prompt"))["freshness"] == freshness
    assert (await target.row("agent"))["system_sha256"] == sha256("a\0b")


async def test_null_characters_in_references(target: Target) -> None:
    """A reference with U+0000 names nothing, not even the record it would name without."""
    reference = uri(AGENT, key(1))
    ops = [
        put(PROMPT, key(n), prompt(agent=text)) for n, text in enumerate(("\0" + reference, reference + "\0", "\0"), 1)
    ]
    await target.attack(put(AGENT, key(1), agent("another")), *ops)
    rows = await target.sql.fetch("select freshness from letta.compiled_prompt")
    assert [row["freshness"] for row in rows] == ["unverified"] * 3


async def test_bytes_that_look_like_a_link(target: Target) -> None:
    """A byte string that holds a CID is a byte string, and a link is a link."""
    await target.attack(put(OTHER, key(1), {"bytes": A_CID, "nul": b"\0" + A_CID, "link": link(A_CID)}))
    value = await target.value()
    assert [set(value[name]) for name in ("bytes", "nul", "link")] == [{"$bytes"}, {"$bytes"}, {"$link"}]
    assert await target.rules() == set()


async def test_maps_that_look_like_links_and_bytes(target: Target) -> None:
    """Maps with the keys that JSON uses for links and byte strings are marked, and still hash to their CIDs."""
    text = (await _text_of(target, A_CID))["$link"]
    odd = {
        "a": {"$link": text},
        "b": {"$bytes": "AAAA"},
        "c": {"$link": 7},
        "d": {"$bytes": "!", "x": 1},
        "e": {"$link": CANARY},
    }
    await target.attack(put(OTHER, key(1), odd), rev=rev(2))
    assert await target.value() == odd
    assert await target.rules() == {(name, "link_map") for name in odd}


async def _text_of(target: Target, cid: bytes) -> dict[str, str]:
    await target.attack(put(OTHER, key(9), {"link": link(cid)}))
    link_map: dict[str, str] = (await target.value(key(9)))["link"]
    return link_map


async def test_integers_at_and_beyond_63_bits(target: Target) -> None:
    """Every integer that CBOR can write is kept exactly; those outside the data model are marked."""
    numbers = [2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64 - 1, -(2**64)]
    ops = [put(MESSAGE, key(n), message(seq=number)) for n, number in enumerate(numbers)]
    await target.attack(*ops)
    rows = await target.sql.fetch("select seq, violations from letta.message order by rkey")
    assert [row["seq"] for row in rows] == numbers
    assert ["integer_range" in (row["violations"] or "") for row in rows] == [False] * 2 + [True] * 4


async def test_floats(target: Target) -> None:
    """Floats, which the data model hasn't, are kept and marked; those that are no numbers become null."""
    floats = [1.5, -0.0, 5e-324, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf")]
    await target.attack(*(put(MESSAGE, key(n), message(seq=number)) for n, number in enumerate(floats)))
    rows = await target.sql.fetch("select seq, violations from letta.message order by rkey")
    assert [None if row["seq"] is None else float(row["seq"]) for row in rows] == [*floats[:4], None, None, None]
    assert all('"float"' in row["violations"] for row in rows)


async def test_duplicate_keys(target: Target) -> None:
    """Of equal keys the last counts, in what is shown and in what is compared."""
    system = dag_cbor("system")
    block = b"\xa2" + system + dag_cbor("first\0") + system + dag_cbor("last")
    await target.attack(put(AGENT, key(1), block), put(PROMPT, key(2), prompt("last")))
    assert await target.value() == {"system": "last"}
    assert ("system", "duplicate_key") in await target.rules()
    assert (await target.row("compiled_prompt", key(2)))["freshness"] == "fresh"


async def test_bad_utf8(target: Target) -> None:
    """Text that is no UTF-8 is shown with its bad bytes replaced, hashed as it is, and marked."""
    ops = [
        put(OTHER, key(n), record(bytes((0x60 + len(raw),)) + raw))
        for n, raw in enumerate((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"))
    ]
    await target.attack(*ops, put(OTHER, key(9), b"\xa1\x62\xff\xfe\x00"))
    assert await target.letters() == []
    for n in range(len(ops)):
        assert ("a", "utf8") in await target.rules(key(n))
        assert "\ufffd" in (await target.value(key(n)))["a"]


async def test_not_canonical(target: Target) -> None:
    """Numbers longer than need be and keys out of order are marked, and the record still hashes to its CID."""
    blocks = [record(b"\x1b" + bytes(8)), record(b"\x78\x01x"), b"\xa2\x61b\x00\x61a\x00", b"\xb8\x01\x61a\x00"]
    await target.attack(*(put(OTHER, key(n), block) for n, block in enumerate(blocks)))
    rules = [await target.rules(key(n)) for n in range(len(blocks))]
    assert rules == [{("a", "non_canonical")}, {("a", "non_canonical")}, {("", "key_order")}, {("", "non_canonical")}]


@pytest.mark.parametrize("collection", TYPED)
async def test_no_type_or_another(target: Target, collection: str) -> None:
    """A record belongs to the collection it is stored in, whatever it says itself."""
    types = [None, "", PROMPT, "app.bsky.feed.post", 7, "\0", [collection]]
    ops = [put(collection, key(n), {"$type": name}) for n, name in enumerate(types)]
    await target.attack(*ops, put(collection, key(20), {}))
    count = await target.sql.fetchval("select count(*) from letta.record where collection = $1", collection)
    assert (count, await target.letters()) == (len(types) + 1, [])
    if collection in (CONVERSATION, PROMPT):
        assert ("$type", "type") in await target.rules(key(20))


async def test_references_that_name_nothing(target: Target) -> None:
    """A prompt whose agent is named by a handle, or in 8 KB, is kept; it is compared with nothing."""
    references = [
        f"at://alice.example.com/{AGENT}/{key(1)}",
        uri(AGENT, key(1)) + "/",
        uri(AGENT, key(1)) + "#x",
        uri(AGENT, "k" * 8_000),
        "at://did:plc:" + "a" * 8_000,
        "at://did:a:" + ":" * 1_900,
        "at://" + "a." * 4_000,
        "at:space/" * 900,
        "é" * 8_000,
        CANARY,
    ]
    ops = [put(PROMPT, key(n), prompt("stale", agent=text, conversation=text)) for n, text in enumerate(references)]
    ops += [put(MESSAGE, key(n), message(conversation=text)) for n, text in enumerate(references)]
    ops += [put(AGENT, key(n), agent(primaryConversation=text)) for n, text in enumerate(references)]
    await target.attack(*ops, put(AGENT, key(1), agent()))
    rows = await target.sql.fetch("select agent, freshness from letta.compiled_prompt order by rkey")
    assert [tuple(row) for row in rows] == [(text, "unverified") for text in references]
    assert await target.letters() == []


async def test_datetimes_that_no_clock_shows(target: Target) -> None:
    """A datetime outside the years 1 to 9999, or none at all, is no instant: NULL, and no evidence of anything."""
    texts = [
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59.999999-23:59",
        "10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "2024-02-30T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "infinity",
        "-infinity",
        "epoch",
        "now",
        "4714-11-24 BC",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00" + "9" * 100_000 + "Z",
        "2024-01-01T00:00:00Z\0",
        "",
    ]
    ops = [put(PROMPT, key(n), prompt("old", compiledAt=text)) for n, text in enumerate(texts)]
    ops += [put(MESSAGE, key(n), message(createdAt=text)) for n, text in enumerate(texts)]
    await target.attack(*ops, put(PROMPT, key(50), prompt("new")))
    rows = await target.sql.fetch("select compiled_at, freshness from letta.compiled_prompt order by rkey")
    assert {tuple(row) for row in rows[:-1]} == {(None, "unverified")}
    assert await target.sql.fetchval("select count(created_at) from letta.message") == 0


async def test_datetimes_at_the_edge(target: Target) -> None:
    """The first and the last instants that can be held are, and digits beyond microseconds are cut off."""
    instants = {
        "0001-01-01T00:00:00Z": "0001-01-01 00:00:00.000000",
        "9999-12-31T23:59:59.999999Z": "9999-12-31 23:59:59.999999",
        "2024-01-01T00:00:00." + "9" * 100_000 + "Z": "2024-01-01 00:00:00.999999",
    }
    await target.attack(*(put(PROMPT, key(n), prompt(compiledAt=text)) for n, text in enumerate(instants)))
    rows = await target.sql.fetch(
        "select to_char(compiled_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') as shown "
        "from letta.compiled_prompt order by rkey"
    )
    assert [row["shown"] for row in rows] == list(instants.values())


@pytest.mark.parametrize(("bytes_", "character"), [(200_000, "x"), (200_001, "x"), (200_000, "é"), (200_002, "é")])
async def test_content_at_its_limit(target: Target, bytes_: int, character: str) -> None:
    """The limit of 200,000 is in bytes: at it content is valid, beyond it it is marked, and kept whole either way."""
    content = character * (bytes_ // len(character.encode()))
    await target.attack(put(PROMPT, key(1), prompt(content=content, coreMemory=content[:10])))
    row = await target.row("compiled_prompt")
    assert (row["content"], row["content_bytes"], row["valid"]) == (content, bytes_, bytes_ <= 200_000)
    assert await target.rules() == (set() if bytes_ <= 200_000 else {("content", "max_length")})


async def test_core_memory_made_to_be_searched_for_long(target: Target) -> None:
    """Whether core memory is in content is found in time linear in both, whatever they are."""
    long = "a" * 600_000
    pairs = [
        ("b" + long, False),
        (long[:300_000] + "b" + long[300_001:], False),
        (long[1:], True),
        (long[:127] + "b", False),
    ]
    for n, (memory, found) in enumerate(pairs):
        await target.attack(put(PROMPT, key(n), prompt(content=long + "c", coreMemory=memory)), rev=rev(n + 1))
        row = await target.row("compiled_prompt", key(n))
        assert row["core_memory_in_content"] in ((True,) if found else (False, None))


async def test_undecodable_then_decodable(target: Target) -> None:
    """A record that replaces one that could not be decoded is as if that had never been, and can be deleted."""
    await target.attack(put(PROMPT, key(1), b"\xff"))
    await target.attack(put(PROMPT, key(1), prompt(), action="update"), rev=rev(2))
    row = await target.row("compiled_prompt")
    assert (row["valid"], row["recompiles"]) == (True, 1)
    await target.take(commit(delete(PROMPT, key(1)), rev=rev(3)))
    assert await target.rev_of(PROMPT, key(1)) is None


async def test_two_hundred_thousand_fields(target: Target) -> None:
    """A record of as many fields as bytes allow is taken, or set aside, but never stops anything."""
    wide = dag_cbor({f"{n:06}": None for n in range(99_999)})
    wider = b"\x9a" + (600_000).to_bytes(4, "big") + b"\x00" * 600_000
    await target.attack(put(OTHER, key(1), wide), put(OTHER, key(2), record(wider)))
    assert len(await target.value()) == 99_999
    assert await target.letters() == ["undecodable_record"]


async def test_largest_numbers_as_text(target: Target) -> None:
    """A record of floats that are long in decimals stays in bounds."""
    huge = record(b"\x99\x27\x10" + cbor2.dumps(1.7976931348623157e308) * 10_000)
    await target.attack(put(OTHER, key(1), huge))
    assert len((await target.value())["a"]) == 10_000
