"""``deploy/citus.sql`` does what it says: against a stand-in for Citus, since none can be installed here."""

from __future__ import annotations

import re

import asyncpg
import pytest
from pglast import parse_sql

from tests.indexing import Sql, indexing, read_capture
from tests.scaling.levels import Place
from tests.scaling.sources import CITUS_SQL, ROOT, planned_places

# What the file needs of Citus, refusing what Citus refuses (create_distributed_table.c): a partition, a unique key
# without the column to distribute by, another type or collation than that of the table it is placed with.
STAND_IN = """
    create table pg_dist_partition (logicalrelid regclass primary key, partkey text, colocationid integer not null);
    create function create_distributed_table(table_name regclass, distribution_column text,
        distribution_type text default 'hash', colocate_with text default 'default', shard_count integer default null)
    returns void language plpgsql as $$
    declare
        beside regclass;
    begin
        if exists (select from pg_dist_partition where logicalrelid = table_name) then
            raise exception 'table % is already distributed', table_name;
        end if;
        if (select relispartition from pg_class where oid = table_name) then
            raise exception 'cannot distribute relation % which is a partition', table_name;
        end if;
        if exists (
            select from pg_index i where i.indrelid = table_name and i.indisunique and not exists (
                select from pg_attribute a where a.attrelid = i.indrelid and a.attname = distribution_column
                    and a.attnum = any(i.indkey::int2[]))) then
            raise exception 'cannot create constraint on %', table_name;
        end if;
        if colocate_with <> 'none' then
            beside := colocate_with::regclass;
            if (select (atttypid, attcollation) from pg_attribute
                where attrelid = beside and attname = distribution_column) is distinct from
                (select (atttypid, attcollation) from pg_attribute
                where attrelid = table_name and attname = distribution_column) then
                raise exception 'cannot colocate tables % and %', beside, table_name;
            end if;
        end if;
        insert into pg_dist_partition select table_name, distribution_column,
            coalesce((select p.colocationid from pg_dist_partition p where p.logicalrelid = beside),
                table_name::oid::integer);
    end
    $$;
"""
DISTRIBUTED = "select logicalrelid::text as name, partkey, colocationid from pg_dist_partition"


def checksums() -> str:
    """The query that the documentation has operators run before and after."""
    found = re.search(
        r"<!-- checksums -->\n```sql\n(.*?)```", (ROOT / "docs" / "scaling.md").read_text("utf-8"), re.DOTALL
    )
    assert found
    return found[1]


async def run(sql: Sql) -> None:
    """Run the file as ``psql --single-transaction`` does."""
    async with sql.transaction():
        await sql.execute(CITUS_SQL.read_text("utf-8"))


@pytest.fixture
async def filled(database: str) -> str:
    """A database with a capture in it."""
    async with indexing(database) as index:
        await index.take(read_capture(ROOT / "tests" / "captures" / "pds-a" / "frames.bin"))
    return database


def test_it_parses() -> None:
    """It is SQL alone, for any client."""
    assert len(parse_sql(CITUS_SQL.read_text("utf-8"))) == 3


async def test_a_filled_database_is_distributed(filled: str, sql: Sql) -> None:
    """Every table meant to be is distributed by did beside account, nothing else is; run again it changes nothing."""
    await sql.execute(STAND_IN)
    await run(sql)
    rows = await sql.fetch(DISTRIBUTED)
    wanted = {name for name, place in planned_places().items() if place is Place.SHARDS}
    assert {row["name"] for row in rows} == wanted
    assert {row["partkey"] for row in rows} == {"did"}
    assert len({row["colocationid"] for row in rows}) == 1
    await run(sql)
    assert await sql.fetch(DISTRIBUTED) == rows


async def test_the_number_of_tables_is_as_documented(sql: Sql) -> None:
    """What a shard number stands for on its node: every distributed table, and its partitions."""
    count = "select count(*) from unnest($1::regclass[]) as t cross join lateral pg_partition_tree(t)"
    partitioned = [name for name, place in planned_places().items() if place is Place.SHARDS]
    alone = "select count(*) from pg_class where oid = any($1::regclass[]) and relkind = 'r'"
    tables = await sql.fetchval(count, partitioned) + await sql.fetchval(alone, partitioned)
    assert f"stands for {tables} tables in all: {tables * 8} with" in (ROOT / "docs" / "scaling.md").read_text("utf-8")


async def test_an_unknown_table_stops_it(sql: Sql) -> None:
    """A schema of another release is left as it is, rather than half distributed."""
    await sql.execute(STAND_IN)
    await sql.execute("create table letta_store.later (did text primary key)")
    with pytest.raises(asyncpg.RaiseError, match="no place is known for later"):
        await run(sql)
    assert await sql.fetch(DISTRIBUTED) == []


async def test_the_checksums_tell_any_change(filled: str, sql: Sql) -> None:
    """The query in the documentation has a line for every distributed table, the same until something changes."""
    lines = await sql.fetch(checksums())
    distributed = {name for name, place in planned_places().items() if place is Place.SHARDS}
    assert {f"letta_store.{line['table']}" for line in lines} == distributed
    assert await sql.fetch(checksums()) == lines
    await sql.execute(
        "update letta_store.compiled_prompt set rev = rev || 'x' where did = (select min(did) from letta.agent)"
    )
    changed = [
        line["table"] for line, before in zip(await sql.fetch(checksums()), lines, strict=True) if line != before
    ]
    assert changed == ["compiled_prompt"]
