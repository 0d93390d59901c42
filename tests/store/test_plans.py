"""Plans that are made once have to be right for ever: of a database that is empty, and of any number of keys."""

from __future__ import annotations

import re
from itertools import product

import pytest

from indexer.store.connection import WRITING
from indexer.store.statements import HISTORY_TABLES, RECORD_TABLES, planned_anew, statement, statement_names
from tests.indexing import Sql

OTHERS = {
    *("put_dead_letters", "put_cursors", "put_probes", "start_discovery", "notify"),  # bounded, or without a key
    "lock_accounts",  # goes through hidden accounts, if it has to after a loss
    "dead_processes",  # of the server's own
}


def by_key() -> list[tuple[str, str | None]]:
    """The statements of a writer that are planned once and look something up for each of many keys, for each table."""
    found: list[tuple[str, str | None]] = []
    for name, table in product(statement_names(), (None, *RECORD_TABLES, *HISTORY_TABLES)):
        template = statement(name) if table is None else statement(name, table)
        several = "{" in statement(name)
        is_by_key = re.search(r"unnest\((\(string_to_array\()?\$1", template) is not None
        if is_by_key and several == (table is not None) and not planned_anew(name) and name not in OTHERS:
            found.append((name, table))
    return [(name, table) for name, table in found if table is None or table in RECORD_TABLES]


@pytest.mark.parametrize(("name", "table"), by_key())
async def test_looks_up_each_key_by_an_index(sql: Sql, name: str, table: str | None) -> None:
    """No table is gone through, whole or by an index without a condition, and none is joined by comparing all pairs."""
    for setting, value in WRITING.items():
        await sql.execute(f"set {setting} = {value}")
    text = statement(name, table)
    numbers = max(map(int, re.findall(r"\$(\d+)", text)))
    await sql.execute(f"prepare asked as {text}")
    rows = await sql.fetch(f"explain (costs off) execute asked ({', '.join(['null'] * numbers)})")
    plan = [row[0].strip() for row in rows]
    scans = [at for at, line in enumerate(plan) if re.match(r"(->  )?Index (Only )?Scan using", line)]
    assert not [line for line in plan if "Seq Scan" in line or re.match(r"Join Filter: .*\.(did|rkey)\b", line)]
    assert [plan[at] for at in scans if not plan[at + 1].startswith("Index Cond: ")] == []


CROWD = """
    insert into letta_store.compiled_prompt (did, space, collection, rkey, cid, rev, value, size)
    select 'did:plc:crowd', '', 'xyz.quasigod.lab.letta.compiledPrompt', n::text, 'cid', '3kaaaaaaaaaaa',
        '{"agent": "at://did:plc:crowd/xyz.quasigod.lab.letta.agent/a"}', 100 from generate_series(1, 2000) n
"""


async def test_many_agents_of_one_account_where_one_has_all_prompts(sql: Sql) -> None:
    """Also where statistics say that all prompts are of one agent, those of another are found by it, not by account."""
    await sql.execute(CROWD)
    await sql.execute("vacuum analyze letta_store.compiled_prompt")
    for setting, value in WRITING.items():
        await sql.execute(f"set {setting} = {value}")
    await sql.execute(f"prepare asked as {statement('refresh')}")
    rows = await sql.fetch("explain (costs off) execute asked (null, null, null, null, null, null, null)")
    plan = [row[0].strip() for row in rows]
    looks = [plan[at + 1] for at, line in enumerate(plan) if "Scan using compiled_prompt" in line]
    assert looks
    assert [line for line in looks if "hashtextextended" not in line and "rkey" not in line] == []
