"""The demonstration with ``--spaces``: an agent in a permissioned space, its prompt going stale there."""

from __future__ import annotations

from collections.abc import Sequence

from indexer.config import load_settings
from indexer.daemon import Daemon, opened_store
from indexer.demo import Demo, questions_to, simulated_network
from indexer.demo_spaces import PRIVATE_PROMPTS, PRIVATE_RECORDS
from indexer.tables import Row, table_lines
from tests.daemon_process import command
from tests.indexing import Sql, untrue_flags


async def test_the_story_goes_on_in_a_space(database: str, sql: Sql) -> None:
    """What is printed of a space is what the views say: all of it proven, a prompt fresh, then stale by its agent."""
    answers: list[tuple[str, Sequence[Row]]] = []
    lines: list[str] = []
    async with simulated_network(spaces=True) as network:
        settings = load_settings({**network.settings, "database_url": database, "data_dir": "."}, {}, None)
        async with opened_store(settings, makes=True) as store:
            await store.open()
            questions = questions_to(store)

            async def ask(query: str) -> Sequence[Row]:
                rows = await questions(query)
                if query in (PRIVATE_RECORDS, PRIVATE_PROMPTS):
                    answers.append((query, rows))
                return rows

            await Demo(network, Daemon(settings, store, announce=lambda _: None), ask=ask, say=lines.append).run()
            wanted = network.grace.expected()
    assert [query for query, _ in answers] == [PRIVATE_RECORDS, PRIVATE_PROMPTS, PRIVATE_PROMPTS]
    (_, records), (_, first), (_, then) = answers
    assert [(row["proof"], row["records"]) for row in records] == [("space", 1)] * 3
    assert [row["freshness"] for row in first] == ["fresh"]
    assert [(row["stale_reasons"], row["by_record_in_space"]) for row in then] == [(["template_changed"], True)]
    text = "\n".join(lines)
    assert all("\n".join(table_lines(rows)) in text for _, rows in answers)
    held = await sql.fetch("select uri, cid from letta.record where space <> ''")
    assert {row["uri"]: row["cid"] for row in held} == wanted
    assert await untrue_flags(sql) == []
    await sql.execute("set role letta_reader")
    assert await sql.fetch("select from letta.record where space <> ''") == []


async def test_the_command_shows_it() -> None:
    """``demo --spaces`` tells the whole story with the space at its end, and names no password."""
    outcome = await command("demo", "--spaces")
    assert (outcome.code, outcome.errors) == (0, "")
    assert "== 8. Grace keeps her agent in a permissioned space" in outcome.output
    assert "== 9." in outcome.output
