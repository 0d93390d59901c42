"""Commits that are whole, with operations that aren't: each is set aside alone."""

from __future__ import annotations

import string

import pytest

from indexer.store import Limits
from tests.frames import (
    AGENT,
    DID,
    MESSAGE,
    OTHER,
    PREFIX,
    PROMPT,
    STRANGER,
    Op,
    agent,
    cid_of,
    commit,
    dag_cbor,
    delete,
    key,
    message,
    prompt,
    put,
    rev,
    uri,
)
from tests.hostile.target import BYSTANDER, CANARY, Target
from tests.indexing import Sql, indexing

LYING = dag_cbor(agent(CANARY))
LEGAL_KEYS = [
    *(character for character in string.ascii_letters + string.digits + "_:~-"),
    "...",
    ".a",
    "a.",
    "pre:fix",
    "~1.2-3_",
    "example.com",
    "A" * 512,
    "self",
]
PATHS = [
    PREFIX,
    PREFIX + "agent",
    PREFIX + "agent/",
    PREFIX + "agent/a/b",
    PREFIX + "agent//a",
    PREFIX + "agent/.",
    PREFIX + "agent/..",
    PREFIX + "agent/" + "a" * 513,
    PREFIX + "agent/a b",
    PREFIX + "agent/é",
    PREFIX + "agent/a\0",
    PREFIX + "agent/a\n",
    PREFIX + "agent/a%20",
    PREFIX + "/a",
    PREFIX + "a_b/a",
    PREFIX + "\0/a",
    PREFIX + "a" * 400 + "/a",
    PREFIX + "agent/a?x=1#y",
]


async def test_wrong_cid(target: Target) -> None:
    """A block that doesn't hash to the CID it is filed under is set aside, whatever it holds."""
    op = put(AGENT, key(1), LYING, cid=cid_of(dag_cbor(agent())))
    await target.attack(op)
    assert await target.letters() == ["wrong_cid"]
    assert await target.rev_of(AGENT, key(1)) is None


async def test_flipped_bit(target: Target) -> None:
    """One bit flipped anywhere in a record's block keeps that record out, and only that."""
    block = dag_cbor(agent(CANARY))
    ops = [
        put(
            AGENT,
            key(bit),
            block[: bit // 8] + bytes((block[bit // 8] ^ 1 << bit % 8,)) + block[bit // 8 + 1 :],
            cid=cid_of(b"%d" % bit),
        )
        for bit in range(0, 8 * len(block), 97)
    ]
    await target.attack(*ops)
    assert await target.letters() == ["wrong_cid"] * len(ops)


async def test_missing_block(target: Target) -> None:
    """An operation whose block isn't in the archive is set aside."""
    await target.attack(Op("create", f"{AGENT}/{key(1)}", cid_of(LYING), None))
    assert await target.letters() == ["missing_block"]


async def test_another_record_of_the_type_in_the_archive(target: Target) -> None:
    """A record is found by its operation's CID: others of its type in the archive are never taken for it."""
    decoys = [(cid_of(block), block) for block in (dag_cbor(agent(f"decoy {n}")) for n in range(10))]
    await target.attack(
        put(AGENT, key(1), agent("mine")), Op("create", f"{AGENT}/{key(2)}", cid_of(b"?"), None), extra=decoys
    )
    assert (await target.row("agent"))["system"] == "mine"
    assert await target.sql.fetchval("select count(*) from letta.agent") == 1
    assert await target.letters() == ["missing_block"]


async def test_two_blocks_under_one_cid(target: Target) -> None:
    """Of two blocks filed under one CID a false one never gets in."""
    good = dag_cbor(agent("mine"))
    await target.attack(put(AGENT, key(1), LYING, cid=cid_of(good)), extra=[(cid_of(good), good)])
    await target.attack(put(AGENT, key(2), good), extra=[(cid_of(good), LYING)])
    assert [row["system"] for row in await target.sql.fetch("select system from letta.agent")] == ["mine"]


@pytest.mark.parametrize("codec", [b"\x01\x55\x12\x20", b"\x01\x70\x12\x20", b"\x01\x71\x16\x20", b"\x12\x20"])
async def test_cid_of_another_kind(target: Target, codec: bytes) -> None:
    """A record under a CID that AT Protocol doesn't use is set aside; a raw one is taken by its hash."""
    op = put(AGENT, key(1), agent())
    odd = Op("create", op.path, codec + cid_of(op.block or b"")[4:], None)
    await target.attack(odd, extra=[(odd.cid or b"", op.block or b"")] if codec.endswith(b"\x55\x12\x20") else ())
    assert await target.letters() == ([] if codec.endswith(b"\x55\x12\x20") else ["missing_block"])


async def test_two_operations_on_one_key(target: Target) -> None:
    """Of several operations on one key the commit's last counts: the earlier ones leave no trace."""
    await target.attack(put(PROMPT, key(1), prompt(memory="old")), put(PROMPT, key(1), prompt(memory="new")))
    assert (await target.row("compiled_prompt"))["core_memory"] == "new"
    assert await target.sql.fetchval("select count(*) from letta.recompile") == 1


async def test_put_then_delete(target: Target) -> None:
    """A key put and deleted in one commit is deleted, and was never there."""
    await target.attack(put(PROMPT, key(1), prompt(CANARY)), delete(PROMPT, key(1)))
    for table in ("compiled_prompt", "recompile"):
        assert await target.sql.fetchval(f"select count(*) from letta_store.{table}") == 0
    assert await target.sql.fetchval("select rev from letta_store.tombstone") == rev(1)


async def test_delete_then_put(target: Target) -> None:
    """A key deleted and put in one commit is there, as put."""
    await target.take(commit(put(PROMPT, key(1), prompt(memory="old"))))
    await target.attack(delete(PROMPT, key(1)), put(PROMPT, key(1), prompt(memory="new")))
    assert (await target.row("compiled_prompt"))["core_memory"] == "new"


async def test_one_commit_with_200_operations_on_one_key(target: Target) -> None:
    """Two hundred operations on one key are one row, the last."""
    await target.take(commit(*(put(MESSAGE, key(1), message(seq=n)) for n in range(200))))
    assert [row["seq"] for row in await target.sql.fetch("select seq from letta.message")] == [199]


async def test_keys_of_every_legal_character(target: Target) -> None:
    """Every record key that the specification allows is a row, under exactly that key."""
    await target.attack(*(put(AGENT, rkey, agent()) for rkey in LEGAL_KEYS))
    assert await target.letters() == []
    rows = {row["rkey"]: row["uri"] for row in await target.sql.fetch("select rkey, uri from letta.agent")}
    assert rows == {rkey: uri(AGENT, rkey) for rkey in LEGAL_KEYS}
    await target.take(commit(*(delete(AGENT, rkey) for rkey in LEGAL_KEYS), rev=rev(2)))
    assert await target.sql.fetchval("select count(*) from letta.agent") == 0


async def test_paths_that_are_none(target: Target) -> None:
    """What is no collection and record key is set aside, also where it is only deleted."""
    await target.attack(*(Op("create", path, *_block()) for path in PATHS))
    assert await target.letters() == ["bad_path"] * len(PATHS)
    await target.attack(*(Op("delete", path, None, None) for path in PATHS), rev=rev(2))
    assert await target.letters() == ["bad_path"] * len(PATHS) * 2


def _block() -> tuple[bytes, bytes]:
    block = dag_cbor({"x": CANARY})
    return cid_of(block), block


async def test_longest_legal_key(target: Target) -> None:
    """DID, collection and record key of the greatest length allowed fit every index."""
    did = "did:web:" + "a" * 1_016
    label = "a" * 60
    collection = PREFIX + ".".join([label] * 3) + "." + "b" * 63
    for where in (collection, AGENT, PROMPT):
        await target.take(commit(put(where, "k" * 512, prompt(**{"$type": where})), did=did))
    assert await target.letters() == []
    assert await target.sql.fetchval("select count(*) from letta.record where did = $1", did) == 3
    await target.take(commit(delete(PROMPT, "k" * 512), did=did, rev=rev(1)))
    assert await target.sql.fetchval("select count(*) from letta.record where did = $1", did) == 2


async def test_unknown_actions(target: Target) -> None:
    """An operation with an action we don't know is set aside, with a reason of its own."""
    for number, action in enumerate(("", "upsert", "CREATE", "delete\0", CANARY, "x" * 100_000), 2):
        await target.attack(put(AGENT, key(1), agent(CANARY), action=action), rev=rev(number))
    assert await target.letters() == ["unknown_action"] * 6
    assert target.index.sample("operations_total", collection="agent", action="other") == 6
    assert await target.rev_of(AGENT, key(1)) is None


async def test_put_without_a_cid(target: Target) -> None:
    """A create without a CID says nothing about what was created."""
    await target.attack(Op("create", f"{AGENT}/{key(1)}", None, None), Op("update", f"{AGENT}/{key(2)}", None, None))
    assert await target.letters() == ["malformed_frame"] * 2


async def test_collections_beside_the_prefix(target: Target) -> None:
    """What only resembles our collections is not ours, and is not set aside either."""
    for collection in (
        PREFIX[:-1],
        PREFIX[:-1] + "x.agent",
        "xyz.quasigod.lab.agent",
        PREFIX.upper() + "agent",
        "a.b.c",
    ):
        await target.attack(put(collection, key(1), {"$type": collection}))
    assert await target.letters() == []
    assert await target.sql.fetchval("select count(*) from letta.record") == 1


async def test_same_block_200_times(target: Target) -> None:
    """A commit that refers 200 times to one block of 1.9 MB can't make us hold 400 MB, or send them in one message."""
    block = dag_cbor(prompt(template="x" * 1_900_000))
    same = [put(PROMPT, key(number), block) for number in range(199)]
    one = Op(same[0].action, same[0].path, same[0].cid, block)
    rest = [Op(op.action, op.path, op.cid, None) for op in same[1:]]
    await target.take(*(commit(one, *rest, rev=rev(n)) for n in range(1, 4)), commit(BYSTANDER, rev=rev(1)))
    assert await target.rev_of(OTHER, "bystander") == rev(1)


async def test_flood_from_one_account(database: str, sql: Sql) -> None:
    """An account that writes more than its quota is cut off with a reason; another one of the same batch gets in."""
    async with indexing(database, limits=Limits(quota_rows=10, quota_bytes=100_000)) as index:
        flood = [commit(put(OTHER, key(n), {"n": n}), rev=rev(n)) for n in range(50)]
        await index.take([*flood, commit(put(AGENT, key(1), agent()), did=STRANGER)])
        rows = await sql.fetch("select did, count(*) from letta.record group by did order by did")
        assert [tuple(row) for row in rows] == [(DID, 10), (STRANGER, 1)]
        assert index.sample("dropped_total", reason="quota") == 40
        await index.take([commit(put(OTHER, key(0), {"n": "x" * 99_000}), rev=rev(60))])
        await index.take([commit(put(OTHER, key(0), {"n": "x" * 100_000}), rev=rev(61))])
        assert index.sample("dropped_total", reason="quota") == 41
        assert await sql.fetchval("select rev from letta.record where rkey = $1", key(0)) == rev(60)


async def test_quota_gives_way_to_deletes(database: str, sql: Sql) -> None:
    """What an account deletes makes room, and is gone although the account is at its limit."""
    async with indexing(database, limits=Limits(quota_rows=3)) as index:
        await index.take([commit(*(put(OTHER, key(n), {"n": n}) for n in range(3)))])
        await index.take([commit(delete(OTHER, key(0)), rev=rev(1))])
        assert await sql.fetchval("select count(*) from letta.record") == 2


async def test_history_and_tombstones_count_in_the_quota(database: str, sql: Sql) -> None:
    """Neither deletes of what never was nor endless recompiles make an account's share grow without end."""
    async with indexing(database, limits=Limits(quota_rows=20)) as index:
        await index.take([commit(*(delete(OTHER, key(n)) for n in range(200)), rev=rev(1))])
        for n in range(2, 60):
            await index.take([commit(put(PROMPT, key(1), prompt(memory=str(n))), rev=rev(n), did=STRANGER)])
        for table in ("tombstone", "recompile"):
            assert await sql.fetchval(f"select count(*) from letta_store.{table}") <= 20, table
        assert index.sample("dropped_total", reason="quota") > 0
        assert await sql.fetchval("select rev from letta.record where did = $1", STRANGER) == rev(59)
