"""``letta.integrity_issue``: each kind appears exactly when it should, and a sound repository has none."""

from __future__ import annotations

import pytest

from tests.frames import (
    AGENT,
    CONVERSATION,
    DID,
    MESSAGE,
    PROMPT,
    STRANGER,
    Op,
    account,
    agent,
    commit,
    conversation,
    delete,
    key,
    message,
    prompt,
    put,
    rev,
    uri,
)
from tests.indexing import Sql, indexing

SOUND = (
    put(AGENT, key(1), agent()),
    put(CONVERSATION, key(1), conversation()),
    put(PROMPT, key(1), prompt()),
    put(MESSAGE, key(1), message()),
)
THEIR_CONVERSATION = uri(CONVERSATION, key(9), STRANGER)
ELSEWHERE = uri(AGENT, key(7), STRANGER)
SECOND = agent(primaryConversation=uri(CONVERSATION, key(2)))
OF_SECOND = conversation(agent=uri(AGENT, key(2)))
CASES: dict[str, tuple[list[Op], set[tuple[str, str]]]] = {
    "a sound repository": ([], set()),
    "a fork beside the primary": ([put(CONVERSATION, key(2), conversation(role="fork"))], set()),
    "an agent of another repository": (
        [put(MESSAGE, key(2), message(conversation=uri(CONVERSATION, key(9), STRANGER)))],
        set(),
    ),
    "references that name nothing": ([put(MESSAGE, key(2), message(conversation="at://alice.example.com/x"))], set()),
    "prompt at another key": (
        [put(CONVERSATION, key(2), conversation(role="fork")), put(PROMPT, key(2), prompt())],
        {("rkey_mismatch", uri(PROMPT, key(2)))},
    ),
    "prompt of another agent than its conversation": (
        [
            put(AGENT, key(2), SECOND),
            put(CONVERSATION, key(2), OF_SECOND),
            put(PROMPT, key(1), prompt(agent=uri(AGENT, key(2)))),
        ],
        {("agent_mismatch", uri(PROMPT, key(1)))},
    ),
    "conversation names an agent by handle": (
        [
            put(CONVERSATION, key(2), conversation(agent="at://alice.example.com/a", role="fork")),
            put(PROMPT, key(2), prompt(agent="at://alice.example.com/a", conversation=uri(CONVERSATION, key(2)))),
        ],
        set(),
    ),
    "prompt without conversation": (
        [put(PROMPT, key(2), prompt(conversation="at://alice.example.com/x"))],
        {("prompt_without_conversation", uri(PROMPT, key(2)))},
    ),
    "agent without a primary conversation": (
        [put(CONVERSATION, key(1), conversation(role="fork"))],
        {("no_primary", uri(AGENT, key(1))), ("conversation_changed", uri(CONVERSATION, key(1)))},
    ),
    "two primary conversations": (
        [put(CONVERSATION, key(2), conversation())],
        {("several_primaries", uri(AGENT, key(1)))},
    ),
    "message of no conversation": (
        [put(MESSAGE, key(2), message(conversation=uri(CONVERSATION, key(9))))],
        {("dangling_reference", uri(MESSAGE, key(2)))},
    ),
    "conversation of no agent": (
        [put(CONVERSATION, key(2), conversation(agent=uri(AGENT, key(9))))],
        {("dangling_reference", uri(CONVERSATION, key(2)))},
    ),
    "agent whose primary conversation is missing": (
        [put(AGENT, key(1), agent(primaryConversation=uri(CONVERSATION, key(9))))],
        {("dangling_reference", uri(AGENT, key(1)))},
    ),
    "prompt whose agent is missing": (
        [
            put(CONVERSATION, key(2), conversation(agent=uri(AGENT, key(9)))),
            put(PROMPT, key(2), prompt(agent=uri(AGENT, key(9)), conversation=uri(CONVERSATION, key(2)))),
        ],
        {("dangling_reference", uri(PROMPT, key(2))), ("dangling_reference", uri(CONVERSATION, key(2)))},
    ),
    "conversation rewritten with another title": ([put(CONVERSATION, key(1), conversation(title="new"))], set()),
    "conversation turned to another agent": (
        [put(CONVERSATION, key(1), conversation(agent=ELSEWHERE)), put(PROMPT, key(1), prompt(agent=ELSEWHERE))],
        {("conversation_changed", uri(CONVERSATION, key(1))), ("no_primary", uri(AGENT, key(1)))},
    ),
    "memory update": (
        [put(PROMPT, key(1), prompt(coreMemory="new memory"))],
        {("core_memory_not_in_content", uri(PROMPT, key(1)))},
    ),
    "compiled after its commit": (
        [put(PROMPT, key(1), prompt(compiledAt="2024-01-02T03:05:00Z"))],
        {("compiled_in_future", uri(PROMPT, key(1)))},
    ),
}


async def issues(sql: Sql) -> set[tuple[str, str]]:
    """Kind and URI of every issue."""
    rows = await sql.fetch("select kind, uri from letta.integrity_issue")
    return {(row["kind"], row["uri"]) for row in rows}


@pytest.mark.parametrize("name", CASES)
async def test_issue(database: str, sql: Sql, name: str) -> None:
    """A sound repository, changed in one way, has exactly the issues of that change; undone, it has none."""
    operations, expected = CASES[name]
    async with indexing(database) as index:
        await index.take([commit(*SOUND, rev=rev(1)), commit(*operations, rev=rev(2))])
        assert await issues(sql) == expected
        undo = [delete(*_parts(op)) for op in operations if op.path not in {kept.path for kept in SOUND}]
        await index.take(
            [commit(*(delete(*_parts(op)) for op in SOUND), *undo, rev=rev(3)), commit(*SOUND, rev=rev(4))]
        )
        assert await issues(sql) == set()


def _parts(op: Op) -> tuple[str, str]:
    collection, _, rkey = op.path.partition("/")
    return collection, rkey


async def test_every_kind_is_seen() -> None:
    """The cases above name every kind that the view knows."""
    named = {kind for _, expected in CASES.values() for kind, _ in expected}
    assert named == {
        "rkey_mismatch",
        "agent_mismatch",
        "prompt_without_conversation",
        "no_primary",
        "several_primaries",
        "dangling_reference",
        "conversation_changed",
        "core_memory_not_in_content",
        "compiled_in_future",
    }


async def test_hidden_account_has_no_issues(database: str, sql: Sql) -> None:
    """Of an account that is away no issue is shown, nor does it count in those of others."""
    async with indexing(database) as index:
        await index.take([commit(put(PROMPT, key(1), prompt(coreMemory="x")), rev=rev(1))])
        assert await issues(sql)
        await index.take([account(DID, active=False, status="takendown")])
        assert await issues(sql) == set()
