"""One life of an index, with every kind of row: led by the code as it is, and kept as version 1 of it wrote it.

``rows_1.sql`` is what the code of schema version 1 made of this life (``pg_dump --data-only --inserts``, the inserts
alone). Migrated, it has to be what the present code makes of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from indexer.model import Change
from tests import frames
from tests.frames import AGENT, CONVERSATION, DID, MESSAGE, OTHER, PROMPT, STRANGER, key, put, rev, sha256, uri
from tests.indexing import Sql, indexing, read_capture
from tests.store.batches import SPACE, batch_of, change

HERE = Path(__file__).parent
CAPTURE = HERE.parent / "captures" / "pds-a" / "frames.bin"
NOW = datetime(2026, 12, 1, tzinfo=UTC)  # after all revs of the capture

# Texts that jsonb can't hold, values it would change, fields of the wrong type, references in every spelling.
_ODD = [
    put(AGENT, key(1), frames.agent("a\0b", name="\0", tags=["kept", {"deep": None}])),
    put(PROMPT, key(1), frames.prompt(rawSystemHash=sha256("a\0b"), content="a\0b", coreMemory="b")),
    put(PROMPT, key(2), frames.prompt(rawSystemHash="no hash", compiledAt="2024-02-30T00:00:00Z", memfsRevision=7)),
    put(PROMPT, key(3), frames.prompt(agent=f"at:space/{STRANGER}/com.example.space/self/{DID}/{AGENT}/{key(1)}")),
    put(PROMPT, key(4), frames.prompt(agent=f"at://some.handle/{AGENT}/one", compiledAt="2024-01-01T00:00:00+23:59")),
    put(CONVERSATION, key(1), frames.conversation(hidden=True, title=["no", "text"], lastSeq=3)),
    put(CONVERSATION, key(2), frames.conversation(role="fork", agent="x" * 5000)),
    put(MESSAGE, key(1), frames.message(seq=2**64 - 1, conversation=uri(CONVERSATION, key(1)))),
    put(MESSAGE, key(2), frames.message(seq="1", content={"$bytes": "!"}, createdAt=False)),
    put(OTHER, "one", {"$type": OTHER, "cid": frames.link(frames.cid_of(b"\xa0")), "bytes": b"\0\xff", "float": 1.5}),
    put(OTHER, "two", b"\xa1\x61a\xc1\x00"),
    put(frames.PREFIX + "defs.unheardOf", "self", {"$type": "x", "nothing": None}),
]  # fmt: skip


def odd_frames() -> list[bytes]:
    """Commits of records as odd as they come, recompiles, deletes, account states, and what is set aside."""
    return [
        frames.commit(*_ODD, rev=rev(1)),
        frames.commit(put(PROMPT, key(1), frames.prompt(memory="later"), action="update"), rev=rev(2)),
        frames.commit(
            put(PROMPT, key(5), frames.prompt()), put(CONVERSATION, key(5), frames.conversation()), rev=rev(3)
        ),
        frames.commit(frames.delete(PROMPT, key(5)), frames.delete(MESSAGE, key(9)), rev=rev(4)),
        frames.commit(put(CONVERSATION, key(2), frames.conversation(role="primary"), action="update"), rev=rev(5)),
        frames.commit(put(AGENT, key(1), frames.agent()), did=STRANGER, rev=rev(6)),
        frames.identity(STRANGER, "stranger.example"),
        frames.account(STRANGER, active=False, status="deactivated"),
        frames.frame("#commit", {"repo": DID, "rev": 7}),
        b"no frame at all",
    ]


def private_changes() -> list[Change]:
    """An agent with its prompts, a conversation and messages in a permissioned space."""
    reference = f"{SPACE}/{DID}/{AGENT}/{key(1)}"
    return [
        change(AGENT, key(1), {"$type": AGENT, "system": "private"}, space=SPACE),
        change(PROMPT, key(1), frames.prompt("private", agent=reference), space=SPACE),
        change(PROMPT, key(2), frames.prompt("another", agent=reference), space=SPACE),
        change(CONVERSATION, key(1), frames.conversation(agent=reference), space=SPACE),
        change(MESSAGE, key(1), frames.message(), space=SPACE),
        change(OTHER, "one", {"$type": OTHER}, space=SPACE),
    ]


# What the daemon keeps for itself, as far as no frame above leads to it.
_STATES = f"""
    insert into letta_store.pending (did, rev, digest, source, reason, frame)
    values ('{DID}', '{rev(9)}', 'abc', 'firehose:example', 'unknown_key', '\\x00ff');
    insert into letta_store.probe (did, attempts) values ('did:web:example.com', 2);
    insert into letta_store.discovery (source, collection, page) values ('firehose:example', '{AGENT}', 'p2');
    insert into letta_store.cursor (source, seq, rev, state, filter) values ('firehose:example', 9, null, 'live', 'x');
    insert into letta_store.space_source (account, space, rev, state) values ('{DID}', '{SPACE}', '{rev(8)}', 'live');
    insert into letta_store.forgotten_space values ('at://{STRANGER}/space/com.example.space/gone');
    insert into letta_store.repo (did, space, rev, lthash, judgement) values ('{STRANGER}', '{SPACE}', '{rev(8)}', '\\x01', 'mac');
    update letta_store.repo set want = 'fetch', want_no = 3, want_reasons = '{{gap}}', attempts = 2, last_error = 'no answer'
    where did = '{DID}' and space = '';
    update letta_store.account set signing_key = 'zKey', pds = 'https://pds.example', check_at = '2024-01-03Z' where did = '{DID}';
"""  # noqa: E501


async def index(url: str) -> None:
    """Index the events of that life, in an empty database or one with the present schema."""
    async with indexing(url, clock=lambda: NOW) as index:
        await index.take(read_capture(CAPTURE))
        for frame in odd_frames():
            await index.take([frame])
        await index.store.apply(batch_of(*private_changes()), NOW)


async def live(url: str) -> None:
    """Lead the whole life with the present code, in an empty database."""
    await index(url)
    connection = await asyncpg.connect(url)
    await connection.execute(_STATES)
    await connection.close()


async def fill_version_1(sql: Sql) -> None:
    """Bring that life into an empty database as the code of schema version 1 wrote it."""
    for part in ("schema_1.sql", "rows_1.sql"):
        await sql.execute((HERE / part).read_text(encoding="utf-8"))
