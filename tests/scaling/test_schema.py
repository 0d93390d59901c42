"""The schema can be distributed by did: its keys, collations, views, policies, functions, as the catalog has them."""

from __future__ import annotations

import re

import pytest
from pglast import ast, parse_sql

from tests.indexing import Sql
from tests.scaling.levels import Place, find, function_name
from tests.scaling.sources import Schema, planned_places

DISTRIBUTED = [name for name, place in planned_places().items() if place is Place.SHARDS]
SPACE = "at://did:plc:aaaaaaaaaaaaaaaaaaaaaaaa/space/com.example.space/self"

TABLES = """
    select 'letta_store.' || relname as name from pg_class
    where relnamespace = 'letta_store'::regnamespace and relkind in ('r', 'p') and not relispartition
"""
KEYS = """
    select i.indexrelid::regclass::text as name, a.attname as first
    from pg_index i left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
    where i.indrelid = any($1::regclass[]) and i.indisunique
"""
# Tables are co-located only if the columns they are distributed by have the same type and collation.
DIDS = """
    select t::text as name, format_type(a.atttypid, a.atttypmod) as kind, c.collname, a.attnotnull, a.attgenerated::text
    from unnest($1::regclass[]) as t left join pg_attribute a on a.attrelid = t and a.attname = 'did'
    left join pg_collation c on c.oid = a.attcollation
"""
CONSTRAINTS = """
    select conname from pg_constraint where conrelid = any($1::regclass[]) and contype in ('f', 'x')
"""
TRIGGERS = """
    select tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
    where c.relnamespace in ('letta_store'::regnamespace, 'letta'::regnamespace)
"""
DEEP = """
    select c.relname from pg_class c
    where c.relnamespace = 'letta_store'::regnamespace and c.relkind = 'p' and c.relispartition
"""
OWNERS_VIEWS = """
    select relname from pg_class where relnamespace = 'letta'::regnamespace and relkind = 'v'
        and not coalesce(reloptions, '{}') @> array['security_invoker=true']
"""
POLICIES = """
    select polname, pg_get_expr(polqual, polrelid) as condition from pg_policy
"""
UNNAMED = """
    select attname from pg_attribute where attrelid = any($1::regclass[]) and attidentity <> ''
"""


async def keys_without_did(sql: Sql) -> list[str]:
    """Unique indexes of distributed tables that don't begin with did: none could be had on shards."""
    return [row["name"] for row in await sql.fetch(KEYS, DISTRIBUTED) if row["first"] != "did"]


async def dids_unlike(sql: Sql) -> list[str]:
    """Distributed tables whose did is not text of collation "C", or may be null, or is generated."""
    rows = await sql.fetch(DIDS, DISTRIBUTED)
    return [row["name"] for row in rows if tuple(row)[1:] != ("text", "C", True, "")]


async def unfit_policies(sql: Sql) -> list[str]:
    """Policies whose condition asks a setting, or any table: the one differs on a shard, the other fails."""
    unfit = []
    for row in await sql.fetch(POLICIES):
        condition = parse_sql(f"select {row['condition']}")
        calls = {function_name(call) for call in find(condition[0].stmt, ast.FuncCall)}
        if calls or next(find(condition[0].stmt, ast.SubLink, ast.SQLValueFunction), None) is not None:
            unfit.append(row["polname"])
    return unfit


def names_tables(source: str) -> bool:
    """Whether a function in plpgsql reads or writes a table of ours, other than by SQL it makes up."""
    code = re.sub(r"'[^']*'", "''", source)
    return re.search(r"\b(from|into|join|update|using)\s+letta(_store)?\.", code, re.IGNORECASE) is not None


async def names(sql: Sql, query: str, *args: object) -> list[str]:
    """The first column of what a query gives."""
    return [row[0] for row in await sql.fetch(query, *args)]


async def test_every_table_has_a_place(sql: Sql) -> None:
    """``deploy/citus.sql`` names every table of the schema once, and none that isn't there."""
    assert set(await names(sql, TABLES)) == planned_places().keys()


async def test_keys_can_be_had_on_shards(sql: Sql) -> None:
    """Unique keys begin with did, and there are no foreign keys, exclusions or identities to keep across shards."""
    assert await keys_without_did(sql) == []
    assert await names(sql, CONSTRAINTS, DISTRIBUTED) == []
    assert await names(sql, UNNAMED, DISTRIBUTED) == []
    await sql.execute("create unique index by_uri on letta_store.message (uri, space)")
    assert await keys_without_did(sql) == ["letta_store.by_uri"]


async def test_tables_can_be_colocated(sql: Sql) -> None:
    """did is text of collation "C" everywhere, so that equal dids are on one node; partitions are one level deep."""
    assert await dids_unlike(sql) == []
    assert await names(sql, DEEP) == []
    await sql.execute('alter table letta_store.tombstone alter column did type text collate "POSIX"')
    assert await dids_unlike(sql) == ["letta_store.tombstone"]


async def test_there_are_no_triggers(sql: Sql) -> None:
    """A trigger on a distributed table would have to be on every shard."""
    assert await names(sql, TRIGGERS) == []
    await sql.execute("""
        create function t() returns trigger language plpgsql as 'begin return null; end';
        create trigger told after insert on letta_store.tombstone execute function t()
    """)
    assert await names(sql, TRIGGERS) == ["told"]


async def test_views_run_with_their_readers_rights(sql: Sql) -> None:
    """A view with its owner's rights fails on shards."""
    assert await names(sql, OWNERS_VIEWS) == []
    await sql.execute("create view letta.owned as select did from letta_store.account")
    assert await names(sql, OWNERS_VIEWS) == ["owned"]


@pytest.mark.parametrize(
    "condition", ["space = current_setting('a.b')", "space in (select space from letta_store.forgotten_space)"]
)
async def test_policies_are_static(sql: Sql, condition: str) -> None:
    """Which rows a role sees is a comparison with constants, also where spaces were granted."""
    await sql.execute("create role reader_of_a_space")
    try:
        await sql.execute("select letta.grant_space($1, 'reader_of_a_space')", SPACE)
        assert len(await sql.fetch(POLICIES)) > 10
        assert await unfit_policies(sql) == []
        await sql.execute(f"create policy odd on letta_store.message for select using ({condition})")
        assert await unfit_policies(sql) == ["odd"]
    finally:
        await sql.execute("drop owned by reader_of_a_space; drop role reader_of_a_space")


def test_procedures_touch_no_table(schema: Schema) -> None:
    """Functions in plpgsql read and write no table: on a worker they would see the coordinator's copy, or none."""
    assert [name for name, source in schema.procedures.items() if names_tables(source)] == []
    assert names_tables("begin perform 'x' from letta_store.account; end")
