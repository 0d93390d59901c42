"""What a database's schema is made of, as text that can be compared: an entry for each object, by its name."""

from __future__ import annotations

from difflib import unified_diff
from itertools import zip_longest

from tests.indexing import Sql

# Names of objects and what defines them. Columns are compared by name: where one stands in its table says nothing.
_OBJECTS = """
with relation as (
    select c.*, format('%s.%s', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname in ('letta', 'letta_store')
), function as (
    select p.*, p.oid::regprocedure::text as name
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname in ('letta', 'letta_store')
)
select 'schema ' || nspname as object, concat_ws(e'\\n', obj_description(oid, 'pg_namespace'),
    (select string_agg(a::text, ' ' order by a::text) from unnest(nspacl) a)) as definition
from pg_namespace where nspname in ('letta', 'letta_store')
union all
select 'relation ' || name, concat_ws(e'\\n',
    'kind ' || relkind::text, 'persistence ' || relpersistence::text,
    'row security ' || relrowsecurity || ' ' || relforcerowsecurity,
    'options ' || reloptions::text, 'partitioned by ' || pg_get_partkeydef(oid),
    'partition ' || pg_get_expr(relpartbound, oid),
    'of ' || (select string_agg(inhparent::regclass::text, ' ') from pg_inherits where inhrelid = relation.oid),
    'rights ' || (select string_agg(a::text, ' ' order by a::text) from unnest(relacl) a),
    'comment ' || obj_description(oid, 'pg_class'),
    -- PostgreSQL names a column without a name "text" once it has read its own definition back.
    case when relkind = 'v' then replace(pg_get_viewdef(oid, true), '::text AS text', '::text') end,
    case when relkind in ('i', 'I') then pg_get_indexdef(oid) end)
from relation
union all
select 'column ' || name || '.' || attname, concat_ws(e'\\n',
    format_type(atttypid, atttypmod) || case when attnotnull then ' not null' else '' end,
    'collate ' || nullif(attcollation, 0)::regcollation::text, 'generated ' || nullif(attgenerated::text, ''),
    'identity ' || nullif(attidentity::text, ''), 'storage ' || attstorage::text,
    'compression ' || nullif(attcompression::text, ''),
    'default ' || pg_get_expr(d.adbin, d.adrelid), 'statistics ' || nullif(attstattarget, -1),
    'rights ' || (select string_agg(a::text, ' ' order by a::text) from unnest(attacl) a),
    'comment ' || col_description(attrelid, attnum))
from pg_attribute join relation r on r.oid = attrelid and relkind in ('r', 'p', 'v', 'm')
left join pg_attrdef d on d.adrelid = attrelid and d.adnum = attnum
where attnum > 0 and not attisdropped
union all
select 'constraint ' || name || '.' || conname, concat_ws(e'\\n', pg_get_constraintdef(k.oid),
    obj_description(k.oid, 'pg_constraint'))
from pg_constraint k join relation r on r.oid = k.conrelid where contype <> 'n'
union all
select 'policy ' || name || '.' || polname, concat_ws(e'\\n', polcmd::text, polpermissive::text,
    (select string_agg(rolname, ' ' order by rolname) from pg_roles where oid = any(polroles)),
    pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
from pg_policy join relation r on r.oid = polrelid
union all
select 'function ' || name, concat_ws(e'\\n', pg_get_functiondef(oid),
    'rights ' || (select string_agg(a::text, ' ' order by a::text) from unnest(proacl) a),
    'comment ' || obj_description(oid, 'pg_proc'))
from function
union all
select 'trigger ' || name || '.' || tgname, pg_get_triggerdef(t.oid)
from pg_trigger t join relation r on r.oid = tgrelid where not tgisinternal
union all
select 'statistics ' || stxname, pg_get_statisticsobjdef(s.oid)
from pg_statistic_ext s join relation r on r.oid = stxrelid
"""


async def catalogue(sql: Sql) -> dict[str, str]:
    """The definition of every object in our schemas, by its kind and name."""
    return {row["object"]: row["definition"] for row in await sql.fetch(_OBJECTS)}


def differences(migrated: dict[str, str], made: dict[str, str]) -> str:
    """Each object that isn't the same in both, with the lines that differ; '' if there is none."""
    told = []
    for name in sorted(migrated.keys() | made.keys()):
        if name not in made:
            told.append(f"only after the migration: {name}\n{migrated[name]}")
        elif name not in migrated:
            told.append(f"only in schema.sql: {name}\n{made[name]}")
        elif migrated[name] != made[name]:
            lines = unified_diff(migrated[name].splitlines(), made[name].splitlines(), "migrated", "schema.sql", n=1)
            told.append("\n".join([f"different: {name}", *(line.rstrip("\n") for line in lines)]))
    return "\n\n".join(told)


_COLUMNS = """
select c.oid::regclass::text as relation, array_agg(format('%I', attname) order by attname) as columns
from pg_class c join pg_attribute on attrelid = c.oid and attnum > 0 and not attisdropped
where relnamespace in ('letta'::regnamespace, 'letta_store'::regnamespace) and relkind in ('r', 'p', 'v')
    and not relispartition and c.oid <> 'letta_store.schema_version'::regclass
    and (c.relname, attname) <> ('freshness', 'was')  -- only counts within the transaction that wrote it
    and attname not in ('indexed_at', 'seen_at', 'updated_at', 'first_seen', 'next_attempt_at', 'wanted_since',
        'applied_at')
group by c.oid order by 1
"""


async def rows(sql: Sql) -> dict[str, list[str]]:
    """All rows of every table and view of ours, as text and in order, but for the times at which we wrote them."""
    found = {}
    for relation, columns in await sql.fetch(_COLUMNS):
        found[relation] = [
            row[0] for row in await sql.fetch(f"select row({', '.join(columns)})::text from {relation} order by 1")
        ]
    return found


def changed(before: list[str], after: list[str]) -> str:
    """The first row that is different, as it is in the one and in the other; '' if none is."""
    pairs = zip_longest(before, after, fillvalue="nothing")
    return next((f"{one}\nbut there is\n{other}" for one, other in pairs if one != other), "")
