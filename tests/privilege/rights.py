"""What a role may do beyond reading, by PostgreSQL's own word: asked of the catalogue, so nothing new is left out."""

from __future__ import annotations

from tests.indexing import Sql

SCHEMAS = ("letta", "letta_store")

# Each gives a sentence for every right too many that the role $1 has. ``relations`` are all of the two schemas.
RELATIONS = """
    with relations as (
        select c.*, c.oid::regclass as name from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('letta', 'letta_store')
    ), functions as (
        select f.*, f.oid::regprocedure as name, n.nspname from pg_proc f join pg_namespace n on n.oid = f.pronamespace
        where n.nspname in ('letta', 'letta_store')
    )
"""
EXCESS = {
    "schemas": """
        select format('%s on schema %s', p, n.nspname) from pg_namespace n, unnest(array['CREATE', 'USAGE']) p
        where n.nspname in ('letta', 'letta_store') and has_schema_privilege($1, n.oid, p)
            and (p, n.nspname) <> ('USAGE', 'letta')
    """,
    "the database": """
        select format('CREATE on %s', current_database()) where has_database_privilege($1, current_database(), 'CREATE')
    """,
    "relations": """
        select format('%s on %s', p, c.name) from relations c,
            unnest(array['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
        where c.relkind in ('r', 'p', 'v', 'm', 'f') and has_table_privilege($1, c.oid, p)
    """,
    "columns": """
        select format('%s on a column of %s', p, c.name) from relations c,
            unnest(array['INSERT', 'UPDATE', 'REFERENCES']) p
        where c.relkind in ('r', 'p', 'v', 'm', 'f') and has_any_column_privilege($1, c.oid, p)
    """,
    "sequences": """
        select format('%s on %s', p, c.name) from relations c, unnest(array['USAGE', 'SELECT', 'UPDATE']) p
        where c.relkind = 'S' and has_sequence_privilege($1, c.oid, p)
    """,
    "functions that change something": """
        select format('EXECUTE on %s', f.name) from functions f
        where f.nspname = 'letta' and f.provolatile = 'v' and has_function_privilege($1, f.oid, 'EXECUTE')
    """,
    "functions with another's rights": """
        select format('%s is security definer', f.name) from functions f where f.prosecdef and $1 <> ''
    """,
    "views with another's rights": """
        select format('%s is not security_invoker', c.name) from relations c
        where c.relkind in ('v', 'm') and has_any_column_privilege($1, c.oid, 'SELECT')
            and not coalesce('security_invoker=true' = any (c.reloptions), false)
    """,
    "rows without a policy": """
        select format('%s can be read without a policy', c.name) from relations c
        where c.relkind in ('r', 'p', 'm', 'f') and has_any_column_privilege($1, c.oid, 'SELECT')
            and not c.relrowsecurity
    """,
    "policies for everybody or for writing": """
        select format('policy %s on %s', p.polname, p.polrelid::regclass) from pg_policy p
        where (p.polcmd <> 'r' or 0 = any (p.polroles)) and $1 <> ''
    """,
    "rights of everybody": """
        select format('%s on %s to PUBLIC', a.privilege_type, what) from (
            select c.name::text as what, c.relacl as acl from relations c
            union all select c.name || '.' || attname, attacl from pg_attribute join relations c on c.oid = attrelid
            union all select nspname, nspacl from pg_namespace where nspname in ('letta', 'letta_store')
        ) granted, aclexplode(acl) a where a.grantee = 0 and $1 <> ''
    """,
    "rights to hand on": """
        select format('%s on %s with grant option', a.privilege_type, c.name) from relations c, aclexplode(c.relacl) a
        where a.is_grantable and a.grantee <> c.relowner and pg_has_role($1, a.grantee, 'USAGE')
    """,
    "more than a reader's role": """
        select format('is more than a reader: %s', $1) from pg_roles r where r.rolname = $1
            and (r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolbypassrls or r.rolreplication)
    """,
    "other roles": """
        select format('may become %s', r.rolname) from pg_roles r
        where pg_has_role($1, r.oid, 'MEMBER') and r.rolname not in ($1, 'letta_reader')
    """,
    "readers to admit": """
        select 'may admit others to letta_reader'
        where pg_has_role($1, 'letta_reader', 'MEMBER WITH ADMIN OPTION') and $1 <> 'letta_reader'
    """,
}

# Every thing of the two schemas, with what may be done with it.
OBJECTS = """
    select c.relkind::text as kind, n.nspname as schema, format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('letta', 'letta_store') and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    union all
    select 'function', n.nspname, format('%I.%I(%s)', n.nspname, f.proname,
        (select string_agg(format('null::%s', format_type(t, null)), ', ') from unnest(f.proargtypes::oid[]) t))
    from pg_proc f join pg_namespace n on n.oid = f.pronamespace where n.nspname in ('letta', 'letta_store')
        and f.prokind = 'f' and f.prorettype <> 'trigger'::regtype
    order by 1, 2, 3
"""


async def excess(sql: Sql, role: str) -> list[str]:
    """The rights that ``role`` has and who may only read must not have; ``sql`` is a superuser's or the owner's."""
    found = []
    for kind, query in EXCESS.items():
        rows = await sql.fetch(RELATIONS + query.replace("$1", "$1::name"), role)
        found += [f"{kind}: {row[0]}" for row in rows]
    return found


async def attempts(sql: Sql) -> list[str]:
    """Statements that must fail for who may only read: on every relation, sequence and function that there is."""
    found = []
    for row in await sql.fetch(OBJECTS):
        kind, schema, name = row["kind"], row["schema"], row["name"]
        if kind == "function":
            found.append(f"select {name}")
        elif kind == "S":
            found += [f"select nextval('{name}')", f"select setval('{name}', 1)", f"select * from {name}"]
        else:
            sort = {"v": "view", "m": "materialized view"}.get(kind, "table")
            found += [f"insert into {name} default values", f"delete from {name}", f"lock table {name} in share mode"]
            found += [f"drop {sort} {name} cascade", f"comment on {sort} {name} is 'x'"]
            found += [f"truncate {name}"] if sort == "table" else []
            found += [f"select * from {name}"] if schema == "letta_store" else []
    return found + [one.format(schema=schema) for schema in SCHEMAS for one in CREATIONS] + list(OTHERWISE)


CREATIONS = (
    "create table {schema}.mine ()",
    "create view {schema}.mine as select 1",
    "create function {schema}.mine() returns integer language sql return 1",
    "create type {schema}.mine as (a integer)",
    "create sequence {schema}.mine",
    "drop schema {schema} cascade",
    "alter schema {schema} rename to mine",
)
OTHERWISE = (
    "create schema mine",
    "create table public.mine ()",
    "create publication mine for all tables",
    "alter role letta_reader superuser",
    "alter role letta_reader set search_path = pg_temp",
    "create role mine",
    "create policy mine on letta_store.conversation using (true)",
    "alter table letta_store.conversation disable row level security",
    "copy letta.record to program 'cat'",
    "select pg_read_file('PG_VERSION')",
    "select * from pg_statistic",
    "select * from pg_authid",
    "set session_replication_role = replica",
    "update letta.record set rev = ''",
    "update letta.agent set did = ''",
)
