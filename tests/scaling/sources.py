"""Everything of ours that is SQL, by name: the statements with every table filled in, and what the schema holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from indexer.store.statements import HISTORY_TABLES, RECORD_TABLES, statement, statement_names
from tests.scaling.levels import Place, Places, place_of, read

ROOT = Path(__file__).parents[2]
CITUS_SQL = ROOT / "deploy" / "citus.sql"

# In the order they were created: each after those it reads.
VIEWS = """
    select n.nspname || '.' || c.relname as name, pg_get_viewdef(c.oid) as definition
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('letta', 'letta_store') and c.relkind = 'v' order by c.oid
"""
FUNCTIONS = """
    select n.nspname || '.' || p.proname as name, l.lanname as language, p.prosrc as source,
        pg_get_function_sqlbody(p.oid) as body
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_language l on l.oid = p.prolang
    where n.nspname in ('letta', 'letta_store') order by p.oid
"""
# Those of which no variant is immutable: of length(text) and length(bytea, name) nobody can tell which is meant.
UNSTABLE = "select proname from pg_proc group by proname having bool_and(provolatile <> 'i')"


@dataclass(frozen=True, slots=True)
class Schema:
    """What the catalog of a database with our schema says."""

    views: Mapping[str, str]  # definitions, each after those of the views it reads
    functions: Mapping[str, str]  # bodies of SQL functions: statements
    procedures: Mapping[str, str]  # sources in plpgsql
    unstable: frozenset[str]


async def read_schema(url: str) -> Schema:
    """Read the catalog of a database with our schema."""
    connection = await asyncpg.connect(url)
    try:
        views = {row["name"]: row["definition"] for row in await connection.fetch(VIEWS)}
        functions = await connection.fetch(FUNCTIONS)
        bodies = {row["name"]: _statements(row["body"]) for row in functions if row["language"] == "sql"}
        procedures = {row["name"]: row["source"] for row in functions if row["language"] == "plpgsql"}
        unstable = frozenset(row["proname"] for row in await connection.fetch(UNSTABLE))
        assert len(bodies) + len(procedures) == len(functions), "a function in another language"
        return Schema(views, bodies, procedures, unstable)
    finally:
        await connection.close()


def _statements(body: str) -> str:
    """The statements in the body of an SQL function: BEGIN ATOMIC … END, or RETURN and an expression."""
    assert body, "a body of text is not resolved when the function is created"
    if body.startswith("RETURN "):
        return f"SELECT {body.removeprefix('RETURN ')}"
    return body.removeprefix("BEGIN ATOMIC\n").removesuffix("END").strip()


def planned_places() -> dict[str, Place]:
    """Where ``deploy/citus.sql`` puts each table: its two lists are the only place where that is written."""
    text = CITUS_SQL.read_text("utf-8")
    places: dict[str, Place] = {}
    for variable, place in (("distributed", Place.SHARDS), ("local", Place.COORDINATOR)):
        found = re.search(rf"^ *{variable} constant text\[\] := array\[(.*?)\];", text, re.DOTALL | re.MULTILINE)
        assert found, variable
        names = re.findall(r"'(\w+)'", found[1])
        assert len(set(names)) == len(names), "a table twice"
        places |= {f"letta_store.{name}": place for name in names}
    return places


def all_places(schema: Schema) -> Places:
    """Where the rows of each table and view come from."""
    places = planned_places()
    for name, definition in schema.views.items():
        places[name] = place_of(read(definition, places)[0])
    return places


def statements() -> Iterator[tuple[str, str]]:
    """Every statement of ``queries.sql`` by name: those with a table to fill in, with each of the closed list."""
    for name in statement_names():
        if not re.search(r"\{\w+\}", text := statement(name)):
            yield name, text
        else:
            yield from ((f"{name}({table})", statement(name, table)) for table in (*RECORD_TABLES, *HISTORY_TABLES))


def everything(schema: Schema) -> Iterator[tuple[str, str]]:
    """All our SQL that runs against tables: the statements, the views, the functions in SQL."""
    yield from statements()
    yield from schema.views.items()
    yield from schema.functions.items()
