"""Every typed field of every typed collection, with every kind of value: a value or NULL comes out, never an error."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.frames import AGENT, CONVERSATION, MESSAGE, PROMPT, TIME, VALID, cid_of, commit, delete, key, link, put, rev
from tests.hostile.target import CANARY, Target

# Field of the record, column of the view, kind of the column.
FIELDS: dict[str, list[tuple[str, str, str]]] = {
    AGENT: [
        ("name", "name", "text"),
        ("model", "model", "text"),
        ("system", "system", "text"),
        ("memfsRevision", "memfs_revision", "text"),
        ("primaryConversation", "primary_conversation", "text"),
        ("createdAt", "created_at", "instant"),
    ],
    CONVERSATION: [
        ("agent", "agent", "text"),
        ("role", "role", "text"),
        ("title", "title", "text"),
        ("model", "model", "text"),
        ("hidden", "hidden", "boolean"),
        ("createdAt", "created_at", "instant"),
        ("updatedAt", "updated_at", "instant"),
        ("modelSettings", "model_settings", "json"),
        ("lastSeq", "value", "json"),
    ],
    PROMPT: [
        ("agent", "agent", "text"),
        ("conversation", "conversation", "text"),
        ("content", "content", "text"),
        ("coreMemory", "core_memory", "text"),
        ("rawSystemHash", "raw_system_hash", "text"),
        ("memfsRevision", "memfs_revision", "text"),
        ("compiledAt", "compiled_at", "instant"),
    ],
    MESSAGE: [
        ("conversation", "conversation", "text"),
        ("role", "role", "text"),
        ("status", "status", "text"),
        ("seq", "seq", "number"),
        ("content", "content", "json"),
        ("createdAt", "created_at", "instant"),
    ],
}
VIEWS = {AGENT: "agent", CONVERSATION: "conversation_all", PROMPT: "compiled_prompt", MESSAGE: "message"}
A_CID = cid_of(b"\xa0")
VALUES: list[object] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64 - 1,
    -(2**64),
    1.5,
    1e300,
    5e-324,
    float("nan"),
    float("-inf"),
    "",
    " ",
    CANARY,
    "\0",
    "a\0b\\c\"d'e",
    "null",
    "\u2028\ufeff\U0010ffff",
    "x" * 65_536,
    "\\" * 65_536,
    "f" * 64,
    TIME,
    f"at://did:plc:aaaaaaaaaaaaaaaaaaaaaaaa/{AGENT}/{key(1)}",
    [],
    [[], [[]], None],
    {},
    {"a": {"b": [1, "\0"]}},
    {"$link": "bafy"},
    {"$bytes": "AAA"},
    {"$type": "blob", "ref": link(A_CID), "mimeType": "x/y", "size": 1},
    link(A_CID),
    A_CID,
    b"",
]


@pytest.mark.parametrize("collection", VALID)
async def test_every_field_with_every_kind_of_value(target: Target, collection: str) -> None:
    """Whatever a field holds, its record is a row, and the field's column shows it if it fits and NULL otherwise."""
    for step, (field, column, kind) in enumerate(FIELDS[collection], 1):
        records = [VALID[collection](**{field: value}) for value in VALUES]
        await target.attack(*(put(collection, key(n), one) for n, one in enumerate(records)), rev=rev(step))
        shown = await target.sql.fetch(f"select {column} as shown from letta.{VIEWS[collection]} order by rkey")
        assert [_fits(row["shown"], value, kind) for row, value in zip(shown, VALUES, strict=True)] == [True] * len(
            VALUES
        )
    await target.attack(*(put(collection, key(n), {}) for n in range(3)), rev=rev(50))
    await target.attack(*(delete(collection, key(n)) for n in range(len(VALUES))), rev=rev(51))
    assert await target.sql.fetchval(f"select count(*) from letta.{VIEWS[collection]}") == 0
    assert await target.letters() == []


def _fits(shown: object, value: object, kind: str) -> bool:
    """Whether a column of this kind shows what the field held."""
    if kind == "text":
        return shown == (value.replace("\0", "\ufffd") if isinstance(value, str) else None)
    if kind == "boolean":
        return shown is (value if isinstance(value, bool) else False)
    if kind == "number":
        return _fits_number(shown, value)
    if kind == "instant":
        return (shown is not None) == (value == TIME)
    return isinstance(shown, str)


def _fits_number(shown: object, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return shown is None
    if isinstance(value, float):
        return value != value or abs(value) == float("inf") if shown is None else float(shown) == value  # type: ignore[arg-type]
    return shown == Decimal(value)


async def test_all_fields_wrong_at_once(target: Target) -> None:
    """Records whose every field has the same odd value are rows, and relate to one another in no view by accident."""
    ops = [
        put(collection, key(n), {"$type": collection} | {field: value for field, _, _ in FIELDS[collection]})
        for collection in VALID
        for n, value in enumerate(VALUES)
    ]
    for step, at in enumerate(range(0, len(ops), 150), 1):
        await target.take(commit(*ops[at : at + 150], rev=rev(step)))
    assert await target.sql.fetchval("select count(*) from letta.record") == len(ops)
    assert await target.sql.fetchval("select count(*) from letta.stale_prompt") == 0
