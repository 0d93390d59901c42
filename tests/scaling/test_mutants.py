"""Each rule can fail: it finds what is wrong in a statement that breaks it, and nothing in one that doesn't."""

from __future__ import annotations

import pytest

from tests.scaling import rules
from tests.scaling.levels import Place, read
from tests.scaling.rules import RULES, Rule, Statement

PLACES = {
    "s.account": Place.SHARDS,
    "s.row": Place.SHARDS,
    "s.other": Place.SHARDS,
    "s.view": Place.SHARDS,
    "s.cursor": Place.COORDINATOR,
}
UNSTABLE = frozenset({"now", "random"})
KEYS = "unnest($1::text[], $2::text[]) as k (did, rkey)"

BROKEN: dict[Rule, tuple[str, ...]] = {
    rules.joins_are_on_did: (
        "select from s.row r join s.other o on o.rkey = r.rkey",
        "select from s.row r join s.other o on o.uri = r.uri",
        "select from s.row r, s.other o where o.did = r.author",
        "select from s.row r, s.other o where o.did <> r.did",
        "select from s.row r, s.other o where o.did = r.did or r.rkey = o.rkey",
        f"select from {KEYS} join s.row r on r.did = k.did join s.other o on o.rkey = k.rkey",
        "select from s.row r left join lateral (select o.* from s.other o where o.rkey = r.rkey limit 1) o on true",
        "select from s.row r left join lateral (select * from s.other o where o.did = f(r.uri)) o on true",
        "select from s.row r where exists (select from s.other o where o.rkey = r.rkey)",
        "select from s.view v join (select did as author, rkey from s.row) r on r.author = v.rkey",
        "with o as (select did, rkey from s.other) select from s.row r join o on o.rkey = r.rkey",
        "with o as (select rkey as did from s.other) select from s.row r join o on o.did = r.did",
        "update s.row r set a = o.a from s.other o where o.rkey = r.rkey and r.did = any($1)",
        "delete from s.row r using s.other o where r.did = $1 and o.rkey = r.rkey",
        "select from s.row union all select r.did from s.row r join s.other o using (rkey)",
        "select (select count(*) from (select o.a from s.other o where o.rkey = r.rkey) c) from s.row r",
    ),
    rules.changes_depend_on_no_clock: (
        "insert into s.row values ($1) on conflict (did) do update set at = now()",
        "insert into s.row as k values ($1) on conflict (did) do update set at = excluded.at where k.at < now()",
        "insert into s.row select did, coalesce(at, now()) from unnest($1::text[], $2::text[]) as v (did, at)",
        "insert into s.row select did, case when a then random() end from unnest($1::text[], $2::bool[]) as v (did, a)",
        "update s.row set at = now() where did = $1",
        "update s.row set at = current_timestamp where did = $1",
        "delete from s.row where did = $1 and at < now()",
    ),
    rules.guards_are_fetched_first: (
        f"select from {KEYS} where not exists (select from s.row r where r.did = k.did)",
        f"select from {KEYS} left join s.row r on r.did = k.did where r.did is null",
        f"select from {KEYS} left join (select did from s.row where did = any($1)) r on r.did = k.did",
        f"update s.row r set a = 1 from {KEYS} where r.did = any($1) and r.did = k.did"
        " and not exists (select from s.other o where o.did = r.did)",
        "insert into s.row as r values ($1) on conflict (did) do update set a = 1 where r.a = (select 2)",
    ),
    rules.laterals_need_no_merging: (
        f"select from {KEYS} cross join lateral (select r.a from s.row r where r.did = k.did order by a limit 1) l",
        f"select from {KEYS} cross join lateral (select * from s.row r where r.did = k.did offset 0) l",
        f"select from {KEYS} cross join lateral (select r.a from s.row r where r.did = k.did group by r.a) l",
    ),
    rules.writes_name_their_dids: (
        "update s.row set a = 1 where rkey = $1",
        "delete from s.row where a = 1",
        "delete from s.row where did = $1 or a = 1",
        "delete from s.row where did <> $1",
        f"delete from s.row r using {KEYS} where r.did = k.did and r.rkey = k.rkey",
        "delete from s.row r using s.other o where r.did = o.did and o.did = $1",
    ),
    rules.row_locks_name_one_did: (
        "select from s.row where a = 1 order by did limit 5 for update skip locked",
        "select from s.row where did = any($1) for update",
        "select from s.row r for share",
    ),
    rules.accounts_are_locked_in_one_place: (
        "insert into s.account select $1 on conflict (did) do update set did = excluded.did where false",
    ),
    rules.effects_here_stand_alone: (
        "select pg_notify('letta', rkey) from s.row where did = $1",
        "select pg_advisory_xact_lock(1) from s.view",
        "with gone as (delete from s.row where did = $1 returning did) select pg_notify('letta', did) from gone",
    ),
    rules.nothing_recurses_or_rolls_up: (
        "with recursive n as (select did from s.row union select did from s.row natural join n) select from n",
        "select did, a, count(*) from s.row group by rollup (did, a)",
        "select did from s.row tablesample system (1)",
    ),
    rules.limits_are_ordered: (
        "select did from s.row limit 5",
        "select count(*) from (select from s.view limit $1) v",
    ),
    rules.local_tables_stand_apart: (
        "select from s.cursor c join s.row r on r.source = c.source",
        "delete from s.cursor c using s.row r where r.did = $1 and r.source = c.source",
    ),
    rules.conflicts_are_found_by_did: (
        "insert into s.row values ($1) on conflict (rkey) do nothing",
        "insert into s.row values ($1) on conflict (rkey) do update set a = excluded.a",
    ),
}
SOUND = (
    "select from s.row r join s.other o on o.did = r.did and o.uri = r.uri",
    f"select from {KEYS} join s.row r on r.did = k.did join s.other o on o.did = k.did where r.did = any($1)",
    "select from s.row r left join lateral (select * from s.other o where o.did = r.did order by a limit 1) o on true",
    "select (select count(*) from (select o.a from s.other o where o.did = r.did) c) from s.row r",
    "with o as (select did, rkey from s.other) select from s.row r join o on o.did = r.did",
    "with o as (select did from s.other order by did limit 5) select from s.row r join o on o.did = r.did",
    f"select from {KEYS} left join (select did from s.row where did = any($1) offset 0) r on r.did = k.did",
    f"select from {KEYS} join s.account x on x.did = k.did"
    " cross join lateral (select r.a from s.row r where r.did = x.did order by a limit 1) l",
    "select o.* from s.row r, s.other o where r.did = $1 and o.did = $1",
    "insert into s.row as r values ($1) on conflict (did) do update set at = excluded.at where r.at < excluded.at",
    "insert into s.row select did, now() from unnest($1::text[]) as v (did)",
    f"update s.row r set a = 1 from {KEYS} where r.did = any($1::text[]) and r.did = k.did",
    "delete from s.row where did = $1 and exists (select from unnest($2::text[]) as p (a) where a = rkey)",
    "update s.row r set a = 1 where r.did = any($1) and exists (select from s.other o where o.did = r.did)",
    "select from s.row where did = $1 for update skip locked",
    "select pg_notify('letta', news) from unnest($1::text[]) as n (news)",
    "delete from s.cursor where source in (select handle from s.account where did = $1)",
    "select did from s.row union all select did from s.other order by did limit 5",
)


def broken(rule: Rule, sql: str) -> list[str]:
    """What a rule finds wrong in a text."""
    return list(rule(Statement("mutant", tuple(read(sql, PLACES)), UNSTABLE)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_finds_its_mutants(rule: Rule) -> None:
    """Every statement that breaks the rule is found."""
    assert [sql for sql in BROKEN[rule] if not broken(rule, sql)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_leaves_sound_statements_alone(rule: Rule) -> None:
    """No statement that Citus can run is held against its writer."""
    assert {sql: how for sql in SOUND if (how := broken(rule, sql))} == {}


def test_the_one_that_locks_may() -> None:
    """The statement that locks accounts is the exception to its own rule."""
    (sql,) = BROKEN[rules.accounts_are_locked_in_one_place]
    locker = Statement(rules.LOCKER, tuple(read(sql, PLACES)), UNSTABLE)
    assert list(rules.accounts_are_locked_in_one_place(locker)) == []


def test_a_table_without_a_place_is_an_error() -> None:
    """What nobody has decided where to keep is not taken for harmless."""
    with pytest.raises(KeyError):
        read("select from s.new", PLACES)
